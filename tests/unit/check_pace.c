/* The pace of a worker: what it learns, and when it is not believed. */
#include "tests/unit/unit.h"
#include "worker/pace.h"

#include <pthread.h>

/* 100 blocks in a second. */
static struct pace taught(void)
{
	struct pace p = {0};

	pace_begin(&p, 1000);
	pace_end(&p, 100, 2000);
	return p;
}

START_TEST(nothing_is_known)
{
	struct pace p = {0};

	ck_assert_uint_eq(pace_done(&p, 100, 5000), 0);
	pace_begin(&p, 1000);
	ck_assert_uint_eq(pace_done(&p, 100, 5000), 0);
	pace_end(&p, 100, 1000); /* no time passed: that is no pace */
	ck_assert_uint_eq(pace_done(&p, 100, 5000), 0);
}
END_TEST

START_TEST(what_is_done_by_now)
{
	struct pace p = taught();

	ck_assert_uint_eq(pace_done(&p, 500, 2000), 0);
	ck_assert_uint_eq(pace_done(&p, 500, 2010), 1);
	ck_assert_uint_eq(pace_done(&p, 500, 3000), 100);
	ck_assert_uint_eq(pace_done(&p, 500, 6990), 499);
	ck_assert_uint_eq(pace_done(&p, 0, 3000), 0);
	/* A new queue, after some time without one. */
	pace_begin(&p, 60000);
	ck_assert_uint_eq(pace_done(&p, 500, 60000), 0);
	ck_assert_uint_eq(pace_done(&p, 500, 61000), 100);
}
END_TEST

/* It may be a little late; what should have taken half as long counts in full again. */
START_TEST(a_late_worker_is_not_believed)
{
	struct pace p = taught();

	ck_assert_uint_eq(pace_done(&p, 500, 7500), 500);
	ck_assert_uint_eq(pace_done(&p, 500, 11990), 500);
	ck_assert_uint_eq(pace_done(&p, 500, 12020), 0);
	ck_assert_uint_eq(pace_done(&p, 500, UINT64_MAX), 0);
}
END_TEST

START_TEST(prompts_that_end_together)
{
	struct pace p = {0};

	pace_begin(&p, 1000);
	for (unsigned i = 0; i < 50; i++) {
		uint64_t now_ms = 2000 + i * 1000;

		pace_end(&p, 60, now_ms);
		pace_end(&p, 40, now_ms);
	}
	/* 100 blocks a second, the last of them a little more. */
	ck_assert_uint_ge(pace_done(&p, 5000, 61000), 1000);
	ck_assert_uint_le(pace_done(&p, 5000, 61000), 1100);
}
END_TEST

START_TEST(another_pace_is_learned)
{
	struct pace p = taught();

	for (unsigned i = 1; i <= 40; i++)
		pace_end(&p, 100, 2000 + i * 4000);
	ck_assert_uint_ge(pace_done(&p, 1000, 162000 + 10000), 250);
	ck_assert_uint_le(pace_done(&p, 1000, 162000 + 10000), 255);
}
END_TEST

START_TEST(a_step_back_is_none)
{
	struct pace p = taught();

	ck_assert_uint_eq(pace_done(&p, 500, 1), 0);
	pace_end(&p, 100, 500);
	ck_assert_uint_eq(pace_done(&p, 500, 400), 0);
	ck_assert_uint_le(pace_done(&p, 500, 3000), 500);
}
END_TEST

static struct pace shared;

static void *teach(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < 20000; i++) {
		pace_end(&shared, 10, 1000 + i);
		(void)pace_done(&shared, 100, 1000 + i);
	}
	return NULL;
}

/* Whoever writes when, what is read is in bounds. */
START_TEST(several_threads)
{
	pthread_t threads[3];

	pace_begin(&shared, 1000);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, teach, NULL), 0);
	for (unsigned i = 0; i < 20000; i++)
		ck_assert(pace_done(&shared, 100, 1000 + i) <= 100);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
}
END_TEST

static Suite *pace_suite(void)
{
	Suite *suite = suite_create("pace");
	TCase *tc = tcase_create("pace");

	tcase_add_test(tc, nothing_is_known);
	tcase_add_test(tc, what_is_done_by_now);
	tcase_add_test(tc, a_late_worker_is_not_believed);
	tcase_add_test(tc, prompts_that_end_together);
	tcase_add_test(tc, another_pace_is_learned);
	tcase_add_test(tc, a_step_back_is_none);
	tcase_add_test(tc, several_threads);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(pace_suite())
