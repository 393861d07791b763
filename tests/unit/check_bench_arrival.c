/* Arrivals: constant ones without drift; Poisson ones by mean, spread and memorylessness.
 */
#include "base/base.h"
#include "bench/arrival.h"
#include "tests/unit/unit.h"

#include <math.h>

START_TEST(constant_without_drift)
{
	struct arrival a;

	arrival_start(&a, ARRIVAL_CONSTANT, 3, 1);
	for (uint64_t i = 0; i < 300000; i++) {
		uint64_t got = arrival_next(&a);

		if (i % 300 == 0)
			ck_assert_uint_eq(got, i / 3 * 1000000);
	}
}
END_TEST

START_TEST(constant_begins_at_once)
{
	struct arrival a;

	arrival_start(&a, ARRIVAL_CONSTANT, 0.5, 1);
	ck_assert_uint_eq(arrival_next(&a), 0);
	ck_assert_uint_eq(arrival_next(&a), 2000000);
}
END_TEST

/*
 * 200,000 gaps at 100/s. Of an exponential distribution the mean is 10 ms and the
 * standard deviation too; a gap is longer than 10 ms with 1/e, and longer than 20 ms,
 * given that it is longer than 10, with 1/e again. Bounds are five standard errors; the
 * seed is fixed.
 */
START_TEST(poisson_gaps)
{
	enum { N = 200000 };
	double sum = 0, squares = 0, longer = 0, twice = 0;
	uint64_t before = 0;
	struct arrival a;

	arrival_start(&a, ARRIVAL_POISSON, 100, 42);
	for (int i = 0; i < N; i++) {
		uint64_t at = arrival_next(&a);
		double gap;

		ck_assert_uint_ge(at, before);
		gap = (double)(at - before) / 10000;
		before = at;
		sum += gap;
		squares += gap * gap;
		longer += gap > 1;
		twice += gap > 2;
	}
	ck_assert_double_eq_tol(sum / N, 1, 5 / sqrt(N));
	ck_assert_double_eq_tol(squares / N - sum / N * sum / N, 1, 5 * sqrt(8.0 / N));
	ck_assert_double_eq_tol(longer / N, exp(-1), 5 * sqrt(.25 / N));
	ck_assert_double_eq_tol(twice / longer, exp(-1), 5 * sqrt(.25 / longer));
}
END_TEST

START_TEST(a_seed_fixes_it)
{
	struct arrival a, b, c;
	bool differs = false;

	arrival_start(&a, ARRIVAL_POISSON, 7, 1);
	arrival_start(&b, ARRIVAL_POISSON, 7, 1);
	arrival_start(&c, ARRIVAL_POISSON, 7, 2);
	for (int i = 0; i < 100; i++) {
		uint64_t at = arrival_next(&a);

		ck_assert_uint_eq(at, arrival_next(&b));
		differs = differs || at != arrival_next(&c);
	}
	ck_assert(differs);
}
END_TEST

static Suite *arrival_suite(void)
{
	Suite *suite = suite_create("bench_arrival");
	TCase *tc = tcase_create("bench_arrival");

	tcase_add_test(tc, constant_without_drift);
	tcase_add_test(tc, constant_begins_at_once);
	tcase_add_test(tc, poisson_gaps);
	tcase_add_test(tc, a_seed_fixes_it);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(arrival_suite())
