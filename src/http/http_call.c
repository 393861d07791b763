/*
 * One request of the small server: its accessors for handlers, and the ways to answer it,
 * whole or streamed. Answering never calls back into handlers. Handlers learn of a broken
 * connection at the end of the turn (http_server.c). Called by the handlers of the admin
 * side, the metrics listener and the engine.
 */
#include "base/err.h"
#include "http/http_conn.h"
#include "http/http_query.h"
#include "http/http_server.h"
#include "http/http_write.h"

#include <stdio.h>
#include <string.h>

enum {
	EXTRA_MAX = 3072,    /* header lines that an answer may add */
	MESSAGE_ROOM = 2048, /* an escaped message */
	OWN_HEAD_ROOM = HTTP_WRITE_ROOM + EXTRA_MAX,
};

/* The request */

const struct http_head *http_call_head(const struct http_call *call)
{
	return &call->head;
}

const char *http_call_base(const struct http_call *call)
{
	return call->raw;
}

struct http_peer http_call_peer(const struct http_call *call)
{
	return call->conn->peer;
}

struct span http_call_path(const struct http_call *call)
{
	return http_head_path(call->raw, &call->head);
}

struct span http_call_query(const struct http_call *call)
{
	return http_head_query(call->raw, &call->head);
}

struct span http_call_field(const struct http_call *call, const char *name)
{
	const struct http_field *f =
		http_head_named(call->raw, &call->head, span_str(name));

	return f != NULL ? http_field_value(call->raw, f) : span_make(NULL, 0);
}

struct span http_call_body(const struct http_call *call)
{
	return span_make(call->body, call->body_len);
}

bool http_call_query_value(
	const struct http_call *call, const char *name, char *out, size_t n)
{
	return http_query_value(http_call_query(call), name, out, n);
}

void http_call_watch(struct http_call *call, void (*on_gone)(void *arg),
	void (*on_writable)(void *arg), void *arg)
{
	call->on_gone = on_gone;
	call->on_writable = on_writable;
	call->arg = arg;
}

/* Whole answers */

static bool keeps_alive_10(const struct http_call *call, bool close)
{
	return !close && call->head.minor == 0;
}

static size_t add_bytes(char *out, size_t at, const char *bytes, size_t n)
{
	if (n > 0)
		memcpy(out + at, bytes, n);
	return at + n;
}

void conn_note_answer(const struct http_call *call, int status)
{
	const struct http_server_opts *opts = &call->conn->server->opts;

	if (opts->on_answer != NULL)
		opts->on_answer(opts->arg, call, status);
}

void http_call_reply(struct http_call *call, int status, const char *content_type,
	struct span body, struct span extra)
{
	struct http_conn *c = call->conn;
	bool close = conn_closes(c);
	char head[OWN_HEAD_ROOM], lines[EXTRA_MAX + 32];
	struct iovec iov[2];
	size_t n = 0;
	int err;

	assert(!call->has_begun && extra.n <= EXTRA_MAX);
	conn_note_answer(call, status);
	if (!conn_is_up(c)) {
		conn_call_over(c, true);
		return;
	}
	if (keeps_alive_10(call, close))
		n = add_bytes(lines, n, "Connection: keep-alive\r\n", 24);
	n = add_bytes(lines, n, extra.p, extra.n);
	iov[0].iov_base = head;
	iov[0].iov_len = http_write_own(status, span_str(content_type), body.n, close,
		span_make(lines, n), head, sizeof(head));
	iov[1].iov_base = (void *)body.p;
	iov[1].iov_len = body.n;
	assert(iov[0].iov_len > 0);
	err = conn_write(c, iov, call->head.method == HTTP_HEAD || body.n == 0 ? 1 : 2);
	conn_call_over(c, close || err == ERR_CLOSED);
}

/* "GET, POST": what the path of this call does take; a 405 says so. */
static size_t allow_line(const struct http_call *call, char *out, size_t n)
{
	const struct http_server_opts *opts = &call->conn->server->opts;
	struct span path = http_call_path(call);
	size_t len = (size_t)snprintf(out, n, "Allow: "), start = len;

	for (size_t i = 0; i < opts->n_routes; i++) {
		struct span want = span_str(opts->routes[i].path);
		bool is_prefix = want.n > 0 && want.p[want.n - 1] == '*';

		if (is_prefix ? !span_starts(path, span_make(want.p, want.n - 1))
			      : !span_eq(path, want))
			continue;
		if (len + 16 < n)
			len += (size_t)snprintf(out + len, n - len, "%s%s",
				len > start ? ", " : "", opts->routes[i].method);
	}
	return len + (size_t)snprintf(out + len, n - len, "\r\n");
}

static void reply_failure(struct http_call *call, enum fail why, struct span body)
{
	char allow[256];
	size_t allow_len = 0;

	if (fail_status(why) == 0) {
		http_call_abort(call);
		return;
	}
	if (why == FAIL_METHOD_NOT_ALLOWED)
		allow_len = allow_line(call, allow, sizeof(allow));
	http_call_reply(call, fail_status(why), "application/json", body,
		span_make(allow, allow_len));
}

void http_call_fail(struct http_call *call, enum fail why)
{
	char body[1024];
	size_t n = fail_body(why, body, sizeof(body));

	reply_failure(call, why, span_make(body, n));
}

/* A JSON string's inside: quotes and backslashes escaped, control bytes left out; cut
 * between characters. */
static size_t escape_json(const char *in, char *out, size_t n)
{
	size_t len = 0;

	for (; *in != '\0' && len + 2 < n; in++) {
		if ((unsigned char)*in < 0x20)
			continue;
		if (*in == '"' || *in == '\\')
			out[len++] = '\\';
		out[len++] = *in;
	}
	while (*in != '\0' && len > 0 && ((unsigned char)*in & 0xc0) == 0x80) {
		in--;
		len--;
	}
	return len;
}

void http_call_fail_text(struct http_call *call, enum fail why, const char *message)
{
	char text[MESSAGE_ROOM], body[MESSAGE_ROOM + 512];
	size_t n;

	text[escape_json(message, text, sizeof(text))] = '\0';
	n = fail_body_saying(why, text, body, sizeof(body));
	reply_failure(call, why, span_make(body, n));
}

/* Streamed answers */

void http_call_begin(
	struct http_call *call, int status, const char *content_type, struct span extra)
{
	struct http_conn *c = call->conn;
	char head[OWN_HEAD_ROOM];
	struct iovec iov = {head, 0};
	int len;

	assert(!call->has_begun && extra.n <= EXTRA_MAX);
	conn_note_answer(call, status);
	call->has_begun = true;
	call->is_chunked = call->head.minor > 0;
	if (!call->is_chunked)
		c->must_close = true;
	if (!conn_is_up(c))
		return;
	len = snprintf(head, sizeof(head),
		"HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s%s%.*s\r\n", status,
		fail_reason_phrase(status), content_type,
		call->is_chunked ? "Transfer-Encoding: chunked\r\n" : "",
		conn_closes(c) ? "Connection: close\r\n" : "", SPAN_ARG(extra));
	assert(len > 0 && (size_t)len < sizeof(head));
	iov.iov_len = (size_t)len;
	if (conn_write(c, &iov, 1) == ERR_CLOSED)
		return; /* told at the end of the turn */
}

int http_call_write(struct http_call *call, struct span bytes)
{
	struct http_conn *c = call->conn;
	char line[HTTP_CHUNK_LINE_MAX];
	struct iovec iov[3];
	int n = 0;

	assert(call->has_begun);
	if (!conn_is_up(c))
		return ERR_CLOSED;
	if (bytes.n == 0 || call->head.method == HTTP_HEAD)
		return 0;
	if (call->is_chunked)
		iov[n++] = (struct iovec){line, http_chunk_line(bytes.n, line)};
	iov[n++] = (struct iovec){(void *)bytes.p, bytes.n};
	if (call->is_chunked)
		iov[n++] = (struct iovec){(void *)"\r\n", 2};
	return conn_write(c, iov, n);
}

void http_call_end(struct http_call *call)
{
	struct http_conn *c = call->conn;
	struct iovec iov = {(void *)"0\r\n\r\n", 5};
	bool close = conn_closes(c);

	assert(call->has_begun);
	if (conn_is_up(c) && call->is_chunked && call->head.method != HTTP_HEAD &&
		conn_write(c, &iov, 1) == ERR_CLOSED)
		close = true;
	conn_call_over(c, close);
}

void http_call_abort(struct http_call *call)
{
	conn_cut(call->conn);
}

void http_call_break(struct http_call *call)
{
	assert(call->has_begun);
	conn_call_over(call->conn, true);
}
