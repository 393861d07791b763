/*
 * Rules for headers: their form, what ends, what is added.
 */
#include "base/err.h"
#include "base/header_rule.h"
#include "http/http_edit.h"
#include "tests/unit/unit.h"

#include <string.h>

START_TEST(forms)
{
	static const struct {
		const char *text;
		int rc;
		enum header_op op;
		const char *name, *value;
	} rows[] = {
		{"set A b", 0, HEADER_SET, "A", "b"},
		{" add \t A-B  b c  d ", 0, HEADER_ADD, "A-B", "b c  d"},
		{"remove A", 0, HEADER_REMOVE, "A", ""},
		{"set A", ERR_PARSE, HEADER_SET, "", ""},
		{"add A ", ERR_PARSE, HEADER_SET, "", ""},
		{"remove A b", ERR_PARSE, HEADER_SET, "", ""},
		{"replace A b", ERR_PARSE, HEADER_SET, "", ""},
		{"Set A b", ERR_PARSE, HEADER_SET, "", ""},
		{"set", ERR_PARSE, HEADER_SET, "", ""},
		{"", ERR_PARSE, HEADER_SET, "", ""},
	};
	struct header_rule rule;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		ck_assert_int_eq(
			header_rule_read(span_str(rows[i].text), &rule), rows[i].rc);
		if (rows[i].rc != 0)
			continue;
		ck_assert(rule.op == rows[i].op && span_is(rule.name, rows[i].name) &&
			  span_is(rule.value, rows[i].value));
	}
}
END_TEST

START_TEST(names)
{
	ck_assert(header_name_eq(SPAN_LIT("x-A_b"), SPAN_LIT("X_a-B")));
	ck_assert(!header_name_eq(SPAN_LIT("x-a"), SPAN_LIT("x-ab")));
	ck_assert(!header_name_eq(SPAN_LIT("x-a"), SPAN_LIT("x.a")));
	ck_assert(!header_name_eq(SPAN_LIT("x@a"), SPAN_LIT("x`a")));
}
END_TEST

START_TEST(lines)
{
	char *const rules[] = {
		"set X-A new", "add X-B more", "remove X-C", "add X-B again"};
	char text[512] = "x_a: old\r\nX-B: 1\r\nX-C: 2\r\nX-CD: 3\r\nX-C: 4\r\n";
	static const char expected[] =
		"X-B: 1\r\nX-CD: 3\r\nX-A: new\r\nX-B: more\r\nX-B: again\r\n";
	struct http_edit e;
	size_t n;

	ck_assert_int_eq(http_edit_init(&e, rules, ARRAY_LEN(rules)), 0);
	ck_assert(!http_edit_is_empty(&e));
	ck_assert(http_edit_drops(&e, SPAN_LIT("x-c")) &&
		  !http_edit_drops(&e, SPAN_LIT("X-B")));
	n = http_edit_apply(&e, text, strlen(text));
	ck_assert(n == strlen(expected) && memcmp(text, expected, n) == 0);
	n = http_edit_apply(&e, text, 0);
	ck_assert_uint_eq(n, strlen(expected) - strlen("X-B: 1\r\nX-CD: 3\r\n"));
	http_edit_free(&e);
	ck_assert_int_eq(http_edit_init(&e, NULL, 0), 0);
	ck_assert(http_edit_is_empty(&e) && !http_edit_drops(&e, SPAN_LIT("a")));
	http_edit_free(&e);
}
END_TEST

static Suite *http_edit_suite(void)
{
	Suite *s = suite_create("http_edit");
	TCase *t = tcase_create("http_edit");

	tcase_add_test(t, forms);
	tcase_add_test(t, names);
	tcase_add_test(t, lines);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(http_edit_suite())
