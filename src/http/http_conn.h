/*
 * Inside the small HTTP server: what http_server.c (listener, connections) and
 * http_call.c (requests and their answers) share. A connection owns at most one call; it
 * is freed by the loop's reap list, never inside its own callback. A call is freed when
 * its answer is complete or its client has gone. Nobody else includes this.
 */
#ifndef HTTP_HTTP_CONN_H
#define HTTP_HTTP_CONN_H

#include "base/list.h"
#include "http/http_chunk.h"
#include "http/http_scan.h"
#include "http/http_server.h"
#include "io/loop.h"
#include "io/stream.h"
#include "io/wheel.h"

enum conn_state {
	CONN_HEAD,   /* idle, or part of a head is there */
	CONN_BODY,   /* the call exists, its body is still coming */
	CONN_CALL,   /* a handler has the call and owes the answer */
	CONN_LINGER, /* answered for the last time: FIN after the queue, input is
			discarded */
	CONN_ORPHAN, /* the client has gone, an unwatched call is still with its handler
		      */
	CONN_DEAD,   /* closed, on the reap list */
};

struct http_call {
	struct http_conn *conn;
	const struct http_route *route; /* NULL: none matches */
	enum fail refusal;              /* why none matches */
	char *body;
	size_t body_len, body_cap;
	uint64_t body_left; /* HTTP_BODY_LENGTH: still to come */
	bool has_begun;     /* a streamed answer's head is out */
	bool is_chunked;    /* how the streamed answer is framed */
	void (*on_gone)(void *arg);
	void (*on_writable)(void *arg);
	void *arg;
	struct http_head head;
	char raw[]; /* the head's bytes: what its offsets point into */
};

struct http_conn {
	uint32_t magic;
	enum conn_state state;
	struct http_server *server;
	struct stream stream;
	struct http_peer peer;
	struct http_call *call;
	char *in; /* in[in_at .. in_at + in_len) was received and not yet consumed; freed
		     when idle */
	size_t in_at, in_len, in_cap;
	struct http_scan scan;
	struct http_chunk chunk;
	struct wheel_timer timer; /* the one deadline of the state */
	struct stream_mark mark;  /* where the client was when the timer looked last */
	uint64_t out_moved_ms;    /* when it took bytes last */
	size_t drained;           /* CONN_LINGER: bytes discarded */
	bool has_head_timer, is_running, is_ready, peer_eof, must_close, is_flushed;
	LIST_ENTRY(http_conn) link;
	LIST_ENTRY(http_conn) ready_link;
	struct reap reap;
};

struct http_server {
	struct loop *loop;
	struct accepter *accepter; /* NULL: draining */
	struct http_server_opts opts;
	bool is_draining;
	unsigned n_conns;
	LIST_HEAD(, http_conn) conns;
	LIST_HEAD(, http_conn) ready; /* to be run at the end of this turn */
	struct turn_hook hook;
	struct reap reap;
};

/* Whether answers still reach the client. */
static inline bool conn_is_up(const struct http_conn *c)
{
	return c->state == CONN_CALL && stream_is_open(&c->stream);
}

/* 0, ERR_LIMIT (all taken, the queue is full) or ERR_CLOSED; the connection's end is then
 * told at the end of the turn. */
int conn_write(struct http_conn *c, const struct iovec *iov, int n) MUST_CHECK;
/* Whether the connection ends with this answer. */
bool conn_closes(const struct http_conn *c);
/* Tells who wants to know (on_answer). */
void conn_note_answer(const struct http_call *call, int status);
/* The answer is complete: frees the call and goes on with the connection. */
void conn_call_over(struct http_conn *c, bool close);
/* Cuts the connection with RST. */
void conn_cut(struct http_conn *c);

#endif
