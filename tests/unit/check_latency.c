/*
 * How long a worker takes: buckets, quantiles, and the window that shows the present.
 */
#include "tests/unit/unit.h"
#include "worker/latency.h"

#define MINUTE 60000

/* Each bound is the last of its bucket, and they grow by a quarter and a bit. */
START_TEST(buckets)
{
	unsigned i;

	ck_assert_uint_eq(latency_bucket(0), 0);
	ck_assert_uint_eq(latency_bound_us(0), 100);
	ck_assert_uint_eq(latency_bound_us(LATENCY_BOUNDS - 1), 1000000000);
	for (i = 0; i < LATENCY_BOUNDS; i++) {
		ck_assert_uint_eq(latency_bucket(latency_bound_us(i)), i);
		ck_assert_uint_eq(latency_bucket(latency_bound_us(i) + 1), i + 1);
		if (i == 0)
			continue;
		ck_assert_uint_gt(latency_bound_us(i) * 10, latency_bound_us(i - 1) * 12);
		ck_assert_uint_lt(latency_bound_us(i) * 10, latency_bound_us(i - 1) * 13);
	}
	ck_assert_uint_eq(latency_bucket(UINT64_MAX), LATENCY_BOUNDS);
}
END_TEST

START_TEST(nothing_ended)
{
	struct latency l = {0};
	struct latency_window w = {0};
	struct latency_figures f = latency_recent(&l, &w, LATENCY_TTFT);

	ck_assert(f.n == 0 && f.p50_us == 0 && f.p99_us == 0);
}
END_TEST

/* Right to within a bucket's width. */
START_TEST(quantiles)
{
	static struct latency l;
	static struct latency_window w;
	struct latency_figures f;
	unsigned i;

	for (i = 1; i <= 1000; i++)
		latency_add(&l, LATENCY_TTFT, 1000 * i);
	f = latency_recent(&l, &w, LATENCY_TTFT);
	ck_assert_uint_eq(f.n, 1000);
	ck_assert_uint_ge(f.p50_us, 490000);
	ck_assert_uint_le(f.p50_us, 510000);
	ck_assert_uint_ge(f.p99_us, 970000);
	ck_assert_uint_le(f.p99_us, 1000000);
	ck_assert_uint_eq(latency_recent(&l, &w, LATENCY_WHOLE).n, 0);
	ck_assert_uint_eq(atomic_load(&l.sum_us[LATENCY_TTFT]), 500500000);
}
END_TEST

/* What takes longer than the last bound takes at least that. */
START_TEST(longest)
{
	static struct latency l;
	static struct latency_window w;
	struct latency_figures f;

	latency_add(&l, LATENCY_WHOLE, UINT64_C(5000000000));
	f = latency_recent(&l, &w, LATENCY_WHOLE);
	ck_assert(f.n == 1 && f.p50_us == 1000000000 && f.p99_us == 1000000000);
}
END_TEST

/* The past leaves the figures after two minutes, and does not leave the counts. */
START_TEST(window)
{
	static struct latency l;
	static struct latency_window w;
	uint64_t now_ms;
	unsigned i;

	for (i = 0; i < 100; i++)
		latency_add(&l, LATENCY_TTFT, 5000000);
	for (now_ms = 1000; now_ms < 1000 + MINUTE; now_ms += 1000)
		latency_roll(&w, &l, now_ms);
	ck_assert_uint_eq(latency_recent(&l, &w, LATENCY_TTFT).n, 100);
	for (i = 0; i < 10; i++)
		latency_add(&l, LATENCY_TTFT, 20000);
	for (; now_ms < 1000 + 2 * MINUTE; now_ms += 1000)
		latency_roll(&w, &l, now_ms);
	ck_assert_uint_eq(latency_recent(&l, &w, LATENCY_TTFT).n, 10);
	ck_assert_uint_le(latency_recent(&l, &w, LATENCY_TTFT).p99_us, 20000);
	latency_roll(&w, &l, now_ms);
	ck_assert_uint_eq(latency_recent(&l, &w, LATENCY_TTFT).n, 0);
	ck_assert_uint_eq(atomic_load(&l.sum_us[LATENCY_TTFT]), 500200000);
}
END_TEST

static Suite *latency_suite(void)
{
	Suite *suite = suite_create("latency");
	TCase *tc = tcase_create("latency");

	tcase_add_test(tc, buckets);
	tcase_add_test(tc, nothing_ended);
	tcase_add_test(tc, quantiles);
	tcase_add_test(tc, longest);
	tcase_add_test(tc, window);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(latency_suite())
