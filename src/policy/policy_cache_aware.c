/*
 * cache_aware: a signal (how much of this prompt a worker holds) and a cost (what its
 * load makes of that), two small tables, freely combined. The costs are in
 * policy_cost*.c.
 */
#include "policy/policy_cost.h"

/* The contiguous depth from the first block, as a fraction of the prompt. */
static double longest_prefix(const struct candidate *c, uint32_t blocks)
{
	return blocks == 0 ? 0 : (double)c->depth / blocks;
}

/* All or nothing: a worker that holds the first block counts as holding the prompt. */
static double first_block(const struct candidate *c, uint32_t blocks)
{
	return blocks > 0 && c->depth > 0 ? 1 : 0;
}

static double no_signal(const struct candidate *c, uint32_t blocks)
{
	(void)c;
	(void)blocks;
	return 0;
}

typedef double signal_fn(const struct candidate *c, uint32_t blocks);
static signal_fn *const signals[] = {
	[SIGNAL_LONGEST_PREFIX] = longest_prefix,
	[SIGNAL_FIRST_BLOCK] = first_block,
	[SIGNAL_NONE] = no_signal,
};
static_assert(ARRAY_LEN(signals) == SIGNAL_KIND_MAX, "a function for each signal");

static cost_fn *const costs[] = {
	[COST_OVERLOAD_CHECK] = cost_overload_check,
	[COST_RELATIVE_LOAD] = cost_relative_load,
	[COST_FREE_CAPACITY] = cost_free_capacity,
	[COST_PREFILL] = cost_prefill,
};
static_assert(ARRAY_LEN(costs) == COST_KIND_MAX, "a function for each cost");

static bool needs_index(const struct policy_opts *o)
{
	return o->signal != SIGNAL_NONE;
}

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	unsigned i;

	for (i = 0; i < in->n; i++)
		in->candidates[i].fraction =
			signals[in->opts->signal](&in->candidates[i], in->blocks);
	costs[in->opts->cost](in, out);
}

const struct policy_ops policy_cache_aware = {.needs_index = needs_index, .pick = pick};
