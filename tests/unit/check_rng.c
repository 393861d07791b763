/*
 * base/rng: known outputs of xoshiro256** and splitmix64, bounds, evenness, and secrets
 * that differ.
 */
#include "base/rng.h"
#include "tests/unit/unit.h"

#include <string.h>

/* Reference outputs from the state {1, 2, 3, 4}. */
START_TEST(is_xoshiro256starstar)
{
	static const uint64_t wanted[] = {11520ULL, 0ULL, 1509978240ULL,
		1215971899390074240ULL, 1216172134540287360ULL};
	struct rng r = {{1, 2, 3, 4}};

	for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
		ck_assert(rng_next(&r) == wanted[i]);
}
END_TEST

/* The first outputs of splitmix64 from 0. */
START_TEST(is_seeded_by_splitmix64)
{
	static const uint64_t wanted[] = {0xe220a8397b1dcdafULL, 0x6e789e6aa1b965f4ULL,
		0x06c45d188009454fULL, 0xf88bb8a8724c81ecULL};
	struct rng r;

	rng_seed(&r, 0);
	ck_assert_mem_eq(r.s, wanted, sizeof(wanted));
}
END_TEST

START_TEST(repeats_for_a_seed)
{
	struct rng a, b, c;
	bool differs = false;

	rng_seed(&a, 42);
	rng_seed(&b, 42);
	rng_seed(&c, 43);
	for (int i = 0; i < 100; i++) {
		uint64_t value = rng_next(&a);

		ck_assert(value == rng_next(&b));
		differs |= value != rng_next(&c);
	}
	ck_assert(differs);
}
END_TEST

START_TEST(stays_below)
{
	struct rng r;
	unsigned counts[7] = {0};

	rng_seed(&r, 1);
	for (int i = 0; i < 70000; i++)
		counts[rng_below(&r, 7)]++; /* out of bounds is seen by the sanitizer */
	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		ck_assert_uint_gt(counts[i], 9500);
		ck_assert_uint_lt(counts[i], 10500);
	}
	for (int i = 0; i < 100; i++) {
		ck_assert_uint_eq(rng_below(&r, 1), 0);
		ck_assert(rng_below(&r, UINT64_MAX) < UINT64_MAX);
	}
}
END_TEST

/* Without rejection a third of this range would come twice as often as the rest. */
START_TEST(has_no_modulo_bias)
{
	const uint64_t n = 3ULL << 62;
	struct rng r;
	int low = 0;

	rng_seed(&r, 5);
	for (int i = 0; i < 30000; i++)
		low += rng_below(&r, n) < n / 3;
	ck_assert_int_gt(low, 9500);
	ck_assert_int_lt(low, 10500);
	low = 0;
	for (int i = 0; i < 30000; i++)
		low += rng_below(&r, n) % 3 == 0;
	ck_assert_int_gt(low, 9500);
	ck_assert_int_lt(low, 10500);
}
END_TEST

START_TEST(unit_is_in_range)
{
	struct rng r;
	double sum = 0;

	rng_seed(&r, 9);
	for (int i = 0; i < 10000; i++) {
		double value = rng_unit(&r);

		ck_assert(value >= 0.0 && value < 1.0);
		sum += value;
	}
	ck_assert(sum > 4800 && sum < 5200);
	r = (struct rng){{0, UINT64_MAX, 0, 0}};
	ck_assert(rng_unit(&r) < 1.0);
}
END_TEST

START_TEST(secrets_differ)
{
	unsigned char a[64] = {0}, b[64] = {0}, zeros[64] = {0};
	/* more than the 256 bytes that the kernel gives without a break */
	unsigned char *large = calloc(1, 100000);

	rng_secret(a, sizeof(a));
	rng_secret(b, sizeof(b));
	ck_assert(memcmp(a, b, sizeof(a)) != 0);
	ck_assert(memcmp(a, zeros, sizeof(a)) != 0);
	ck_assert_ptr_nonnull(large);
	rng_secret(large, 100000);
	ck_assert(memcmp(large + 100000 - sizeof(zeros), zeros, sizeof(zeros)) != 0);
	free(large);
	rng_secret(NULL, 0);
}
END_TEST

static Suite *rng_suite(void)
{
	Suite *suite = suite_create("rng");
	TCase *tc = tcase_create("rng");

	tcase_add_test(tc, is_xoshiro256starstar);
	tcase_add_test(tc, is_seeded_by_splitmix64);
	tcase_add_test(tc, repeats_for_a_seed);
	tcase_add_test(tc, stays_below);
	tcase_add_test(tc, has_no_modulo_bias);
	tcase_add_test(tc, unit_is_in_range);
	tcase_add_test(tc, secrets_differ);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(rng_suite())
