/*
 * Updates the states of a pool's policies when workers and options change. See
 * pool_state.h.
 */
#include "pool/pool_state.h"

#include "worker/worker.h"

#include <stdlib.h>

/* The workers of a role by their stable ids, which live as long as they are there. */
static size_t list_ids(const struct pool *p, enum role role, struct span *ids)
{
	size_t i, n = 0;

	for (i = 0; i < p->registry.n; i++) {
		if (p->registry.items[i]->role == role)
			ids[n++] = span_str(p->registry.items[i]->stable_id);
	}
	return n;
}

static void refresh_state(struct pool *p, enum role role, struct span *ids)
{
	struct pool_role *r = &p->roles[role];
	struct policy_fleet fleet = {ids, list_ids(p, role, ids), 0};
	struct policy_state made;

	rng_secret(&fleet.seed, sizeof(fleet.seed));
	r->is_state_stale = !policy_state_make(&r->policy, &r->state, &fleet, &made);
	pool_lock(p);
	policy_state_swap(&r->policy, &r->state, &made);
	pool_unlock(p);
	policy_state_free(&made);
}

/*
 * After the options or the workers changed. Outside the lock: a ring takes its time, and
 * this thread alone changes options and registry. Until the swap an old ring serves,
 * whose missing workers are no candidates.
 */
void pool_refresh_policies(struct pool *p)
{
	struct span *ids = calloc(p->registry.n + 1, sizeof(*ids));
	enum role r;

	for (r = 0; r < ROLE_MAX; r++) {
		p->roles[r].is_state_stale = ids == NULL;
		if (ids != NULL)
			refresh_state(p, r, ids);
	}
	free(ids);
}

/* Where memory was short, again. */
void pool_retry_policies(struct pool *p)
{
	enum role r;

	for (r = 0; r < ROLE_MAX; r++) {
		if (p->roles[r].is_state_stale) {
			pool_refresh_policies(p);
			return;
		}
	}
}

bool pool_finish_session(struct pool *p, struct span session)
{
	uint64_t hash = routing_session_hash(session);
	bool was_known = false;
	enum role r;

	pool_lock(p);
	for (r = 0; r < ROLE_MAX; r++)
		was_known |= policy_state_finish(&p->roles[r].state, hash);
	pool_unlock(p);
	return was_known;
}
