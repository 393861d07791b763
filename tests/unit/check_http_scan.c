/*
 * Tests of http_scan: where heads end, what is refused and at which byte, limits, and
 * that any split of the bytes gives one verdict.
 */
#include "base/err.h"
#include "http/http_head.h"
#include "http/http_scan.h"
#include "tests/unit/unit.h"

#include <string.h>

struct verdict {
	int r;
	enum fail why;
	uint32_t head_len;
	size_t seen; /* bytes that were there when the verdict came */
};

/* Feeds in steps of so many bytes. Each step's bytes lie in a block of their exact size.
 */
static struct verdict scan_steps(
	const char *text, size_t n, enum http_scan_kind kind, size_t step)
{
	struct http_scan s;
	struct verdict v = {.r = ERR_AGAIN};

	http_scan_start(&s, kind);
	while (v.r == ERR_AGAIN && v.seen < n) {
		char *exact;

		v.seen = v.seen + step < n ? v.seen + step : n;
		exact = malloc(v.seen);
		ck_assert(exact != NULL);
		memcpy(exact, text, v.seen);
		v.r = http_scan_run(&s, exact, v.seen, &v.head_len, &v.why);
		free(exact);
	}
	return v;
}

/* The verdict of a single write, after checking that small steps give the same. */
static struct verdict scan_all(const char *text, size_t n, enum http_scan_kind kind)
{
	struct verdict whole = scan_steps(text, n, kind, n);

	for (size_t step = 1; step < 40 && n < 1000; step++) {
		struct verdict v = scan_steps(text, n, kind, step);

		ck_assert_msg(v.r == whole.r && v.why == whole.why &&
				      v.head_len == whole.head_len,
			"steps of %zu: %d, not %d: %s", step, v.r, whole.r, text);
	}
	return whole;
}

/* Expects the failure at exactly the byte with this offset: one byte less is not yet a
 * fault. */
static void check_fault(
	const char *text, enum http_scan_kind kind, size_t offset, enum fail why)
{
	struct verdict v = scan_all(text, strlen(text), kind);
	struct verdict bytewise = scan_steps(text, strlen(text), kind, 1);

	ck_assert_msg(v.r == ERR_PARSE && v.why == why, "%s: %d, failure %d", text, v.r,
		(int)v.why);
	ck_assert_msg(bytewise.seen == offset + 1, "%s: at %zu, not %zu", text,
		bytewise.seen - 1, offset);
}

static void check_end(const char *text, enum http_scan_kind kind, uint32_t head_len)
{
	struct verdict v = scan_all(text, strlen(text), kind);

	ck_assert_msg(v.r == 0 && v.head_len == head_len, "%s: %d, length %u", text, v.r,
		v.head_len);
}

#define LINE "GET / HTTP/1.1\r\n"
#define STATUS "HTTP/1.1 200 OK\r\n"

START_TEST(finds_the_end)
{
	check_end(LINE "\r\n", HTTP_SCAN_REQUEST, 18);
	check_end(LINE "\r\nGET", HTTP_SCAN_REQUEST, 18);
	check_end(LINE "\r\n\r\n", HTTP_SCAN_REQUEST, 18);
	check_end("\r\n" LINE "\r\n", HTTP_SCAN_REQUEST, 20);
	check_end(LINE "A:\r\nB: \r\nC:c\r\n\r\nx", HTTP_SCAN_REQUEST, 32);
	check_end(LINE "A: \t !~\x80\xff\t\r\n\r\n", HTTP_SCAN_REQUEST, 30);
	check_end(LINE "!#$%&'*+-.^_`|~09azAZ: b\r\n\r\n", HTTP_SCAN_REQUEST, 44);
	check_end(LINE "A::\r\nB: c: d\r\n\r\n", HTTP_SCAN_REQUEST, 32);
	check_end(STATUS "\r\n\n", HTTP_SCAN_RESPONSE, 19);
	check_end("HTTP/1.0 599\r\n\r\n", HTTP_SCAN_RESPONSE, 16);
	check_end("\r\nx", HTTP_SCAN_TRAILER, 2);
	check_end("A: b\r\n\r\n\r\n", HTTP_SCAN_TRAILER, 8);
}
END_TEST

START_TEST(faults_show_at_their_byte)
{
	/* C3 */
	check_fault("\n", HTTP_SCAN_REQUEST, 0, FAIL_MALFORMED_REQUEST);
	check_fault("\r\r\n", HTTP_SCAN_REQUEST, 1, FAIL_MALFORMED_REQUEST);
	check_fault("\r\n\r\n" LINE "\r\n", HTTP_SCAN_REQUEST, 2, FAIL_MALFORMED_REQUEST);
	check_fault("\r\n\n" LINE "\r\n", HTTP_SCAN_REQUEST, 2, FAIL_MALFORMED_REQUEST);
	check_fault("\r\n " LINE "\r\n", HTTP_SCAN_REQUEST, 2, FAIL_MALFORMED_REQUEST);
	/* C4 */
	check_fault(" GET", HTTP_SCAN_REQUEST, 0, FAIL_MALFORMED_REQUEST);
	check_fault("\x16\x03\x01", HTTP_SCAN_REQUEST, 0, FAIL_MALFORMED_REQUEST);
	check_fault("GET\t/", HTTP_SCAN_REQUEST, 3, FAIL_MALFORMED_REQUEST);
	check_fault("GET\r\n", HTTP_SCAN_REQUEST, 3, FAIL_MALFORMED_REQUEST);
	check_fault("GET  /", HTTP_SCAN_REQUEST, 4, FAIL_MALFORMED_REQUEST);
	check_fault("GET \r\n", HTTP_SCAN_REQUEST, 4, FAIL_MALFORMED_REQUEST);
	check_fault("GET /\r\n", HTTP_SCAN_REQUEST, 5, FAIL_MALFORMED_REQUEST);
	check_fault("GET /\n", HTTP_SCAN_REQUEST, 5, FAIL_BAD_TARGET);
	check_fault("GET /a\x7f", HTTP_SCAN_REQUEST, 6, FAIL_BAD_TARGET);
	check_fault("GET /0123456789abcdef0123456789\x80"
		    "0123456789abcdef",
		HTTP_SCAN_REQUEST, 31, FAIL_BAD_TARGET);
	check_fault("GET / h", HTTP_SCAN_REQUEST, 6, FAIL_MALFORMED_REQUEST);
	check_fault("GET / HTTP/x", HTTP_SCAN_REQUEST, 11, FAIL_MALFORMED_REQUEST);
	check_fault("GET / HTTP/1\r", HTTP_SCAN_REQUEST, 12, FAIL_MALFORMED_REQUEST);
	check_fault("GET / HTTP/1.1 ", HTTP_SCAN_REQUEST, 14, FAIL_MALFORMED_REQUEST);
	check_fault("GET / HTTP/1.1\n", HTTP_SCAN_REQUEST, 14, FAIL_MALFORMED_REQUEST);
	check_fault("GET / HTTP/2.1\r", HTTP_SCAN_REQUEST, 14, FAIL_HTTP_VERSION);
	check_fault("GET / HTTP/0.9\r", HTTP_SCAN_REQUEST, 14, FAIL_HTTP_VERSION);
	check_fault("GET / HTTP/1.10", HTTP_SCAN_REQUEST, 14, FAIL_MALFORMED_REQUEST);
	check_fault("GET / HTTP/2.10", HTTP_SCAN_REQUEST, 14, FAIL_MALFORMED_REQUEST);
	/* C2 */
	check_fault("GET / HTTP/1.1\rX", HTTP_SCAN_REQUEST, 15, FAIL_BAD_HEADER);
	check_fault(LINE "\n", HTTP_SCAN_REQUEST, 16, FAIL_BAD_HEADER);
	check_fault(LINE " A: b", HTTP_SCAN_REQUEST, 16, FAIL_BAD_HEADER);
	check_fault(LINE ": b", HTTP_SCAN_REQUEST, 16, FAIL_BAD_HEADER);
	check_fault(LINE "A : b", HTTP_SCAN_REQUEST, 17, FAIL_BAD_HEADER);
	check_fault(LINE "A\t: b", HTTP_SCAN_REQUEST, 17, FAIL_BAD_HEADER);
	check_fault(LINE "A\r\n", HTTP_SCAN_REQUEST, 17, FAIL_BAD_HEADER);
	check_fault(LINE "A(: b", HTTP_SCAN_REQUEST, 17, FAIL_BAD_HEADER);
	check_fault(LINE "A\x85: b", HTTP_SCAN_REQUEST, 17, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\n", HTTP_SCAN_REQUEST, 20, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\x0b", HTTP_SCAN_REQUEST, 20, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\x0c", HTTP_SCAN_REQUEST, 20, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\x1b", HTTP_SCAN_REQUEST, 20, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\x7f", HTTP_SCAN_REQUEST, 20, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\r ", HTTP_SCAN_REQUEST, 21, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\r\r\n", HTTP_SCAN_REQUEST, 21, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\r\n c", HTTP_SCAN_REQUEST, 22, FAIL_BAD_HEADER);
	check_fault(LINE "A:\r\n\tc", HTTP_SCAN_REQUEST, 20, FAIL_BAD_HEADER);
	check_fault(LINE "A: b\r\n\n", HTTP_SCAN_REQUEST, 22, FAIL_BAD_HEADER);
	check_fault(LINE "\rX", HTTP_SCAN_REQUEST, 17, FAIL_BAD_HEADER);
	/* Answers */
	check_fault("\r\n", HTTP_SCAN_RESPONSE, 0, FAIL_WORKER_PROTOCOL);
	check_fault("HTTP/2.1", HTTP_SCAN_RESPONSE, 5, FAIL_WORKER_PROTOCOL);
	check_fault("HTTP/1.x", HTTP_SCAN_RESPONSE, 7, FAIL_WORKER_PROTOCOL);
	check_fault("HTTP/1.1 6", HTTP_SCAN_RESPONSE, 9, FAIL_WORKER_PROTOCOL);
	check_fault("HTTP/1.1 20 ", HTTP_SCAN_RESPONSE, 11, FAIL_WORKER_PROTOCOL);
	check_fault("HTTP/1.1 2000", HTTP_SCAN_RESPONSE, 12, FAIL_WORKER_PROTOCOL);
	check_fault("HTTP/1.1 200 a\x01", HTTP_SCAN_RESPONSE, 14, FAIL_WORKER_PROTOCOL);
	check_fault("HTTP/1.1 200 a\n", HTTP_SCAN_RESPONSE, 14, FAIL_WORKER_PROTOCOL);
	check_fault(STATUS "A : b", HTTP_SCAN_RESPONSE, 18, FAIL_WORKER_PROTOCOL);
	/* Trailers */
	check_fault("\n", HTTP_SCAN_TRAILER, 0, FAIL_BAD_HEADER);
	check_fault("A : b", HTTP_SCAN_TRAILER, 1, FAIL_BAD_HEADER);
	check_fault("A: b\r\n c", HTTP_SCAN_TRAILER, 6, FAIL_BAD_HEADER);
	check_fault("Content-Length: 5", HTTP_SCAN_TRAILER, 14, FAIL_BAD_FRAMING);
	check_fault(
		"A: b\r\ntRANSFER_encoding: x", HTTP_SCAN_TRAILER, 23, FAIL_BAD_FRAMING);
}
END_TEST

START_TEST(trailers_may_look_alike)
{
	check_end("Content-Lengt: 5\r\n\r\n", HTTP_SCAN_TRAILER, 20);
	check_end("Content-Lengths: 5\r\n\r\n", HTTP_SCAN_TRAILER, 22);
	check_end("XContent-Length: 5\r\n\r\n", HTTP_SCAN_TRAILER, 22);
	check_end("Transfer-Encodin: 5\r\nC: 6\r\n\r\n", HTTP_SCAN_TRAILER, 29);
}
END_TEST

START_TEST(every_control_byte_is_refused)
{
	for (int c = 0; c < 256; c++) {
		char text[] = LINE "A: bbbbbbbbbbbbbbbb?bbbbbbbbbbbbbbbbbbbbbb\r\n\r\n";
		char *spot = strchr(text, '?');
		struct verdict v;
		bool is_text = c == '\t' || (c >= 0x20 && c != 0x7f);

		*spot = (char)c;
		v = scan_all(text, sizeof(text) - 1, HTTP_SCAN_REQUEST);
		ck_assert_msg((v.r == 0) == is_text, "byte %02x in a value", (unsigned)c);
	}
}
END_TEST

START_TEST(every_byte_of_a_name_is_judged)
{
	for (int c = 0; c < 256; c++) {
		char text[] =
			LINE "aaaaaaaaaaaaaaaaaa?aaaaaaaaaaaaaaaaaaaaaaaaaaa: b\r\n\r\n";
		struct verdict v;
		bool is_token = (c >= '0' && c <= '9') ||
				((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
				(c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);

		*strchr(text, '?') = (char)c;
		v = scan_all(text, sizeof(text) - 1, HTTP_SCAN_REQUEST);
		/* a colon ends the name; what follows is a value */
		ck_assert_msg((v.r == 0) == (is_token || c == ':'), "byte %02x in a name",
			(unsigned)c);
	}
}
END_TEST

START_TEST(every_byte_of_a_target_is_judged)
{
	for (int c = 0; c < 256; c++) {
		char text[] =
			"GET /aaaaaaaaaaaaaaaaaa?aaaaaaaaaaaaaaaaaaaa HTTP/1.1\r\n\r\n";
		struct verdict v;

		*strchr(text, '?') = (char)c;
		v = scan_all(text, sizeof(text) - 1, HTTP_SCAN_REQUEST);
		ck_assert_msg(
			(v.r == 0) == (c >= 0x21 && c <= 0x7e), "byte %02x", (unsigned)c);
	}
}
END_TEST

/* before, then fill bytes, then after. */
static struct verdict scan_filled(const char *before, size_t fill, char with,
	const char *after, enum http_scan_kind kind)
{
	size_t n = strlen(before), m = strlen(after);
	char *text = malloc(n + fill + m + 1);
	struct verdict whole, halves, bytes;

	ck_assert(text != NULL);
	memcpy(text, before, n);
	memset(text + n, with, fill);
	memcpy(text + n + fill, after, m + 1);
	whole = scan_steps(text, n + fill + m, kind, n + fill + m);
	halves = scan_steps(text, n + fill + m, kind, (n + fill + m) / 2 + 1);
	bytes = scan_steps(text, n + fill + m, kind, 997);
	free(text);
	ck_assert(whole.r == halves.r && whole.why == halves.why);
	ck_assert(whole.r == bytes.r && whole.why == bytes.why);
	return whole;
}

START_TEST(lines_are_limited)
{
	/* "GET /" and " HTTP/1.1" are 14 bytes */
	struct verdict v = scan_filled(
		"GET /", HTTP_LINE_MAX - 14, 'a', " HTTP/1.1\r\n\r\n", HTTP_SCAN_REQUEST);

	ck_assert_int_eq(v.r, 0);
	v = scan_filled("\r\nGET /", HTTP_LINE_MAX - 14, 'a', " HTTP/1.1\r\n\r\n",
		HTTP_SCAN_REQUEST);
	ck_assert_int_eq(v.r, 0);
	v = scan_filled(
		"GET /", HTTP_LINE_MAX - 13, 'a', " HTTP/1.1\r\n\r\n", HTTP_SCAN_REQUEST);
	ck_assert_int_eq(v.r, ERR_PARSE);
	ck_assert_int_eq(v.why, FAIL_LINE_TOO_LARGE);
	v = scan_filled("GET /", 70000, 'a', " HTTP/1.1\r\n\r\n", HTTP_SCAN_REQUEST);
	ck_assert_int_eq(v.why, FAIL_LINE_TOO_LARGE);
	v = scan_filled("", 70000, 'A', "", HTTP_SCAN_REQUEST);
	ck_assert_int_eq(v.why, FAIL_MALFORMED_REQUEST);
	/* what is wrong before the limit is said first, wherever the pieces part */
	v = scan_filled("GET /\x01", 70000, 'a', "", HTTP_SCAN_REQUEST);
	ck_assert_int_eq(v.why, FAIL_BAD_TARGET);
	v = scan_filled("GET /", 70000, 'a', "\x01", HTTP_SCAN_REQUEST);
	ck_assert_int_eq(v.why, FAIL_LINE_TOO_LARGE);
	v = scan_filled(
		"HTTP/1.1 200 ", HTTP_LINE_MAX - 13, 'a', "\r\n\r\n", HTTP_SCAN_RESPONSE);
	ck_assert_int_eq(v.r, 0);
	v = scan_filled(
		"HTTP/1.1 200 ", HTTP_LINE_MAX - 12, 'a', "\r\n\r\n", HTTP_SCAN_RESPONSE);
	ck_assert_int_eq(v.why, FAIL_WORKER_HEAD_TOO_LARGE);
}
END_TEST

static void check_head_limit(
	const char *before, enum http_scan_kind kind, size_t max, enum fail why)
{
	size_t fill = max - strlen(before) - 4;
	struct verdict v = scan_filled(before, fill, 'a', "\r\n\r\n", kind);

	ck_assert_int_eq(v.r, 0);
	ck_assert_uint_eq(v.head_len, max);
	v = scan_filled(before, fill + 1, 'a', "\r\n\r\n", kind);
	ck_assert_int_eq(v.r, ERR_PARSE);
	ck_assert_int_eq(v.why, why);
	/* a full buffer of that size without an end is enough to know */
	v = scan_filled(before, fill + 4, 'a', "", kind);
	ck_assert_int_eq(v.r, ERR_PARSE);
	v = scan_filled(before, fill + 3, 'a', "", kind);
	ck_assert_int_eq(v.r, ERR_AGAIN);
}

START_TEST(heads_are_limited)
{
	check_head_limit(LINE "A: ", HTTP_SCAN_REQUEST, HTTP_REQUEST_HEAD_MAX,
		FAIL_HEAD_TOO_LARGE);
	check_head_limit(STATUS "A: ", HTTP_SCAN_RESPONSE, HTTP_RESPONSE_HEAD_MAX,
		FAIL_WORKER_HEAD_TOO_LARGE);
	check_head_limit(
		"A: ", HTTP_SCAN_TRAILER, HTTP_REQUEST_HEAD_MAX, FAIL_TRAILER_TOO_LARGE);
}
END_TEST

static struct verdict scan_fields(
	const char *line, unsigned fields, enum http_scan_kind kind)
{
	char text[4096];
	size_t n = (size_t)sprintf(text, "%s", line);

	for (unsigned i = 0; i < fields; i++)
		n += (size_t)sprintf(text + n, "A: b\r\n");
	n += (size_t)sprintf(text + n, "\r\n");
	return scan_all(text, n, kind);
}

START_TEST(fields_are_counted)
{
	struct verdict v = scan_fields(LINE, HTTP_REQUEST_FIELDS_MAX, HTTP_SCAN_REQUEST);

	ck_assert_int_eq(v.r, 0);
	v = scan_fields(LINE, HTTP_REQUEST_FIELDS_MAX + 1, HTTP_SCAN_REQUEST);
	ck_assert_int_eq(v.why, FAIL_TOO_MANY_FIELDS);
	v = scan_fields(STATUS, HTTP_FIELDS_MAX, HTTP_SCAN_RESPONSE);
	ck_assert_int_eq(v.r, 0);
	v = scan_fields(STATUS, HTTP_FIELDS_MAX + 1, HTTP_SCAN_RESPONSE);
	ck_assert_int_eq(v.why, FAIL_WORKER_HEAD_TOO_LARGE);
	v = scan_fields("", HTTP_REQUEST_FIELDS_MAX + 1, HTTP_SCAN_TRAILER);
	ck_assert_int_eq(v.why, FAIL_TRAILER_TOO_LARGE);
}
END_TEST

START_TEST(failure_is_final)
{
	/* a missing target; with a second look the blank would end one */
	static const char text[] = "GET  HTTP/1.1\r\n\r\n";
	struct http_scan s;
	uint32_t head_len;

	http_scan_start(&s, HTTP_SCAN_REQUEST);
	for (unsigned i = 0; i < 2; i++) {
		enum fail why = FAIL_NONE;
		int r = http_scan_run(&s, text, sizeof(text) - 1, &head_len, &why);

		ck_assert_int_eq(r, ERR_PARSE);
		ck_assert_int_eq(why, FAIL_MALFORMED_REQUEST);
	}
}
END_TEST

START_TEST(feed_forgets_bytes)
{
	static const char text[] = "A: b\r\nC: d\r\n\r\nrest";
	struct http_scan s;
	enum fail why;
	size_t used, at = 0;
	int r = ERR_AGAIN;

	http_scan_start(&s, HTTP_SCAN_TRAILER);
	while (r == ERR_AGAIN) {
		char one = text[at++];

		r = http_scan_feed(&s, &one, 1, &used, &why);
		ck_assert_uint_eq(used, 1);
	}
	ck_assert_int_eq(r, 0);
	ck_assert_uint_eq(at, 14);
	http_scan_start(&s, HTTP_SCAN_TRAILER);
	ck_assert_int_eq(http_scan_feed(&s, text, sizeof(text) - 1, &used, &why), 0);
	ck_assert_uint_eq(used, 14);
}
END_TEST

static Suite *scan_suite(void)
{
	Suite *s = suite_create("http_scan");
	TCase *t = tcase_create("scan");

	tcase_add_test(t, finds_the_end);
	tcase_add_test(t, faults_show_at_their_byte);
	tcase_add_test(t, trailers_may_look_alike);
	tcase_add_test(t, every_control_byte_is_refused);
	tcase_add_test(t, every_byte_of_a_name_is_judged);
	tcase_add_test(t, every_byte_of_a_target_is_judged);
	tcase_add_test(t, lines_are_limited);
	tcase_add_test(t, heads_are_limited);
	tcase_add_test(t, fields_are_counted);
	tcase_add_test(t, failure_is_final);
	tcase_add_test(t, feed_forgets_bytes);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(scan_suite())
