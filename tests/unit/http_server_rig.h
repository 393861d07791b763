/*
 * The small HTTP server over real sockets: one loop, a route for each thing that a
 * handler may do, clients driven from the same thread, no sleeps. Every wait is for bytes
 * or a flag, with a deadline. For check_http_server.c and check_http_server_life.c.
 */
#ifndef UNIT_HTTP_SERVER_RIG_H
#define UNIT_HTTP_SERVER_RIG_H

#include "base/clock.h"
#include "base/err.h"
#include "http/http_server.h"
#include "io/loop.h"
#include "io/sock.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

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
	http_call_reply(
		call, 200, "text/plain", SPAN_LIT("hello"), SPAN_LIT("X-Made: here\r\n"));
}

static void handle_echo(void *arg UNUSED, struct http_call *call)
{
	handled++;
	http_call_reply(
		call, 200, "text/plain", http_call_body(call), span_make(NULL, 0));
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
	http_call_begin(
		call, 200, "text/event-stream", SPAN_LIT("Cache-Control: no-cache\r\n"));
	ck_assert_int_eq(http_call_write(call, SPAN_LIT("data: one\n\n")), 0);
	ck_assert_int_eq(http_call_write(call, SPAN_LIT("")), 0);
	ck_assert_int_eq(
		http_call_write(call, SPAN_LIT("data: a somewhat longer one\n\n")), 0);
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
	int n = snprintf(out, sizeof(out), "%.*s|%.*s|%s|%.*s",
		SPAN_ARG(http_call_path(call)), SPAN_ARG(http_call_query(call)),
		has ? value : "-", SPAN_ARG(http_call_field(call, "x-thing")));

	http_call_reply(
		call, 200, "text/plain", span_make(out, (size_t)n), span_make(NULL, 0));
}

static void handle_bad(void *arg UNUSED, struct http_call *call)
{
	http_call_fail_text(call, FAIL_MODEL_NOT_FOUND, "no \"such\\thing\"\n: \xc3\xa9");
}

static void handle_large(void *arg UNUSED, struct http_call *call)
{
	static char body[8192];

	handled++;
	http_call_reply(call, 200, "text/plain", span_make(body, sizeof(body)),
		span_make(NULL, 0));
}

static const struct http_route routes[] = {
	{"GET", "/large", handle_large},
	{"GET", "/hello", handle_hello},
	{"POST", "/echo", handle_echo},
	{"GET", "/later", handle_later},
	{"GET", "/unwatched", handle_unwatched},
	{"GET", "/stream", handle_stream},
	{"GET", "/cut", handle_cut},
	{"GET", "/break", handle_break},
	{"GET", "/where/*", handle_where},
	{"DELETE", "/where/*", handle_where},
	{"GET", "/bad", handle_bad},
};

static struct http_server_opts opts;

static inline void start_server(void)
{
	socklen_t len = sizeof(address);
	int fd = -1;

	ck_assert_int_eq(sock_addr_parse("127.0.0.1", 0, &address), 0);
	ck_assert_int_eq(sock_listen(&address, &fd), 0);
	ck_assert_int_eq(getsockname(fd, &address.sa, &len), 0);
	server = http_server_new(loop, fd, &opts);
	ck_assert_ptr_nonnull(server);
}

static inline void set_up(void)
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

static inline void tear_down(void)
{
	http_server_free(server);
	loop_free(loop);
}

static inline void restart(void)
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

static inline struct client *dial(unsigned i)
{
	struct client *c = &clients[i];

	memset(c, 0, sizeof(*c));
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(c->fd, 0);
	ck_assert_int_eq(connect(c->fd, &address.sa, sock_addr_len(&address)), 0);
	ck_assert_int_eq(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
	return c;
}

static inline void hang_up(struct client *c)
{
	close(c->fd);
	c->fd = -1;
}

static inline void say_n(struct client *c, const char *bytes, size_t n)
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

static inline void say(struct client *c, const char *text)
{
	say_n(c, text, strlen(text));
}

static inline void hear(struct client *c)
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

/* Turns the loop until the client has heard text (NULL: until the server ended the
 * connection). */
static inline void expect(struct client *c, const char *text)
{
	uint64_t end_us = clock_us() + WAIT_US;

	for (;;) {
		hear(c);
		if (text != NULL ? memmem(c->in, c->n, text, strlen(text)) != NULL
				 : c->eof)
			return;
		ck_assert_msg(!c->eof && clock_us() < end_us, "waiting for %s, heard: %s",
			text != NULL ? text : "the end", c->in);
		loop_turn(loop, 5);
	}
}

static inline void until(const int *flag, int value)
{
	uint64_t end_us = clock_us() + WAIT_US;

	while (*flag != value) {
		ck_assert_msg(clock_us() < end_us, "%d, expected %d", *flag, value);
		loop_turn(loop, 5);
	}
}

static inline void until_connections(unsigned n)
{
	uint64_t end_us = clock_us() + WAIT_US;

	while (http_server_connections(server) != n) {
		ck_assert(clock_us() < end_us);
		loop_turn(loop, 5);
	}
}

/* What was heard is forgotten. */
static inline void forget(struct client *c)
{
	c->n = 0;
	c->in[0] = '\0';
}

static inline unsigned count(const struct client *c, const char *text)
{
	unsigned n = 0;

	for (const char *p = c->in; (p = strstr(p, text)) != NULL; p++)
		n++;
	return n;
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

#endif
