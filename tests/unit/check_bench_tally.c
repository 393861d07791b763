/* Counting: errors by kind, tokens only where a server counted them, workers, spread. */
#include "bench/report.h"
#include "bench/tally.h"
#include "tests/unit/unit.h"

#include <string.h>

static struct tally *tally;
static struct reply reply;

static void set_up(void)
{
	tally = tally_new();
	memset(&reply, 0, sizeof(reply));
}

static void tear_down(void)
{
	tally_free(tally);
}

static void count(const char *worker, unsigned times)
{
	strcpy(reply.worker, worker);
	while (times-- > 0)
		tally_ok(tally, &reply, 0);
}

START_TEST(errors_by_kind)
{
	tally_error(tally, "timeout", "");
	tally_error(tally, "http_503", "first");
	tally_error(tally, "http_503", "second");
	tally_sort(tally);
	ck_assert_uint_eq(tally->failed, 3);
	ck_assert_uint_eq(tally->n_errors, 2);
	ck_assert_str_eq(tally->errors[0].kind, "http_503");
	ck_assert_uint_eq(tally->errors[0].n, 2);
	ck_assert_str_eq(tally->errors[0].sample, "first");
}
END_TEST

START_TEST(too_many_kinds)
{
	uint64_t sum = 0;

	for (int i = 0; i < 1000; i++) {
		char kind[32];

		snprintf(kind, sizeof(kind), "http_%d", i);
		tally_error(tally, kind, "");
	}
	ck_assert_uint_eq(tally->n_errors, TALLY_KINDS_MAX);
	for (size_t i = 0; i < tally->n_errors; i++)
		sum += tally->errors[i].n;
	ck_assert_uint_eq(sum, 1000);
}
END_TEST

START_TEST(tokens_with_usage_only)
{
	reply.prompt_tokens = 100; /* has_usage is not set: these are nothing */
	tally_ok(tally, &reply, 90);
	ck_assert_uint_eq(tally->ok, 1);
	ck_assert_uint_eq(tally->prompt_tokens, 0);
	ck_assert_uint_eq(tally->asked_tokens, 0);
	reply.has_usage = true;
	reply.new_tokens = 7;
	tally_ok(tally, &reply, 90);
	ck_assert_uint_eq(tally->with_cached, 0);
	reply.has_cached = true;
	reply.cached_tokens = 64;
	tally_ok(tally, &reply, 0); /* its size was not chosen */
	ck_assert_uint_eq(tally->prompt_tokens, 200);
	ck_assert_uint_eq(tally->new_tokens, 14);
	ck_assert_uint_eq(tally->cached_tokens, 64);
	ck_assert_uint_eq(tally->with_cached, 1);
	ck_assert_uint_eq(tally->asked_tokens, 90);
	ck_assert_uint_eq(tally->counted_tokens, 100);
}
END_TEST

START_TEST(workers_and_spread)
{
	count("w1", 6);
	ck_assert(report_spread(tally) == 0);
	count("w0", 2);
	count("", 1);
	tally_sort(tally);
	ck_assert_uint_eq(tally->n_workers, 3);
	ck_assert_str_eq(tally->workers[0].name, "(unnamed)");
	ck_assert_str_eq(tally->workers[1].name, "w0");
	ck_assert_uint_eq(tally->workers[2].requests, 6);
	ck_assert_double_eq_tol(report_spread(tally), 2, 1e-9);
}
END_TEST

START_TEST(too_many_workers)
{
	char name[32];

	for (int i = 0; i < TALLY_WORKERS_MAX + 10; i++) {
		snprintf(name, sizeof(name), "w%d", i);
		count(name, 1);
	}
	ck_assert_uint_eq(tally->n_workers, TALLY_WORKERS_MAX);
	ck_assert_str_eq(tally->workers[TALLY_WORKERS_MAX - 1].name, "(others)");
	ck_assert_uint_eq(tally->workers[TALLY_WORKERS_MAX - 1].requests, 11);
}
END_TEST

START_TEST(busy)
{
	struct report r = {.tally = tally};

	r.result = (struct run_result){.took_us = 1000000, .cpu_us = 790000};
	ck_assert(!report_is_busy(&r));
	r.result.cpu_us = 810000;
	ck_assert(report_is_busy(&r));
	r.result.cpu_us = 400000;
	r.result.waited_us = 390000;
	ck_assert(!report_is_busy(&r));
	r.result.waited_us = 410000;
	ck_assert(report_is_busy(&r));
	r.result = (struct run_result){.took_us = 10000, .cpu_us = 10000};
	ck_assert(!report_is_busy(&r));
}
END_TEST

static Suite *tally_suite(void)
{
	Suite *suite = suite_create("bench_tally");
	TCase *tc = tcase_create("bench_tally");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, errors_by_kind);
	tcase_add_test(tc, too_many_kinds);
	tcase_add_test(tc, tokens_with_usage_only);
	tcase_add_test(tc, workers_and_spread);
	tcase_add_test(tc, too_many_workers);
	tcase_add_test(tc, busy);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(tally_suite())
