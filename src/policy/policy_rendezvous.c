/*
 * rendezvous_hash: the candidate with the highest H("<key>:<id>"), H as in ring.h (vLLM
 * router). When a worker leaves, only its own keys move. Equal scores: the greater id.
 * The keys are the vLLM router's; without one, the least loaded.
 */
#include "policy/policy.h"

#include "base/ring.h"

#define ID_MAX 1024 /* of a longer one, its beginning */

struct text {
	char bytes[ROUTING_TEXT_MAX + 1 + ID_MAX];
	size_t key_len;
};

static uint64_t score(struct text *t, struct span id)
{
	size_t n = MIN(id.n, (size_t)ID_MAX);

	memcpy(t->bytes + t->key_len, id.p, n);
	return ring_hash(span_make(t->bytes, t->key_len + n));
}

static unsigned highest(const struct pick_input *in)
{
	struct text text;
	uint64_t best = 0;
	unsigned i, index = 0;

	memcpy(text.bytes, in->routing->text, in->routing->text_len);
	text.bytes[in->routing->text_len] = ':';
	text.key_len = in->routing->text_len + 1;
	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];
		uint64_t h = score(&text, c->id);

		c->score = (double)h / 18446744073709551616.0;
		if (i == 0 || h > best ||
			(h == best && span_order(c->id, in->candidates[index].id) > 0)) {
			best = h;
			index = i;
		}
	}
	return index;
}

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	if (in->routing == NULL || in->routing->any.from == ROUTING_NONE) {
		policy_by_load(in, out);
		return;
	}
	*out = (struct pick_decision){highest(in), PICK_AFFINITY_KEY, false};
}

const struct policy_ops policy_rendezvous_hash = {
	.wants = POLICY_WANTS_KEY, .pick = pick};
