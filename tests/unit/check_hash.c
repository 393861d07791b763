/*
 * base/hash: values that must never change (public in kvsteer-prefix(7)), the chain,
 * streaming, and mix64 as a bijection.
 * The golden values were made with Python's xxhash module over b[i] = (131 i + 7) mod
 * 256.
 */
#include "base/hash.h"
#include "tests/unit/unit.h"

#include <string.h>

#define SEED 0x9e3779b97f4a7c15ULL

static unsigned char bytes[4096 + 1];

static void fill_bytes(void)
{
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 131 + 7);
}

/* clang-format off */
static const struct {
	size_t n;
	uint64_t unseeded, seeded;
} golden[] = {
	{ 0, 0x2d06800538d394c2ULL, 0x602b0e2cd6662c8bULL },
	{ 1, 0x4c5cca45d0f4811fULL, 0x2f3acd3805f81de3ULL },
	{ 3, 0x6e3e2670e61106acULL, 0xbc74611d87f659e0ULL },
	{ 4, 0x5c4c63133443d03fULL, 0x6c3753177c607de4ULL },
	{ 8, 0xf9fd4dd0b04d78f5ULL, 0xbc72d0531396303fULL },
	{ 9, 0x7c20df9712c26edfULL, 0x93c5aa006102daf5ULL },
	{ 16, 0x86abf6baccea0858ULL, 0x69d001b16ecf450aULL },
	{ 17, 0xb58bf5dc5022d071ULL, 0xb7c99d19be27eb69ULL },
	{ 64, 0x1291d2d4042330ddULL, 0x543fa55d8db03991ULL },
	{ 128, 0x10d17f72c0ccba41ULL, 0x49b81c6e0abb9305ULL },
	{ 129, 0x1648bdc3db49d1a2ULL, 0x5e3831b221810b00ULL },
	{ 240, 0xb6cfaf343fab81e6ULL, 0x76a73ec26433f82cULL },
	{ 241, 0x956cae592c67279eULL, 0x2be236ba3bacf75cULL },
	{ 512, 0xa0e9790eb93990d7ULL, 0x36385c68aa6755eaULL },
	{ 1024, 0x70bd377d9574f4bbULL, 0xd8cf6b464541f232ULL },
	{ 4096, 0x9ddd66c14af0daffULL, 0xc7bc989f5d547a4dULL },
};
/* clang-format on */

START_TEST(values_are_fixed)
{
	for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
		ck_assert(hash64(bytes, golden[i].n, 0) == golden[i].unseeded);
		ck_assert(hash64(bytes, golden[i].n, SEED) == golden[i].seeded);
	}
}
END_TEST

/* The same bytes at an odd address. */
START_TEST(alignment_does_not_matter)
{
	for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
		unsigned char *odd = malloc(golden[i].n + 1);

		ck_assert_ptr_nonnull(odd);
		memcpy(odd + 1, bytes, golden[i].n);
		ck_assert(hash64(odd + 1, golden[i].n, SEED) == golden[i].seeded);
		free(odd);
	}
}
END_TEST

START_TEST(chain_values_are_fixed)
{
	uint64_t out[33];

	out[32] = 1;
	hash_chain(bytes, 32, 128, 0, out);
	ck_assert(out[0] == 0x10d17f72c0ccba41ULL);
	ck_assert(out[1] == 0xf3880d02af4fe0d4ULL);
	ck_assert(out[31] == 0x89cbfc0ea089c037ULL);
	ck_assert(out[32] == 1);
	hash_chain(bytes, 2, 2048, 0, out);
	ck_assert(out[0] == 0x8b46caa67dab3a30ULL);
	ck_assert(out[1] == 0xd06c9759d0c482bfULL);
}
END_TEST

START_TEST(chain_is_hash64_linked)
{
	uint64_t out[40], part[20], seed = SEED;

	hash_chain(bytes, 40, 100, SEED, out);
	for (size_t i = 0; i < ARRAY_LEN(out); i++) {
		seed = hash64(bytes + i * 100, 100, seed);
		ck_assert(out[i] == seed);
	}
	/* it can be taken up where it was left */
	hash_chain(bytes + 20 * 100, 20, 100, out[19], part);
	ck_assert_mem_eq(part, out + 20, sizeof(part));
	part[0] = 5;
	hash_chain(NULL, 0, 128, 0, part);
	ck_assert(part[0] == 5);
}
END_TEST

static uint64_t hash_in_pieces(size_t n, size_t piece, uint64_t seed)
{
	struct hash_stream h;

	hash_stream_init(&h, seed);
	for (size_t at = 0; at < n; at += piece)
		hash_stream_add(&h, bytes + at, MIN(piece, n - at));
	return hash_stream_end(&h);
}

START_TEST(stream_is_hash64)
{
	static const size_t pieces[] = {1, 7, 64, 255, 256, 257, 4096};

	for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
		for (size_t p = 0; p < ARRAY_LEN(pieces); p++) {
			ck_assert(hash_in_pieces(golden[i].n, pieces[p], 0) ==
				  golden[i].unseeded);
			ck_assert(hash_in_pieces(golden[i].n, pieces[p], SEED) ==
				  golden[i].seeded);
		}
	}
}
END_TEST

/* A stream may be asked for its value and go on. */
START_TEST(stream_goes_on)
{
	struct hash_stream h;

	hash_stream_init(&h, 0);
	hash_stream_add(&h, NULL, 0);
	hash_stream_add(&h, bytes, 512);
	ck_assert(hash_stream_end(&h) == 0xa0e9790eb93990d7ULL);
	ck_assert(hash_stream_end(&h) == 0xa0e9790eb93990d7ULL);
	hash_stream_add(&h, bytes + 512, 512);
	ck_assert(hash_stream_end(&h) == 0x70bd377d9574f4bbULL);
}
END_TEST

static uint64_t undo_shift(uint64_t z, int k)
{
	uint64_t x = z;

	for (int done = k; done < 64; done += k)
		x = z ^ (x >> k);
	return x;
}

/* The inverse of an odd number mod 2^64, by Newton's iteration. */
static uint64_t inverse_of(uint64_t odd)
{
	uint64_t x = odd;

	for (int i = 0; i < 6; i++)
		x *= 2 - odd * x;
	return x;
}

static uint64_t unmix64(uint64_t z, uint64_t secret)
{
	z = undo_shift(z, 31) * inverse_of(0x94d049bb133111ebULL);
	z = undo_shift(z, 27) * inverse_of(0xbf58476d1ce4e5b9ULL);
	z = undo_shift(z, 30) - 0x9e3779b97f4a7c15ULL;
	return z ^ secret;
}

START_TEST(mix64_is_a_bijection)
{
	uint64_t h = 1;

	/* the first output of splitmix64 from 0 */
	ck_assert(hash_mix64(0, 0) == 0xe220a8397b1dcdafULL);
	for (int i = 0; i < 1000; i++) {
		h = hash_mix64(h, SEED);
		ck_assert(unmix64(hash_mix64(h, SEED), SEED) == h);
		ck_assert(hash_mix64(h, SEED) != hash_mix64(h, SEED + 1));
	}
}
END_TEST

static Suite *hash_suite(void)
{
	Suite *suite = suite_create("hash");
	TCase *tc = tcase_create("hash");

	tcase_add_checked_fixture(tc, fill_bytes, NULL);
	tcase_add_test(tc, values_are_fixed);
	tcase_add_test(tc, alignment_does_not_matter);
	tcase_add_test(tc, chain_values_are_fixed);
	tcase_add_test(tc, chain_is_hash64_linked);
	tcase_add_test(tc, stream_is_hash64);
	tcase_add_test(tc, stream_goes_on);
	tcase_add_test(tc, mix64_is_a_bijection);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(hash_suite())
