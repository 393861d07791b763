/*
 * cost = overload_check: judges one worker, for one request: the holder that this request
 * wants. A hot worker elsewhere costs it nothing (vLLM router pull request 238).
 */
#include "policy/policy_cost.h"

static unsigned min_load(const struct pick_input *in)
{
	unsigned i, least = in->candidates[0].load;

	for (i = 1; i < in->n; i++)
		least = MIN(least, in->candidates[i].load);
	return least;
}

/* Both thresholds, strictly; `least` is over all candidates, this one included. */
static bool is_overloaded(const struct policy_opts *o, unsigned load, unsigned least)
{
	return load - least > o->balance_abs_threshold &&
	       load > least * o->balance_rel_threshold;
}

/* The better holder: deeper, then less loaded, then rotating, then file order (a comes
 * after b there). */
static bool is_better_holder(const struct candidate *a, const struct candidate *b)
{
	if (a->depth != b->depth)
		return a->depth > b->depth;
	if (a->load != b->load)
		return a->load < b->load;
	return a->last_picked < b->last_picked;
}

static bool is_holder(const struct pick_input *in, const struct candidate *c)
{
	return c->fraction > in->opts->cache_threshold;
}

/* The best holder, of all or of those not overloaded; -1: none. */
static int best_holder(const struct pick_input *in, bool with_overloaded)
{
	unsigned i;
	int best = -1;

	for (i = 0; i < in->n; i++) {
		const struct candidate *c = &in->candidates[i];

		if (!is_holder(in, c) || (c->is_overloaded && !with_overloaded))
			continue;
		if (best < 0 || is_better_holder(c, &in->candidates[best]))
			best = (int)i;
	}
	return best;
}

void cost_overload_check(const struct pick_input *in, struct pick_decision *out)
{
	unsigned i, least = min_load(in);
	int preferred, chosen;

	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

		candidate_term(c, TERM_FRACTION, c->fraction);
		c->is_overloaded = is_overloaded(in->opts, c->load, least);
		c->score = is_holder(in, c) && !c->is_overloaded ? c->fraction : 0;
	}
	preferred = best_holder(in, true);
	chosen = best_holder(in, false);
	if (chosen >= 0) {
		*out = (struct pick_decision){(unsigned)chosen,
			chosen == preferred ? PICK_PREFIX_HIT : PICK_PREFIX_NEXT, false};
		return;
	}
	*out = (struct pick_decision){
		policy_least_loaded(in, preferred < 0), PICK_OVERLOAD_SHED, true};
	if (preferred < 0)
		out->reason = cost_reason_without_holder(in);
}
