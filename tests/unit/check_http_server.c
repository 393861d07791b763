/*
 * The small HTTP server over real sockets, loopback and unix: one loop, clients driven from the same thread, no sleeps. Every wait
 * is for bytes or a flag, with a deadline.
 */
#include "base/clock.h"
#include "base/err.h"
#include "http/http_server.h"
#include "io/loop.h"
#include "io/sock.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>

enum { WAIT_US = 5000000, MAX_BODY = 100000 };

static struct loop *loop;
static struct http_server *server;
static union sock_addr address;
static struct http_call *kept; /* the call of /later */
static int gone, writable, handled;

static void handle_hello(void *arg, struct http_call *call)
{
	ck_assert_ptr_eq(arg, &handled);
	handled++;
	http_call_reply(call, 200, "text/plain", SPAN_LIT("hello"), SPAN_LIT("X-Made: here\r\n"));
}

static void handle_echo(void *arg UNUSED, struct http_call *call)
{
	handled++;
	http_call_reply(call, 200, "text/plain", http_call_body(call), span_make(NULL, 0));
}

static void on_gone(void *arg)
{
	ck_assert_ptr_eq(arg, &gone);
	gone++;
	kept = NULL;
}

static void on_writable(void *arg)
{
	ck_assert_ptr_eq(arg, &gone);
	writable++;
}

static void handle_later(void *arg UNUSED, struct http_call *call)
{
	handled++;
	kept = call;
	http_call_watch(call, on_gone, on_writable, &gone);
}

static void handle_unwatched(void *arg UNUSED, struct http_call *call)
{
	handled++;
	kept = call;
}

static void handle_stream(void *arg UNUSED, struct http_call *call)
{
	http_call_begin(call, 200, "text/event-stream", SPAN_LIT("Cache-Control: no-cache\r\n"));
	ck_assert_int_eq(http_call_write(call, SPAN_LIT("data: one\n\n")), 0);
	ck_assert_int_eq(http_call_write(call, SPAN_LIT("")), 0);
	ck_assert_int_eq(http_call_write(call, SPAN_LIT("data: a somewhat longer one\n\n")), 0);
	http_call_end(call);
}

static void handle_cut(void *arg UNUSED, struct http_call *call)
{
	http_call_begin(call, 200, "text/event-stream", span_make(NULL, 0));
	ck_assert_int_eq(http_call_write(call, SPAN_LIT("half")), 0);
	http_call_abort(call);
}

static void handle_break(void *arg UNUSED, struct http_call *call)
{
	http_call_begin(call, 200, "text/event-stream", span_make(NULL, 0));
	ck_assert_int_eq(http_call_write(call, SPAN_LIT("half")), 0);
	http_call_break(call);
}

static void handle_where(void *arg UNUSED, struct http_call *call)
{
	char value[16], out[128];
	bool has = http_call_query_value(call, "a b", value, sizeof(value));
	int n = snprintf(out, sizeof(out), "%.*s|%.*s|%s|%.*s|%d", SPAN_ARG(http_call_path(call)),
		SPAN_ARG(http_call_query(call)), has ? value : "-",
		SPAN_ARG(http_call_field(call, "x-thing")), http_call_is_unix(call));

	http_call_reply(call, 200, "text/plain", span_make(out, (size_t)n), span_make(NULL, 0));
}

static void handle_bad(void *arg UNUSED, struct http_call *call)
{
	http_call_fail_text(call, FAIL_MODEL_NOT_FOUND, "no \"such\\thing\"\n: \xc3\xa9");
}

static void handle_large(void *arg UNUSED, struct http_call *call)
{
	static char body[8192];

	handled++;
	http_call_reply(
		call, 200, "text/plain", span_make(body, sizeof(body)), span_make(NULL, 0));
}

static const struct http_route routes[] = {
	{ "GET", "/large", handle_large },
	{ "GET", "/hello", handle_hello },
	{ "POST", "/echo", handle_echo },
	{ "GET", "/later", handle_later },
	{ "GET", "/unwatched", handle_unwatched },
	{ "GET", "/stream", handle_stream },
	{ "GET", "/cut", handle_cut },
	{ "GET", "/break", handle_break },
	{ "GET", "/where/*", handle_where },
	{ "DELETE", "/where/*", handle_where },
	{ "GET", "/bad", handle_bad },
};

static struct http_server_opts opts;

static void start_server(void)
{
	socklen_t len = sizeof(address);
	int fd = -1;

	ck_assert_int_eq(sock_addr_parse("127.0.0.1", 0, &address), 0);
	ck_assert_int_eq(sock_listen(&address, &fd), 0);
	ck_assert_int_eq(getsockname(fd, &address.sa, &len), 0);
	server = http_server_new(loop, fd, &opts);
	ck_assert_ptr_nonnull(server);
}

static void set_up(void)
{
	loop = loop_new();
	ck_assert_ptr_nonnull(loop);
	memset(&opts, 0, sizeof(opts));
	opts.routes = routes;
	opts.n_routes = ARRAY_LEN(routes);
	opts.arg = &handled;
	opts.max_body = MAX_BODY;
	kept = NULL;
	gone = writable = handled = 0;
	start_server();
}

static void tear_down(void)
{
	http_server_free(server);
	loop_free(loop);
}

static void restart(void)
{
	http_server_free(server);
	start_server();
}

/* Clients */

struct client {
	int fd;
	char in[400000];
	size_t n;
	bool eof, reset;
};

static struct client clients[8];

static struct client *dial(unsigned i)
{
	struct client *c = &clients[i];

	memset(c, 0, sizeof(*c));
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(c->fd, 0);
	ck_assert_int_eq(connect(c->fd, &address.sa, sock_addr_len(&address)), 0);
	ck_assert_int_eq(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
	return c;
}

static void hang_up(struct client *c)
{
	close(c->fd);
	c->fd = -1;
}

static void say_n(struct client *c, const char *bytes, size_t n)
{
	uint64_t end_us = clock_us() + WAIT_US;

	while (n > 0) {
		ssize_t sent = send(c->fd, bytes, n, MSG_NOSIGNAL);

		ck_assert_msg(sent > 0 || errno == EAGAIN, "send: %s", strerror(errno));
		ck_assert(clock_us() < end_us);
		if (sent > 0) {
			bytes += sent;
			n -= (size_t)sent;
		}
		loop_turn(loop, 0);
	}
}

static void say(struct client *c, const char *text)
{
	say_n(c, text, strlen(text));
}

static void hear(struct client *c)
{
	ssize_t n = recv(c->fd, c->in + c->n, sizeof(c->in) - 1 - c->n, 0);

	if (n > 0)
		c->n += (size_t)n;
	else if (n == 0)
		c->eof = true;
	else if (errno == ECONNRESET)
		c->eof = c->reset = true;
	c->in[c->n] = '\0';
}

/* Turns the loop until the client has heard text (NULL: until the server ended the connection). */
static void expect(struct client *c, const char *text)
{
	uint64_t end_us = clock_us() + WAIT_US;

	for (;;) {
		hear(c);
		if (text != NULL ? memmem(c->in, c->n, text, strlen(text)) != NULL : c->eof)
			return;
		ck_assert_msg(!c->eof && clock_us() < end_us, "waiting for %s, heard: %s",
			text != NULL ? text : "the end", c->in);
		loop_turn(loop, 5);
	}
}

static void until(const int *flag, int value)
{
	uint64_t end_us = clock_us() + WAIT_US;

	while (*flag != value) {
		ck_assert_msg(clock_us() < end_us, "%d, expected %d", *flag, value);
		loop_turn(loop, 5);
	}
}

static void until_connections(unsigned n)
{
	uint64_t end_us = clock_us() + WAIT_US;

	while (http_server_connections(server) != n) {
		ck_assert(clock_us() < end_us);
		loop_turn(loop, 5);
	}
}

/* What was heard is forgotten. */
static void forget(struct client *c)
{
	c->n = 0;
	c->in[0] = '\0';
}

static unsigned count(const struct client *c, const char *text)
{
	unsigned n = 0;

	for (const char *p = c->in; (p = strstr(p, text)) != NULL; p++)
		n++;
	return n;
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

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

	say(c, "HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\nHEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n"
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

	say(c, GET("/later") "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc" GET(
		       "/stream") GET("/where/z"));
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

	say(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
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
		"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n186A1\r\n",
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
		{ "GET /hello\r\n\r\n", "HTTP/1.1 400 " },
		{ "GET /hello HTTP/1.1\r\n\r\n" GET("/hello"), "HTTP/1.1 400 " },
		{ "BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 501 " },
		{ "GET / HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP/1.1 505 " },
		{ "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: "
		  "chunked\r\n\r\n0\r\n\r\n",
			"HTTP/1.1 400 " },
		{ "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
			"HTTP/1.1 400 " },
		{ "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: tea\r\n\r\n",
			"HTTP/1.1 417 " },
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

	say(c, "DELETE /where/a%2fb?x=1&a+b=no&c HTTP/1.1\r\nHost: x\r\nX-Thing: \t two words \r\n\r\n");
	expect(c, "/where/a%2fb|x=1&a+b=no&c|-|two words|0");
	forget(c);
	say(c, GET("/where/?a"));
	expect(c, "/where/|a|-||0");
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
		{ "?k=v", "v" }, { "?a=b&k=v&k=w", "v" }, { "?k=", "" }, { "?k", "" },
		{ "?k=a+b%2Fc", "a b/c" }, { "?k=%41%4a%4A", "AJJ" }, { "?k=1234567", "1234567" },
		{ "?k=a=b", "a=b" }, { "?k=12345678", NULL }, { "?k=%", NULL }, { "?k=%4", NULL },
		{ "?k=%4g", NULL }, { "?kk=v", NULL }, { "", NULL }, { "?", NULL }, { "?=v", NULL },
		{ "?K=v", NULL },
	};
	static const struct http_route one[] = { { "GET", "/q", handle_query } };
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
	expect(c, "\r\n\r\n{\"error\":{\"message\":\"no \\\"such\\\\thing\\\": \xc3\xa9\",\"type\":"
		  "\"invalid_request_error\",\"param\":null,\"code\":\"model_not_found\"}}");
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
	ck_assert_ptr_nonnull(strcasestr(c->in,
		"\r\n\r\nb\r\ndata: one\n\n\r\n1d\r\ndata: a somewhat longer one\n\n\r\n0\r\n\r\n"));
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

START_TEST(a_client_that_leaves_is_noticed)
{
	struct client *c = dial(0);

	say(c, GET("/later"));
	until(&handled, 1);
	hang_up(c);
	until(&gone, 1);
	until_connections(0);
	/* A half-close without Connection: close means the same. */
	c = dial(0);
	say(c, GET("/later"));
	until(&handled, 2);
	shutdown(c->fd, SHUT_WR);
	until(&gone, 2);
	hang_up(c);
	/* So does leaving with pipelined requests that fill the buffer. */
	c = dial(0);
	say(c, GET("/later"));
	until(&handled, 3);
	for (int i = 0; i < 2000; i++) {
		if (send(c->fd, GET("/hello"), sizeof(GET("/hello")) - 1, MSG_NOSIGNAL) < 0)
			break;
		loop_turn(loop, 0);
	}
	ck_assert_int_eq(handled, 3);
	hang_up(c);
	until(&gone, 3);
	until_connections(0);
}
END_TEST

START_TEST(a_half_closed_client_gets_its_last_answer)
{
	static const char *const requests[] = {
		"GET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"GET /later HTTP/1.0\r\n\r\n",
	};

	for (size_t k = 0; k < ARRAY_LEN(requests); k++) {
		struct client *c = dial(0);

		handled = 0;
		say(c, requests[k]);
		shutdown(c->fd, SHUT_WR);
		until(&handled, 1);
		for (int i = 0; i < 5; i++)
			loop_turn(loop, 1);
		ck_assert_int_eq(gone, 0);
		http_call_reply(kept, 200, "text/plain", SPAN_LIT("after all"), span_make(NULL, 0));
		expect(c, NULL);
		ck_assert_ptr_nonnull(strstr(c->in, "after all"));
		ck_assert(!c->reset);
		hang_up(c);
		until_connections(0);
	}
}
END_TEST

START_TEST(an_unwatched_call_survives_its_client)
{
	struct client *c = dial(0);

	say(c, GET("/unwatched"));
	until(&handled, 1);
	hang_up(c);
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 1);
	ck_assert_uint_eq(http_server_connections(server), 1);
	http_call_begin(kept, 200, "text/plain", span_make(NULL, 0));
	ck_assert_int_eq(http_call_write(kept, SPAN_LIT("x")), ERR_CLOSED);
	http_call_end(kept);
	loop_turn(loop, 0);
	ck_assert_uint_eq(http_server_connections(server), 0);
}
END_TEST

START_TEST(a_slow_reader_holds_the_stream_back)
{
	struct client *c = dial(0);
	static char block[32768];
	uint64_t end_us = clock_us() + WAIT_US, sent = 0, heard = 0;
	int err = 0;

	memset(block, 's', sizeof(block));
	say(c, GET("/later"));
	until(&handled, 1);
	http_call_begin(kept, 200, "text/plain", span_make(NULL, 0));
	while (err == 0) {
		ck_assert(clock_us() < end_us);
		err = http_call_write(kept, span_make(block, sizeof(block)));
		sent += sizeof(block);
	}
	ck_assert_int_eq(err, ERR_LIMIT);
	ck_assert_uint_gt(http_call_queued(kept), 0);
	ck_assert_int_eq(writable, 0);
	while (writable == 0) {
		ck_assert(clock_us() < end_us);
		hear(c);
		heard += c->n;
		forget(c);
		loop_turn(loop, 1);
	}
	http_call_end(kept);
	while (memmem(c->in, c->n, "\r\n0\r\n\r\n", 7) == NULL) {
		ck_assert(clock_us() < end_us);
		loop_turn(loop, 1);
		hear(c);
		if (c->n > sizeof(c->in) / 2) {
			heard += c->n - 16;
			memmove(c->in, c->in + c->n - 16, 16);
			c->n = 16;
		}
	}
	ck_assert_uint_ge(heard + c->n, sent);
	hang_up(c);
}
END_TEST

/* Sends requests and reads nothing, until the server has not taken a byte for many turns; returns how many bytes went. */
static size_t flood(struct client *c)
{
	static const char request[] = GET("/large");
	size_t sent = 0;
	int stuck = 0;

	while (stuck < 50) {
		size_t at = sent % (sizeof(request) - 1);
		ssize_t n = send(c->fd, request + at, sizeof(request) - 1 - at, MSG_NOSIGNAL);

		stuck = n > 0 ? 0 : stuck + 1;
		sent += n > 0 ? (size_t)n : 0;
		ck_assert_msg(sent < 32u << 20, "the server takes without end");
		if (n <= 0 || sent % 65536 < sizeof(request))
			loop_turn(loop, n > 0 ? 0 : 1);
	}
	return sent;
}

START_TEST(pipelining_without_reading_is_held_back)
{
	struct client *c = dial(0);
	int requests = (int)(flood(c) / (sizeof(GET("/large")) - 1)), before = handled;
	uint64_t end_us = clock_us() + WAIT_US;

	ck_assert_int_gt(before, 0);
	ck_assert_int_lt(before, requests);
	while (handled < MIN(before + 100, requests)) {
		ck_assert(clock_us() < end_us);
		hear(c);
		forget(c);
		loop_turn(loop, 0);
	}
	hang_up(c);
	until_connections(0);
}
END_TEST

START_TEST(pipelining_behind_an_open_call_is_held_back)
{
	struct client *c = dial(0);
	struct linger now = { 1, 0 };

	say(c, GET("/later"));
	until(&handled, 1);
	flood(c);
	ck_assert_int_eq(handled, 1);
	ck_assert_int_eq(gone, 0);
	/* A FIN would wait behind what the server does not read; a reset does not. */
	ck_assert_int_eq(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	hang_up(c);
	until(&gone, 1);
	until_connections(0);
}
END_TEST

START_TEST(a_client_that_stops_reading_is_cut)
{
	struct client *c;
	static char block[32768];

	opts.write_timeout_ms = 30;
	restart();
	c = dial(0);
	say(c, GET("/later"));
	until(&handled, 1);
	http_call_begin(kept, 200, "text/plain", span_make(NULL, 0));
	while (http_call_write(kept, span_make(block, sizeof(block))) == 0)
		;
	until(&gone, 1);
	until_connections(0);
	hang_up(c);
}
END_TEST

START_TEST(writing_to_a_broken_connection)
{
	struct client *c = dial(0);
	struct linger now = { 1, 0 };
	uint64_t end_us = clock_us() + WAIT_US;

	say(c, GET("/later"));
	until(&handled, 1);
	http_call_begin(kept, 200, "text/plain", span_make(NULL, 0));
	ck_assert_int_eq(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	hang_up(c);
	/* No turn in between: the write itself meets the reset, and calls nobody. */
	while (http_call_write(kept, SPAN_LIT("x")) != ERR_CLOSED)
		ck_assert(clock_us() < end_us);
	ck_assert_int_eq(gone, 0);
	ck_assert_int_eq(http_call_write(kept, SPAN_LIT("x")), ERR_CLOSED);
	until(&gone, 1);
	until_connections(0);
}
END_TEST

START_TEST(deadlines)
{
	struct client *c;

	opts.head_timeout_ms = opts.body_timeout_ms = opts.keepalive_timeout_ms = 20;
	restart();
	c = dial(0);
	expect(c, NULL); /* nothing sent: closed without a word */
	ck_assert_uint_eq(c->n, 0);
	hang_up(c);
	c = dial(0);
	say(c, "GET /hello HT");
	expect(c, NULL);
	ck_assert_int_eq(strncmp(c->in, "HTTP/1.1 408 ", 13), 0);
	hang_up(c);
	c = dial(0);
	say(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc");
	expect(c, NULL);
	ck_assert_int_eq(strncmp(c->in, "HTTP/1.1 408 ", 13), 0);
	ck_assert_ptr_nonnull(strstr(c->in, "client_timeout"));
	hang_up(c);
	c = dial(0);
	say(c, GET("/hello"));
	expect(c, "hello");
	expect(c, NULL);
	ck_assert_uint_eq(count(c, "HTTP/1.1"), 1);
	hang_up(c);
	ck_assert_int_eq(handled, 1);
}
END_TEST

START_TEST(an_open_call_has_no_deadline_of_its_own)
{
	struct client *c, *probe;

	opts.head_timeout_ms = opts.body_timeout_ms = opts.keepalive_timeout_ms = 20;
	restart();
	c = dial(0);
	say(c, GET("/later"));
	until(&handled, 1);
	probe = dial(1);
	expect(probe, NULL); /* a later deadline of the same length has passed */
	ck_assert_int_eq(gone, 0);
	http_call_fail(kept, FAIL_NO_WORKER);
	expect(c, "HTTP/1.1 503 ");
	hang_up(c);
	hang_up(probe);
}
END_TEST

START_TEST(out_of_descriptors)
{
	struct client *c = dial(0), *d;
	struct rlimit was, low;
	uint64_t end_us;
	unsigned turns;
	int probe;

	say(c, GET("/hello"));
	expect(c, "hello");
	forget(c);
	d = dial(1);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	low = was;
	low.rlim_cur = 3;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	ck_assert_int_lt(probe = dup(0), 0);
	say(d, GET("/hello"));
	end_us = clock_us() + 50000;
	for (turns = 0; clock_us() < end_us; turns++)
		loop_turn(loop, 20);
	ck_assert_uint_eq(http_server_connections(server), 1);
	ck_assert_uint_lt(turns, 50); /* accepting was paused: the loop slept */
	say(c, GET("/hello")); /* those that are there are served */
	expect(c, "hello");
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	expect(d, "hello");
	hang_up(c);
	hang_up(d);
	(void)probe;
}
END_TEST

START_TEST(no_more_connections_than_allowed)
{
	struct client *a, *b, *c;

	opts.max_connections = 2;
	restart();
	a = dial(0);
	b = dial(1);
	c = dial(2);
	say(a, GET("/hello"));
	say(b, GET("/hello"));
	say(c, GET("/hello"));
	expect(a, "hello");
	expect(b, "hello");
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 1);
	ck_assert_uint_eq(http_server_connections(server), 2);
	ck_assert_int_eq(handled, 2);
	hang_up(a);
	expect(c, "hello");
	hang_up(b);
	hang_up(c);
}
END_TEST

START_TEST(drain_ends_what_is_idle_and_finishes_the_rest)
{
	struct client *idle = dial(0), *busy = dial(1);
	int late;

	say(idle, GET("/hello"));
	expect(idle, "hello");
	say(busy, GET("/later"));
	until(&handled, 2);
	http_server_drain(server);
	expect(idle, NULL);
	late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_lt(connect(late, &address.sa, sock_addr_len(&address)), 0);
	close(late);
	ck_assert_int_eq(gone, 0);
	http_call_reply(kept, 200, "text/plain", SPAN_LIT("last"), span_make(NULL, 0));
	expect(busy, NULL);
	ck_assert_ptr_nonnull(strcasestr(busy->in, "connection: close\r\n"));
	ck_assert_ptr_nonnull(strstr(busy->in, "last"));
	hang_up(idle);
	hang_up(busy);
	until_connections(0);
}
END_TEST

START_TEST(a_broken_off_stream_ends_without_its_end)
{
	struct client *c = dial(0);

	say(c, GET("/break"));
	expect(c, NULL);
	ck_assert(!c->reset);
	ck_assert_ptr_nonnull(strstr(c->in, "\r\n4\r\nhalf\r\n"));
	ck_assert_ptr_null(strstr(c->in, "\r\n0\r\n"));
	hang_up(c);
	until_connections(0);
}
END_TEST

/* Who connects meanwhile is served afterwards; who is there already is served all the time. */
START_TEST(a_pause_leaves_them_in_the_backlog)
{
	struct client *first = dial(0), *second;

	until_connections(1);
	http_server_pause(server, true);
	http_server_pause(server, true);
	second = dial(1);
	say(second, GET("/hello"));
	say(first, GET("/hello"));
	expect(first, "hello");
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 2);
	ck_assert_uint_eq(http_server_connections(server), 1);
	http_server_pause(server, false);
	expect(second, "hello");
	hang_up(first);
	hang_up(second);
}
END_TEST

/* In every state a connection may be in; the next ones are served. */
START_TEST(a_cut_resets_all_connections)
{
	struct client *open = dial(0), *idle = dial(1), *half = dial(2), *body = dial(3), *next;

	say(open, GET("/later"));
	until(&handled, 1);
	say(half, "GET /hel");
	say(body, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
	until_connections(4);
	loop_turn(loop, 0);
	http_server_cut(server);
	ck_assert_int_eq(gone, 1);
	ck_assert_uint_eq(http_server_connections(server), 0);
	expect(open, NULL);
	expect(idle, NULL);
	expect(half, NULL);
	expect(body, NULL);
	ck_assert(open->reset && idle->reset && half->reset && body->reset);
	next = dial(4);
	say(next, GET("/hello"));
	expect(next, "hello");
	hang_up(next);
}
END_TEST

START_TEST(freeing_a_server_tells_open_calls)
{
	struct client *c = dial(0), *half = dial(1);

	say(c, GET("/later"));
	until(&handled, 1);
	say(half, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab");
	loop_turn(loop, 5);
	http_server_free(server);
	ck_assert_int_eq(gone, 1);
	loop_turn(loop, 0);
	server = NULL;
	hang_up(c);
	hang_up(half);
}
END_TEST

static void handle_suicide(void *arg UNUSED, struct http_call *call UNUSED)
{
	http_server_free(server);
	server = NULL;
	handled++;
}

START_TEST(a_handler_may_free_the_server)
{
	static const struct http_route one[] = { { "GET", "/", handle_suicide } };
	struct client *c;

	opts.routes = one;
	opts.n_routes = 1;
	restart();
	c = dial(0);
	say(c, GET("/") GET("/"));
	until(&handled, 1);
	expect(c, NULL);
	hang_up(c);
}
END_TEST

START_TEST(unix_sockets)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct client *c = &clients[0];
	char folder[] = "/tmp/check_http_server.XXXXXX";
	int fd = -1;

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(un.sun_path, sizeof(un.sun_path), "%s/sock", folder);
	ck_assert_int_eq(sock_listen_unix(un.sun_path, 0600, &fd), 0);
	http_server_free(server);
	server = http_server_new(loop, fd, &opts);
	ck_assert_ptr_nonnull(server);
	memset(c, 0, sizeof(*c));
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(c->fd, (struct sockaddr *)&un, sizeof(un)), 0);
	ck_assert_int_eq(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
	say(c, GET("/where/u"));
	expect(c, "/where/u||-||1");
	say(c, GET("/later"));
	until(&handled, 1);
	hang_up(c);
	until(&gone, 1);
	unlink(un.sun_path);
	rmdir(folder);
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
	tcase_add_test(tc, a_client_that_leaves_is_noticed);
	tcase_add_test(tc, a_half_closed_client_gets_its_last_answer);
	tcase_add_test(tc, an_unwatched_call_survives_its_client);
	tcase_add_test(tc, a_slow_reader_holds_the_stream_back);
	tcase_add_test(tc, pipelining_without_reading_is_held_back);
	tcase_add_test(tc, pipelining_behind_an_open_call_is_held_back);
	tcase_add_test(tc, a_client_that_stops_reading_is_cut);
	tcase_add_test(tc, writing_to_a_broken_connection);
	tcase_add_test(tc, deadlines);
	tcase_add_test(tc, an_open_call_has_no_deadline_of_its_own);
	tcase_add_test(tc, out_of_descriptors);
	tcase_add_test(tc, no_more_connections_than_allowed);
	tcase_add_test(tc, drain_ends_what_is_idle_and_finishes_the_rest);
	tcase_add_test(tc, a_broken_off_stream_ends_without_its_end);
	tcase_add_test(tc, a_pause_leaves_them_in_the_backlog);
	tcase_add_test(tc, a_cut_resets_all_connections);
	tcase_add_test(tc, freeing_a_server_tells_open_calls);
	tcase_add_test(tc, a_handler_may_free_the_server);
	tcase_add_test(tc, unix_sockets);
	tcase_add_test(tc, own_failures);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(http_server_suite())
