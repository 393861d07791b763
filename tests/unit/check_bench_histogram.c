/* The bench's histogram: exact where small, bounded error above, ranks as sorting gives.
 */
#include "base/rng.h"
#include "bench/histogram.h"
#include "tests/unit/unit.h"

#include <math.h>
#include <string.h>

static struct histogram h;

static void set_up(void)
{
	memset(&h, 0, sizeof(h));
}

START_TEST(empty)
{
	ck_assert_uint_eq(histogram_at(&h, 0.5), 0);
	ck_assert_uint_eq(histogram_at(&h, 1), 0);
	ck_assert(histogram_mean(&h) == 0);
}
END_TEST

START_TEST(small_values_are_exact)
{
	for (uint64_t v = 0; v < 256; v++)
		histogram_add(&h, v);
	ck_assert_uint_eq(h.n, 256);
	ck_assert_uint_eq(h.min, 0);
	ck_assert_uint_eq(h.max, 255);
	ck_assert(histogram_mean(&h) == 127.5);
	for (uint64_t v = 0; v < 256; v++)
		ck_assert_uint_eq(histogram_at(&h, (double)(v + 1) / 256), v);
	ck_assert_uint_eq(histogram_at(&h, 0), 0);
}
END_TEST

/* One value at each edge of each power of two: said back, and within 1/128. */
START_TEST(single_values)
{
	for (unsigned bits = 8; bits <= HISTOGRAM_BITS; bits++) {
		for (int near = -2; near <= 1; near++) {
			uint64_t v = (UINT64_C(1) << bits) + (uint64_t)(int64_t)near, got;

			if (v >= UINT64_C(1) << HISTOGRAM_BITS)
				continue;
			set_up();
			histogram_add(&h, v);
			histogram_add(&h, v * 2); /* so that the maximum does not help */
			got = histogram_at(&h, 0.5);
			ck_assert_msg(got >= v && got - v <= v / 128, "%llu: %llu",
				(unsigned long long)v, (unsigned long long)got);
		}
	}
}
END_TEST

START_TEST(huge_values_count_as_the_largest)
{
	histogram_add(&h, UINT64_MAX);
	histogram_add(&h, UINT64_C(1) << HISTOGRAM_BITS);
	ck_assert_uint_eq(h.n, 2);
	ck_assert_uint_eq(histogram_at(&h, 1), (UINT64_C(1) << HISTOGRAM_BITS) - 1);
	ck_assert_uint_eq(h.min, h.max);
}
END_TEST

START_TEST(the_maximum_is_not_exceeded)
{
	histogram_add(&h, 1000001);
	ck_assert_uint_eq(histogram_at(&h, 0.999), 1000001);
}
END_TEST

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

START_TEST(ranks_as_sorting_gives)
{
	static const double parts[] = {.001, .01, .25, .5, .75, .9, .99, .999, 1};
	static uint64_t values[5000];
	struct rng rng;

	rng_seed(&rng, 5);
	for (size_t i = 0; i < ARRAY_LEN(values); i++) {
		values[i] = rng_next(&rng) >> (24 + rng_below(&rng, 40));
		histogram_add(&h, values[i]);
	}
	qsort(values, ARRAY_LEN(values), sizeof(values[0]), by_value);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		size_t rank = (size_t)ceil(parts[i] * (double)ARRAY_LEN(values));
		uint64_t want = values[rank - 1], got = histogram_at(&h, parts[i]);

		ck_assert_msg(got >= want && got - want <= want / 128,
			"%g: %llu, not %llu", parts[i], (unsigned long long)got,
			(unsigned long long)want);
	}
}
END_TEST

static Suite *histogram_suite(void)
{
	Suite *suite = suite_create("bench_histogram");
	TCase *tc = tcase_create("bench_histogram");

	tcase_add_checked_fixture(tc, set_up, NULL);
	tcase_add_test(tc, empty);
	tcase_add_test(tc, small_values_are_exact);
	tcase_add_test(tc, single_values);
	tcase_add_test(tc, huge_values_count_as_the_largest);
	tcase_add_test(tc, the_maximum_is_not_exceeded);
	tcase_add_test(tc, ranks_as_sorting_gives);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(histogram_suite())
