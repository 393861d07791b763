/*
 * What the small HTTP server reads and answers: framing, pipelining, limits, syntax,
 * routes, failures, streams. How its connections end is check_http_server_life.c's.
 */
#include "http_server_rig.h"

START_TEST(whole_answers_and_keep_alive)
{
	struct client *c = dial(0);

	for (int i = 0; i < 3; i++) {
		say(c, GET("/hello"));
		expect(c, "\r\n\r\nhello");
		ck_assert_int_eq(strncmp(c->in, "HTTP/1.1 200 OK\r\n", 17), 0);
		ck_assert_ptr_nonnull(strstr(c->in, "X-Made: here\r\n"));
		ck_assert_ptr_nonnull(strcasestr(c->in, "content-length: 5\r\n"));
		ck_assert_ptr_nonnull(strcasestr(c->in, "content-type: text/plain\r\n"));
		ck_assert_ptr_null(strcasestr(c->in, "connection:"));
		forget(c);
	}
	say(c, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	expect(c, NULL);
	ck_assert_ptr_nonnull(strcasestr(c->in, "connection: close\r\n"));
	ck_assert(!c->reset);
	hang_up(c);
	until_connections(0);
}
END_TEST

START_TEST(http_1_0)
{
	struct client *c = dial(0);

	say(c, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	expect(c, "hello");
	ck_assert_ptr_nonnull(strcasestr(c->in, "connection: keep-alive\r\n"));
	forget(c);
	say(c, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	expect(c, NULL);
	ck_assert_ptr_null(strcasestr(c->in, "chunked"));
	ck_assert_ptr_nonnull(strcasestr(c->in, "connection: close\r\n"));
	ck_assert_ptr_nonnull(
		strstr(c->in, "\r\n\r\ndata: one\n\ndata: a somewhat longer one\n\n"));
	hang_up(c);
}
END_TEST

START_TEST(head_has_no_body)
{
	struct client *c = dial(0);

	say(c, "HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\nHEAD /stream HTTP/1.1\r\nHost: "
	       "x\r\n\r\n"
	       "HEAD /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	expect(c, NULL);
	ck_assert_ptr_nonnull(strcasestr(c->in, "content-length: 5\r\n"));
	ck_assert_ptr_nonnull(strstr(c->in, "HTTP/1.1 404 "));
	ck_assert_ptr_null(strstr(c->in, "hello"));
	ck_assert_ptr_null(strstr(c->in, "data:"));
	ck_assert_ptr_null(strstr(c->in, "error"));
	ck_assert_ptr_null(strstr(c->in, "\r\n\r\n0\r\n"));
	hang_up(c);
}
END_TEST

START_TEST(pipelined_requests_are_answered_in_order)
{
	struct client *c = dial(0);
	const char *first, *second, *third;

	say(c, GET("/later") "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: "
			     "3\r\n\r\nabc" GET("/stream") GET("/where/z"));
	until(&handled, 1);
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 0);
	ck_assert_int_eq(handled, 1);
	http_call_reply(kept, 200, "text/plain", SPAN_LIT("kept"), span_make(NULL, 0));
	expect(c, "/where/z|");
	first = strstr(c->in, "kept");
	second = strstr(c->in, "abc");
	third = strstr(c->in, "data: one");
	ck_assert(first != NULL && second != NULL && third != NULL);
	ck_assert(first < second && second < third);
	ck_assert_uint_eq(count(c, "HTTP/1.1 200 OK"), 4);
	hang_up(c);
}
END_TEST

START_TEST(many_pipelined_requests)
{
	struct client *c = dial(0);
	static char all[1000 * sizeof(GET("/hello"))];
	size_t n = 0;

	for (int i = 0; i < 1000; i++) {
		memcpy(all + n, GET("/hello"), sizeof(GET("/hello")) - 1);
		n += sizeof(GET("/hello")) - 1;
	}
	say_n(c, all, n);
	until(&handled, 1000);
	while (count(c, "hello") < 1000)
		expect(c, "hello"), loop_turn(loop, 5);
	hang_up(c);
}
END_TEST

START_TEST(bodies_by_length_and_by_chunks)
{
	static const char *const whole[] = {
		"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nhello there",
		"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
		"5\r\nhello\r\n6;a=b\r\n there\r\n0\r\nTrailer: x\r\n\r\n",
	};

	for (size_t k = 0; k < ARRAY_LEN(whole); k++) {
		struct client *c = dial(0);

		say(c, whole[k]);
		expect(c, "\r\n\r\nhello there");
		forget(c);
		for (const char *p = whole[k]; *p != '\0'; p++)
			say_n(c, p, 1);
		expect(c, "\r\n\r\nhello there");
		forget(c);
		say(c, GET("/hello"));
		expect(c, "\r\n\r\nhello");
		hang_up(c);
	}
}
END_TEST

START_TEST(empty_and_largest_bodies)
{
	struct client *c = dial(0);
	static char body[MAX_BODY + 1];

	say(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
	expect(c, "\r\n\r\n");
	ck_assert_ptr_nonnull(strcasestr(c->in, "content-length: 0\r\n"));
	forget(c);
	memset(body, 'b', MAX_BODY);
	say(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n");
	say_n(c, body, MAX_BODY);
	expect(c, "\r\n\r\n");
	while (c->n < MAX_BODY)
		loop_turn(loop, 5), hear(c);
	ck_assert_ptr_nonnull(strstr(c->in, body));
	hang_up(c);
}
END_TEST

START_TEST(expect_100_continue)
{
	struct client *c = dial(0);

	say(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: "
	       "100-continue\r\n\r\n");
	expect(c, "HTTP/1.1 100 Continue\r\n\r\n");
	forget(c);
	say(c, "body");
	expect(c, "\r\n\r\nbody");
	forget(c);
	/* Refused before the body is asked for. */
	say(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\nExpect: "
	       "100-continue\r\n\r\n");
	expect(c, NULL);
	ck_assert_int_eq(strncmp(c->in, "HTTP/1.1 413 ", 13), 0);
	hang_up(c);
}
END_TEST

START_TEST(too_large_is_answered_although_the_client_goes_on_sending)
{
	static const char *const heads[] = {
		"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n",
		"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
		"chunked\r\n\r\n186A1\r\n",
	};
	static char body[30000];

	memset(body, 'b', sizeof(body));
	for (size_t k = 0; k < ARRAY_LEN(heads); k++) {
		struct client *c = dial(0);

		say(c, heads[k]);
		say_n(c, body, sizeof(body));
		expect(c, NULL);
		ck_assert(!c->reset);
		ck_assert_int_eq(strncmp(c->in, "HTTP/1.1 413 ", 13), 0);
		ck_assert_ptr_nonnull(strstr(c->in, "body_too_large"));
		hang_up(c);
	}
	ck_assert_int_eq(handled, 0);
	until_connections(0);
}
END_TEST

START_TEST(lingering_has_an_end)
{
	struct client *c = dial(0);

	/* A client that reads its answer but never closes. */
	say(c, "BROKEN\r\n\r\n");
	expect(c, NULL);
	until_connections(0);
	hang_up(c);
}
END_TEST

START_TEST(syntax_errors_end_the_connection)
{
	static const struct {
		const char *bytes, *status;
	} rows[] = {
		{"GET /hello\r\n\r\n", "HTTP/1.1 400 "},
		{"GET /hello HTTP/1.1\r\n\r\n" GET("/hello"), "HTTP/1.1 400 "},
		{"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 501 "},
		{"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP/1.1 505 "},
		{"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: "
		 "1\r\nTransfer-Encoding: "
		 "chunked\r\n\r\n0\r\n\r\n",
			"HTTP/1.1 400 "},
		{"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
		 "chunked\r\n\r\nxyz\r\n",
			"HTTP/1.1 400 "},
		{"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: "
		 "tea\r\n\r\n",
			"HTTP/1.1 417 "},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct client *c = dial(0);

		say(c, rows[i].bytes);
		expect(c, NULL);
		ck_assert_msg(strncmp(c->in, rows[i].status, strlen(rows[i].status)) == 0,
			"row %zu: %s", i, c->in);
		ck_assert_uint_eq(count(c, "\r\n\r\n"), 1);
		ck_assert_ptr_nonnull(strstr(c->in, "{\"error\":{\"message\":"));
		hang_up(c);
	}
	ck_assert_int_eq(handled, 0);
}
END_TEST

START_TEST(no_route)
{
	struct client *c = dial(0);

	say(c, GET("/hell"));
	expect(c, "path_not_found");
	ck_assert_ptr_nonnull(strstr(c->in, "HTTP/1.1 404 "));
	forget(c);
	say(c, GET("/echo"));
	expect(c, "method_not_allowed");
	ck_assert_ptr_nonnull(strstr(c->in, "HTTP/1.1 405 "));
	ck_assert_ptr_nonnull(strstr(c->in, "Allow: POST\r\n"));
	forget(c);
	say(c, "PUT /where/x HTTP/1.1\r\nHost: x\r\n\r\n");
	expect(c, "method_not_allowed");
	ck_assert_ptr_nonnull(strstr(c->in, "Allow: GET, DELETE\r\n"));
	forget(c);
	/* With a body that nobody wants the connection ends. */
	say(c, "POST /hell HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
	expect(c, NULL);
	ck_assert_ptr_nonnull(strstr(c->in, "HTTP/1.1 404 "));
	hang_up(c);
}
END_TEST

START_TEST(what_a_handler_can_ask)
{
	struct client *c = dial(0);

	say(c, "DELETE /where/a%2fb?x=1&a+b=no&c HTTP/1.1\r\nHost: x\r\nX-Thing: \t two "
	       "words \r\n\r\n");
	expect(c, "/where/a%2fb|x=1&a+b=no&c|-|two words");
	forget(c);
	say(c, GET("/where/?a"));
	expect(c, "/where/|a|-|");
	hang_up(c);
}
END_TEST

static char query_value[8];
static bool query_has;

static void handle_query(void *arg UNUSED, struct http_call *call)
{
	query_has = http_call_query_value(call, "k", query_value, sizeof(query_value));
	handled++;
	http_call_reply(call, 200, "text/plain", SPAN_LIT("q"), span_make(NULL, 0));
}

START_TEST(query_values)
{
	static const struct {
		const char *query, *value;
	} rows[] = {
		{"?k=v", "v"},
		{"?a=b&k=v&k=w", "v"},
		{"?k=", ""},
		{"?k", ""},
		{"?k=a+b%2Fc", "a b/c"},
		{"?k=%41%4a%4A", "AJJ"},
		{"?k=1234567", "1234567"},
		{"?k=a=b", "a=b"},
		{"?k=12345678", NULL},
		{"?k=%", NULL},
		{"?k=%4", NULL},
		{"?k=%4g", NULL},
		{"?kk=v", NULL},
		{"", NULL},
		{"?", NULL},
		{"?=v", NULL},
		{"?K=v", NULL},
	};
	static const struct http_route one[] = {{"GET", "/q", handle_query}};
	struct client *c;

	opts.routes = one;
	opts.n_routes = 1;
	restart();
	c = dial(0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char request[128];

		snprintf(request, sizeof(request), "GET /q%s HTTP/1.1\r\nHost: x\r\n\r\n",
			rows[i].query);
		say(c, request);
		until(&handled, (int)i + 1);
		ck_assert_msg(query_has == (rows[i].value != NULL), "%s", rows[i].query);
		if (query_has)
			ck_assert_str_eq(query_value, rows[i].value);
	}
	hang_up(c);
}
END_TEST

START_TEST(failures_are_json)
{
	struct client *c = dial(0);

	say(c, GET("/bad"));
	expect(c, "\r\n\r\n{\"error\":{\"message\":\"no \\\"such\\\\thing\\\": "
		  "\xc3\xa9\",\"type\":"
		  "\"invalid_request_error\",\"param\":null,\"code\":\"model_not_found\"}"
		  "}");
	hang_up(c);
}
END_TEST

START_TEST(streams_are_chunked)
{
	struct client *c = dial(0);

	say(c, GET("/stream"));
	expect(c, "0\r\n\r\n");
	ck_assert_ptr_nonnull(strcasestr(c->in, "transfer-encoding: chunked\r\n"));
	ck_assert_ptr_nonnull(strstr(c->in, "Cache-Control: no-cache\r\n"));
	ck_assert_ptr_null(strcasestr(c->in, "content-length"));
	ck_assert_ptr_nonnull(
		strcasestr(c->in, "\r\n\r\nb\r\ndata: one\n\n\r\n1d\r\ndata: a somewhat "
				  "longer one\n\n\r\n0\r\n\r\n"));
	forget(c);
	say(c, GET("/hello"));
	expect(c, "hello");
	hang_up(c);
}
END_TEST

START_TEST(a_cut_stream_does_not_look_complete)
{
	struct client *c = dial(0);

	say(c, GET("/cut"));
	expect(c, NULL);
	ck_assert_ptr_null(strstr(c->in, "0\r\n\r\n"));
	ck_assert(c->reset);
	hang_up(c);
	until_connections(0);
}
END_TEST

static void fail_own(void *arg, struct http_call *call, enum fail why)
{
	ck_assert_ptr_eq(arg, &handled);
	http_call_fail_text(call, why, "our own words");
}

START_TEST(own_failures)
{
	struct client *c;

	opts.on_fail = fail_own;
	restart();
	c = dial(0);
	say(c, GET("/nowhere"));
	expect(c, "our own words");
	ck_assert_ptr_nonnull(strstr(c->in, "HTTP/1.1 404 "));
	hang_up(c);
}
END_TEST

static Suite *http_server_suite(void)
{
	Suite *suite = suite_create("http_server");
	TCase *tc = tcase_create("http_server");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, whole_answers_and_keep_alive);
	tcase_add_test(tc, http_1_0);
	tcase_add_test(tc, head_has_no_body);
	tcase_add_test(tc, pipelined_requests_are_answered_in_order);
	tcase_add_test(tc, many_pipelined_requests);
	tcase_add_test(tc, bodies_by_length_and_by_chunks);
	tcase_add_test(tc, empty_and_largest_bodies);
	tcase_add_test(tc, expect_100_continue);
	tcase_add_test(tc, too_large_is_answered_although_the_client_goes_on_sending);
	tcase_add_test(tc, lingering_has_an_end);
	tcase_add_test(tc, syntax_errors_end_the_connection);
	tcase_add_test(tc, no_route);
	tcase_add_test(tc, what_a_handler_can_ask);
	tcase_add_test(tc, query_values);
	tcase_add_test(tc, failures_are_json);
	tcase_add_test(tc, streams_are_chunked);
	tcase_add_test(tc, a_cut_stream_does_not_look_complete);
	tcase_add_test(tc, own_failures);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(http_server_suite())
