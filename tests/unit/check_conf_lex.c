/*
 * base/conf_lex: items, exact lines and messages, and the words of values.
 * A text's items are written out as one string, so that a test is a text and what it must
 * give. Texts lie in heap memory of their exact size, so that the sanitizer sees a read
 * past the end.
 */
#include "base/conf_lex.h"
#include "base/err.h"
#include "tests/unit/unit.h"

#include <string.h>

struct record {
	char *text;
	size_t n;
	int items, stop_after;
};

static int write_item(void *arg, const struct conf_item *item)
{
	struct record *record = arg;
	char line[512];
	int n = 0;

	switch (item->token) {
	case CONF_TOKEN_SECTION:
		n = snprintf(line, sizeof(line), "%u [" SPAN_FMT "]\n", item->line,
			SPAN_ARG(item->section));
		break;
	case CONF_TOKEN_KEY:
		n = snprintf(line, sizeof(line), "%u " SPAN_FMT "=<" SPAN_FMT ">\n",
			item->line, SPAN_ARG(item->key), SPAN_ARG(item->value));
		break;
	case CONF_TOKEN_ERROR:
		ck_assert_ptr_nonnull(item->hint);
		ck_assert_str_ne(item->hint, "");
		n = snprintf(line, sizeof(line), "%u ! %s\n", item->line, item->message);
		break;
	}
	ck_assert(n > 0 && (size_t)n < sizeof(line));
	record->text = realloc(record->text, record->n + (size_t)n + 1);
	ck_assert_ptr_nonnull(record->text);
	memcpy(record->text + record->n, line, (size_t)n + 1);
	record->n += (size_t)n;
	return ++record->items == record->stop_after ? 42 : 0;
}

static void check_items(struct span text, const char *wanted)
{
	struct record record = {.text = calloc(1, 1)};
	char *exact = malloc(text.n > 0 ? text.n : 1);

	memcpy(exact, text.p, text.n);
	ck_assert_int_eq(conf_lex(span_make(exact, text.n), write_item, &record), 0);
	ck_assert_str_eq(record.text, wanted);
	free(exact);
	free(record.text);
}

#define gives(text, wanted) check_items(SPAN_LIT(text), wanted)

/* clang-format off */
START_TEST(reads_items)
{
	gives("[router]\nlisten = 127.0.0.1:30000\n\n"
	      "[pool default prefill]\npolicy=random\n",
	      "1 [router]\n2 listen=<127.0.0.1:30000>\n4 [pool default prefill]\n"
	      "5 policy=<random>\n");
	gives("", "");
	gives("\n\n\n", "");
	gives("[a]", "1 [a]\n");
	gives("[a]\nk=v", "1 [a]\n2 k=<v>\n");
	gives(" \t[ a  b ] \t\n  k\t=\tv w  \n", "1 [a  b]\n2 k=<v w>\n");
	gives("[a]\nk_2=\nk=  \n", "1 [a]\n2 k_2=<>\n3 k=<>\n");
	gives("[a]\nk = a = b\n", "1 [a]\n2 k=<a = b>\n");
	gives("[a]\nk=1\nk=2\n[a]\n", "1 [a]\n2 k=<1>\n3 k=<2>\n4 [a]\n");
}
END_TEST

START_TEST(knows_comments)
{
	gives("# c\n; c\n[a]\n  # [x]\n\t; k = v\nk = v # no comment\n#",
	      "3 [a]\n6 k=<v # no comment>\n");
	gives("[a]\nk = ; v\n", "1 [a]\n2 k=<; v>\n");
}
END_TEST

START_TEST(knows_line_ends)
{
	gives("\xef\xbb\xbf[a]\r\nk = v\r\n\r\nl = w\n", "1 [a]\n2 k=<v>\n4 l=<w>\n");
	gives("\xef\xbb\xbf", "");
	gives("[a]\nk = v\r", "1 [a]\n2 ! carriage return inside the line\n");
	gives("[a]\rk = v\n[b]\n", "1 ! carriage return inside the line\n2 [b]\n");
	gives("[a]\nk = v\r\r\n", "1 [a]\n2 ! carriage return inside the line\n");
	gives("# c\rd\n", "1 ! carriage return inside the line\n");
}
END_TEST

START_TEST(unquotes)
{
	gives("[a]\nk = \" v w \"\n", "1 [a]\n2 k=< v w >\n");
	gives("[a]\nk = \"\"\n", "1 [a]\n2 k=<>\n");
	gives("[a]\nk = \"a\\\"b\\\\c\"\nl = \"\\\\\"\nm = \"\\\"\"\n",
	      "1 [a]\n2 k=<a\"b\\c>\n3 l=<\\>\n4 m=<\">\n");
	gives("[a]\nk = \"# ; = [x]\" \t\n", "1 [a]\n2 k=<# ; = [x]>\n");
	/* only a value that begins with one is quoted */
	gives("[a]\nk = a\"b\"\\n\n", "1 [a]\n2 k=<a\"b\"\\n>\n");
}
END_TEST

START_TEST(refuses_bad_quotes)
{
	gives("[a]\nk = \"v\nl = w\n",
	      "1 [a]\n2 ! quoted value without its closing quote\n"
				       "3 l=<w>\n");
	gives("[a]\nk = \"\n", "1 [a]\n2 ! quoted value without its closing quote\n");
	gives("[a]\nk = \"v\\\"\n",
	      "1 [a]\n2 ! quoted value without its closing quote\n");
	gives("[a]\nk = \"v\\", "1 [a]\n2 ! quoted value without its closing quote\n");
	gives("[a]\nk = \"v\" w\n", "1 [a]\n2 ! text after the closing quote\n");
	gives("[a]\nk = \"v\" # c\n", "1 [a]\n2 ! text after the closing quote\n");
	gives("[a]\nk = \"v\"\"\n", "1 [a]\n2 ! text after the closing quote\n");
	gives("[a]\nk = \"\\n\"\n", "1 [a]\n2 ! unknown escape in the quoted value\n");
}
END_TEST

START_TEST(refuses_bad_sections)
{
	gives("[a\nk = v\n[b]\nl = w\n",
	      "1 ! section without its closing bracket\n3 [b]\n"
					 "4 l=<w>\n");
	gives("[\n", "1 ! section without its closing bracket\n");
	gives("[a] b\n", "1 ! text after the section's closing bracket\n");
	gives("[a]]\n", "1 ! text after the section's closing bracket\n");
	gives("[a] # c\n", "1 ! text after the section's closing bracket\n");
	gives("[]\n[ ]\n", "1 ! section without a name\n2 ! section without a name\n");
	/* keys below a faulty section belong to nobody, but their faults are told */
	gives("[ok]\n[a\nk = v\nK = v\n",
	      "1 [ok]\n2 ! section without its closing bracket\n"
					  "4 ! bad character in the key\n");
}
END_TEST

START_TEST(refuses_bad_keys)
{
	gives("[a]\nlisten\n", "1 [a]\n2 ! neither a section nor key = value\n");
	gives("[a]\n= v\n", "1 [a]\n2 ! no key before the =\n");
	gives("[a]\n=\n", "1 [a]\n2 ! no key before the =\n");
	gives("[a]\nKey = v\nk-y = v\nk y = v\n\xc3\xa4 = v\n",
	      "1 [a]\n2 ! bad character in the key\n3 ! bad character in the key\n"
	      "4 ! bad character in the key\n5 ! bad character in the key\n");
	gives("k = v\nl = w\n[a]\nk = v\n", "1 ! key before any section\n"
	      "2 ! key before any section\n3 [a]\n4 k=<v>\n");
}
END_TEST

START_TEST(refuses_bad_bytes)
{
	gives("[a]\nk = v\0w\nl = w\n", "1 [a]\n2 ! NUL byte in the line\n3 l=<w>\n");
	gives("\0", "1 ! NUL byte in the line\n");
	gives("# c\0\n", "1 ! NUL byte in the line\n");
	gives("[a]\nk = \x1b[0m\nk = \x7f\n", "1 [a]\n2 ! control character in the line\n"
					      "3 ! control character in the line\n");
	gives("[a]\nk = a\tb\n", "1 [a]\n2 k=<a\tb>\n");
}
END_TEST

START_TEST(checks_utf8)
{
	static const char *const good[] = {
		"\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
		"\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"
	};
	static const char *const bad[] = {
		"\x80", "\xbf", "\xc0\xaf", "\xc1\xbf", "\xc2", "\xc2 ", "\xe0\x9f\xbf",
		"\xed\xa0\x80", "\xed\xbf\xbf", "\xe1\x80", "\xe1\x80 ",
		"\xf0\x8f\xbf\xbf",
		"\xf0\x90\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
		"\xf1\x80\x80\xc0", "\xe1\x80\xc0"
	};
	char text[64], wanted[64];

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		snprintf(text, sizeof(text), "[a]\nk=%s", good[i]);
		snprintf(wanted, sizeof(wanted), "1 [a]\n2 k=<%s>\n", good[i]);
		check_items(span_str(text), wanted);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		snprintf(text, sizeof(text), "#%s\n[a]", bad[i]);
		check_items(span_str(text), "1 ! invalid UTF-8\n2 [a]\n");
	}
}
END_TEST

/* clang-format on */

struct long_value {
	size_t value_bytes;
	int errors;
};

static int note_length(void *arg, const struct conf_item *item)
{
	struct long_value *seen = arg;

	if (item->token == CONF_TOKEN_KEY && item->line == 2)
		seen->value_bytes = item->value.n;
	if (item->token == CONF_TOKEN_ERROR) {
		ck_assert_uint_eq(item->line, 2);
		ck_assert_str_eq(item->message, "line longer than 1 MiB");
		seen->errors++;
	}
	return 0;
}

static struct long_value lex_long(size_t line_bytes)
{
	static const char head[] = "[a]\nk=";
	struct long_value seen = {0};
	char *text = malloc(4 + line_bytes + 5);

	memcpy(text, head, 6);
	memset(text + 6, 'v', line_bytes - 2);
	memcpy(text + 4 + line_bytes, "\nl=w\n", 5);
	ck_assert_int_eq(
		conf_lex(span_make(text, 4 + line_bytes + 5), note_length, &seen), 0);
	free(text);
	return seen;
}

START_TEST(bounds_lines)
{
	struct long_value seen = lex_long(1 << 20);

	ck_assert_int_eq(seen.errors, 0);
	ck_assert_uint_eq(seen.value_bytes, (1 << 20) - 2);
	seen = lex_long((1 << 20) + 1);
	ck_assert_int_eq(seen.errors, 1);
	ck_assert_uint_eq(seen.value_bytes, 0);
}
END_TEST

START_TEST(stops_when_told)
{
	struct record record = {.stop_after = 2};

	ck_assert_int_eq(
		conf_lex(SPAN_LIT("[a]\nk=\"\\\\\"\nl=w\n"), write_item, &record), 42);
	ck_assert_str_eq(record.text, "1 [a]\n2 k=<\\>\n");
	free(record.text);
}
END_TEST

struct kept_values {
	struct span values[3];
	int n;
};

static int keep_value(void *arg, const struct conf_item *item)
{
	struct kept_values *kept = arg;

	if (item->token == CONF_TOKEN_KEY)
		kept->values[kept->n++] = item->value;
	if (kept->n == 3) {
		/* unquoted values live as long as the call */
		ck_assert(span_is(kept->values[0], "a\"a"));
		ck_assert(span_is(kept->values[1], "b"));
		ck_assert(span_is(kept->values[2], "c\\c"));
	}
	return 0;
}

START_TEST(values_outlive_their_item)
{
	struct kept_values kept = {0};

	ck_assert_int_eq(conf_lex(SPAN_LIT("[a]\nk=\"a\\\"a\"\nk=\"b\"\nk=\"c\\\\c\"\n"),
				 keep_value, &kept),
		0);
	ck_assert_int_eq(kept.n, 3);
}
END_TEST

START_TEST(durations)
{
	static const struct {
		const char *text;
		uint64_t ms;
	} good[] = {{"0", 0}, {"250ms", 250}, {"5s", 5000}, {"2m", 120000},
		{"1h", 3600000}, {"0s", 0}, {"007s", 7000},
		{"18446744073709551615ms", UINT64_MAX}};
	static const char *const bad[] = {"", "5", "s", "5 s", "1.5s", "-1s", "+1s", "5S",
		"5sec", "1d", "1h1m", "0x1s", " 5s", "00", "99999999999999999999999"};
	static const char *const large[] = {"18446744073709551616ms",
		"18446744073709552s", "5124095576031h", "99999999999999999999999h"};
	uint64_t ms;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		ck_assert_int_eq(conf_duration_ms(span_str(good[i].text), &ms, NULL), 0);
		ck_assert(ms == good[i].ms);
	}
	ms = 7;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		const char *hint = NULL;

		ck_assert_int_eq(
			conf_duration_ms(span_str(bad[i]), &ms, &hint), ERR_PARSE);
		ck_assert_ptr_nonnull(strstr(hint, "250ms"));
	}
	for (size_t i = 0; i < ARRAY_LEN(large); i++) {
		const char *hint = NULL;

		ck_assert_int_eq(
			conf_duration_ms(span_str(large[i]), &ms, &hint), ERR_RANGE);
		ck_assert_str_eq(hint, "a shorter time");
	}
	ck_assert_uint_eq(ms, 7);
}
END_TEST

START_TEST(sizes)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {{"0", 0}, {"65536", 65536}, {"64k", 65536}, {"16m", 16777216},
		{"1g", 1073741824}, {"17179869183g", 17179869183ULL << 30},
		{"18446744073709551615", UINT64_MAX}};
	static const char *const bad[] = {"", "k", "16 m", "16M", "16mb", "-1", "1.5g",
		"1e3", "1t", "m16", "99999999999999999999999t"};
	static const char *const large[] = {"18446744073709551616", "17179869184g"};
	uint64_t bytes;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		ck_assert_int_eq(conf_size(span_str(good[i].text), &bytes, NULL), 0);
		ck_assert(bytes == good[i].bytes);
	}
	bytes = 7;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		const char *hint = NULL;

		ck_assert_int_eq(conf_size(span_str(bad[i]), &bytes, &hint), ERR_PARSE);
		ck_assert_ptr_nonnull(strstr(hint, "64k"));
	}
	for (size_t i = 0; i < ARRAY_LEN(large); i++)
		ck_assert_int_eq(conf_size(span_str(large[i]), &bytes, NULL), ERR_RANGE);
	ck_assert_uint_eq(bytes, 7);
}
END_TEST

START_TEST(bools)
{
	static const char *const yes[] = {"on", "yes", "true", "1"};
	static const char *const no[] = {"off", "no", "false", "0"};
	static const char *const bad[] = {"", "On", "y", "2", "on ", "enabled"};
	bool is_on;

	for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
		is_on = false;
		ck_assert_int_eq(conf_bool(span_str(yes[i]), &is_on), 0);
		ck_assert(is_on);
		ck_assert_int_eq(conf_bool(span_str(no[i]), &is_on), 0);
		ck_assert(!is_on);
	}
	is_on = true;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		ck_assert_int_eq(conf_bool(span_str(bad[i]), &is_on), ERR_PARSE);
	ck_assert(is_on);
}
END_TEST

static Suite *conf_lex_suite(void)
{
	Suite *suite = suite_create("conf_lex");
	TCase *tc = tcase_create("conf_lex");

	tcase_add_test(tc, reads_items);
	tcase_add_test(tc, knows_comments);
	tcase_add_test(tc, knows_line_ends);
	tcase_add_test(tc, unquotes);
	tcase_add_test(tc, refuses_bad_quotes);
	tcase_add_test(tc, refuses_bad_sections);
	tcase_add_test(tc, refuses_bad_keys);
	tcase_add_test(tc, refuses_bad_bytes);
	tcase_add_test(tc, checks_utf8);
	tcase_add_test(tc, bounds_lines);
	tcase_add_test(tc, stops_when_told);
	tcase_add_test(tc, values_outlive_their_item);
	tcase_add_test(tc, durations);
	tcase_add_test(tc, sizes);
	tcase_add_test(tc, bools);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(conf_lex_suite())
