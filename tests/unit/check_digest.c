/*
 * SHA-256: the vectors of FIPS 180-2, a digester used again and again, hex, equality.
 */
#include "base/digest.h"

#include "tests/unit/unit.h"

#include <string.h>

static const struct {
	const char *text, *hex;
} vectors[] = {
	{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
	{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
	{"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
		"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};

START_TEST(known_digests)
{
	struct digester *d = digester_new();
	unsigned char want[DIGEST_BYTES], got[DIGEST_BYTES];
	size_t round, i;

	ck_assert_ptr_nonnull(d);
	for (round = 0; round < 3; round++) {
		for (i = 0; i < ARRAY_LEN(vectors); i++) {
			ck_assert(digest_read(span_str(vectors[i].hex), want));
			ck_assert(digest_sha256(d, span_str(vectors[i].text), got));
			ck_assert_mem_eq(got, want, DIGEST_BYTES);
		}
	}
	digester_free(d);
	digester_free(NULL);
}
END_TEST

START_TEST(hex_of_64_digits_only)
{
	char hex[66];
	unsigned char out[DIGEST_BYTES];

	memset(hex, 'A', 65);
	ck_assert(digest_read(span_make(hex, 64), out));
	ck_assert_uint_eq(out[31], 0xaa);
	out[0] = 1;
	ck_assert(!digest_read(span_make(hex, 63), out));
	ck_assert(!digest_read(span_make(hex, 65), out));
	ck_assert(!digest_read(span_make(NULL, 0), out));
	hex[63] = 'g';
	ck_assert(!digest_read(span_make(hex, 64), out));
	hex[63] = ' ';
	ck_assert(!digest_read(span_make(hex, 64), out));
	ck_assert_uint_eq(out[0], 1);
}
END_TEST

START_TEST(equal_in_every_byte)
{
	unsigned char a[DIGEST_BYTES] = {0}, b[DIGEST_BYTES] = {0};
	size_t i;

	ck_assert(digest_equal(a, b));
	for (i = 0; i < DIGEST_BYTES; i++) {
		b[i] = 128;
		ck_assert(!digest_equal(a, b));
		b[i] = 0;
	}
}
END_TEST

static Suite *digest_suite(void)
{
	Suite *s = suite_create("digest");
	TCase *t = tcase_create("digest");

	tcase_add_test(t, known_digests);
	tcase_add_test(t, hex_of_64_digits_only);
	tcase_add_test(t, equal_in_every_byte);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(digest_suite())
