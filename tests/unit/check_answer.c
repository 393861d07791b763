/*
 * Header lines of our own: their exact bytes, and that all of them fit the room that
 * callers give.
 */
#include "http/http_head.h"
#include "proxy/answer.h"
#include "tests/unit/unit.h"

#include <string.h>

static void want(const char *text, const char *out, size_t n)
{
	ck_assert_msg(n == strlen(text) && memcmp(text, out, n) == 0, "not %s but %.*s",
		text, (int)n, out);
}

START_TEST(request_id)
{
	static const char *const insane[] = {
		"", "a b", "a\nb", "a,b", "a\"b", "\xe9", "a/b"};
	char out[REQUEST_ID_MAX], other[REQUEST_ID_MAX], longest[REQUEST_ID_MAX + 1];
	struct rng rng;

	rng_seed(&rng, 1);
	want("Req-1.a_b:c", out, answer_request_id(SPAN_LIT("Req-1.a_b:c"), &rng, out));
	memset(longest, 'x', sizeof(longest));
	ck_assert_uint_eq(
		answer_request_id(span_make(longest, REQUEST_ID_MAX), &rng, out),
		REQUEST_ID_MAX);
	ck_assert_uint_eq(
		answer_request_id(span_make(longest, sizeof(longest)), &rng, out), 32);
	for (size_t i = 0; i < ARRAY_LEN(insane); i++) {
		ck_assert_uint_eq(
			answer_request_id(span_str(insane[i]), &rng, other), 32);
		for (size_t j = 0; j < 32; j++)
			ck_assert_ptr_nonnull(memchr("0123456789abcdef", other[j], 16));
		ck_assert_int_ne(memcmp(out, other, 32), 0);
		memcpy(out, other, 32);
	}
}
END_TEST

/* Each digit is four bits of the generator, the lowest first. */
START_TEST(request_id_has_all_bits)
{
	char out[REQUEST_ID_MAX], digits[33];
	struct rng rng, same;

	rng_seed(&rng, 7);
	rng_seed(&same, 7);
	for (unsigned i = 0; i < 100; i++) {
		for (unsigned j = 0; j < 32; j += 16) {
			uint64_t bits = rng_next(&same);

			for (unsigned k = 0; k < 16; k++)
				digits[j + k] = "0123456789abcdef"[bits >> 4 * k & 15];
		}
		digits[32] = '\0';
		want(digits, out, answer_request_id(span_make(NULL, 0), &rng, out));
	}
}
END_TEST

START_TEST(id_line)
{
	char out[ANSWER_LINES_MAX];

	want("X-Request-Id: abc-1\r\n", out, answer_id_line(SPAN_LIT("abc-1"), out));
}
END_TEST

START_TEST(allow_line)
{
	static const struct {
		unsigned methods;
		const char *line;
	} rows[] = {
		{1u << HTTP_POST, "Allow: POST\r\n"},
		{1u << HTTP_GET | 1u << HTTP_HEAD | 1u << HTTP_OPTIONS,
			"Allow: GET, HEAD, OPTIONS\r\n"},
		{0x7f, "Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"},
		{0xffff, "Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"},
		/* nothing is allowed: the field is there all the same (RFC 9110) */
		{0, "Allow: \r\n"},
	};
	char out[ANSWER_LINES_MAX];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		want(rows[i].line, out, answer_allow_line(rows[i].methods, out));
}
END_TEST

START_TEST(retry_line)
{
	char out[ANSWER_LINES_MAX];

	want("Retry-After: 0\r\n", out, answer_retry_line(0, out));
	want("Retry-After: 1\r\n", out, answer_retry_line(1, out));
	want("Retry-After: 4294967295\r\n", out, answer_retry_line(UINT32_MAX, out));
}
END_TEST

START_TEST(worker_lines)
{
	char out[ANSWER_LINES_MAX];

	struct answer_cached c = {.matched = 3, .blocks = 40}, none = {.matched = 0};

	want("X-Kvsteer-Worker: gpu1\r\nX-Kvsteer-Cached: 3/40\r\n", out,
		answer_worker_lines(SPAN_LIT("gpu1"), &c, out));
	want("X-Kvsteer-Worker: w\r\nX-Kvsteer-Cached: 0/0\r\n", out,
		answer_worker_lines(SPAN_LIT("w"), &none, out));
	c.is_told = true;
	want("X-Kvsteer-Worker: w\r\nX-Kvsteer-Cached: 3/40; prefill_cached=0\r\n", out,
		answer_worker_lines(SPAN_LIT("w"), &c, out));
	c.cached = 256;
	c.prompt = 2048;
	want("X-Kvsteer-Worker: w\r\nX-Kvsteer-Cached: 3/40; prefill_cached=256; "
	     "prefill_tokens=2048\r\n",
		out, answer_worker_lines(SPAN_LIT("w"), &c, out));
}
END_TEST

/* As the clients of each API know errors; every failure fits. */
START_TEST(error_events)
{
	char out[ANSWER_EVENT_MAX];
	int why;

	want("data: {\"error\":{\"message\":\"The worker's response ended before it was "
	     "complete.\",\"type\":\"upstream_error\",\"param\":null,\"code\":"
	     "\"worker_broke\"}}\n\n",
		out, answer_error_event(ENDPOINT_CHAT, FAIL_WORKER_BROKE, out));
	want("event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"The "
	     "worker's response ended before it was complete.\",\"type\":\"api_error\","
	     "\"param\":null,\"code\":\"worker_broke\"}}\n\n",
		out, answer_error_event(ENDPOINT_MESSAGES, FAIL_WORKER_BROKE, out));
	want("event: error\ndata: {\"type\":\"error\",\"sequence_number\":0,\"code\":"
	     "\"shutdown\",\"message\":\"\",\"param\":null,\"error\":{\"message\":\"\","
	     "\"type\":\"\",\"param\":null,\"code\":\"shutdown\"}}\n\n",
		out, answer_error_event(ENDPOINT_RESPONSES, FAIL_SHUTDOWN, out));
	for (why = 0; why < FAIL_MAX; why++)
		ck_assert_uint_gt(
			answer_error_event(ENDPOINT_RESPONSES, (enum fail)why, out), 0);
}
END_TEST

START_TEST(all_lines_fit)
{
	char id[REQUEST_ID_MAX], worker[64], out[ANSWER_LINES_MAX];
	struct answer_cached c = {UINT32_MAX, UINT32_MAX, true, UINT64_MAX, UINT64_MAX};
	size_t n;

	memset(id, 'i', sizeof(id));
	memset(worker, 'w', sizeof(worker));
	n = answer_id_line(span_make(id, sizeof(id)), out);
	n += answer_allow_line(0x7f, out + n);
	n += answer_retry_line(UINT32_MAX, out + n);
	n += answer_worker_lines(span_make(worker, sizeof(worker)), &c, out + n);
	ck_assert_uint_le(n, sizeof(out));
}
END_TEST

static Suite *answer_suite(void)
{
	Suite *s = suite_create("answer");
	TCase *tc = tcase_create("answer");

	tcase_add_test(tc, request_id);
	tcase_add_test(tc, request_id_has_all_bits);
	tcase_add_test(tc, id_line);
	tcase_add_test(tc, allow_line);
	tcase_add_test(tc, retry_line);
	tcase_add_test(tc, worker_lines);
	tcase_add_test(tc, error_events);
	tcase_add_test(tc, all_lines_fit);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(answer_suite())
