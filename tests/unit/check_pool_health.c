/*
 * Workers that are not quite well among a pool's candidates: the one small request that
 * a stalled or degraded one is tried with, the growing share of one that has just come,
 * and breakers, whose trial's place is never lost.
 */
#include "base/err.h"
#include "base/rng.h"
#include "tests/unit/unit_model.h"

#define NOW 1000000

static struct pool *pool;
static uint64_t now_ms;

static int pick_of(uint64_t body_bytes, struct guard *g)
{
	struct pool_ask ask = {
		.role = ROLE_UNIFIED, .body_bytes = body_bytes, .now_ms = now_ms};
	struct pool_pick out;

	return pool_pick(pool, &ask, g, &out);
}

static const char *name_of(const struct guard *g)
{
	return g->worker->name;
}

/* ---- trials ---- */

START_TEST(a_stalled_worker_gets_one_small_request)
{
	static const int states[] = {WORKER_STALLED, WORKER_DEGRADED};
	struct guard a = {0}, b = {0}, busy[3] = {{0}};
	struct worker *w;

	now_ms = NOW;
	pool = unit_pool_of(2, "policy = least_requests\n");
	w = unit_worker(pool, "w0");
	unit_hold(unit_worker(pool, "w1"), busy, 3);
	atomic_store(&w->health, states[_i]);
	ck_assert_int_eq(pick_of(100, &a), 0);
	ck_assert_str_eq(name_of(&a), "w1"); /* nothing was offered */
	guard_drop(&a);
	atomic_store(&w->trial, TRIAL_OFFERED);
	ck_assert_int_eq(pick_of(8193, &a), 0);
	ck_assert_str_eq(name_of(&a), "w1"); /* too large */
	guard_drop(&a);
	ck_assert_int_eq(pick_of(8192, &a), 0);
	ck_assert_str_eq(name_of(&a), "w0");
	ck_assert_int_eq(atomic_load(&w->trial), TRIAL_TAKEN);
	ck_assert_int_eq(pick_of(100, &b), 0);
	ck_assert_str_eq(name_of(&b), "w1"); /* one at a time */
	guard_drop(&b);
	guard_drop(&a);
	ck_assert_int_eq(pick_of(100, &b), 0);
	ck_assert_str_eq(name_of(&b), "w1"); /* nor after it, until it is offered again */
	guard_drop(&b);
	atomic_store(&w->trial, TRIAL_OFFERED);
	guard_take(&a, w); /* not idle */
	ck_assert_int_eq(pick_of(100, &b), 0);
	ck_assert_str_eq(name_of(&b), "w1");
	guard_drop(&a);
	guard_drop(&b);
	unit_drop(busy, 3);
	unit_close(pool);
}
END_TEST

/* Neither one that has not started nor one that is down is tried. */
START_TEST(others_are_not_tried)
{
	static const int states[] = {WORKER_STARTING, WORKER_UNHEALTHY};
	struct guard g = {0};
	struct worker *w;

	now_ms = NOW;
	pool = unit_pool_of(1, "policy = least_requests\n");
	w = unit_worker(pool, "w0");
	atomic_store(&w->health, states[_i]);
	atomic_store(&w->trial, TRIAL_OFFERED);
	ck_assert_int_eq(pick_of(100, &g), ERR_STATE);
	atomic_store(&w->health, WORKER_STALLED);
	atomic_store(&w->is_draining, true);
	ck_assert_int_eq(pick_of(100, &g), ERR_STATE);
	unit_close(pool);
}
END_TEST

/* Who tries a worker is told how long: as stall_timeout says, or first_byte_timeout where
 * that is shorter or the only one; others are not. */
START_TEST(a_trial_is_told_its_time)
{
	static const struct {
		const char *lines;
		uint64_t want_ms;
	} rows[] = {
		{"", 60000},
		{"stall_timeout = 3s\n", 3000},
		{"stall_timeout = 3s\nfirst_byte_timeout = 2s\n", 2000},
		{"stall_timeout = 0\nfirst_byte_timeout = 2s\n", 2000},
		{"stall_timeout = 3s\nfirst_byte_timeout = 0\n", 3000},
		{"stall_timeout = 0\nfirst_byte_timeout = 0\n", 0},
	};
	struct pool_ask ask = {.role = ROLE_UNIFIED, .body_bytes = 100, .now_ms = NOW};
	struct pool_pick out;
	struct guard g = {0};
	struct worker *w;

	pool = unit_pool_of(1, rows[_i].lines);
	w = unit_worker(pool, "w0");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
	ck_assert(!out.is_trial && out.trial_timeout_ms == 0);
	guard_drop(&g);
	atomic_store(&w->health, WORKER_STALLED);
	atomic_store(&w->trial, TRIAL_OFFERED);
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
	ck_assert(out.is_trial && !g.ticket.is_trial);
	ck_assert_uint_eq(out.trial_timeout_ms, rows[_i].want_ms);
	guard_drop(&g);
	unit_close(pool);
}
END_TEST

static void open_breaker(struct worker *w, uint64_t at_ms)
{
	while (breaker_report(&w->breaker, OUTCOME_FAILURE, NULL, at_ms) !=
		BREAKER_OPENED)
		;
}

/* A request that has been a trial is none again, of either kind, and the budget has no
 * say in where it goes then. */
START_TEST(nobody_is_a_trial_twice)
{
	struct pool_ask ask = {.role = ROLE_UNIFIED, .body_bytes = 100, .now_ms = NOW};
	struct pool_pick out;
	struct guard g = {0};
	struct worker *w;
	uint64_t tried[1];

	pool = unit_pool_of(
		3, "policy = least_requests\ncb_timeout = 1s\nretry_budget = 0%\n");
	w = unit_worker(pool, "w0");
	open_breaker(w, NOW - 1000);
	tried[0] = unit_worker(pool, "w2")->id;
	ask.tried = tried;
	ask.n_tried = 1;
	atomic_store(&unit_worker(pool, "w1")->health, WORKER_STALLED);
	atomic_store(&unit_worker(pool, "w1")->trial, TRIAL_OFFERED);
	ask.is_no_trial = ask.is_free = true;
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_STATE);
	ck_assert_int_eq(pool_may_retry(pool, &ask, true), RETRY_NOBODY);
	atomic_store(&unit_worker(pool, "w1")->health, WORKER_HEALTHY);
	ck_assert_int_eq(pool_may_retry(pool, &ask, true), RETRY_YES);
	ask.is_free = false;
	ck_assert_int_eq(pool_may_retry(pool, &ask, true), RETRY_SPENT);
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
	ck_assert_str_eq(name_of(&g), "w1");
	guard_drop(&g);
	atomic_store(&unit_worker(pool, "w1")->health, WORKER_UNHEALTHY);
	ask.is_no_trial = false;
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
	ck_assert_str_eq(name_of(&g), "w0");
	ck_assert(out.is_trial && g.ticket.is_trial && out.trial_timeout_ms == 60000);
	guard_drop(&g);
	unit_close(pool);
}
END_TEST

/* ---- slow start ---- */

#define HELD 600

/* n picks, none of which ends; how many w0 got. */
static unsigned share_of_w0(const char *policy, uint64_t age_ms, unsigned n)
{
	struct guard guards[HELD] = {{0}};
	char lines[128];
	unsigned i, got = 0;

	ck_assert_uint_le(n, HELD);
	snprintf(lines, sizeof(lines), "policy = %s\nslow_start = 100s\n", policy);
	pool = unit_pool_of(4, lines);
	now_ms = NOW;
	atomic_store(&unit_worker(pool, "w0")->probe.warm_since_ms, now_ms - age_ms);
	for (i = 0; i < n; i++) {
		ck_assert_int_eq(pick_of(100, &guards[i]), 0);
		got += strcmp(name_of(&guards[i]), "w0") == 0;
	}
	unit_drop(guards, n);
	unit_close(pool);
	return got;
}

/* Of four workers, one with the share s gets s / (3 + s) of what is in flight. */
START_TEST(the_share_grows)
{
	static const char *const policies[] = {
		"least_requests", "round_robin", "power_of_two", "cache_aware"};
	static const struct {
		unsigned percent, least, most;
	} steps[] = {
		{0, 5, 14}, {10, 15, 24}, {25, 40, 52}, {50, 78, 94}, {100, 148, 152}};
	unsigned i;

	for (i = 0; i < ARRAY_LEN(steps); i++) {
		unsigned got = share_of_w0(policies[_i], steps[i].percent * 1000, HELD);

		ck_assert_msg(got >= steps[i].least && got <= steps[i].most,
			"%s at %u %%: %u of %u", policies[_i], steps[i].percent, got,
			HELD);
	}
}
END_TEST

/* Who all come at once are equals, and thresholds see their true loads. */
START_TEST(all_warm_together)
{
	struct guard guards[8] = {{0}};
	struct pool_ask ask = {.role = ROLE_UNIFIED, .now_ms = NOW};
	struct explain e;
	unsigned i;

	now_ms = NOW;
	pool = unit_pool_of(4, "policy = least_requests\nslow_start = 100s\n");
	for (i = 0; i < 4; i++) {
		char name[8];

		snprintf(name, sizeof(name), "w%u", i);
		atomic_store(&unit_worker(pool, name)->probe.warm_since_ms, NOW - 1000);
	}
	for (i = 0; i < 8; i++)
		ck_assert_int_eq(pick_of(100, &guards[i]), 0);
	ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
	for (i = 0; i < 4; i++)
		ck_assert_uint_eq(e.candidates[i].load, 2);
	free(e.candidates);
	unit_drop(guards, 8);
	unit_close(pool);
}
END_TEST

/* ---- breakers ---- */

/*
 * Random lives of requests on workers whose breakers open and close: at the end, when
 * all are dropped and time has passed, each worker takes a trial again; no slot leaked.
 */
START_TEST(trial_slots_never_leak)
{
	enum { REQUESTS = 12, STEPS = 20000, WORKERS = 3 };
	static const char lines[] = "policy = least_requests\ncb_failure_threshold = 3\n"
				    "cb_success_threshold = 2\ncb_timeout = 100ms\n"
				    "cb_window = 1s\n";
	struct guard guards[REQUESTS] = {{0}};
	struct rng rng;
	unsigned i, opened = 0, closed = 0;

	rng_seed(&rng, (uint64_t)_i);
	pool = unit_pool_of(WORKERS, lines);
	now_ms = NOW;
	for (i = 0; i < STEPS; i++) {
		struct guard *g = &guards[rng_below(&rng, REQUESTS)];

		now_ms += rng_below(&rng, 20);
		if (g->worker == NULL) {
			int err = pick_of(100, g);

			WANT(err == 0 || err == ERR_STATE);
			continue;
		}
		if (rng_below(&rng, 4) != 0) {
			enum breaker_change c =
				guard_report(g, (enum outcome)rng_below(&rng, 3), now_ms);

			opened += c == BREAKER_OPENED;
			closed += c == BREAKER_HAS_CLOSED;
			/* A second report says nothing. */
			WANT(guard_report(g, OUTCOME_FAILURE, now_ms) == BREAKER_SAME);
		}
		guard_drop(g);
	}
	ck_assert_uint_gt(opened, 20);
	ck_assert_uint_gt(closed, 5);
	for (i = 0; i < REQUESTS; i++)
		guard_drop(&guards[i]);
	now_ms += 1000;
	for (i = 0; i < WORKERS; i++) {
		ck_assert_int_eq(pick_of(100, &guards[i]), 0);
		ck_assert_uint_eq(worker_load(guards[i].worker), 1);
	}
	for (i = 0; i < WORKERS; i++)
		guard_drop(&guards[i]);
	unit_close(pool);
}
END_TEST

static Suite *pool_health_suite(void)
{
	Suite *s = suite_create("pool_health");
	TCase *c = tcase_create("pool_health");

	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, a_stalled_worker_gets_one_small_request, 0, 2);
	tcase_add_loop_test(c, others_are_not_tried, 0, 2);
	tcase_add_loop_test(c, a_trial_is_told_its_time, 0, 6);
	tcase_add_test(c, nobody_is_a_trial_twice);
	tcase_add_loop_test(c, the_share_grows, 0, 4);
	tcase_add_test(c, all_warm_together);
	tcase_add_loop_test(c, trial_slots_never_leak, 0, 20);
	suite_add_tcase(s, c);
	return s;
}

UNIT_MAIN(pool_health_suite())
