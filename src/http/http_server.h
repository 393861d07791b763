/*
 * The small HTTP server, written once: admin socket, metrics listener, the engine's API.
 * Same scanner, parser and rules as the proxy. Bodies are buffered up to a cap; answers
 * are whole or streamed. Any number of servers a loop; keep-alive; pipelined requests are
 * served in order; HEAD goes to GET's handler. A client's FIN before the answer means
 * that it left, unless its request said that it was the last (Connection: close, 1.0).
 */
#ifndef HTTP_HTTP_SERVER_H
#define HTTP_HTTP_SERVER_H

#include "base/base.h"
#include "base/fail.h"
#include "http/http_head.h"

struct loop;
struct http_server;
struct http_call; /* one request being answered; valid until its answer is complete
		     (reply, fail, end, abort) or on_gone */

struct http_route {
	const char *method; /* "GET" */
	const char *path; /* exact, or a prefix when it ends in an asterisk; the first row
			     that fits */
	void (*handle)(void *arg, struct http_call *call);
};

struct http_server_opts {
	const struct http_route *routes;
	size_t n_routes;
	void *arg;
	size_t max_body;          /* 413 above */
	unsigned max_connections; /* 0: 1024 */
	/* At max_connections, the oldest connection that has no call makes room for a new
	 * one: first of those that are idle or send a header, then of those that do not
	 * read what was answered, or do not end a body. */
	bool gives_way;
	uint64_t head_timeout_ms, body_timeout_ms, keepalive_timeout_ms,
		write_timeout_ms; /* 0: defaults 10 s, 30 s, 75 s, 60 s */
	/* Answers requests that no route matches (FAIL_PATH_NOT_FOUND,
	 * FAIL_METHOD_NOT_ALLOWED); NULL: in the OpenAI error shape. */
	void (*on_fail)(void *arg, struct http_call *call, enum fail why);
	/* Each call, once: it is answered now, or its client left before (status 0).
	 * NULL is fine. */
	void (*on_answer)(void *arg, const struct http_call *call, int status);
};

/* Who connected to a unix socket, as the kernel says. */
struct http_peer {
	bool is_known;
	unsigned uid;
	long pid;
};

/* Takes a listening descriptor (TCP or unix); closes it at the end. NULL: out of memory.
 */
struct http_server *http_server_new(
	struct loop *l, int listen_fd, const struct http_server_opts *opts);
/* Stops accepting; connections end after what they are doing. */
void http_server_drain(struct http_server *s);
/* While on, no connection is accepted: clients wait in the backlog. */
void http_server_pause(struct http_server *s, bool on);
/* Ends all connections with RST, as the end of a process does; on_gone is called for open
 * calls. Not from inside a handler of this server. */
void http_server_cut(struct http_server *s);
unsigned http_server_connections(const struct http_server *s);
/* Closes everything at once; on_gone is called for open calls, and unwatched ones must
 * not be touched any more. NULL is fine. */
void http_server_free(struct http_server *s);

/* The request. Spans live until the call ends. */
const struct http_head *http_call_head(const struct http_call *c);
const char *http_call_base(const struct http_call *c); /* of the head's offsets */
struct http_peer http_call_peer(const struct http_call *c);
struct span http_call_path(const struct http_call *c);  /* without query */
struct span http_call_query(const struct http_call *c); /* behind '?' */
struct span http_call_field(
	const struct http_call *c, const char *name); /* empty when absent */
struct span http_call_body(const struct http_call *c);
/* The value of name in the query, percent-decoded into out; false when absent or too
 * long. */
bool http_call_query_value(
	const struct http_call *c, const char *name, char *out, size_t n);

/* A whole answer; ends the call. extra: whole header lines or empty. */
void http_call_reply(struct http_call *c, int status, const char *content_type,
	struct span body, struct span extra);
void http_call_fail(struct http_call *c, enum fail why); /* fail_body() with its status */
void http_call_fail_text(struct http_call *c, enum fail why,
	const char *message); /* the same shape with another message */

/* A streamed answer (chunked; until-close for 1.0). */
void http_call_begin(
	struct http_call *c, int status, const char *content_type, struct span extra);
/*
 * 0; ERR_LIMIT: the client is slow (all was taken; pause until on_writable); ERR_CLOSED:
 * the client is gone (on_gone follows at the end of the turn, unless the call is ended
 * before). Nothing here calls back.
 */
int http_call_write(struct http_call *c, struct span bytes);
void http_call_end(struct http_call *c);
void http_call_abort(struct http_call *c); /* cuts the connection: a stream that failed
					      half-way must not look complete */

void http_call_break(struct http_call *c); /* ends a streamed answer without its end: FIN
					      behind what was written */

/*
 * While a call is open: the client left (the call is dead when on_gone returns: do not
 * touch it), or takes bytes again. Without an on_gone the call stays valid after its
 * client left and must be ended as usual; its output is dropped.
 */
void http_call_watch(struct http_call *c, void (*on_gone)(void *arg),
	void (*on_writable)(void *arg), void *arg);

#endif
