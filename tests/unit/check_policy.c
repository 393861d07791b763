/*
 * Policies as pure functions over candidates: every threshold at its border, every tie to
 * its end, and properties over random fleets. The names of the two cases that the vLLM
 * router's #238 pins are kept (origin systems A2; reports B10, B18, B33).
 */
#include "base/rng.h"
#include "policy/policy.h"
#include "tests/unit/unit_model.h"

#define FLEET_MAX 6

static struct rng rng;

/* vLLM's names and meanings; strict on both sides. */
static const struct policy_opts cache_aware = {
	.policy = POLICY_CACHE_AWARE,
	.signal = SIGNAL_LONGEST_PREFIX,
	.cost = COST_OVERLOAD_CHECK,
	.cache_threshold = 0.5,
	.balance_abs_threshold = 10,
	.balance_rel_threshold = 1.5,
};

/* One decision on a prompt of ten blocks: depth and load of each candidate. */
struct row {
	const char *what;
	struct {
		uint32_t depth;
		unsigned load;
		uint64_t last_picked, last_cold;
	} fleet[FLEET_MAX];
	unsigned n;
	unsigned chosen;
	enum pick_reason reason;
	bool is_cold;
};

static const struct row rows[] = {
	/* the preferred holder */
	{"deepest wins", {{6, 0, 0, 0}, {9, 0, 0, 0}, {7, 0, 0, 0}}, 3, 1,
		PICK_PREFIX_HIT, false},
	{"deepest wins though busier", {{9, 9, 0, 0}, {8, 0, 0, 0}}, 2, 0,
		PICK_PREFIX_HIT, false},
	{"equal depth: less loaded", {{9, 3, 0, 0}, {9, 2, 9, 0}, {9, 3, 0, 0}}, 3, 1,
		PICK_PREFIX_HIT, false},
	{"equal load: last picked longest ago",
		{{9, 2, 7, 0}, {9, 2, 5, 9}, {9, 2, 6, 0}}, 3, 1, PICK_PREFIX_HIT, false},
	{"all equal: file order", {{9, 2, 5, 0}, {9, 2, 5, 0}}, 2, 0, PICK_PREFIX_HIT,
		false},
	/* cache_threshold 0.5 of ten blocks: strictly more than five */
	{"at the threshold is no holder", {{0, 1, 0, 0}, {5, 2, 0, 0}}, 2, 0,
		PICK_NO_MATCH, true},
	{"over the threshold is one", {{0, 1, 0, 0}, {6, 2, 0, 0}}, 2, 1, PICK_PREFIX_HIT,
		false},
	{"the whole prompt", {{0, 0, 0, 0}, {10, 2, 0, 0}}, 2, 1, PICK_PREFIX_HIT, false},
	/* balance_abs_threshold 10: load - min > 10 (the ratio is infinite here) */
	{"ten over an idle one is not hot", {{9, 10, 0, 0}, {0, 0, 0, 0}}, 2, 0,
		PICK_PREFIX_HIT, false},
	{"eleven over an idle one is hot", {{9, 11, 0, 0}, {0, 0, 0, 0}}, 2, 1,
		PICK_OVERLOAD_SHED, true},
	/* balance_rel_threshold 1.5: load > min x 1.5 (30 - 20 and 45 - 30 pass the
	   first) */
	{"at the ratio is not hot", {{9, 45, 0, 0}, {0, 30, 0, 0}}, 2, 0, PICK_PREFIX_HIT,
		false},
	{"over the ratio is hot", {{9, 46, 0, 0}, {0, 30, 0, 0}}, 2, 1,
		PICK_OVERLOAD_SHED, true},
	{"over the ratio alone is not hot", {{9, 3, 0, 0}, {0, 1, 0, 0}}, 2, 0,
		PICK_PREFIX_HIT, false},
	{"over the difference alone is not hot", {{9, 111, 0, 0}, {0, 100, 0, 0}}, 2, 0,
		PICK_PREFIX_HIT, false},
	/* min is over all candidates, the preferred one included */
	{"the preferred is the least loaded", {{9, 100, 0, 0}, {0, 200, 0, 0}}, 2, 0,
		PICK_PREFIX_HIT, false},
	{"min among those that hold nothing",
		{{9, 40, 0, 0}, {0, 50, 0, 0}, {0, 2, 0, 0}}, 3, 2, PICK_OVERLOAD_SHED,
		true},
	/* the next holder */
	{"next-deepest that is not hot",
		{{9, 60, 0, 0}, {0, 0, 0, 0}, {7, 5, 0, 0}, {8, 0, 0, 0}}, 4, 3,
		PICK_PREFIX_NEXT, false},
	{"two hot ones: the third",
		{{9, 60, 0, 0}, {8, 60, 0, 0}, {7, 5, 0, 0}, {0, 0, 0, 0}}, 4, 2,
		PICK_PREFIX_NEXT, false},
	{"the next at the threshold is none", {{9, 60, 0, 0}, {5, 0, 0, 0}, {0, 0, 9, 0}},
		3, 1, PICK_OVERLOAD_SHED, true},
	{"the next at the threshold, busier, is none",
		{{9, 60, 0, 0}, {5, 1, 0, 0}, {0, 0, 0, 0}}, 3, 2, PICK_OVERLOAD_SHED,
		true},
	{"all holders hot: least loaded",
		{{9, 60, 0, 0}, {8, 70, 0, 0}, {0, 4, 0, 0}, {0, 3, 0, 0}}, 4, 3,
		PICK_OVERLOAD_SHED, true},
	{"equal depth: one hot, one not: still the preferred",
		{{9, 60, 0, 0}, {9, 1, 0, 0}, {0, 0, 0, 0}}, 3, 1, PICK_PREFIX_HIT,
		false},
	{"shed ties: last picked longest ago",
		{{9, 60, 0, 0}, {0, 3, 8, 1}, {0, 3, 7, 9}}, 3, 2, PICK_OVERLOAD_SHED,
		true},
	/* nobody holds it */
	{"no match: least loaded", {{0, 2, 0, 0}, {0, 1, 9, 9}, {0, 2, 0, 0}}, 3, 1,
		PICK_NO_MATCH, true},
	{"no match: least recently given a cold one",
		{{0, 1, 0, 5}, {0, 1, 9, 3}, {0, 1, 0, 4}}, 3, 1, PICK_NO_MATCH, true},
	{"no match, all equal: file order", {{0, 1, 0, 0}, {0, 1, 0, 0}}, 2, 0,
		PICK_NO_MATCH, true},
	{"no match though some hold a little", {{2, 5, 0, 0}, {0, 4, 0, 0}}, 2, 1,
		PICK_NO_MATCH, true},
	/* a single one is no decision */
	{"one holder", {{9, 99, 0, 0}}, 1, 0, PICK_ONLY_CANDIDATE, false},
	{"one without", {{0, 99, 0, 0}}, 1, 0, PICK_ONLY_CANDIDATE, true},
	/* an agentic fleet: 1,024 rollouts, prefill load counts the queued */
	{"busier than its peers keeps its prefixes",
		{{9, 120, 0, 0}, {0, 110, 0, 0}, {0, 200, 0, 0}, {0, 105, 0, 0}}, 4, 0,
		PICK_PREFIX_HIT, false},
};

static void decide_on(const struct policy_opts *opts, const struct row *row,
	struct candidate *c, struct pick_decision *d)
{
	struct pick_input in = {
		.opts = opts, .candidates = c, .n = row->n, .blocks = 10, .rng = &rng};

	for (unsigned i = 0; i < row->n; i++)
		c[i] = (struct candidate){
			.depth = row->fleet[i].depth,
			.load = row->fleet[i].load,
			.last_picked = row->fleet[i].last_picked,
			.last_cold = row->fleet[i].last_cold,
		};
	policy_pick(&in, d);
}

START_TEST(overload_check_by_table)
{
	const struct row *row = &rows[_i];
	struct candidate c[FLEET_MAX];
	struct pick_decision d;

	decide_on(&cache_aware, row, c, &d);
	ck_assert_msg(d.index == row->chosen, "%s: w%u", row->what, d.index);
	ck_assert_msg(
		d.reason == row->reason, "%s: %s", row->what, pick_reason_name(d.reason));
	ck_assert_msg(d.is_cold == row->is_cold, "%s: is_cold", row->what);
	for (unsigned i = 0; i < row->n; i++)
		ck_assert_double_eq(c[i].fraction, row->fleet[i].depth / 10.0);
}
END_TEST

/* A2: the hot one is no business of a request whose own worker is idle. */
START_TEST(affinity_survives_an_unrelated_hot_worker)
{
	static const struct row row = {"",
		{{0, 60, 0, 0}, {0, 0, 0, 0}, {9, 0, 99, 0}, {0, 0, 0, 0}}, 4, 2,
		PICK_PREFIX_HIT, false};
	struct candidate c[FLEET_MAX];
	struct pick_decision d;

	decide_on(&cache_aware, &row, c, &d);
	ck_assert_uint_eq(d.index, 2);
	ck_assert_int_eq(d.reason, PICK_PREFIX_HIT);
	ck_assert(c[0].is_overloaded);
	ck_assert(!c[2].is_overloaded);
	/* Not even when every other one is hot. */
	for (unsigned i = 0; i < 4; i++)
		c[i].load = i == 2 ? 0 : 500;
	policy_pick(&(struct pick_input){.opts = &cache_aware,
			    .candidates = c,
			    .n = 4,
			    .blocks = 10,
			    .rng = &rng},
		&d);
	ck_assert_uint_eq(d.index, 2);
}
END_TEST

/* A2 and B18 (b): it is itself the hot one; one turn behind there is another holder. */
START_TEST(affinity_yields_when_the_cached_worker_is_the_hot_one)
{
	static const struct row alone = {"",
		{{9, 60, 0, 0}, {0, 1, 0, 0}, {0, 0, 0, 0}, {0, 1, 0, 0}}, 4, 2,
		PICK_OVERLOAD_SHED, true};
	static const struct row behind = {"",
		{{9, 60, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {7, 1, 0, 0}}, 4, 3,
		PICK_PREFIX_NEXT, false};
	struct candidate c[FLEET_MAX];
	struct pick_decision d;

	decide_on(&cache_aware, &alone, c, &d);
	ck_assert_uint_eq(d.index, 2);
	ck_assert_int_eq(d.reason, PICK_OVERLOAD_SHED);
	ck_assert(c[0].is_overloaded);
	decide_on(&cache_aware, &behind, c, &d);
	ck_assert_uint_eq(d.index, 3);
	ck_assert_int_eq(d.reason, PICK_PREFIX_NEXT);
}
END_TEST

/* B18 (c): one request more than nothing is noise, whatever the ratio. */
START_TEST(one_request_is_no_overload)
{
	static const struct row row = {"",
		{{9, 1, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, 4, 0,
		PICK_PREFIX_HIT, false};
	struct policy_opts opts = cache_aware;
	struct candidate c[FLEET_MAX];
	struct pick_decision d;

	opts.balance_abs_threshold = 1;
	opts.balance_rel_threshold = 1.0;
	decide_on(&opts, &row, c, &d);
	ck_assert_uint_eq(d.index, 0);
}
END_TEST

START_TEST(thresholds_at_their_ends)
{
	static const struct row row = {
		"", {{0, 0, 0, 0}, {1, 1, 0, 0}, {10, 2, 0, 0}}, 3, 0, PICK_NONE, false};
	struct policy_opts opts = cache_aware;
	struct candidate c[FLEET_MAX];
	struct pick_decision d;

	/* 1.0 is never passed: least loaded always. */
	opts.cache_threshold = 1.0;
	decide_on(&opts, &row, c, &d);
	ck_assert_uint_eq(d.index, 0);
	ck_assert_int_eq(d.reason, PICK_NO_MATCH);
	/* 0.0: one block will do, none will not. */
	opts.cache_threshold = 0.0;
	opts.balance_abs_threshold = 0;
	opts.balance_rel_threshold = 1.0;
	decide_on(&opts, &row, c, &d);
	ck_assert_uint_eq(d.index, 0);
	ck_assert_int_eq(d.reason, PICK_OVERLOAD_SHED);
	opts.balance_abs_threshold = 1;
	decide_on(&opts, &row, c, &d);
	ck_assert_uint_eq(d.index, 1);
	ck_assert_int_eq(d.reason, PICK_PREFIX_NEXT);
}
END_TEST

/* No block of the prompt is known: whatever depths say, nothing was matched. */
START_TEST(a_prompt_without_blocks)
{
	struct candidate c[2] = {{.load = 1}, {.load = 0}};
	struct pick_input in = {
		.opts = &cache_aware, .candidates = c, .n = 2, .rng = &rng};
	struct pick_decision d;

	policy_pick(&in, &d);
	ck_assert_uint_eq(d.index, 1);
	ck_assert_int_eq(d.reason, PICK_NO_MATCH);
	ck_assert_double_eq(c[0].fraction, 0);
	in.hashes_sent = true;
	policy_pick(&in, &d);
	ck_assert_uint_eq(d.index, 1);
	ck_assert_int_eq(d.reason, PICK_HASHES_SENT);
}
END_TEST

START_TEST(least_requests_by_load_then_turn)
{
	static const struct policy_opts opts = {.policy = POLICY_LEAST_REQUESTS};
	static const struct row table[] = {
		{"load", {{9, 2, 0, 0}, {0, 1, 9, 0}}, 2, 1, PICK_POLICY_ORDER, true},
		{"turn", {{0, 1, 7, 0}, {0, 1, 6, 9}, {0, 1, 8, 0}}, 3, 1,
			PICK_POLICY_ORDER, true},
		{"file", {{0, 1, 7, 9}, {0, 1, 7, 0}}, 2, 0, PICK_POLICY_ORDER, true},
	};

	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		struct candidate c[FLEET_MAX];
		struct pick_decision d;

		decide_on(&opts, &table[i], c, &d);
		ck_assert_msg(d.index == table[i].chosen, "%s", table[i].what);
		ck_assert_int_eq(d.reason, PICK_POLICY_ORDER);
		for (unsigned k = 0; k < table[i].n; k++)
			ck_assert_double_le(c[k].score, c[d.index].score);
	}
}
END_TEST

START_TEST(round_robin_by_turn_alone)
{
	static const struct policy_opts opts = {.policy = POLICY_ROUND_ROBIN};
	struct candidate c[3] = {{.load = 9}, {.load = 0}, {.load = 4}};
	struct pick_input in = {.opts = &opts, .candidates = c, .n = 3, .rng = &rng};
	struct pick_decision d;

	for (unsigned turn = 0; turn < 9; turn++) {
		policy_pick(&in, &d);
		ck_assert_uint_eq(d.index, turn % 3);
		c[d.index].last_picked = turn + 1;
	}
}
END_TEST

/* Chance is uniform: no candidate is preferred, none is left out. */
START_TEST(random_is_uniform)
{
	static const struct policy_opts opts = {.policy = POLICY_RANDOM};
	struct candidate c[5] = {{.load = 100}, {.load = 0}};
	struct pick_input in = {.opts = &opts, .candidates = c, .n = 5, .rng = &rng};
	unsigned count[5] = {0};

	rng_seed(&rng, 7);
	for (unsigned i = 0; i < 5000; i++) {
		struct pick_decision d;

		policy_pick(&in, &d);
		WANT(d.index < 5);
		count[d.index]++;
	}
	for (unsigned i = 0; i < 5; i++) {
		ck_assert_uint_gt(count[i], 850);
		ck_assert_uint_lt(count[i], 1150);
	}
}
END_TEST

/* What must hold for any fleet and any thresholds, said again without the code's order.
 */
static void check_overload_property(
	const struct pick_input *in, const struct pick_decision *d)
{
	const struct policy_opts *o = in->opts;
	const struct candidate *w = &in->candidates[d->index];
	unsigned least = UINT32_MAX;
	bool hot_w;

	for (unsigned i = 0; i < in->n; i++)
		least = MIN(least, in->candidates[i].load);
	hot_w = w->load > least + o->balance_abs_threshold &&
		w->load > least * o->balance_rel_threshold;
	WANT(!hot_w || in->n == 1);
	for (unsigned i = 0; i < in->n; i++) {
		const struct candidate *c = &in->candidates[i];
		bool hot = c->load > least + o->balance_abs_threshold &&
			   c->load > least * o->balance_rel_threshold;
		bool holds = (double)c->depth / in->blocks > o->cache_threshold;

		WANT(c->is_overloaded == hot);
		/* A holder that is not hot is never passed over for less. */
		if (holds && !hot)
			WANT(w->depth >= c->depth && !d->is_cold);
		if (d->is_cold)
			WANT(w->load <= c->load);
		else if (c->depth == w->depth && !hot)
			WANT(w->load <= c->load);
		if (in->n > 1 && d->reason == PICK_PREFIX_HIT)
			WANT(w->depth >= c->depth || !holds);
		if (in->n > 1 && d->reason == PICK_NO_MATCH)
			WANT(!holds);
	}
}

START_TEST(overload_check_on_random_fleets)
{
	struct policy_opts opts = cache_aware;

	rng_seed(&rng, (uint64_t)_i + 100);
	for (int round = 0; round < 5000; round++) {
		struct candidate c[FLEET_MAX] = {0};
		struct pick_input in = {.opts = &opts, .candidates = c, .rng = &rng};
		struct pick_decision d;

		in.n = 1 + (unsigned)rng_below(&rng, FLEET_MAX);
		in.blocks = 1 + (uint32_t)rng_below(&rng, 8);
		opts.cache_threshold = (double)rng_below(&rng, 9) / 8;
		opts.balance_abs_threshold = (unsigned)rng_below(&rng, 5);
		opts.balance_rel_threshold = 1 + (double)rng_below(&rng, 5) / 4;
		for (unsigned i = 0; i < in.n; i++) {
			c[i].depth = (uint32_t)rng_below(&rng, in.blocks + 1);
			c[i].load = (unsigned)rng_below(&rng, 9);
			c[i].last_picked = rng_below(&rng, 4);
			c[i].last_cold = rng_below(&rng, 4);
		}
		policy_pick(&in, &d);
		WANT(d.index < in.n);
		WANT((d.reason == PICK_ONLY_CANDIDATE) == (in.n == 1));
		check_overload_property(&in, &d);
	}
}
END_TEST

/* No decision hangs on a place in the list: without one that was not chosen, the same. */
START_TEST(one_that_leaves_shifts_no_other)
{
	static const enum policy_kind kinds[] = {
		POLICY_CACHE_AWARE, POLICY_LEAST_REQUESTS, POLICY_ROUND_ROBIN};

	rng_seed(&rng, (uint64_t)_i + 200);
	for (int round = 0; round < 3000; round++) {
		struct policy_opts opts = cache_aware;
		struct candidate c[FLEET_MAX] = {0}, fewer[FLEET_MAX];
		struct pick_input in = {.opts = &opts,
			.candidates = c,
			.n = FLEET_MAX,
			.blocks = 10,
			.rng = &rng};
		struct pick_decision all, rest;
		unsigned gone, least = 3;

		opts.policy = kinds[rng_below(&rng, ARRAY_LEN(kinds))];
		for (unsigned i = 0; i < FLEET_MAX; i++) {
			c[i].depth = (uint32_t)rng_below(&rng, 11);
			c[i].load = least + (unsigned)rng_below(&rng, 3);
			c[i].last_picked = rng_below(&rng, 50);
			c[i].last_cold = rng_below(&rng, 50);
		}
		policy_pick(&in, &all);
		do
			gone = (unsigned)rng_below(&rng, FLEET_MAX);
		while (gone == all.index);
		memcpy(fewer, c, gone * sizeof(*c));
		memcpy(fewer + gone, c + gone + 1, (FLEET_MAX - 1 - gone) * sizeof(*c));
		in.candidates = fewer;
		in.n--;
		policy_pick(&in, &rest);
		WANT(rest.index == all.index - (gone < all.index));
	}
}
END_TEST

START_TEST(names)
{
	static const char *const policies[] = {"cache_aware", "least_requests",
		"round_robin", "random", "prefix_affinity", "power_of_two",
		"consistent_hash", "rendezvous_hash", "sticky_least_loaded"};

	for (int k = 0; k < POLICY_KIND_MAX; k++) {
		ck_assert_str_eq(policy_name((enum policy_kind)k), policies[k]);
		ck_assert_ptr_nonnull(policy_ops((enum policy_kind)k)->pick);
		ck_assert_int_eq(policy_needs_index(&(struct policy_opts){
					 .policy = (enum policy_kind)k,
					 .affinity_fallback = POLICY_RANDOM}),
			k == POLICY_CACHE_AWARE);
	}
	for (int r = 0; r < PICK_REASON_MAX; r++) {
		ck_assert_uint_gt(strlen(pick_reason_name((enum pick_reason)r)), 0);
		for (int q = 0; q < r; q++)
			ck_assert_str_ne(pick_reason_name((enum pick_reason)r),
				pick_reason_name((enum pick_reason)q));
	}
}
END_TEST

static Suite *policy_suite(void)
{
	Suite *s = suite_create("policy");
	TCase *tc = tcase_create("policy");

	tcase_add_loop_test(tc, overload_check_by_table, 0, ARRAY_LEN(rows));
	tcase_add_test(tc, affinity_survives_an_unrelated_hot_worker);
	tcase_add_test(tc, affinity_yields_when_the_cached_worker_is_the_hot_one);
	tcase_add_test(tc, one_request_is_no_overload);
	tcase_add_test(tc, thresholds_at_their_ends);
	tcase_add_test(tc, a_prompt_without_blocks);
	tcase_add_test(tc, least_requests_by_load_then_turn);
	tcase_add_test(tc, round_robin_by_turn_alone);
	tcase_add_test(tc, random_is_uniform);
	tcase_add_loop_test(tc, overload_check_on_random_fleets, 0, 8);
	tcase_add_loop_test(tc, one_that_leaves_shifts_no_other, 0, 8);
	tcase_add_test(tc, names);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(policy_suite())
