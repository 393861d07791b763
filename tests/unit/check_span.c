/*
 * base/span: comparing, trimming, splitting, numbers. Spans under test are not
 * NUL-terminated where that could hide a fault.
 */
#include "base/err.h"
#include "base/span.h"
#include "tests/unit/unit.h"

START_TEST(compares)
{
	struct span empty = {NULL, 0};

	ck_assert(span_eq(SPAN_LIT("ab"), SPAN_LIT("ab")));
	ck_assert(!span_eq(SPAN_LIT("ab"), SPAN_LIT("aB")));
	ck_assert(!span_eq(SPAN_LIT("ab"), SPAN_LIT("abc")));
	ck_assert(span_eq(empty, SPAN_LIT("")));
	ck_assert(span_is(empty, ""));
	ck_assert(span_case_eq(SPAN_LIT("Content-LENGTH"), SPAN_LIT("content-length")));
	ck_assert(!span_case_eq(SPAN_LIT("a"), SPAN_LIT("ab")));
	ck_assert(span_case_eq(empty, empty));
	/*
	 * folding must not reach beyond letters: '@' and '`', '[' and '{' differ by 0x20
	 */
	ck_assert(!span_case_eq(SPAN_LIT("@"), SPAN_LIT("`")));
	ck_assert(!span_case_eq(SPAN_LIT("["), SPAN_LIT("{")));
	ck_assert(!span_case_eq(SPAN_LIT("\xc4"), SPAN_LIT("\xe4")));
}
END_TEST

START_TEST(starts_and_ends)
{
	ck_assert(span_starts(SPAN_LIT("/v1/chat"), SPAN_LIT("/v1/")));
	ck_assert(!span_starts(SPAN_LIT("/v"), SPAN_LIT("/v1/")));
	ck_assert(span_starts(SPAN_LIT("x"), SPAN_LIT("")));
	ck_assert(span_ends(SPAN_LIT("a.conf"), SPAN_LIT(".conf")));
	ck_assert(!span_ends(SPAN_LIT("conf"), SPAN_LIT(".conf")));
	ck_assert(span_ends(span_make(NULL, 0), span_make(NULL, 0)));
}
END_TEST

START_TEST(trims)
{
	ck_assert(span_is(span_trim(SPAN_LIT(" \t a b\t ")), "a b"));
	ck_assert(span_is(span_trim(SPAN_LIT("a\r")), "a\r"));
	ck_assert(span_is(span_trim(SPAN_LIT(" \t ")), ""));
	ck_assert(span_is(span_trim(span_make(NULL, 0)), ""));
	ck_assert(span_is(span_trim_all(SPAN_LIT("\r\n\v\f\t a \r\n")), "a"));
	ck_assert(span_is(span_trim_all(SPAN_LIT("\x0e"
						 "a\x08")),
		"\x0e"
		"a\x08"));
}
END_TEST

START_TEST(splits)
{
	struct span rest = SPAN_LIT("a,,b"), piece;

	ck_assert(span_next(&rest, ',', &piece) && span_is(piece, "a"));
	ck_assert(span_next(&rest, ',', &piece) && span_is(piece, ""));
	ck_assert(span_next(&rest, ',', &piece) && span_is(piece, "b"));
	ck_assert(!span_next(&rest, ',', &piece));
	ck_assert(!span_next(&rest, ',', &piece));
	ck_assert(span_is(piece, "b"));
	rest = SPAN_LIT("a,");
	ck_assert(span_next(&rest, ',', &piece) && span_is(piece, "a"));
	ck_assert(!span_next(&rest, ',', &piece));
	rest = span_make(NULL, 0);
	ck_assert(!span_next(&rest, ',', &piece));
}
END_TEST

START_TEST(splits_words)
{
	struct span rest = SPAN_LIT("  one \t two  "), word;

	ck_assert(span_next_word(&rest, &word) && span_is(word, "one"));
	ck_assert(span_next_word(&rest, &word) && span_is(word, "two"));
	ck_assert(!span_next_word(&rest, &word));
	ck_assert_uint_eq(rest.n, 0);
}
END_TEST

START_TEST(reads_decimal)
{
	uint64_t value = 7;

	ck_assert_int_eq(span_to_u64(SPAN_LIT(""), &value), ERR_PARSE);
	ck_assert_int_eq(span_to_u64(SPAN_LIT("-1"), &value), ERR_PARSE);
	ck_assert_int_eq(span_to_u64(SPAN_LIT("+1"), &value), ERR_PARSE);
	ck_assert_int_eq(span_to_u64(SPAN_LIT(" 1"), &value), ERR_PARSE);
	ck_assert_int_eq(span_to_u64(SPAN_LIT("1x"), &value), ERR_PARSE);
	ck_assert_int_eq(
		span_to_u64(SPAN_LIT("18446744073709551616"), &value), ERR_RANGE);
	ck_assert_int_eq(
		span_to_u64(SPAN_LIT("99999999999999999999999"), &value), ERR_RANGE);
	/* a letter after the overflow is still not a number */
	ck_assert_int_eq(
		span_to_u64(SPAN_LIT("99999999999999999999999x"), &value), ERR_PARSE);
	ck_assert_uint_eq(value, 7);
	ck_assert_int_eq(span_to_u64(SPAN_LIT("18446744073709551615"), &value), 0);
	ck_assert(value == UINT64_MAX);
	ck_assert_int_eq(span_to_u64(SPAN_LIT("0000000000000000000000012"), &value), 0);
	ck_assert_uint_eq(value, 12);
	ck_assert_int_eq(span_to_u64(span_make("123", 2), &value), 0);
	ck_assert_uint_eq(value, 12);
}
END_TEST

START_TEST(reads_hex)
{
	uint64_t value = 7;

	ck_assert_int_eq(span_hex_u64(SPAN_LIT(""), &value), ERR_PARSE);
	ck_assert_int_eq(span_hex_u64(SPAN_LIT("0x1"), &value), ERR_PARSE);
	ck_assert_int_eq(span_hex_u64(SPAN_LIT("g"), &value), ERR_PARSE);
	ck_assert_int_eq(span_hex_u64(SPAN_LIT("00000000000000001"), &value), ERR_RANGE);
	ck_assert_uint_eq(value, 7);
	ck_assert_int_eq(span_hex_u64(SPAN_LIT("fFfFfFfFfFfFfFfF"), &value), 0);
	ck_assert(value == UINT64_MAX);
	ck_assert_int_eq(span_hex_u64(SPAN_LIT("0a9F"), &value), 0);
	ck_assert_uint_eq(value, 0x0a9f);
}
END_TEST

START_TEST(copies)
{
	char *copy = span_dup(span_make("abc", 2)), *empty = span_dup(span_make(NULL, 0));

	ck_assert_str_eq(copy, "ab");
	ck_assert_str_eq(empty, "");
	free(copy);
	free(empty);
}
END_TEST

static Suite *span_suite(void)
{
	Suite *suite = suite_create("span");
	TCase *tc = tcase_create("span");

	tcase_add_test(tc, compares);
	tcase_add_test(tc, starts_and_ends);
	tcase_add_test(tc, trims);
	tcase_add_test(tc, splits);
	tcase_add_test(tc, splits_words);
	tcase_add_test(tc, reads_decimal);
	tcase_add_test(tc, reads_hex);
	tcase_add_test(tc, copies);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(span_suite())
