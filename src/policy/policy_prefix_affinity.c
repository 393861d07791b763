/*
 * prefix_affinity: a session has a home, in the order that rendezvous hashing (HRW) gives
 * to its key and the workers' stable ids: several routers agree, the order of the file
 * does not matter, and of a worker that leaves only its own sessions move. The first in
 * that order whose requests in flight are not too many takes it (SGLang pull request
 * 31170). Load is active requests, never what is resident: a long conversation must not
 * make its own home look full.
 */
#include "policy/policy.h"

#include "base/hash.h"

/*
 * max_load_skew x max(mean, 1) over the candidates, once for the decision. One of them
 * always passes: the least loaded is no more than the mean, and the skew is at least 1
 * (sums and quotients of whole numbers are rounded in order). So a single one passes too.
 */
static double threshold(const struct pick_input *in)
{
	double sum = 0;
	unsigned i;

	for (i = 0; i < in->n; i++)
		sum += in->candidates[i].load;
	return in->opts->max_load_skew * MAX(sum / in->n, 1.0);
}

/* a stands before b. Equal weights are next to impossible; names then decide. */
static bool is_before(const struct candidate *a, uint64_t weight_a,
	const struct candidate *b, uint64_t weight_b)
{
	if (weight_a != weight_b)
		return weight_a > weight_b;
	return span_order(a->id, b->id) < 0;
}

/* The first in HRW order, and the first that is not overloaded. */
static void walk(const struct pick_input *in, uint64_t key, const struct candidate **home,
	const struct candidate **first)
{
	double most = threshold(in);
	uint64_t home_weight = 0, first_weight = 0;
	unsigned i;

	*home = *first = NULL;
	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];
		uint64_t weight = hash_mix64(c->id_hash, key);

		c->score = (double)weight / 18446744073709551616.0;
		c->is_overloaded = c->load > most;
		if (*home == NULL || is_before(c, weight, *home, home_weight)) {
			*home = c;
			home_weight = weight;
		}
		if (!c->is_overloaded &&
			(*first == NULL || is_before(c, weight, *first, first_weight))) {
			*first = c;
			first_weight = weight;
		}
	}
}

static bool has_session(const struct pick_input *in)
{
	return in->routing != NULL && in->routing->session.from != ROUTING_NONE;
}

static bool is_keyed(const struct pick_input *in)
{
	return has_session(in) || in->has_prefix;
}

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	bool by_session = has_session(in);
	const struct candidate *home, *first;

	if (!is_keyed(in)) {
		policy_ops(in->opts->affinity_fallback)->pick(in, out);
		return;
	}
	walk(in, by_session ? in->routing->session_hash : in->prefix, &home, &first);
	assert(first != NULL);
	*out = (struct pick_decision){(unsigned)(first - in->candidates),
		first != home ? PICK_AFFINITY_SKEW
		: by_session  ? PICK_AFFINITY_KEY
			      : PICK_AFFINITY_PREFIX,
		false};
}

/* The fallback's: what goes by session is told to the index as well. */
static bool needs_index(const struct policy_opts *o)
{
	struct policy_opts fallback = *o;

	fallback.policy = o->affinity_fallback;
	return policy_needs_index(&fallback);
}

static void on_pick(const struct pick_input *in, const struct pick_decision *d)
{
	const struct policy_ops *fallback = policy_ops(in->opts->affinity_fallback);

	if (!is_keyed(in) && fallback->on_pick != NULL)
		fallback->on_pick(in, d);
}

const struct policy_ops policy_prefix_affinity = {
	.wants = POLICY_WANTS_SESSION | POLICY_WANTS_PREFIX,
	.needs_index = needs_index,
	.pick = pick,
	.on_pick = on_pick,
};
