/*
 * base/text: growing, formatting that fits and that does not, JSON's escapes, and want of
 * memory.
 */
#include "base/err.h"
#include "base/text.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

static struct text t;

static void tear_down(void)
{
	text_free(&t);
	ck_assert_ptr_null(t.p);
	ck_assert_uint_eq(t.n + t.cap, 0);
	ck_assert(!t.failed);
}

START_TEST(bytes_are_added)
{
	ck_assert_int_eq(text_add(&t, SPAN_LIT("")), 0);
	ck_assert_ptr_null(t.p);
	for (int i = 0; i < 1000; i++)
		ck_assert_int_eq(text_add(&t, span_make("ab\0d", 4)), 0);
	ck_assert_uint_eq(t.n, 4000);
	ck_assert_int_eq(memcmp(t.p + 3996, "ab\0d", 5), 0);
	ck_assert(span_eq(text_span(&t), span_make(t.p, 4000)));
}
END_TEST

/* Lengths around the room that is made before the first try, and around doublings. */
START_TEST(formats_of_every_length)
{
	char want[600];

	memset(want, 'x', sizeof(want));
	for (int n = 0; n < (int)sizeof(want); n++) {
		text_free(&t);
		text_printf(&t, "%s%.*s%d", "<", n, want, n);
		ck_assert_uint_eq(t.n, strlen(t.p));
		ck_assert_int_eq(t.p[0], '<');
		ck_assert_uint_eq(strspn(t.p + 1, "x"), (size_t)n);
		ck_assert_int_eq(atoi(t.p + 1 + n), n);
	}
}
END_TEST

START_TEST(what_is_printed_follows_what_is_there)
{
	for (int i = 0; i < 300; i++) {
		text_printf(&t, "%03d,", i);
		ck_assert_int_eq(text_add(&t, SPAN_LIT(".")), 0);
	}
	ck_assert_uint_eq(t.n, 1500);
	ck_assert_str_eq(t.p + 1490, "298,.299,.");
}
END_TEST

START_TEST(json_is_escaped)
{
	text_add_json(&t, span_make("\"a\\b\x01\n\xc3\xa9\0z", 10));
	ck_assert_str_eq(t.p, "\\u0022a\\u005cb\\u0001\\u000a\xc3\xa9\\u0000z");
}
END_TEST

START_TEST(room_is_the_callers)
{
	char *to = text_room(&t, 5);

	ck_assert_ptr_nonnull(to);
	ck_assert_uint_eq(t.n, 0);
	memcpy(to, "hello", 6);
	t.n += 5;
	text_printf(&t, " %s", "you");
	ck_assert_str_eq(t.p, "hello you");
}
END_TEST

START_TEST(the_front_is_dropped)
{
	text_printf(&t, "0123456789");
	text_drop(&t, 0);
	ck_assert_str_eq(t.p, "0123456789");
	text_drop(&t, 4);
	ck_assert_str_eq(t.p, "456789");
	text_drop(&t, 6);
	ck_assert_str_eq(t.p, "");
	text_printf(&t, "again");
	ck_assert_str_eq(t.p, "again");
}
END_TEST

START_TEST(cleared_it_keeps_its_memory)
{
	char *p;

	text_printf(&t, "%0500d", 1);
	p = t.p;
	text_clear(&t);
	text_printf(&t, "%0500d", 2);
	ck_assert_ptr_eq(t.p, p);
	ck_assert_uint_eq(t.n, 500);
}
END_TEST

START_TEST(out_of_memory_it_takes_no_more)
{
	ck_assert_int_eq(text_add(&t, SPAN_LIT("kept")), 0);
	ck_assert_ptr_null(text_room(&t, SIZE_MAX));
	ck_assert_ptr_null(text_room(&t, 1));
	ck_assert_int_eq(text_add(&t, SPAN_LIT("more")), ERR_NOMEM);
	ck_assert_int_eq(text_add(&t, SPAN_LIT("")), ERR_NOMEM);
	text_printf(&t, "%d", 1);
	text_add_json(&t, SPAN_LIT("\"more"));
	ck_assert(t.failed);
	ck_assert_str_eq(t.p, "kept");
	text_clear(&t);
	ck_assert_int_eq(text_add(&t, SPAN_LIT("anew")), 0);
	ck_assert_str_eq(t.p, "anew");
}
END_TEST

static Suite *text_suite(void)
{
	Suite *s = suite_create("text");
	TCase *tc = tcase_create("text");

	tcase_add_checked_fixture(tc, NULL, tear_down);
	tcase_add_test(tc, bytes_are_added);
	tcase_add_test(tc, formats_of_every_length);
	tcase_add_test(tc, what_is_printed_follows_what_is_there);
	tcase_add_test(tc, json_is_escaped);
	tcase_add_test(tc, room_is_the_callers);
	tcase_add_test(tc, the_front_is_dropped);
	tcase_add_test(tc, cleared_it_keeps_its_memory);
	tcase_add_test(tc, out_of_memory_it_takes_no_more);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(text_suite())
