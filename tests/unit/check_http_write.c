/*
 * Tests of http_write: whole heads as they leave, byte for byte, and the room that they
 * need.
 */
#include "base/err.h"
#include "base/fail.h"
#include "base/metric.h"
#include "http/http_parse.h"
#include "http/http_scan.h"
#include "http/http_write.h"
#include "tests/unit/unit.h"

#include <string.h>

static struct http_head head;
static char out[131072];

static void parse(const char *text, bool is_response, enum http_method asked)
{
	enum fail why = FAIL_NONE;
	uint32_t len = (uint32_t)strlen(text);
	int r = is_response ? http_parse_response(text, len, asked, &head, &why)
			    : http_parse_request(text, len, &head, &why);

	ck_assert_msg(r == 0, "%s: failure %d", text, (int)why);
}

static struct http_request_out plain_request(const char *text)
{
	parse(text, false, HTTP_GET);
	return (struct http_request_out){
		.base = text,
		.head = &head,
		.host_line = SPAN_LIT("Host: w0.test:8001\r\n"),
		.peer_ip = SPAN_LIT("10.0.0.9"),
		.proto = SPAN_LIT("http"),
		.request_id = SPAN_LIT("id-1"),
		.framing = head.framing,
		.content_length = head.content_length,
	};
}

static void check_out(size_t n, const char *expected)
{
	ck_assert_msg(n == strlen(expected) && memcmp(out, expected, n) == 0,
		"got:\n%.*s\nnot:\n%s", (int)n, out, expected);
}

static void check_request(const struct http_request_out *o, const char *expected)
{
	size_t n = http_write_request(o, out, sizeof(out));

	check_out(n, expected);
	/* one byte too little writes nothing that could be taken for a head */
	ck_assert_uint_eq(http_write_request(o, out, n - 1), 0);
	ck_assert_uint_eq(http_write_request(o, out, 0), 0);
	ck_assert_uint_eq(http_write_request(o, out, n), n);
}

#define OURS                            \
	"X-Forwarded-For: 10.0.0.9\r\n" \
	"X-Forwarded-Proto: http\r\n"   \
	"Via: 1.1 kvsteer\r\n"          \
	"X-Request-Id: id-1\r\n"

START_TEST(request_is_made_anew)
{
	struct http_request_out o = plain_request(
		"\r\nPOST /v1/completions?a=1&a=2 HTTP/1.1\r\nhost: llm.example.test\r\n"
		"Authorization: Bearer k-1\r\nx-api-key: k-2\r\nanthropic-version: "
		"2023-06-01\r\n"
		"anthropic-beta: a\r\nanthropic-beta:b \t\r\ntraceparent: 00-1\r\n"
		"X-Request-Id: req-abc\r\nx-LaBeL: Z\r\nConnection: keep-alive, "
		"X-Drop\r\n"
		"X-Drop: 1\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nX-Empty:\r\n"
		"Proxy-Connection: keep-alive\r\nX-T: caf\xe9 \xff\r\nContent-Length: "
		"0010\r\n"
		"Expect: 100-continue\r\nX-Kvsteer-Prefix: 128b;1\r\nX_Kvsteer_Tenant: "
		"admin\r\n"
		"X-Kvsteer-New: 1\r\nX-Kvsteer-Worker: w\r\nX-Kvsteer-Explain: "
		"1\r\nX_Forwarded_For: 6.6.6.6\r\nForwarded: "
		"for=1\r\n\r\n");

	o.request_id = SPAN_LIT("req-abc");
	check_request(&o,
		"POST /v1/completions?a=1&a=2 HTTP/1.1\r\nHost: w0.test:8001\r\n"
		"Authorization: Bearer k-1\r\nx-api-key: k-2\r\n"
		"anthropic-version: 2023-06-01\r\nanthropic-beta: a\r\n"
		"anthropic-beta: b\r\ntraceparent: 00-1\r\nx-LaBeL: Z\r\nX-Empty: \r\n"
		"X-T: caf\xe9 \xff\r\n"
		"X-Forwarded-For: 10.0.0.9\r\nX-Forwarded-Proto: http\r\n"
		"Via: 1.1 kvsteer\r\nX-Request-Id: req-abc\r\nContent-Length: "
		"10\r\n\r\n");
}
END_TEST

START_TEST(request_joins_what_came)
{
	struct http_request_out o = plain_request(
		"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nVia: 1.0 a\r\n"
		"X-Forwarded-Proto: gopher\r\nx-forwarded-for: 2.2.2.2, 3.3.3.3\r\n"
		"X-Forwarded-For:\r\nVia: 1.1 b\r\n\r\n");

	o.is_forwarded = true;
	o.proto = SPAN_LIT("https");
	o.extra = SPAN_LIT("X-Role: prefill\r\n");
	check_request(&o, "GET / HTTP/1.1\r\nHost: w0.test:8001\r\n"
			  "X-Forwarded-For: 1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.9\r\n"
			  "X-Forwarded-Proto: https\r\nVia: 1.0 a, 1.1 b, 1.1 kvsteer\r\n"
			  "X-Request-Id: id-1\r\nX-Role: prefill\r\n\r\n");
	/* of a stranger only what is ours goes on */
	o.is_forwarded = false;
	o.proto = SPAN_LIT("http");
	o.extra = SPAN_LIT("");
	check_request(&o, "GET / HTTP/1.1\r\nHost: w0.test:8001\r\n"
			  "X-Forwarded-For: 10.0.0.9\r\n"
			  "X-Forwarded-Proto: http\r\nVia: 1.0 a, 1.1 b, 1.1 kvsteer\r\n"
			  "X-Request-Id: id-1\r\n\r\n");
}
END_TEST

#define CLAIMS                                                                      \
	"Forwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n"                          \
	"X-Forwarded-Host: a\r\nX-FORWARDED-Port: 1\r\n"                            \
	"X-Forwarded-Client-Cert: c\r\nX-Original-URL: /a\r\nx-rewrite-url: /b\r\n" \
	"X-Forwarded-Prefix: /p\r\n"
#define NEAR "X-Forwarded: 1\r\nX-Real-IPs: 2\r\nX-Original-Url2: 3\r\n"

/* A stranger says nothing of who he is or what he asked for; a trusted proxy does.
 * Spellings with '_' never pass: some servers take them for the real names. */
START_TEST(b19_claims_of_strangers_end_here)
{
	struct http_request_out o = plain_request(
		"GET / HTTP/1.1\r\nHost: a\r\n" CLAIMS NEAR
		"X_Real_IP: 1\r\nX_Forwarded_Host: b\r\nX-Forwarded_For: 7\r\n"
		"X_Original_URL: /\r\nX-Rewrite_URL: /\r\n\r\n");

	check_request(&o, "GET / HTTP/1.1\r\nHost: w0.test:8001\r\n" NEAR OURS "\r\n");
	o.is_forwarded = true;
	check_request(
		&o, "GET / HTTP/1.1\r\nHost: w0.test:8001\r\n" CLAIMS NEAR OURS "\r\n");
}
END_TEST

/* A rank's requests say which one; what the client said of it is gone, however spelt. */
START_TEST(rank_replaces_what_came)
{
	struct http_request_out o =
		plain_request("GET / HTTP/1.1\r\nHost: a\r\nX-Data-Parallel-Rank: 7\r\n"
			      "x_data-PARALLEL_rank: 8\r\nX-Data-Parallel-Ranks: 9\r\n"
			      "x-data-parallel-rank:\r\n\r\n");

	check_request(&o,
		"GET / HTTP/1.1\r\nHost: w0.test:8001\r\n"
		"X-Data-Parallel-Rank: 7\r\nx_data-PARALLEL_rank: 8\r\n"
		"X-Data-Parallel-Ranks: 9\r\nx-data-parallel-rank: \r\n" OURS "\r\n");
	o.rank_line = SPAN_LIT("X-data-parallel-rank: 2\r\n");
	check_request(&o, "GET / HTTP/1.1\r\nHost: w0.test:8001\r\n"
			  "X-data-parallel-rank: 2\r\n"
			  "X-Data-Parallel-Ranks: 9\r\n" OURS "\r\n");
}
END_TEST

/* Of what is read here no coding is wanted; others may have it. */
START_TEST(accept_encoding_may_end_here)
{
	struct http_request_out o =
		plain_request("GET / HTTP/1.1\r\nHost: a\r\nAccept-ENCODING: gzip\r\n"
			      "Accept: a\r\naccept-encoding: br\r\n\r\n");

	check_request(&o, "GET / HTTP/1.1\r\nHost: w0.test:8001\r\n"
			  "Accept-ENCODING: gzip\r\nAccept: a\r\n"
			  "accept-encoding: br\r\n" OURS "\r\n");
	o.accepts_plain = true;
	check_request(
		&o, "GET / HTTP/1.1\r\nHost: w0.test:8001\r\nAccept: a\r\n" OURS "\r\n");
}
END_TEST

START_TEST(nominated_fields_go_before_ours_come)
{
	struct http_request_out o = plain_request(
		"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\n"
		"X-Forwarded-For: 1.2.3.4\r\nVia: 1.1 x\r\n"
		"Connection: Authorization, X-Forwarded-For, Via, X-Request-Id\r\n\r\n");

	check_request(&o, "GET / HTTP/1.1\r\nHost: w0.test:8001\r\n" OURS "\r\n");
}
END_TEST

START_TEST(worker_key_replaces_credentials)
{
	struct http_request_out o =
		plain_request("GET /a HTTP/1.0\r\nAuthorization: Bearer "
			      "k-1\r\nX-Api-Key: k-2\r\nA: b\r\n\r\n");

	o.authorization = SPAN_LIT("Bearer worker");
	check_request(&o, "GET /a HTTP/1.1\r\nHost: w0.test:8001\r\nA: b\r\n"
			  "Authorization: Bearer worker\r\n" OURS "\r\n");
}
END_TEST

START_TEST(targets_leave_in_origin_form)
{
	static const struct {
		const char *line, *base, *expected;
	} rows[] = {
		{"GET /", "", "GET / HTTP"},
		{"GET //a/../b?c=/%2f", "", "GET //a/../b?c=/%2f HTTP"},
		{"GET /a?b", "/team-a", "GET /team-a/a?b HTTP"},
		{"OPTIONS *", "/team-a", "OPTIONS * HTTP"},
		{"GET http://b.example/v1/models?x", "", "GET /v1/models?x HTTP"},
		{"DELETE http://b.example", "/t", "DELETE /t/ HTTP"},
		{"PATCH https://b.example?x=1", "/t", "PATCH /t/?x=1 HTTP"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char text[256], expected[512];
		struct http_request_out o;

		snprintf(text, sizeof(text), "%s HTTP/1.1\r\nHost: a\r\n\r\n",
			rows[i].line);
		snprintf(expected, sizeof(expected),
			"%s/1.1\r\nHost: w0.test:8001\r\n" OURS "\r\n", rows[i].expected);
		o = plain_request(text);
		o.url_base = span_str(rows[i].base);
		check_request(&o, expected);
	}
}
END_TEST

START_TEST(request_framing_is_ours)
{
	struct http_request_out o =
		plain_request("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
			      "chunked\r\nTrailer: x\r\n\r\n");

	check_request(&o, "POST / HTTP/1.1\r\nHost: w0.test:8001\r\n" OURS
			  "Transfer-Encoding: chunked\r\n\r\n");
	o.framing = HTTP_BODY_LENGTH;
	o.content_length = UINT64_MAX;
	check_request(&o, "POST / HTTP/1.1\r\nHost: w0.test:8001\r\n" OURS
			  "Content-Length: 18446744073709551615\r\n\r\n");
	o.framing = HTTP_BODY_NONE;
	check_request(&o, "POST / HTTP/1.1\r\nHost: w0.test:8001\r\n" OURS "\r\n");
}
END_TEST

static void check_response(const struct http_response_out *o, const char *expected)
{
	size_t n = http_write_response(o, out, sizeof(out));

	check_out(n, expected);
	ck_assert_uint_eq(http_write_response(o, out, n - 1), 0);
	ck_assert_uint_eq(http_write_response(o, out, n), n);
}

static struct http_response_out plain_response(const char *text, enum http_method asked)
{
	parse(text, true, asked);
	return (struct http_response_out){
		.base = text,
		.head = &head,
		.framing = head.framing,
		.content_length = head.content_length,
	};
}

START_TEST(response_is_made_anew)
{
	struct http_response_out o = plain_response(
		"HTTP/1.0 200 Whatever \xff\r\nx-request-id: w\r\nSet-Cookie: a=1\r\n"
		"Set-Cookie: b=2\r\nX-Worker: 0\r\nConnection: keep-alive, "
		"X-Foo\r\nX-Foo: 1\r\n"
		"Keep-Alive: timeout=5\r\nUpgrade: h2c\r\nServer: uvicorn\r\nDate: "
		"now\r\n"
		"Content-Length: 05\r\nProxy-Authenticate: x\r\nX-Forwarded-For: "
		"7\r\n\r\n",
		HTTP_GET);

	o.request_id = SPAN_LIT("id-1");
	check_response(&o,
		"HTTP/1.1 200 OK\r\nx-request-id: w\r\nSet-Cookie: a=1\r\n"
		"Set-Cookie: b=2\r\nX-Worker: 0\r\nServer: uvicorn\r\nDate: now\r\n"
		"X-Forwarded-For: 7\r\nContent-Length: 5\r\n\r\n");
}
END_TEST

START_TEST(response_framing_and_persistence_are_ours)
{
	struct http_response_out o =
		plain_response("HTTP/1.1 503 X\r\nTransfer-Encoding: "
			       "chunked\r\nConnection: close\r\n\r\n",
			HTTP_GET);

	o.request_id = SPAN_LIT("id-1");
	o.keepalive_secs = 75;
	o.extra = SPAN_LIT("X-Kvsteer-Worker: w0\r\n");
	check_response(&o, "HTTP/1.1 503 Service Unavailable\r\nX-Request-Id: id-1\r\n"
			   "Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n"
			   "Keep-Alive: timeout=75\r\nX-Kvsteer-Worker: w0\r\n\r\n");
	o.extra = o.request_id = SPAN_LIT("");
	o.close = true;
	check_response(&o,
		"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n"
		"Connection: close\r\n\r\n");
	o.close = false;
	o.framing = HTTP_BODY_UNTIL_CLOSE;
	check_response(
		&o, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n");
	o.framing = HTTP_BODY_LENGTH;
	o.content_length = 0;
	o.keepalive_secs = 0;
	o.keep_alive_10 = true;
	check_response(&o, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n"
			   "Connection: keep-alive\r\n\r\n");
}
END_TEST

START_TEST(bodiless_answers_keep_their_length)
{
	struct http_response_out o =
		plain_response("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", HTTP_HEAD);

	check_response(&o, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
	o = plain_response(
		"HTTP/1.1 304 X\r\nContent-Length: 5\r\nETag: x\r\n\r\n", HTTP_GET);
	check_response(
		&o, "HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 5\r\n\r\n");
	o = plain_response("HTTP/1.1 204 X\r\nContent-Length: 5\r\n\r\n", HTTP_GET);
	check_response(&o, "HTTP/1.1 204 No Content\r\n\r\n");
	o = plain_response(
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP_HEAD);
	check_response(&o, "HTTP/1.1 200 OK\r\n\r\n");
	o = plain_response("HTTP/1.1 599 X\r\nContent-Length: 0\r\n\r\n", HTTP_GET);
	check_response(&o, "HTTP/1.1 599 Unknown\r\nContent-Length: 0\r\n\r\n");
}
END_TEST

START_TEST(own_heads)
{
	size_t n = http_write_own(503, SPAN_LIT("application/json"), 12, true,
		SPAN_LIT("Retry-After: 1\r\n"), out, sizeof(out));

	check_out(n,
		"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
		"Content-Length: 12\r\nConnection: close\r\nRetry-After: 1\r\n\r\n");
	ck_assert_uint_eq(http_write_own(503, SPAN_LIT("application/json"), 12, true,
				  SPAN_LIT("Retry-After: 1\r\n"), out, n - 1),
		0);
	n = http_write_own(200, SPAN_LIT(""), 0, false, SPAN_LIT(""), out, sizeof(out));
	check_out(n, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	n = http_write_own(204, SPAN_LIT(""), 0, false, SPAN_LIT(""), out, sizeof(out));
	check_out(n, "HTTP/1.1 204 No Content\r\n\r\n");
}
END_TEST

/* The most that a head can grow: no blank behind any colon, everything of ours added. */
START_TEST(room_is_enough)
{
	char text[4096];
	size_t n = (size_t)sprintf(text, "GET / HTTP/1.1\r\nHost:a\r\n");
	struct http_request_out o;

	for (unsigned i = 1; i < HTTP_REQUEST_FIELDS_MAX; i++)
		n += (size_t)sprintf(text + n, i % 2 ? "a:b\r\n" : "Via:1\r\n");
	sprintf(text + n, "\r\n");
	o = plain_request(text);
	o.framing = HTTP_BODY_LENGTH;
	o.content_length = UINT64_MAX;
	o.proto = SPAN_LIT("https");
	o.authorization = SPAN_LIT("x");
	ck_assert_uint_gt(http_write_request(&o, out,
				  n + 2 + o.host_line.n + o.peer_ip.n + o.request_id.n +
					  o.authorization.n + HTTP_WRITE_ROOM),
		0);
}
END_TEST

START_TEST(response_room_is_enough)
{
	char text[4096];
	size_t n = (size_t)sprintf(text, "HTTP/1.1 511\r\n");
	struct http_response_out o;

	for (unsigned i = 0; i < HTTP_FIELDS_MAX; i++)
		n += (size_t)sprintf(text + n, "a:b\r\n");
	sprintf(text + n, "\r\n");
	o = plain_response(text, HTTP_GET);
	o.framing = HTTP_BODY_LENGTH;
	o.content_length = UINT64_MAX;
	o.keepalive_secs = UINT32_MAX;
	o.request_id = SPAN_LIT("x");
	ck_assert_uint_gt(
		http_write_response(&o, out, n + 2 + o.request_id.n + HTTP_WRITE_ROOM),
		0);
}
END_TEST

static void check_u64(uint64_t value, const char *text)
{
	char digits[20];
	size_t n = http_write_u64(value, digits);

	ck_assert(n == strlen(text) && memcmp(digits, text, n) == 0);
}

START_TEST(numbers)
{
	check_u64(0, "0");
	check_u64(9, "9");
	check_u64(10, "10");
	check_u64(1234567890, "1234567890");
	check_u64(UINT64_MAX, "18446744073709551615");
}
END_TEST

static Suite *write_suite(void)
{
	Suite *s = suite_create("http_write");
	TCase *t = tcase_create("write");

	metric_thread_start();
	tcase_add_test(t, request_is_made_anew);
	tcase_add_test(t, request_joins_what_came);
	tcase_add_test(t, b19_claims_of_strangers_end_here);
	tcase_add_test(t, rank_replaces_what_came);
	tcase_add_test(t, accept_encoding_may_end_here);
	tcase_add_test(t, nominated_fields_go_before_ours_come);
	tcase_add_test(t, worker_key_replaces_credentials);
	tcase_add_test(t, targets_leave_in_origin_form);
	tcase_add_test(t, request_framing_is_ours);
	tcase_add_test(t, response_is_made_anew);
	tcase_add_test(t, response_framing_and_persistence_are_ours);
	tcase_add_test(t, bodiless_answers_keep_their_length);
	tcase_add_test(t, own_heads);
	tcase_add_test(t, room_is_enough);
	tcase_add_test(t, response_room_is_enough);
	tcase_add_test(t, numbers);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(write_suite())
