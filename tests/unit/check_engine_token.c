/* The sim backend's tokenizer: reversible for all bytes, stable under growth, ids in
 * range. */
#include "backend/token.h"
#include "base/rng.h"
#include "unit.h"

#include <string.h>

static struct token_list list;

static void set_up(void)
{
	memset(&list, 0, sizeof(list));
}

static void tear_down(void)
{
	token_list_free(&list);
}

static void encode(const char *bytes, size_t n)
{
	list.n = 0;
	ck_assert_int_eq(token_encode(&list, span_make(bytes, n)), 0);
}

static void check_reverse(const char *bytes, size_t n)
{
	static char out[4096 * TOKEN_BYTES_MAX];
	size_t len = 0;

	encode(bytes, n);
	ck_assert_uint_le(list.n, n);
	for (size_t i = 0; i < list.n; i++) {
		if (list.ids[i] >= TOKEN_VOCAB)
			ck_abort_msg("id %u", list.ids[i]);
		len += token_text(list.ids[i], out + len);
	}
	ck_assert_uint_eq(len, n);
	ck_assert(n == 0 || memcmp(out, bytes, n) == 0);
}

START_TEST(known_ids)
{
	static const struct {
		const char *text;
		size_t n;
		uint32_t ids[4];
	} rows[] = {
		{"", 0, {0}},
		{"a", 1, {97}},
		{"ab", 1, {TOKEN_BASE_2 + 0x6162}},
		{"abc", 1, {TOKEN_BASE_3 + 0x616263}},
		{"abcd", 1, {TOKEN_BASE_4 + (97u << 21 | 98u << 14 | 99u << 7 | 100u)}},
		{"abcde", 2,
			{TOKEN_BASE_4 + (97u << 21 | 98u << 14 | 99u << 7 | 100u), 101}},
		{" the", 1, {TOKEN_BASE_4 + (32u << 21 | 116u << 14 | 104u << 7 | 101u)}},
		{"a b", 2, {97, TOKEN_BASE_2 + 0x2062}},
		{"  \n", 3, {32, 32, 10}},
		{"\xff\xfe\xfd\xfc", 2, {TOKEN_BASE_3 + 0xfffefd, 0xfc}},
		{"abc\xc3", 2, {TOKEN_BASE_3 + 0x616263, 0xc3}},
		{"\x7f\x7f\x7f\x7f", 1, {TOKEN_VOCAB - 1}},
		{"\xff\xff\xff", 1, {TOKEN_BASE_4 - 1}},
		{"\xff\xff", 1, {TOKEN_BASE_3 - 1}},
		{"\xff", 1, {TOKEN_BASE_2 - 1}},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		encode(rows[i].text, strlen(rows[i].text));
		ck_assert_msg(list.n == rows[i].n, "row %zu: %zu tokens", i, list.n);
		for (size_t k = 0; k < list.n; k++)
			ck_assert_msg(list.ids[k] == rows[i].ids[k], "row %zu: id %u", i,
				list.ids[k]);
	}
}
END_TEST

/* Every string of up to five bytes over an alphabet with one of each kind. */
START_TEST(all_short_strings)
{
	static const char kinds[] = {
		'a', 'Z', ' ', '\n', '\0', '\x7f', '\x80', '\xc3', '\xff'};
	char s[5];

	for (size_t n = 0, total = 1; n <= 5; n++, total *= ARRAY_LEN(kinds)) {
		for (size_t code = 0; code < total; code++) {
			size_t rest = code;

			for (size_t i = 0; i < n; i++, rest /= ARRAY_LEN(kinds))
				s[i] = kinds[rest % ARRAY_LEN(kinds)];
			check_reverse(s, n);
		}
	}
}
END_TEST

START_TEST(random_bytes)
{
	static char s[4096];
	struct rng rng;

	rng_seed(&rng, 7);
	for (int round = 0; round < 200; round++) {
		size_t n = rng_below(&rng, sizeof(s));
		bool is_ascii = round % 2 == 0;

		for (size_t i = 0; i < n; i++)
			s[i] = (char)rng_below(&rng, is_ascii ? 128 : 256);
		check_reverse(s, n);
	}
}
END_TEST

/* A prefix of the text keeps all ids but its last one. */
START_TEST(growth_keeps_ids)
{
	static char s[300];
	struct token_list whole = {NULL, 0, 0};
	struct rng rng;

	rng_seed(&rng, 11);
	for (int round = 0; round < 50; round++) {
		for (size_t i = 0; i < sizeof(s); i++)
			s[i] = "ab c\n\xc3\xa9"[rng_below(&rng, 7)];
		whole.n = 0;
		ck_assert_int_eq(token_encode(&whole, span_make(s, sizeof(s))), 0);
		for (size_t n = 1; n < sizeof(s); n++) {
			encode(s, n);
			ck_assert_int_eq(memcmp(list.ids, whole.ids,
						 (list.n - 1) * sizeof(whole.ids[0])),
				0);
		}
	}
	token_list_free(&whole);
}
END_TEST

static Suite *token_suite(void)
{
	Suite *suite = suite_create("engine_token");
	TCase *tc = tcase_create("engine_token");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, known_ids);
	tcase_add_test(tc, all_short_strings);
	tcase_add_test(tc, random_bytes);
	tcase_add_test(tc, growth_keeps_ids);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(token_suite())
