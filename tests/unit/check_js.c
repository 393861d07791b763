/*
 * JSON documents: caps, what is no JSON, building, looking up and printing.
 */
#include "io/js.h"
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct js *parse(const char *text)
{
	const char *why = NULL;
	struct js *v = js_parse(span_str(text), &why);

	ck_assert_msg(v != NULL, "%s: %s", text, why);
	return v;
}

static void check_prints(const struct js *v, const char *want)
{
	char *text = js_print(v, false);

	ck_assert_ptr_nonnull(text);
	ck_assert_str_eq(text, want);
	free(text);
}

START_TEST(what_is_no_json)
{
	static const char *const rows[] = {"", " ", "{", "[1,]", "{\"a\":}", "nul", "1 2",
		"'a'", "\"a", "{\"a\":1}}", "[1e400]", "[9223372036854775808]",
		"\"\\ud800\"", "\"\xff\"", "\xef\xbb\xbf{}"};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *why = NULL;

		ck_assert_msg(js_parse(span_str(rows[i]), &why) == NULL, "%s", rows[i]);
		ck_assert_msg(why != NULL && why[0] != '\0', "%s", rows[i]);
	}
}
END_TEST

START_TEST(why_says_where)
{
	const char *why = NULL;

	ck_assert_ptr_null(js_parse(SPAN_LIT("{\n\"a\": 1,\n\"b\": x}"), &why));
	ck_assert_ptr_eq(why, strstr(why, "line 3 "));
	ck_assert_ptr_null(js_parse(span_make(NULL, 0), &why));
}
END_TEST

START_TEST(the_span_ends_it)
{
	const char *why;
	struct js *v = js_parse(span_make("12345", 2), &why);
	int64_t n;

	ck_assert(js_as_int(v, &n));
	ck_assert_int_eq(n, 12);
	js_free(v);
}
END_TEST

static char *nest(char open, unsigned depth, char close)
{
	char *text = malloc(2 * depth + 1);

	memset(text, open, depth);
	memset(text + depth, close, depth);
	text[2 * depth] = '\0';
	return text;
}

START_TEST(depth_is_capped)
{
	const char *why;
	char *fits = nest('[', JS_MAX_DEPTH, ']'),
	     *deep = nest('[', JS_MAX_DEPTH + 1, ']');
	char *in_string = malloc(JS_MAX_DEPTH * 4);
	struct js *v;

	js_free(parse(fits));
	ck_assert_ptr_null(js_parse(span_str(deep), &why));
	ck_assert_str_eq(why, "nested too deep");
	/* brackets inside strings nest nothing, escaped quotes or not */
	memset(in_string, '[', JS_MAX_DEPTH * 4);
	memcpy(in_string, "\"\\\\\\\"", 5);
	in_string[JS_MAX_DEPTH * 4 - 2] = '"';
	in_string[JS_MAX_DEPTH * 4 - 1] = '\0';
	v = parse(in_string);
	ck_assert(js_is_string(v));
	js_free(v);
	free(fits);
	free(deep);
	free(in_string);
}
END_TEST

START_TEST(size_is_capped)
{
	size_t n = JS_MAX_BYTES + 1;
	char *text = malloc(n);
	const char *why;
	struct js *v;

	memset(text, ' ', n);
	text[0] = '1';
	ck_assert_ptr_null(js_parse(span_make(text, n), &why));
	v = js_parse(span_make(text, n - 1), &why);
	ck_assert_ptr_nonnull(v);
	js_free(v);
	free(text);
}
END_TEST

START_TEST(the_last_of_two_equal_keys_wins)
{
	struct js *v = parse("{\"a\":1,\"a\":2}");
	int64_t n;

	ck_assert_uint_eq(js_len(v), 1);
	ck_assert(js_as_int(js_get(v, "a"), &n));
	ck_assert_int_eq(n, 2);
	js_free(v);
}
END_TEST

START_TEST(looking_up)
{
	struct js *v = parse("{\"s\":\"a\\u0000b\",\"i\":-5,\"r\":1.5,\"t\":true,\"z\":"
			     "null,\"l\":[1,2]}");
	struct span s = SPAN_LIT("untouched");
	int64_t n = 77;
	double d = 77;
	bool b = false;

	ck_assert(js_is_object(v) && !js_is_array(v));
	ck_assert(js_as_str(js_get(v, "s"), &s));
	ck_assert(span_eq(s, span_make("a\0b", 3)));
	ck_assert(!js_as_str(js_get(v, "i"), &s));
	ck_assert_uint_eq(s.n, 3);
	ck_assert(js_as_int(js_get(v, "i"), &n) && n == -5);
	ck_assert(!js_as_int(js_get(v, "r"), &n) && n == -5);
	ck_assert(js_as_real(js_get(v, "r"), &d) && d == 1.5);
	ck_assert(js_as_real(js_get(v, "i"), &d) && d == -5);
	ck_assert(!js_as_real(js_get(v, "s"), &d) && d == -5);
	ck_assert(js_as_bool(js_get(v, "t"), &b) && b);
	ck_assert(!js_as_bool(js_get(v, "z"), &b) && b);
	ck_assert(js_is_null(js_get(v, "z")) && !js_is_null(js_get(v, "absent")));
	ck_assert_uint_eq(js_len(js_get(v, "l")), 2);
	ck_assert(js_as_int(js_at(js_get(v, "l"), 1), &n) && n == 2);
	ck_assert_ptr_null(js_at(js_get(v, "l"), 2));
	ck_assert_ptr_null(js_at(v, 0));
	ck_assert_ptr_null(js_get(js_get(v, "l"), "a"));
	ck_assert_ptr_null(js_get(NULL, "a"));
	ck_assert_uint_eq(js_len(js_get(v, "i")), 0);
	js_free(v);
	js_free(NULL);
}
END_TEST

START_TEST(members_come_in_order)
{
	struct js *v = parse("{\"z\":0,\"a\":1,\"m\":2}"), *value;
	const char *key, *const want[] = {"z", "a", "m"};
	void *at = NULL;
	int64_t n;
	size_t i = 0;

	while (js_each(v, &at, &key, &value)) {
		ck_assert_str_eq(key, want[i]);
		ck_assert(js_as_int(value, &n) && n == (int64_t)i);
		i++;
	}
	ck_assert_uint_eq(i, 3);
	for (i = 0; i < 3; i++) {
		ck_assert(js_member(v, i, &key, &value));
		ck_assert_str_eq(key, want[i]);
	}
	ck_assert(!js_member(v, 3, &key, &value));
	ck_assert_str_eq(key, "m");
	check_prints(v, "{\"z\":0,\"a\":1,\"m\":2}");
	js_free(v);
}
END_TEST

START_TEST(building_and_printing)
{
	struct js *v = js_object(), *list = js_array();
	char *pretty;

	js_set_str(v, "name", "w\"1");
	js_set_str(v, "none", NULL);
	js_set_int(v, "load", INT64_MIN);
	js_set_real(v, "score", 0.3);
	js_set_real(v, "nan", NAN);
	js_set_bool(v, "up", true);
	js_push(list, js_int(1));
	js_push(list, NULL);
	js_push(list, js_null());
	js_push(list, js_boolean(false));
	js_push(list, js_real(HUGE_VAL));
	js_set(v, "list", list);
	js_set(v, "ignored", NULL);
	js_set(NULL, "freed", js_int(1));
	js_push(v, js_int(1)); /* no array: freed */
	check_prints(v,
		"{\"name\":\"w\\\"1\",\"none\":null,\"load\":-9223372036854775808,"
		"\"score\":0.3,\"nan\":null,\"up\":true,\"list\":[1,null,false,null]}");
	js_free(v);
	v = parse("{\"a\":[1]}");
	pretty = js_print(v, true);
	ck_assert_str_eq(pretty, "{\n  \"a\": [\n    1\n  ]\n}");
	free(pretty);
	js_free(v);
}
END_TEST

START_TEST(broken_utf8_is_mended)
{
	static const struct {
		const char *raw, *want;
	} rows[] = {
		{"plain", "plain"},
		{"caf\xc3\xa9", "caf\xc3\xa9"},
		{"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
		{"a\xff"
		 "b",
			"a\xef\xbf\xbd"
			"b"},
		{"cut \xc3", "cut \xef\xbf\xbd"},
		{"cut \xe2\x82", "cut \xef\xbf\xbd\xef\xbf\xbd"},
		{"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
		{"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* overlong */
		{"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* surrogate */
		{"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
	};
	struct span s;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct js *v = js_string(span_str(rows[i].raw)), *list = js_array(),
			  *back;
		char *text;

		ck_assert(js_as_str(v, &s));
		ck_assert_msg(span_is(s, rows[i].want), "row %zu", i);
		/* and what is printed is JSON again */
		js_push(list, v);
		text = js_print(list, false);
		back = parse(text);
		ck_assert(js_as_str(js_at(back, 0), &s) && span_is(s, rows[i].want));
		js_free(back);
		js_free(list);
		free(text);
	}
}
END_TEST

START_TEST(empty_strings_and_broken_keys)
{
	struct js *v = js_object(), *empty = js_string(span_make(NULL, 0));
	struct span s = SPAN_LIT("x");

	ck_assert(js_as_str(empty, &s) && s.n == 0);
	js_set(v, "k\xff", empty);
	check_prints(v, "{\"k\xef\xbf\xbd\":\"\"}");
	js_free(v);
}
END_TEST

static Suite *js_suite(void)
{
	Suite *s = suite_create("js");
	TCase *t = tcase_create("js");

	tcase_add_test(t, what_is_no_json);
	tcase_add_test(t, why_says_where);
	tcase_add_test(t, the_span_ends_it);
	tcase_add_test(t, depth_is_capped);
	tcase_add_test(t, size_is_capped);
	tcase_add_test(t, the_last_of_two_equal_keys_wins);
	tcase_add_test(t, looking_up);
	tcase_add_test(t, members_come_in_order);
	tcase_add_test(t, building_and_printing);
	tcase_add_test(t, broken_utf8_is_mended);
	tcase_add_test(t, empty_strings_and_broken_keys);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(js_suite())
