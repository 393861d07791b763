/*
 * Signals and costs of cache_aware as pure functions: the load pairs of origin systems
 * C2 and C3 for each cost, each term by hand, reasons that are true, and properties over
 * random fleets for every combination.
 */
#include "base/rng.h"
#include "policy/policy.h"
#include "tests/unit/unit_model.h"
#include "worker/decay.h"

#include <math.h>

#define FLEET_MAX 6
#define PROMPT 100 /* blocks */

static struct rng rng;

static const struct policy_opts defaults = {
	.policy = POLICY_CACHE_AWARE,
	.signal = SIGNAL_LONGEST_PREFIX,
	.cost = COST_OVERLOAD_CHECK,
	.cache_threshold = 0.3,
	.balance_abs_threshold = 32,
	.balance_rel_threshold = 1.5,
	.beta = 1,
	.alpha = 0.5,
	.decode_weight = 1,
};

static bool is_near(double a, double b)
{
	return fabs(a - b) < 1e-5;
}

static void decide(const struct policy_opts *o, struct candidate *c, unsigned n,
	uint32_t blocks, struct pick_decision *d)
{
	struct pick_input in = {.opts = o,
		.candidates = c,
		.n = n,
		.blocks = blocks,
		.size_blocks = blocks,
		.rng = &rng};

	policy_pick(&in, d);
}

/* ---- C2, C3: two replicas, one with the full prefix ---- */

/* The loads of the holder and of the other; where the request goes, and both scores,
 * computed by hand. Loads count as the cost reads them: `work` blocks queued for each
 * request, or a stream each where it is 0. */
struct pair_row {
	const char *what;
	struct policy_opts opts;
	unsigned work;
	uint32_t prompt;
	struct {
		unsigned holder, other, chosen;
		double holder_score, other_score;
	} pairs[5];
};

#define WITH(...)                                                              \
	{                                                                      \
		.policy = POLICY_CACHE_AWARE, .signal = SIGNAL_LONGEST_PREFIX, \
		__VA_ARGS__                                                    \
	}

static const struct pair_row pair_rows[] = {
	/* affinity at each of them: 20 - 10 is not over 32 */
	{"overload_check 32 1.5",
		WITH(.cost = COST_OVERLOAD_CHECK, .cache_threshold = 0.3,
			.balance_abs_threshold = 32, .balance_rel_threshold = 1.5),
		0, PROMPT,
		{{32, 32, 0, 1, 0}, {20, 10, 0, 1, 0}, {8, 2, 0, 1, 0}, {4, 0, 0, 1, 0},
			{0, 0, 0, 1, 0}}},
	/* 20 > 10 x 1.5 and 20 - 10 > 8; 8 - 2 is not */
	{"overload_check 8 1.5",
		WITH(.cost = COST_OVERLOAD_CHECK, .cache_threshold = 0.3,
			.balance_abs_threshold = 8, .balance_rel_threshold = 1.5),
		0, PROMPT,
		{{32, 32, 0, 1, 0}, {20, 10, 1, 0, 0}, {8, 2, 0, 1, 0}, {4, 0, 0, 1, 0},
			{0, 0, 0, 1, 0}}},
	/* means 32, 15, 5, 2, 0: 1 - 5/15 and 5/15; 1 - 3/5 and 3/5; 1 - 2/2 and 2/2 */
	{"relative_load beta 1", WITH(.cost = COST_RELATIVE_LOAD, .beta = 1), 0, PROMPT,
		{{32, 32, 0, 1, 0}, {20, 10, 0, 2 / 3.0, 1 / 3.0}, {8, 2, 1, 0.4, 0.6},
			{4, 0, 1, 0, 1}, {0, 0, 0, 1, 0}}},
	/* 1 - 1/6 and 1/6; 1 - 0.3 and 0.3; 1 - 0.5 and 0.5: equal, so the holder */
	{"relative_load beta 0.5", WITH(.cost = COST_RELATIVE_LOAD, .beta = 0.5), 0,
		PROMPT,
		{{32, 32, 0, 1, 0}, {20, 10, 0, 5 / 6.0, 1 / 6.0}, {8, 2, 0, 0.7, 0.3},
			{4, 0, 0, 0.5, 0.5}, {0, 0, 0, 1, 0}}},
	/* of 64 slots: 32/64, 44/64 and 54/64, 56/64 and 62/64, 60/64 and 1 */
	{"free_capacity alpha 0.5", WITH(.cost = COST_FREE_CAPACITY, .alpha = 0.5), 0,
		PROMPT,
		{{32, 32, 0, 0.75, 0.25}, {20, 10, 0, 0.84375, 0.421875},
			{8, 2, 0, 0.9375, 0.484375}, {4, 0, 0, 0.96875, 0.5},
			{0, 0, 0, 1, 0.5}}},
	{"free_capacity alpha 0.05", WITH(.cost = COST_FREE_CAPACITY, .alpha = 0.05), 0,
		PROMPT,
		{{32, 32, 0, 0.525, 0.475}, {20, 10, 1, 0.703125, 0.8015625},
			{8, 2, 1, 0.88125, 0.9203125}, {4, 0, 1, 0.940625, 0.95},
			{0, 0, 0, 1, 0.95}}},
	/* Two hundred blocks wait for each; the prompt's hundred count 3 times and once
	   more for each that waits at the least: 32, 10, 2, 0, 0 */
	{"prefill_cost of long queues", WITH(.cost = COST_PREFILL, .decode_weight = 1),
		200, PROMPT,
		{{32, 32, 0, -6400, -9900}, {20, 10, 1, -4000, -3300},
			{8, 2, 1, -1600, -900}, {4, 0, 1, -800, -300},
			{0, 0, 0, 0, -300}}},
	{"prefill_cost of short queues", WITH(.cost = COST_PREFILL, .decode_weight = 1),
		31, PROMPT,
		{{32, 32, 0, -992, -4492}, {20, 10, 0, -620, -1610},
			{8, 2, 0, -248, -562}, {4, 0, 0, -124, -300},
			{0, 0, 0, 0, -300}}},
	/* 2600 and 1300 + 1300, equal: the holder, who computes nothing */
	{"prefill_cost at the same cost", WITH(.cost = COST_PREFILL, .decode_weight = 1),
		130, PROMPT,
		{{32, 32, 0, -4160, -7660}, {20, 10, 0, -2600, -2600},
			{8, 2, 1, -1040, -760}, {4, 0, 1, -520, -300},
			{0, 0, 0, 0, -300}}},
	{"prefill_cost of streams", WITH(.cost = COST_PREFILL, .decode_weight = 1), 0,
		PROMPT,
		{{32, 32, 0, -32, -332}, {20, 10, 0, -20, -310}, {8, 2, 0, -8, -302},
			{4, 0, 0, -4, -300}, {0, 0, 0, 0, -300}}},
	/* a prompt of two blocks is soon computed anywhere; 8 and 2 + 6 are equal */
	{"prefill_cost of a short prompt", WITH(.cost = COST_PREFILL, .decode_weight = 1),
		0, 2,
		{{32, 32, 0, -32, -38}, {20, 10, 1, -20, -16}, {8, 2, 0, -8, -8},
			{4, 0, 0, -4, -6}, {0, 0, 0, 0, -6}}},
	{"prefill_cost decode_weight 45", WITH(.cost = COST_PREFILL, .decode_weight = 45),
		0, PROMPT,
		{{32, 32, 0, -1440, -1740}, {20, 10, 1, -900, -750},
			{8, 2, 0, -360, -390}, {4, 0, 0, -180, -300},
			{0, 0, 0, 0, -300}}},
};

static struct candidate replica(const struct pair_row *row, uint32_t depth, unsigned load)
{
	return (struct candidate){
		.depth = depth,
		.load = load,
		.queued = (uint64_t)load * row->work,
		.streams = row->work > 0 ? 0 : load,
		.max_requests = 64,
	};
}

START_TEST(c2_c3_load_pairs)
{
	const struct pair_row *row = &pair_rows[_i / 2];
	/* The holder is the first or the last, and was picked last. */
	unsigned holder = (unsigned)_i % 2, other = 1 - holder;

	for (size_t k = 0; k < ARRAY_LEN(row->pairs); k++) {
		unsigned wanted = row->pairs[k].chosen == 0 ? holder : other;
		struct candidate c[2];
		struct pick_decision d;

		c[holder] = replica(row, row->prompt, row->pairs[k].holder);
		c[other] = replica(row, 0, row->pairs[k].other);
		c[holder].last_picked = 9;
		decide(&row->opts, c, 2, row->prompt, &d);
		ck_assert_msg(is_near(c[holder].score, row->pairs[k].holder_score) &&
				      is_near(c[other].score, row->pairs[k].other_score),
			"%s (%u, %u): %g %g", row->what, row->pairs[k].holder,
			row->pairs[k].other, c[holder].score, c[other].score);
		ck_assert_msg(d.index == wanted, "%s (%u, %u)", row->what,
			row->pairs[k].holder, row->pairs[k].other);
		ck_assert_int_eq(d.reason,
			wanted == holder ? PICK_PREFIX_HIT : PICK_OVERLOAD_SHED);
		ck_assert_int_eq(d.is_cold, wanted != holder);
	}
}
END_TEST

/* ---- A1: the pinned cases, for the costs that are no thresholds ---- */

/* One worker is hot, the request's own is idle: no cost takes its affinity away. */
START_TEST(a1_an_unrelated_hot_worker)
{
	for (int cost = 0; cost < COST_KIND_MAX; cost++) {
		struct policy_opts o = defaults;
		struct candidate c[4] = {
			{.depth = 0, .load = 60, .queued = 900, .streams = 30},
			{.depth = 0},
			{.depth = 90, .last_picked = 99},
			{.depth = 0},
		};
		struct pick_decision d;

		o.cost = (enum cost_kind)cost;
		decide(&o, c, 4, PROMPT, &d);
		ck_assert_uint_eq(d.index, 2);
		ck_assert_int_eq(d.reason, PICK_PREFIX_HIT);
	}
}
END_TEST

/* It is the hot one itself: the next holder, and without one anybody else. */
START_TEST(a1_the_hot_one_is_its_own)
{
	for (int cost = 0; cost < COST_KIND_MAX; cost++) {
		struct policy_opts o = defaults;
		struct candidate c[3] = {
			{.depth = 90, .load = 200, .queued = 9000},
			{.depth = 0, .load = 1, .last_picked = 1},
			{.depth = 80, .load = 1},
		};
		struct pick_decision d;

		o.cost = (enum cost_kind)cost;
		o.alpha = 0.4;
		decide(&o, c, 3, PROMPT, &d);
		ck_assert_msg(d.index == 2, "cost %d: w%u", cost, d.index);
		ck_assert_int_eq(d.reason, PICK_PREFIX_NEXT);
		c[2].depth = 0;
		c[2].load = 2;
		memset(c[2].terms, 0, sizeof(c[2].terms));
		decide(&o, c, 3, PROMPT, &d);
		ck_assert_msg(d.index == 1, "cost %d: w%u", cost, d.index);
		ck_assert_int_eq(d.reason, PICK_OVERLOAD_SHED);
	}
}
END_TEST

/* ---- signals ---- */

START_TEST(first_block_is_all_or_nothing)
{
	struct policy_opts o = defaults;
	struct candidate c[3] = {
		{.depth = 0}, {.depth = 1, .load = 1}, {.depth = 99, .load = 2}};
	struct pick_decision d;

	o.signal = SIGNAL_FIRST_BLOCK;
	decide(&o, c, 3, PROMPT, &d);
	ck_assert_double_eq(c[0].fraction, 0);
	ck_assert_double_eq(c[1].fraction, 1);
	ck_assert_double_eq(c[2].fraction, 1);
	/* Holders are told apart by depth under overload_check, by load elsewhere. */
	ck_assert_uint_eq(d.index, 2);
	ck_assert_int_eq(d.reason, PICK_PREFIX_HIT);
	for (int cost = COST_RELATIVE_LOAD; cost < COST_KIND_MAX; cost++) {
		o.cost = (enum cost_kind)cost;
		o.beta = 0.1;
		memset(c[0].terms, 0, sizeof(c[0].terms));
		memset(c[1].terms, 0, sizeof(c[1].terms));
		memset(c[2].terms, 0, sizeof(c[2].terms));
		decide(&o, c, 3, PROMPT, &d);
		ck_assert_uint_eq(d.index, 1);
		ck_assert_int_eq(d.reason, PICK_PREFIX_HIT);
	}
}
END_TEST

START_TEST(none_follows_no_prefix)
{
	for (int cost = 0; cost < COST_KIND_MAX; cost++) {
		struct policy_opts o = defaults;
		struct candidate c[3] = {{.depth = 100, .load = 1, .queued = 4},
			{.depth = 50, .load = 1, .queued = 4}, {.depth = 0}};
		struct pick_decision d;

		o.signal = SIGNAL_NONE;
		o.cost = (enum cost_kind)cost;
		decide(&o, c, 3, PROMPT, &d);
		ck_assert_uint_eq(d.index, 2);
		ck_assert_int_eq(d.reason, PICK_POLICY_ORDER);
		ck_assert(d.is_cold);
		ck_assert(!policy_needs_index(&o));
	}
	for (int signal = 0; signal < SIGNAL_NONE; signal++)
		ck_assert(policy_needs_index(
			&(struct policy_opts){.policy = POLICY_CACHE_AWARE,
				.signal = (enum signal_kind)signal}));
}
END_TEST

/* ---- terms ---- */

/* The only holder of a prompt that everybody sends does not keep all of them. */
START_TEST(a_holder_without_a_free_slot_keeps_nothing)
{
	struct policy_opts o = defaults;
	struct candidate c[2] = {{.load = 256, .depth = PROMPT}, {.load = 200}};
	struct pick_decision d;

	o.cost = COST_FREE_CAPACITY;
	decide(&o, c, 2, PROMPT, &d);
	ck_assert_double_eq(c[0].score, 0);
	ck_assert_uint_eq(d.index, 1);
	c[0].load = 255;
	decide(&o, c, 2, PROMPT, &d);
	ck_assert_uint_eq(d.index, 0);
}
END_TEST

START_TEST(free_slots_without_a_cap)
{
	struct policy_opts o = defaults;
	struct candidate c[4] = {{.load = 64}, {.load = 64, .max_requests = 128},
		{.load = 300}, {.load = 9, .max_requests = 8}};
	struct pick_decision d;

	o.cost = COST_FREE_CAPACITY;
	decide(&o, c, 4, PROMPT, &d);
	ck_assert_double_eq(c[0].terms[TERM_FREE], 0.5 * 192 / 256);
	ck_assert_double_eq(c[1].terms[TERM_FREE], 0.5 * 64 / 128);
	ck_assert_double_eq(c[2].terms[TERM_FREE], 0);
	ck_assert_double_eq(c[3].terms[TERM_FREE], 0);
	ck_assert_uint_eq(d.index, 0);
	ck_assert_int_eq(d.reason, PICK_NO_MATCH);
}
END_TEST

/* A block that waits is in the memory too: it counts once. Computed of late: none, 340
 * and 260; the mean is 200, twice the prompt, so that what is above it counts 1.5 / 2.
 * One waits at the least: blocks of its own count four times. */
START_TEST(prefill_terms)
{
	struct policy_opts o = defaults;
	struct candidate c[3] = {
		{.depth = 60, .load = 5, .queued = 70, .streams = 2, .recent = 70},
		{.depth = 0, .load = 2, .queued = 10, .streams = 1, .recent = 350},
		{.depth = 100, .load = 1, .recent = 260},
	};
	struct pick_decision d;

	o.cost = COST_PREFILL;
	o.decode_weight = 1.5;
	decide(&o, c, 3, PROMPT, &d);
	ck_assert_double_eq(c[0].terms[TERM_UNCACHED], -160);
	ck_assert_double_eq(c[0].terms[TERM_QUEUED], -70);
	ck_assert_double_eq(c[0].terms[TERM_DECODE], -3);
	ck_assert_double_eq(c[0].terms[TERM_RECENT], 150);
	ck_assert_double_eq(c[0].score, -83);
	ck_assert_double_eq(c[1].terms[TERM_UNCACHED], -400);
	ck_assert_double_eq(c[1].terms[TERM_RECENT], -105);
	ck_assert_double_eq(c[2].terms[TERM_UNCACHED], 0);
	ck_assert(!signbit(c[2].terms[TERM_UNCACHED]));
	ck_assert_double_eq(c[2].terms[TERM_RECENT], -45);
	ck_assert_uint_eq(d.index, 2);
	ck_assert_int_eq(d.reason, PICK_PREFIX_HIT);
	ck_assert_uint_eq(c[0].has_terms, 1u << TERM_UNCACHED | 1u << TERM_QUEUED |
						  1u << TERM_DECODE | 1u << TERM_RECENT);
}
END_TEST

/* However much was computed, a newcomer is not flooded: it is preferred by half of what
 * the prompt costs, and no more. */
START_TEST(a_newcomer_is_not_flooded)
{
	for (double busy = 100; busy < 1e9; busy *= 10) {
		struct policy_opts o = defaults;
		struct candidate c[4] = {{.recent = busy}, {.recent = busy},
			{.recent = busy}, {.queued = 1}};
		struct pick_decision d;

		o.cost = COST_PREFILL;
		decide(&o, c, 4, PROMPT, &d);
		ck_assert_uint_eq(d.index, 3);
		ck_assert_double_le(c[3].terms[TERM_RECENT], 150);
		c[3].queued = 201;
		decide(&o, c, 4, PROMPT, &d);
		ck_assert_uint_ne(d.index, 3);
	}
}
END_TEST

/* Blocks of 2,048 bytes where the pool counts in 128: the size is the pool's. */
START_TEST(prefill_terms_of_large_blocks)
{
	struct policy_opts o = defaults;
	struct candidate c[2] = {{.depth = 5, .queued = 250}, {.depth = 0}};
	struct pick_input in = {.opts = &o,
		.candidates = c,
		.n = 2,
		.blocks = 10,
		.size_blocks = 160,
		.rng = &rng};
	struct pick_decision d;

	o.cost = COST_PREFILL;
	policy_pick(&in, &d);
	ck_assert_double_eq(c[0].terms[TERM_UNCACHED], -240);
	ck_assert_double_eq(c[1].terms[TERM_UNCACHED], -480);
	ck_assert_uint_eq(d.index, 1);
	/* Not matched at all, but long: it goes where least waits. */
	in.blocks = 0;
	in.hashes_sent = true;
	c[0] = (struct candidate){.queued = 3};
	c[1] = (struct candidate){.queued = 4};
	policy_pick(&in, &d);
	ck_assert_uint_eq(d.index, 0);
	ck_assert_int_eq(d.reason, PICK_HASHES_SENT);
}
END_TEST

START_TEST(memory_fades)
{
	struct decay d = {0};

	ck_assert_double_eq(decay_read(&d, 1000, 5), 0);
	decay_add(&d, 80, 1000, 10000);
	ck_assert_double_eq(decay_read(&d, 1000, 10000), 80);
	ck_assert_double_eq(decay_read(&d, 1000, 11000), 40);
	ck_assert_double_eq(decay_read(&d, 1000, 13000), 10);
	/* A clock that steps back forgets nothing and counts nothing twice. */
	ck_assert_double_eq(decay_read(&d, 1000, 9000), 80);
	decay_add(&d, 1, 1000, 9000);
	ck_assert_double_eq(decay_read(&d, 1000, 10000), 81);
	decay_add(&d, 9.5, 1000, 11000);
	ck_assert_double_eq(decay_read(&d, 1000, 11000), 50);
	ck_assert_double_eq(decay_read(&d, 1000, 11000 + 1000 * 1000), 0);
	ck_assert_double_eq(decay_read(&d, 1, UINT64_MAX), 0);
}
END_TEST

/* ---- ties and properties ---- */

/* 1 - 2/3 and 1/3 are one number on paper: rounding does not decide. */
START_TEST(equal_on_paper_is_a_tie)
{
	for (unsigned n = 2; n <= FLEET_MAX; n++) {
		struct policy_opts o = defaults;
		struct candidate c[FLEET_MAX] = {{.depth = PROMPT, .load = 1}};
		struct pick_decision d;

		o.cost = COST_RELATIVE_LOAD;
		decide(&o, c, n, PROMPT, &d);
		for (unsigned i = 1; i < n; i++)
			ck_assert_double_eq(c[i].score, c[0].score);
		ck_assert_uint_eq(d.index, 0);
	}
}
END_TEST

START_TEST(ties_rotate)
{
	for (int cost = 0; cost < COST_KIND_MAX; cost++) {
		for (int signal = 0; signal < SIGNAL_KIND_MAX; signal++) {
			struct policy_opts o = defaults;
			struct candidate c[3] = {
				{.depth = 50,
					.load = 2,
					.last_picked = 8,
					.last_cold = 6},
				{.depth = 50,
					.load = 2,
					.last_picked = 7,
					.last_cold = 9},
				{.depth = 50,
					.load = 2,
					.last_picked = 9,
					.last_cold = 8},
			};
			struct pick_decision d;

			o.cost = (enum cost_kind)cost;
			o.signal = (enum signal_kind)signal;
			decide(&o, c, 3, PROMPT, &d);
			/* Cold ones have a turn of their own. */
			ck_assert_msg(d.index == (signal == SIGNAL_NONE ? 0u : 1u),
				"%d %d", cost, signal);
			c[0].depth = c[1].depth = c[2].depth = 0;
			for (int i = 0; i < 3; i++)
				memset(c[i].terms, 0, sizeof(c[i].terms));
			decide(&o, c, 3, PROMPT, &d);
			ck_assert_uint_eq(d.index, 0);
			c[0].last_cold = 9;
			decide(&o, c, 3, PROMPT, &d);
			ck_assert_uint_eq(d.index, 2);
			c[2].last_cold = 9;
			decide(&o, c, 3, PROMPT, &d);
			ck_assert_uint_eq(d.index, 0);
		}
	}
}
END_TEST

static void random_candidate(struct candidate *c, uint32_t blocks)
{
	*c = (struct candidate){
		.depth = rng_below(&rng, 3) > 0 ? (uint32_t)rng_below(&rng, blocks + 1)
						: 0,
		.load = (unsigned)rng_below(&rng, 9),
		.queued = rng_below(&rng, 2) * rng_below(&rng, 20),
		.recent = (double)(rng_below(&rng, 2) * rng_below(&rng, 60)),
		.max_requests = (unsigned)rng_below(&rng, 2) * 9,
		.last_picked = rng_below(&rng, 4),
		.last_cold = rng_below(&rng, 4),
	};
	c->streams = (unsigned)rng_below(&rng, c->load + 1);
}

/* Whether b may not win over a: the order of decisions, said once more. */
static bool ranks_above(
	const struct candidate *a, const struct candidate *b, bool by_depth, bool is_cold)
{
	uint64_t turn_a = is_cold ? a->last_cold : a->last_picked;
	uint64_t turn_b = is_cold ? b->last_cold : b->last_picked;

	if (a->score != b->score)
		return a->score > b->score;
	if (by_depth && a->followed != b->followed)
		return a->followed > b->followed;
	if (a->load != b->load)
		return a->load < b->load;
	return turn_a < turn_b;
}

/* What counts as held: beyond the threshold, but for prefill_cost, which counts blocks.
 */
static double held(const struct pick_input *in, unsigned i)
{
	double fraction = in->candidates[i].fraction;

	if (in->opts->cost == COST_PREFILL || fraction > in->opts->cache_threshold)
		return fraction;
	return 0;
}

/* A fact of each reason. */
static void check_reason(const struct pick_input *in, const struct pick_decision *d)
{
	double most = 0, got = held(in, d->index);

	for (unsigned i = 0; i < in->n; i++)
		most = MAX(most, held(in, i));
	switch (d->reason) {
	case PICK_PREFIX_HIT:
		WANT(got > 0 && !d->is_cold);
		WANT(got == most || in->opts->cost == COST_OVERLOAD_CHECK);
		break;
	case PICK_PREFIX_NEXT:
		WANT(got > 0 && !d->is_cold);
		WANT(got < most || in->opts->cost == COST_OVERLOAD_CHECK);
		break;
	case PICK_OVERLOAD_SHED:
		WANT(most > 0 && d->is_cold);
		WANT(got == 0 || in->opts->cost == COST_OVERLOAD_CHECK);
		break;
	case PICK_NO_MATCH:
		WANT(d->is_cold && in->opts->signal != SIGNAL_NONE);
		WANT(most == 0);
		break;
	case PICK_POLICY_ORDER:
		WANT(in->opts->signal == SIGNAL_NONE);
		break;
	default:
		WANT(d->reason == PICK_ONLY_CANDIDATE && in->n == 1);
	}
	WANT((d->reason == PICK_POLICY_ORDER) == (in->opts->signal == SIGNAL_NONE) ||
		in->n == 1);
}

static void check_terms_and_order(
	const struct pick_input *in, const struct pick_decision *d)
{
	const struct candidate *w = &in->candidates[d->index];
	bool by_depth = in->opts->cost != COST_OVERLOAD_CHECK;
	double most = 0;

	for (unsigned i = 0; i < in->n; i++)
		most = MAX(most, held(in, i));
	for (unsigned i = 0; i < in->n; i++) {
		const struct candidate *c = &in->candidates[i];
		double sum = 0;

		WANT(!by_depth || c->followed == held(in, i));

		for (int t = 0; t < TERM_MAX; t++)
			sum += c->terms[t];
		WANT(!by_depth || is_near(sum, c->score));
		WANT(c->fraction >= 0 && c->fraction <= 1);
		if (by_depth) {
			WANT(!ranks_above(c, w, true, most == 0));
			WANT(!c->is_overloaded);
		} else {
			/* Equal depths stand for equal scores of holders. */
			WANT(c->score <= w->score);
			WANT(!w->is_overloaded || in->n == 1);
			if (d->reason == PICK_NO_MATCH || d->reason == PICK_POLICY_ORDER)
				WANT(!ranks_above(c, w, false, true));
		}
	}
}

START_TEST(random_fleets)
{
	struct policy_opts o = defaults;

	rng_seed(&rng, (uint64_t)_i + 300);
	o.cost = (enum cost_kind)(_i % COST_KIND_MAX);
	o.signal = (enum signal_kind)(_i / COST_KIND_MAX % SIGNAL_KIND_MAX);
	for (int round = 0; round < 4000; round++) {
		struct candidate c[FLEET_MAX];
		struct pick_input in = {.opts = &o, .candidates = c, .rng = &rng};
		struct pick_decision d;

		in.n = 1 + (unsigned)rng_below(&rng, FLEET_MAX);
		in.blocks = 1 + (uint32_t)rng_below(&rng, 12);
		in.size_blocks = in.blocks * (1 + (uint32_t)rng_below(&rng, 2) * 15);
		o.beta = (double)rng_below(&rng, 5) / 4;
		o.alpha = (double)rng_below(&rng, 5) / 4;
		o.decode_weight = (double)rng_below(&rng, 5) / 2;
		o.cache_threshold = (double)rng_below(&rng, 5) / 4;
		o.balance_abs_threshold = (unsigned)rng_below(&rng, 5);
		o.balance_rel_threshold = 1 + (double)rng_below(&rng, 5) / 4;
		for (unsigned i = 0; i < in.n; i++)
			random_candidate(&c[i], in.blocks);
		policy_pick(&in, &d);
		WANT(d.index < in.n);
		check_reason(&in, &d);
		check_terms_and_order(&in, &d);
	}
}
END_TEST

START_TEST(term_names_differ)
{
	for (int t = 0; t < TERM_MAX; t++) {
		ck_assert_uint_gt(strlen(pick_term_name((enum pick_term)t)), 0);
		for (int q = 0; q < t; q++)
			ck_assert_str_ne(pick_term_name((enum pick_term)t),
				pick_term_name((enum pick_term)q));
	}
}
END_TEST

static Suite *policy_cost_suite(void)
{
	Suite *s = suite_create("policy_cost");
	TCase *tc = tcase_create("policy_cost");

	tcase_add_loop_test(tc, c2_c3_load_pairs, 0, 2 * ARRAY_LEN(pair_rows));
	tcase_add_test(tc, a1_an_unrelated_hot_worker);
	tcase_add_test(tc, a1_the_hot_one_is_its_own);
	tcase_add_test(tc, first_block_is_all_or_nothing);
	tcase_add_test(tc, none_follows_no_prefix);
	tcase_add_test(tc, free_slots_without_a_cap);
	tcase_add_test(tc, a_holder_without_a_free_slot_keeps_nothing);
	tcase_add_test(tc, prefill_terms);
	tcase_add_test(tc, a_newcomer_is_not_flooded);
	tcase_add_test(tc, prefill_terms_of_large_blocks);
	tcase_add_test(tc, memory_fades);
	tcase_add_test(tc, equal_on_paper_is_a_tie);
	tcase_add_test(tc, ties_rotate);
	tcase_add_loop_test(tc, random_fleets, 0, 2 * COST_KIND_MAX * SIGNAL_KIND_MAX);
	tcase_add_test(tc, term_names_differ);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(policy_cost_suite())
