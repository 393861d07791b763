/*
 * base/fail and base/err: each row of the tables is complete and can be sent as it
 * stands.
 */
#include "base/err.h"
#include "base/fail.h"
#include "tests/unit/unit.h"

#include <string.h>

START_TEST(body_is_as_documented)
{
	char body[1024];
	size_t n = fail_body(FAIL_MODEL_NOT_FOUND, body, sizeof(body));

	ck_assert_str_eq(body, "{\"error\":{\"message\":\"No pool serves this model.\","
			       "\"type\":\"invalid_request_error\",\"param\":null,"
			       "\"code\":\"model_not_found\"}}");
	ck_assert_uint_eq(n, strlen(body));
}
END_TEST

static bool needs_escape(const char *text)
{
	for (; *text != '\0'; text++)
		if (*text == '"' || *text == '\\' || *text < 0x20 || *text > 0x7e)
			return true;
	return false;
}

START_TEST(rows_are_sound)
{
	for (int i = 0; i < FAIL_MAX; i++) {
		enum fail why = (enum fail)i;
		int status = fail_status(why);
		const char *code = fail_code(why);

		ck_assert_uint_gt(strlen(code), 0);
		ck_assert_uint_eq(
			strspn(code, "abcdefghijklmnopqrstuvwxyz_"), strlen(code));
		ck_assert(!needs_escape(fail_type(why)) && !needs_escape(fail_text(why)));
		ck_assert(
			status == 0 || status == 200 || (status >= 400 && status <= 599));
		if (status >= 400) {
			ck_assert_str_ne(fail_type(why), "");
			ck_assert_str_ne(fail_text(why), "");
			ck_assert_str_ne(fail_reason_phrase(status), "Unknown");
		}
	}
}
END_TEST

/* The small HTTP server answers these by itself, in the router and in the engine. */
START_TEST(what_both_programs_say_names_neither)
{
	static const enum fail common[] = {FAIL_OVERLOADED, FAIL_INTERNAL,
		FAIL_PATH_NOT_FOUND, FAIL_METHOD_NOT_ALLOWED, FAIL_BODY_TOO_LARGE,
		FAIL_CLIENT_TIMEOUT, FAIL_MALFORMED_REQUEST, FAIL_HEAD_TOO_LARGE};

	for (size_t i = 0; i < ARRAY_LEN(common); i++) {
		ck_assert_ptr_null(strstr(fail_text(common[i]), "router"));
		ck_assert_ptr_null(strstr(fail_text(common[i]), "engine"));
	}
}
END_TEST

START_TEST(one_kibibyte_is_enough)
{
	for (int i = 0; i < FAIL_MAX; i++) {
		char body[1024];
		size_t n = fail_body((enum fail)i, body, sizeof(body));

		ck_assert_uint_lt(n, sizeof(body) - 1);
		ck_assert_uint_eq(n, strlen(body));
		ck_assert_str_eq(body + n - 2, "}}");
	}
}
END_TEST

START_TEST(small_room_is_kept)
{
	char body[16];

	memset(body, 'x', sizeof(body));
	ck_assert_uint_eq(fail_body(FAIL_INTERNAL, body, 8), 7);
	ck_assert_str_eq(body, "{\"error");
	ck_assert_int_eq(body[8], 'x');
	ck_assert_uint_eq(fail_body(FAIL_INTERNAL, body, 0), 0);
}
END_TEST

START_TEST(statuses)
{
	ck_assert_int_eq(fail_status(FAIL_NONE), 200);
	ck_assert_str_eq(fail_code(FAIL_NONE), "ok");
	ck_assert_int_eq(fail_status(FAIL_WORKER_TIMEOUT), 504);
	ck_assert_int_eq(fail_status(FAIL_CLIENT_GONE), 0);
	ck_assert_str_eq(fail_reason_phrase(404), "Not Found");
	ck_assert_str_eq(fail_reason_phrase(200), "OK");
	ck_assert_str_eq(fail_reason_phrase(299), "Unknown");
	ck_assert_str_eq(fail_reason_phrase(-1), "Unknown");
}
END_TEST

START_TEST(error_texts)
{
	ck_assert_str_eq(err_text(ERR_OK), "no error");
	ck_assert_str_eq(err_text(ERR_NOMEM), "out of memory");
	ck_assert_str_eq(err_text(ERR_TIMEOUT), "timed out");
	ck_assert_str_eq(err_text(ERR_PERM), "not permitted");
	ck_assert_str_eq(err_text(ERR_BASE_), "unknown error");
	ck_assert_str_eq(err_text(ERR_END_), "unknown error");
	ck_assert_str_eq(err_text(1), "unknown error");
	ck_assert_str_eq(err_text(-5), "unknown error");
	for (int err = ERR_BASE_ + 1; err < ERR_END_; err++) {
		ck_assert_int_lt(err, 0);
		ck_assert_str_ne(err_text(err), "unknown error");
	}
}
END_TEST

static Suite *fail_suite(void)
{
	Suite *suite = suite_create("fail");
	TCase *tc = tcase_create("fail");

	tcase_add_test(tc, body_is_as_documented);
	tcase_add_test(tc, rows_are_sound);
	tcase_add_test(tc, what_both_programs_say_names_neither);
	tcase_add_test(tc, one_kibibyte_is_enough);
	tcase_add_test(tc, small_room_is_kept);
	tcase_add_test(tc, statuses);
	tcase_add_test(tc, error_texts);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(fail_suite())
