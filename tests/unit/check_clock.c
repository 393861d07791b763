/*
 * base/clock: the cache, freezing it, and that each thread has its own. Asserts order,
 * never how long something took.
 */
#include "base/clock.h"
#include "tests/unit/unit.h"

#include <pthread.h>

START_TEST(follows_the_kernel)
{
	uint64_t before_ms = clock_us() / 1000, now_ms = clock_update();

	ck_assert_uint_ge(now_ms, before_ms);
	ck_assert_uint_le(now_ms, clock_us() / 1000);
	ck_assert_uint_eq(clock_now_ms(), now_ms);
}
END_TEST

/* The cache stays until updated, though the kernel's clock moves on. */
START_TEST(is_cached)
{
	uint64_t now_ms = clock_update(), end_us = clock_us() + 2000;

	while (clock_us() < end_us)
		;
	ck_assert_uint_eq(clock_now_ms(), now_ms);
	ck_assert_uint_gt(clock_update(), now_ms);
}
END_TEST

START_TEST(freezes)
{
	uint64_t real_ms = clock_update();

	clock_set(5000);
	ck_assert_uint_eq(clock_now_ms(), 5000);
	ck_assert_uint_eq(clock_update(), 5000);
	ck_assert_uint_eq(clock_now_ms(), 5000);
	clock_set(6000);
	ck_assert_uint_eq(clock_update(), 6000);
	clock_set(0);
	ck_assert_uint_ge(clock_now_ms(), real_ms);
	ck_assert_uint_ge(clock_update(), real_ms);
}
END_TEST

/* The turn's microseconds stand still with its milliseconds; frozen they are the
 * kernel's.
 */
START_TEST(turn_is_cached)
{
	uint64_t now_ms = clock_update(), turn_us = clock_turn_us(), end_us;

	ck_assert_uint_eq(turn_us / 1000, now_ms);
	end_us = clock_us() + 2000;
	while (clock_us() < end_us)
		;
	ck_assert_uint_eq(clock_turn_us(), turn_us);
	clock_set(5000);
	ck_assert_uint_ge(clock_turn_us(), end_us);
	clock_set(0);
	ck_assert_uint_ge(clock_turn_us(), end_us);
	ck_assert_uint_le(clock_turn_us(), clock_us());
}
END_TEST

static void *read_elsewhere(void *arg)
{
	uint64_t *seen = arg;

	seen[0] = clock_now_ms();
	seen[1] = clock_update();
	return NULL;
}

START_TEST(is_per_thread)
{
	uint64_t seen[2] = {1, 0};
	pthread_t thread;

	clock_set(7);
	ck_assert_int_eq(pthread_create(&thread, NULL, read_elsewhere, seen), 0);
	pthread_join(thread, NULL);
	ck_assert_uint_eq(seen[0], 0);
	ck_assert_uint_ne(seen[1], 7);
	ck_assert_uint_eq(clock_now_ms(), 7);
	clock_set(0);
}
END_TEST

START_TEST(wall_clock_is_this_century)
{
	ck_assert(clock_wall_ms() > 1577836800000ULL); /* 2020-01-01 */
	ck_assert(clock_wall_ms() < 4102444800000ULL); /* 2100-01-01 */
}
END_TEST

static Suite *clock_suite(void)
{
	Suite *suite = suite_create("clock");
	TCase *tc = tcase_create("clock");

	tcase_add_test(tc, follows_the_kernel);
	tcase_add_test(tc, is_cached);
	tcase_add_test(tc, turn_is_cached);
	tcase_add_test(tc, freezes);
	tcase_add_test(tc, is_per_thread);
	tcase_add_test(tc, wall_clock_is_this_century);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(clock_suite())
