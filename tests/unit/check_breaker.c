/*
 * The breaker and the retry budget: the window, trials, neutral outcomes (B13), pauses,
 * and a random walk against a slow model of the same rules.
 */
#include "pool/retry.h"
#include "worker/breaker.h"

#include "base/rng.h"
#include "tests/unit/unit.h"

/* A bucket is 100 ms. */
static const struct breaker_opts opts = {.failure_threshold = 3,
	.success_threshold = 2,
	.failure_percent = 20,
	.timeout_ms = 1000,
	.window_ms = 1600};
static struct breaker b;

static void set_up(void)
{
	breaker_init(&b, &opts);
}

static void tear_down(void)
{
	breaker_destroy(&b);
}

/* Of a request that began while the breaker was as it is now. */
static enum breaker_change report(enum outcome o, bool is_trial, uint64_t now_ms)
{
	struct breaker_ticket t = {
		.is_trial = is_trial, .openings = atomic_load(&b.openings)};

	return breaker_report(&b, o, &t, now_ms);
}

/* Of one that began long before. */
static enum breaker_change report_late(enum outcome o, uint64_t now_ms)
{
	struct breaker_ticket t = {.openings = atomic_load(&b.openings) - 1};

	return breaker_report(&b, o, &t, now_ms);
}

static enum breaker_change report_of(enum outcome o, uint32_t tenant, uint64_t now_ms)
{
	struct breaker_ticket t = {
		.openings = atomic_load(&b.openings), .tenant = tenant};

	return breaker_report(&b, o, &t, now_ms);
}

static bool begin(uint64_t now_ms)
{
	return breaker_begin(&b, BREAKER_NO_TENANT, now_ms).is_trial;
}

static void fail_at(uint64_t now_ms)
{
	ck_assert_int_ne(report(OUTCOME_FAILURE, false, now_ms), BREAKER_HAS_CLOSED);
}

static void open_at(uint64_t now_ms)
{
	fail_at(now_ms);
	fail_at(now_ms);
	ck_assert_int_eq(report(OUTCOME_FAILURE, false, now_ms), BREAKER_OPENED);
}

START_TEST(opens_at_the_threshold_within_the_window)
{
	fail_at(10000);
	fail_at(10100);
	ck_assert(breaker_admits(&b, 10100));
	ck_assert_uint_eq(breaker_failures(&b, 10100), 2);
	ck_assert_int_eq(report(OUTCOME_FAILURE, false, 10200), BREAKER_OPENED);
	ck_assert(!breaker_admits(&b, 10200));
	ck_assert_int_eq(breaker_state(&b, 10200), BREAKER_OPEN);
	ck_assert_uint_eq(breaker_wait_ms(&b, 10200), 1000);
}
END_TEST

START_TEST(failures_that_left_the_window_do_not_count)
{
	fail_at(10000);
	fail_at(10050);
	fail_at(11700);
	ck_assert(breaker_admits(&b, 11700));
	ck_assert_uint_eq(breaker_failures(&b, 11700), 1);
	fail_at(11800);
	ck_assert_uint_eq(breaker_failures(&b, 100000), 0);
	open_at(200000);
}
END_TEST

/* A success between failures takes nothing back: the window is what is judged. */
START_TEST(a_success_does_not_hide_failures)
{
	fail_at(10000);
	report(OUTCOME_SUCCESS, false, 10001);
	fail_at(10002);
	report(OUTCOME_SUCCESS, false, 10003);
	ck_assert_int_eq(report(OUTCOME_FAILURE, false, 10004), BREAKER_OPENED);
}
END_TEST

/* B13: client mistakes say nothing either way. */
START_TEST(neutral_outcomes_neither_open_nor_close)
{
	unsigned i;

	for (i = 0; i < 1000; i++)
		ck_assert_int_eq(report(OUTCOME_NEUTRAL, false, 10000 + i), BREAKER_SAME);
	ck_assert(breaker_admits(&b, 11000));
	/* 500, 400, 500, 400, 500 opens as 500, 500, 500 does. */
	fail_at(12000);
	report(OUTCOME_NEUTRAL, false, 12000);
	fail_at(12000);
	report(OUTCOME_NEUTRAL, false, 12000);
	ck_assert_int_eq(report(OUTCOME_FAILURE, false, 12000), BREAKER_OPENED);
	/* Half-open: a 400 gives the place back. */
	ck_assert(breaker_admits(&b, 13000));
	ck_assert(begin(13000));
	ck_assert(!breaker_admits(&b, 13000));
	ck_assert_int_eq(report(OUTCOME_NEUTRAL, true, 13001), BREAKER_SAME);
	ck_assert_int_eq(breaker_state(&b, 13001), BREAKER_HALF_OPEN);
	ck_assert(breaker_admits(&b, 13001));
}
END_TEST

START_TEST(half_open_admits_one_trial_at_a_time_and_closes)
{
	open_at(10000);
	ck_assert(!breaker_admits(&b, 10999));
	ck_assert(!begin(10999));
	ck_assert(breaker_admits(&b, 11000));
	ck_assert_int_eq(breaker_state(&b, 11000), BREAKER_HALF_OPEN);
	ck_assert(begin(11000));
	ck_assert(!breaker_admits(&b, 99000));
	ck_assert(!begin(99000));
	ck_assert_int_eq(report(OUTCOME_SUCCESS, true, 99000), BREAKER_SAME);
	ck_assert(begin(99001));
	ck_assert_int_eq(report(OUTCOME_SUCCESS, true, 99002), BREAKER_HAS_CLOSED);
	ck_assert(breaker_admits(&b, 99002));
	ck_assert(!begin(99002));
}
END_TEST

START_TEST(a_trial_that_fails_opens_anew_and_successes_start_again)
{
	open_at(10000);
	ck_assert(begin(11000));
	report(OUTCOME_SUCCESS, true, 11001);
	ck_assert(begin(11002));
	ck_assert_int_eq(report(OUTCOME_FAILURE, true, 11500), BREAKER_OPENED);
	ck_assert(!breaker_admits(&b, 12499));
	ck_assert(begin(12500));
	ck_assert_int_eq(report(OUTCOME_SUCCESS, true, 12501), BREAKER_SAME);
	ck_assert_int_eq(breaker_state(&b, 12501), BREAKER_HALF_OPEN);
}
END_TEST

/* What began while it was closed and ends while it is open says nothing about now. */
START_TEST(late_outcomes_neither_extend_nor_close)
{
	open_at(10000);
	ck_assert_int_eq(report_late(OUTCOME_FAILURE, 10900), BREAKER_SAME);
	ck_assert_int_eq(report_late(OUTCOME_SUCCESS, 10900), BREAKER_SAME);
	ck_assert(begin(11000));
	ck_assert_int_eq(report_late(OUTCOME_FAILURE, 11001), BREAKER_SAME);
	ck_assert_int_eq(breaker_state(&b, 11001), BREAKER_HALF_OPEN);
}
END_TEST

START_TEST(a_pause_ends_by_itself_and_only_grows)
{
	breaker_pause(&b, 5000);
	breaker_pause(&b, 4000);
	ck_assert(!breaker_admits(&b, 4999));
	ck_assert_uint_eq(breaker_wait_ms(&b, 4999), 1);
	ck_assert(breaker_admits(&b, 5000));
	ck_assert_uint_eq(breaker_wait_ms(&b, 5000), 0);
	ck_assert_int_eq(breaker_state(&b, 4000), BREAKER_CLOSED);
}
END_TEST

/* C04: what the worker asked for is over when it serves. */
START_TEST(c04_a_success_ends_a_pause)
{
	breaker_pause(&b, 5000);
	ck_assert(breaker_is_paused(&b, 4000));
	report(OUTCOME_NEUTRAL, false, 4000);
	ck_assert(!breaker_admits(&b, 4000));
	report(OUTCOME_SUCCESS, false, 4001);
	ck_assert(breaker_admits(&b, 4001));
	ck_assert(!breaker_is_paused(&b, 4001));
	ck_assert_uint_eq(breaker_wait_ms(&b, 4001), 0);
	ck_assert(breaker_pause(&b, 4500));
}
END_TEST

START_TEST(reset_forgets_all)
{
	open_at(10000);
	ck_assert(begin(11000));
	breaker_pause(&b, 90000);
	breaker_reset(&b);
	ck_assert(breaker_admits(&b, 11001));
	/* The trial that was under way ends as any other request. */
	ck_assert_int_eq(report(OUTCOME_FAILURE, true, 11002), BREAKER_SAME);
	ck_assert_uint_eq(breaker_failures(&b, 11002), 1);
}
END_TEST

START_TEST(configure_keeps_what_was_counted)
{
	struct breaker_opts o = opts;

	fail_at(10000);
	fail_at(10000);
	o.failure_threshold = 100;
	breaker_configure(&b, &o);
	ck_assert_uint_eq(breaker_failures(&b, 10000), 2);
	fail_at(10000);
	ck_assert(breaker_admits(&b, 10000));
	o.window_ms = 32000;
	breaker_configure(&b, &o);
	ck_assert_uint_eq(breaker_failures(&b, 10000), 0);
}
END_TEST

/* Against times kept in a list: never opens early, never late by more than a bucket. */
START_TEST(random_failures_against_a_list)
{
	static uint64_t at[100000];
	struct rng rng;
	uint64_t now = 50000, n = 0, seed, i, sure, possible;

	for (seed = 0; seed < 50; seed++) {
		rng_seed(&rng, seed);
		breaker_reset(&b);
		for (n = 0; n < 500;) {
			now += rng_below(&rng, 900);
			at[n++] = now;
			for (sure = possible = i = 0; i < n; i++) {
				sure += now - at[i] < 1500;
				possible += now - at[i] <= 1600;
			}
			if (report(OUTCOME_FAILURE, false, now) == BREAKER_OPENED) {
				ck_assert_uint_ge(possible, 3);
				breaker_reset(&b);
				n = 0;
				now += 5000;
				break;
			}
			ck_assert_uint_lt(sure, 3);
		}
	}
}
END_TEST

/* ---- a share of what ended ---- */

static void succeed(unsigned n, uint64_t now_ms)
{
	while (n-- > 0)
		ck_assert_int_eq(report(OUTCOME_SUCCESS, false, now_ms), BREAKER_SAME);
}

static void begin_with(unsigned failure_threshold, uint64_t now_ms)
{
	struct breaker_opts o = opts;

	o.failure_threshold = failure_threshold;
	breaker_configure(&b, &o);
	breaker_sweep(&b, now_ms);
}

/* B2: 0.4 % of 500s in steady traffic open nothing, however many they become. */
START_TEST(b2_a_small_share_opens_nothing)
{
	uint64_t now_ms = 10000;
	unsigned i;

	begin_with(3, 10000);
	for (i = 0; i < 400; i++) {
		succeed(99, now_ms);
		ck_assert_int_eq(
			report(i % 2 ? OUTCOME_STATUS : OUTCOME_FAILURE, false, now_ms),
			BREAKER_SAME);
		now_ms += 10;
	}
	ck_assert_uint_gt(breaker_failures(&b, now_ms), 100);
	ck_assert(breaker_admits(&b, now_ms));
}
END_TEST

/* A quarter of the weight: four in five, where resets need one in five. */
START_TEST(b2_a_whole_5xx_weighs_a_quarter)
{
	unsigned i;

	begin_with(20, 10000);
	succeed(10, 10000);
	for (i = 0; i < 39; i++)
		ck_assert_int_eq(report(OUTCOME_STATUS, false, 10001), BREAKER_SAME);
	ck_assert_int_eq(report(OUTCOME_STATUS, false, 10001), BREAKER_OPENED);
	ck_assert(breaker_is_by_status(&b));
	breaker_reset(&b);
	begin_with(20, 20000);
	succeed(160, 20000);
	for (i = 0; i < 40; i++) {
		succeed(i % 2, 20001); /* not in a row */
		if (i < 39)
			report(OUTCOME_FAILURE, false, 20001);
	}
	ck_assert(breaker_admits(&b, 20001));
	for (i = 0; i < 10 && breaker_admits(&b, 20001); i++)
		report(OUTCOME_FAILURE, false, 20001);
	ck_assert(!breaker_admits(&b, 20001));
	ck_assert(!breaker_is_by_status(&b));
}
END_TEST

/* Who breaks every connection is out after failure_threshold, whatever was before. */
START_TEST(b2_failures_in_a_row_open_it_whatever_was_before)
{
	begin_with(3, 10000);
	succeed(100000, 10000);
	fail_at(10100);
	fail_at(10101);
	succeed(1, 10102);
	fail_at(10103);
	fail_at(10104);
	report(OUTCOME_STATUS, false, 10105); /* is in no row */
	fail_at(10106);
	fail_at(10107);
	ck_assert(breaker_admits(&b, 10107));
	ck_assert_int_eq(report(OUTCOME_FAILURE, false, 10108), BREAKER_OPENED);
}
END_TEST

/* Successes of another time do not hide failures of now. */
START_TEST(successes_leave_the_window_as_failures_do)
{
	unsigned i;

	begin_with(3, 10000);
	succeed(1000, 10000);
	for (i = 1; i <= 20; i++)
		breaker_sweep(&b, 10000 + i * 100);
	succeed(1, 12000);
	report(OUTCOME_STATUS, false, 12001);
	fail_at(12001);
	ck_assert_int_eq(report(OUTCOME_FAILURE, false, 12002), BREAKER_OPENED);
}
END_TEST

START_TEST(b2_one_tenants_failures_open_nothing_while_others_succeed)
{
	unsigned i;

	begin_with(3, 10000);
	for (i = 0; i < 100; i++) {
		ck_assert_int_eq(report_of(OUTCOME_FAILURE, 7, 10000), BREAKER_SAME);
		if (i % 3 == 0)
			report_of(OUTCOME_SUCCESS, 8, 10000);
		if (i == 1)
			report_of(OUTCOME_SUCCESS, 7, 10000); /* says nothing of it */
	}
	ck_assert(breaker_admits(&b, 10000));
	/* It is not that tenant alone. */
	ck_assert_int_eq(report_of(OUTCOME_FAILURE, 8, 10001), BREAKER_OPENED);
	breaker_reset(&b);
	/* Nobody else is there to say that the worker is well. */
	for (i = 0; i < 2; i++)
		ck_assert_int_eq(report_of(OUTCOME_FAILURE, 7, 20000), BREAKER_SAME);
	ck_assert_int_eq(report_of(OUTCOME_FAILURE, 7, 20000), BREAKER_OPENED);
}
END_TEST

/* ---- the way back ---- */

START_TEST(a_success_by_any_way_counts)
{
	open_at(10000);
	report_late(OUTCOME_SUCCESS, 10001);
	ck_assert_int_eq(report(OUTCOME_SUCCESS, false, 10002), BREAKER_SAME);
	ck_assert_int_eq(report(OUTCOME_FAILURE, false, 10003), BREAKER_SAME);
	ck_assert_int_eq(report(OUTCOME_SUCCESS, false, 10004), BREAKER_HAS_CLOSED);
	ck_assert(breaker_admits(&b, 10004));
}
END_TEST

START_TEST(a_half_open_breaker_wants_its_trial)
{
	bool is_overdue = true;

	ck_assert(!breaker_wants_trial(&b, 9000, &is_overdue));
	open_at(10000);
	ck_assert(!breaker_wants_trial(&b, 10999, &is_overdue));
	ck_assert(breaker_wants_trial(&b, 11000, &is_overdue));
	ck_assert(!is_overdue);
	ck_assert(breaker_wants_trial(&b, 12000, &is_overdue));
	ck_assert(is_overdue);
	ck_assert(begin(12000));
	ck_assert(!breaker_wants_trial(&b, 12001, &is_overdue));
	report(OUTCOME_NEUTRAL, true, 12002);
	ck_assert(breaker_wants_trial(&b, 12002, &is_overdue));
	breaker_pause(&b, 13000);
	ck_assert(!breaker_wants_trial(&b, 12003, &is_overdue));
}
END_TEST

/* ---- the budget ---- */

START_TEST(a_quiet_pool_has_its_minimum)
{
	struct retry_budget r = {0};
	unsigned i;

	for (i = 0; i < RETRY_MIN; i++)
		ck_assert(retry_take(&r, 20, 1000));
	ck_assert(!retry_take(&r, 20, 1000));
	ck_assert(!retry_take(&r, 20, 10999));
	ck_assert(retry_take(&r, 20, 11000));
}
END_TEST

START_TEST(a_busy_pool_has_its_share)
{
	struct retry_budget r = {0};
	unsigned i, taken = 0;

	for (i = 0; i < 1000; i++)
		retry_count_request(&r, 1000 + i);
	for (i = 0; i < 1000; i++)
		taken += retry_take(&r, 20, 2000);
	ck_assert_uint_eq(taken, 200 + RETRY_MIN);
	/* Requests leave the window as retries do. */
	for (taken = i = 0; i < 1000; i++)
		taken += retry_take(&r, 20, 60000);
	ck_assert_uint_eq(taken, RETRY_MIN);
}
END_TEST

START_TEST(zero_per_cent_is_none)
{
	struct retry_budget r = {0};

	retry_count_request(&r, 1000);
	ck_assert(!retry_take(&r, 0, 1000));
}
END_TEST

START_TEST(backoff_doubles_within_bounds)
{
	struct rng rng;
	unsigned n, i;

	rng_seed(&rng, 7);
	ck_assert_uint_eq(retry_backoff_ms(0, &rng), 0);
	ck_assert_uint_eq(retry_backoff_ms(1, &rng), 0);
	for (i = 0; i < 1000; i++) {
		for (n = 2; n < 40; n++) {
			uint64_t most = n - 2 < 6 ? RETRY_BACKOFF_MS << (n - 2)
						  : RETRY_BACKOFF_MAX_MS;
			uint64_t ms = retry_backoff_ms(n, &rng);

			ck_assert_uint_le(ms, MIN(most, (uint64_t)RETRY_BACKOFF_MAX_MS));
			ck_assert_uint_ge(
				ms, MIN(most, (uint64_t)RETRY_BACKOFF_MAX_MS) / 2);
		}
	}
}
END_TEST

static Suite *breaker_suite(void)
{
	Suite *s = suite_create("breaker");
	TCase *c = tcase_create("breaker"), *r = tcase_create("retry");

	tcase_add_checked_fixture(c, set_up, tear_down);
	tcase_add_test(c, opens_at_the_threshold_within_the_window);
	tcase_add_test(c, failures_that_left_the_window_do_not_count);
	tcase_add_test(c, a_success_does_not_hide_failures);
	tcase_add_test(c, neutral_outcomes_neither_open_nor_close);
	tcase_add_test(c, half_open_admits_one_trial_at_a_time_and_closes);
	tcase_add_test(c, a_trial_that_fails_opens_anew_and_successes_start_again);
	tcase_add_test(c, late_outcomes_neither_extend_nor_close);
	tcase_add_test(c, a_pause_ends_by_itself_and_only_grows);
	tcase_add_test(c, c04_a_success_ends_a_pause);
	tcase_add_test(c, reset_forgets_all);
	tcase_add_test(c, configure_keeps_what_was_counted);
	tcase_add_test(c, random_failures_against_a_list);
	tcase_add_test(c, b2_a_small_share_opens_nothing);
	tcase_add_test(c, b2_a_whole_5xx_weighs_a_quarter);
	tcase_add_test(c, b2_failures_in_a_row_open_it_whatever_was_before);
	tcase_add_test(c, successes_leave_the_window_as_failures_do);
	tcase_add_test(c, b2_one_tenants_failures_open_nothing_while_others_succeed);
	tcase_add_test(c, a_success_by_any_way_counts);
	tcase_add_test(c, a_half_open_breaker_wants_its_trial);
	suite_add_tcase(s, c);
	tcase_add_test(r, a_quiet_pool_has_its_minimum);
	tcase_add_test(r, a_busy_pool_has_its_share);
	tcase_add_test(r, zero_per_cent_is_none);
	tcase_add_test(r, backoff_doubles_within_bounds);
	suite_add_tcase(s, r);
	return s;
}

UNIT_MAIN(breaker_suite())
