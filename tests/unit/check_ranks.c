/*
 * A pool whose workers are data-parallel ranks, and one that reads the load that workers
 * report: who is picked, what a pin means, what a removal leaves.
 */
#include "base/err.h"
#include "tests/unit/unit_model.h"

#define NOW 1000

static struct pool *pool;

static void set_up(void)
{
	pool = NULL;
}

static void tear_down(void)
{
	if (pool != NULL)
		unit_close(pool);
}

static struct pool_ask ask_for(struct route_key *key)
{
	return (struct pool_ask){.role = ROLE_UNIFIED, .key = key, .now_ms = NOW};
}

/* A pick that must succeed; the guard is the caller's to drop. */
static struct pool_pick pick_with(const struct pool_ask *ask, struct guard *g)
{
	struct pool_pick out;

	g->worker = NULL;
	ck_assert_int_eq(pool_pick(pool, ask, g, &out), 0);
	return out;
}

/* The N of wN, where it went. */
static unsigned pick_number(const struct pool_ask *ask, struct pool_pick *out)
{
	struct guard g;
	unsigned number;

	*out = pick_with(ask, &g);
	ck_assert_int_eq(g.worker->name[0], 'w');
	number = (unsigned)atoi(g.worker->name + 1);
	guard_drop(&g);
	return number;
}

static unsigned send_to(struct route_key *key, struct pool_pick *out)
{
	struct pool_ask ask = ask_for(key);

	return pick_number(&ask, out);
}

/* ---- ranks ---- */

#define RANKS "[worker a]\nurl = http://a:1\ndp_size = 3\n"

/* Each rank has its own load, turn and residency. */
START_TEST(ranks_are_picked_apart)
{
	struct route_key key;
	struct pool_pick first, second;
	struct pool_ask ask;
	struct guard g, h;

	pool = unit_pool(RANKS);
	key = unit_sealed(pool, 1, 16, 0, 16);
	ask = ask_for(&key);
	first = pick_with(&ask, &g);
	ck_assert_uint_eq(worker_load(g.worker), 1);
	ck_assert_uint_eq(pool_worker_blocks(pool, g.worker), 16);
	second = pick_with(&ask, &h);
	ck_assert_uint_eq(first.matched, 0);
	ck_assert_uint_eq(second.matched, 16);
	ck_assert_ptr_eq(g.worker, h.worker);
	guard_drop(&h);
	ask.key = NULL;
	pick_with(&ask, &h);
	ck_assert_ptr_ne(g.worker, h.worker);
	ck_assert_uint_eq(pool_worker_blocks(pool, h.worker), 0);
	guard_drop(&g);
	guard_drop(&h);
	route_key_free(&key);
}
END_TEST

/* A rank can be pinned, and a group by its name: then the policy chooses within it. */
START_TEST(pins_of_ranks_and_groups)
{
	struct pool_ask ask = ask_for(NULL);
	struct pool_pick out;
	struct guard g = {0};
	unsigned seen = 0;

	pool = unit_pool(RANKS "[worker b]\nurl = http://b:1\n");
	for (unsigned rank = 0; rank < 3; rank++) {
		ask.is_rank_pinned = true;
		ask.pinned_rank = rank;
		out = pick_with(&ask, &g);
		ck_assert_int_eq(out.reason, PICK_PINNED);
		ck_assert(g.worker->has_rank);
		ck_assert_uint_eq(g.worker->rank, rank);
		guard_drop(&g);
	}
	ask.pinned_rank = 3;
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_PARSE);
	ask.is_rank_pinned = false;
	ask.pinned = SPAN_LIT("a");
	for (unsigned i = 0; i < 3; i++) {
		out = pick_with(&ask, &g);
		ck_assert_int_eq(out.reason, PICK_PINNED);
		seen |= 1u << g.worker->rank;
		ck_assert_str_eq(g.worker->group, "a");
		guard_drop(&g);
	}
	ck_assert_uint_eq(seen, 7);
	ask.pinned = SPAN_LIT("a@1");
	pick_with(&ask, &g);
	ck_assert_uint_eq(g.worker->rank, 1);
	guard_drop(&g);
	ask.pinned = SPAN_LIT("a@3");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_PARSE);
	atomic_store(&unit_worker(pool, "a@1")->health, WORKER_UNHEALTHY);
	ask.pinned = SPAN_LIT("a@1");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_STATE);
}
END_TEST

/* Where no worker has ranks, a rank is the engine's affair. */
START_TEST(a_rank_is_no_pin_where_there_are_none)
{
	struct pool_ask ask = ask_for(NULL);
	struct pool_pick out;

	pool = unit_pool_of(2, "");
	ask.is_rank_pinned = true;
	ask.pinned_rank = 5;
	ck_assert(pool_has_candidate(pool, &ask));
	pick_number(&ask, &out);
	ck_assert_int_ne(out.reason, PICK_PINNED);
}
END_TEST

/* A host that does not answer is not tried again by another of its ranks. */
START_TEST(ranks_of_a_tried_host_are_tried)
{
	struct pool_ask ask = ask_for(NULL);
	struct guard g = {0};
	uint64_t tried[1];

	pool = unit_pool(RANKS "[worker b]\nurl = http://b:1\n");
	tried[0] = unit_worker(pool, "a@1")->host_id;
	ask.tried = tried;
	ask.n_tried = 1;
	for (unsigned i = 0; i < 4; i++) {
		pick_with(&ask, &g);
		ck_assert_str_eq(g.worker->name, "b");
		guard_drop(&g);
	}
	tried[0] = unit_worker(pool, "b")->id;
	pick_with(&ask, &g);
	ck_assert_str_eq(g.worker->group, "a");
	guard_drop(&g);
}
END_TEST

START_TEST(a_removed_group_leaves_nothing)
{
	struct route_key key;
	struct prefix_index_stats stats;
	struct pool_ask ask;
	struct guard g = {0};

	pool = unit_pool(RANKS "[worker b]\nurl = http://b:1\n");
	key = unit_sealed(pool, 1, 16, 0, 16);
	ask = ask_for(&key);
	for (unsigned rank = 0; rank < 3; rank++) {
		ask.is_rank_pinned = true;
		ask.pinned_rank = rank;
		pick_with(&ask, &g);
		guard_drop(&g);
	}
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.blocks, 48);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("a")), 0);
	ck_assert_uint_eq(pool_workers(pool, ROLE_UNIFIED), 1);
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.blocks, 0);
	ck_assert_uint_eq(stats.distinct_blocks, 0);
	route_key_free(&key);
}
END_TEST

/* ---- reported load ---- */

/* B33 (d): eight picks between two reports, one worker said 0 and one said 1. What was
 * picked since counts at once, so that they spread. */
START_TEST(test_b33_reported_load_between_two_polls)
{
	struct guard guards[8];
	struct pool_ask ask = ask_for(NULL);

	pool = unit_pool_of(2, "policy = least_requests\nload_source = reported\n");
	worker_report(unit_worker(pool, "w0"), 0, 0, 0, NOW, NOW + 100);
	worker_report(unit_worker(pool, "w1"), 1, 0, 0, NOW, NOW + 100);
	for (unsigned i = 0; i < 8; i++)
		pick_with(&ask, &guards[i]);
	ck_assert_uint_le(worker_load(unit_worker(pool, "w0")), 5);
	ck_assert_uint_ge(worker_load(unit_worker(pool, "w0")), 4);
	unit_drop(guards, 8);
}
END_TEST

/* Policies and explain read the same load; a stale report, and load_source = own, read
 * none. Guards never count what others sent. */
START_TEST(load_source_says_whose_load_is_read)
{
	struct conf *own = unit_conf("[pool default]\npolicy = least_requests\n"
				     "[worker w0]\nurl = http://10.0.0.1:8000\n"
				     "[worker w1]\nurl = http://10.0.0.2:8000\n");
	struct pool_ask ask = ask_for(NULL);
	struct pool_pick out;
	struct explain e;

	pool = unit_pool_of(2, "policy = least_requests\nload_source = reported\n");
	worker_report(unit_worker(pool, "w0"), 6, 1, 0, NOW, NOW + 100);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(pick_number(&ask, &out), 1);
	ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
	ck_assert_uint_eq(e.candidates[0].load, 7);
	ck_assert_uint_eq(e.candidates[1].load, 0);
	free(e.candidates);
	ck_assert_uint_eq(worker_load(unit_worker(pool, "w0")), 0);
	ask.now_ms = NOW + 101;
	ck_assert_uint_eq(pick_number(&ask, &out), 0);
	ask.now_ms = NOW;
	ck_assert_int_eq(pool_update(pool, &own->pools[0], own, NOW), 0);
	ck_assert_uint_eq(pick_number(&ask, &out), 1);
	ck_assert_uint_eq(pick_number(&ask, &out), 0);
	conf_unref(own);
}
END_TEST

/* The thresholds of overload_check too: the holder is busy with others' requests. */
START_TEST(reported_load_overloads_a_holder)
{
	struct route_key key;
	struct pool_pick out;

	pool = unit_pool_of(2, "load_source = reported\n");
	key = unit_sealed(pool, 1, 16, 0, 16);
	ck_assert_uint_eq(send_to(&key, &out), 0);
	worker_report(unit_worker(pool, "w0"), 30, 2, 0, NOW, NOW + 100);
	ck_assert_uint_eq(send_to(&key, &out), 0);
	worker_report(unit_worker(pool, "w0"), 30, 3, 0, NOW, NOW + 100);
	ck_assert_uint_eq(send_to(&key, &out), 1);
	ck_assert_int_eq(out.reason, PICK_OVERLOAD_SHED);
	route_key_free(&key);
}
END_TEST

/* prefill_cost: of what others sent nothing is known but that it runs. */
START_TEST(requests_of_others_count_as_streams)
{
	struct pool_ask ask = ask_for(NULL);
	struct explain e;
	struct guard held[2];

	pool = unit_pool_of(2, "cost = prefill_cost\nload_source = reported\n");
	unit_hold(unit_worker(pool, "w0"), held, 2);
	guard_prefilled(&held[0]);
	worker_report(unit_worker(pool, "w0"), 5, 1, 2, NOW, NOW + 100);
	ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
	ck_assert_uint_eq(e.candidates[0].load, 2 + 4);
	ck_assert_double_eq(e.candidates[0].terms[TERM_DECODE], -(1 + 4));
	ck_assert_double_eq(e.candidates[1].terms[TERM_DECODE], 0);
	free(e.candidates);
	/* A stale report says nothing. */
	ask.now_ms = NOW + 101;
	ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
	ck_assert_double_eq(e.candidates[0].terms[TERM_DECODE], -1);
	free(e.candidates);
	unit_drop(held, 2);
}
END_TEST

static Suite *ranks_suite(void)
{
	Suite *s = suite_create("ranks");
	TCase *tc = tcase_create("ranks");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, ranks_are_picked_apart);
	tcase_add_test(tc, pins_of_ranks_and_groups);
	tcase_add_test(tc, a_rank_is_no_pin_where_there_are_none);
	tcase_add_test(tc, ranks_of_a_tried_host_are_tried);
	tcase_add_test(tc, a_removed_group_leaves_nothing);
	tcase_add_test(tc, test_b33_reported_load_between_two_polls);
	tcase_add_test(tc, load_source_says_whose_load_is_read);
	tcase_add_test(tc, requests_of_others_count_as_streams);
	tcase_add_test(tc, reported_load_overloads_a_holder);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(ranks_suite())
