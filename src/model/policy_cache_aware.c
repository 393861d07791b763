/*
 * cache_aware: a signal (how much of this prompt a worker holds) and a cost (what its
 * load makes of that), two small tables. The overload check judges one worker, for one
 * request: the holder that this request wants. A hot worker elsewhere costs it nothing
 * (vLLM router pull request 238).
 */
#include "model/policy.h"

/* signal = longest_prefix: the contiguous depth from the first block, as a fraction of
 * the prompt. */
static double longest_prefix(const struct candidate *c, uint32_t blocks)
{
	return blocks == 0 ? 0 : (double)c->depth / blocks;
}

typedef double signal_fn(const struct candidate *c, uint32_t blocks);
static signal_fn *const signals[] = {[SIGNAL_LONGEST_PREFIX] = longest_prefix};
static_assert(ARRAY_LEN(signals) == SIGNAL_KIND_MAX, "a function for each signal");

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

static void overload_check(const struct pick_input *in, struct pick_decision *out)
{
	unsigned i, least = min_load(in);
	int preferred, chosen;

	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

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
		out->reason = in->hashes_sent && in->blocks == 0 ? PICK_HASHES_SENT
								 : PICK_NO_MATCH;
}

typedef void cost_fn(const struct pick_input *in, struct pick_decision *out);
static cost_fn *const costs[] = {[COST_OVERLOAD_CHECK] = overload_check};
static_assert(ARRAY_LEN(costs) == COST_KIND_MAX, "a function for each cost");

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	unsigned i;

	for (i = 0; i < in->n; i++)
		in->candidates[i].fraction =
			signals[in->opts->signal](&in->candidates[i], in->blocks);
	costs[in->opts->cost](in, out);
}

const struct policy_ops policy_cache_aware = {
	.name = "cache_aware", .needs_index = true, .pick = pick};
