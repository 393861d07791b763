/*
 * consistent_hash: the vLLM router's ring (ring.h). The key's point belongs to the first
 * worker at or after it; where that one is no candidate, to the next one on the ring, so
 * that its keys spread over the others. The ring is of all workers of the role, whatever
 * their health: it changes when workers come and go, nothing else. Without a key there is
 * nothing to be consistent with: the least loaded.
 */
#include "policy/policy.h"

#include "base/ring.h"

static bool find_candidate(const struct pick_input *in, uint64_t id_hash, unsigned *index)
{
	unsigned i;

	for (i = 0; i < in->n; i++) {
		if (in->candidates[i].id_hash == id_hash) {
			*index = i;
			return true;
		}
	}
	return false;
}

/* False: no candidate is on the ring yet. */
static bool follow_ring(
	const struct pick_input *in, const struct ring *ring, unsigned *index)
{
	size_t n = ring_points(ring), at, i;

	if (n == 0)
		return false;
	at = ring_first(ring, in->routing->point);
	for (i = 0; i < n; i++) {
		if (find_candidate(in, ring_owner(ring, (at + i) % n), index))
			return true;
	}
	return false;
}

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	const struct ring *ring = in->states[POLICY_CONSISTENT_HASH];
	unsigned index;

	if (ring == NULL || in->routing == NULL ||
		in->routing->any.from == ROUTING_NONE || !follow_ring(in, ring, &index)) {
		policy_by_load(in, out);
		return;
	}
	in->candidates[index].score = 1;
	*out = (struct pick_decision){index, PICK_AFFINITY_KEY, false};
}

static void *state_new(const struct policy_fleet *fleet)
{
	return ring_new(fleet->ids, fleet->n);
}

static void state_free(void *state)
{
	ring_free(state);
}

const struct policy_ops policy_consistent_hash = {
	.wants = POLICY_WANTS_KEY,
	.pick = pick,
	.is_of_fleet = true,
	.state_new = state_new,
	.state_free = state_free,
};
