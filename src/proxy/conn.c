/*
 * One client connection. States: OPEN (requests one after another), CLOSING (the last
 * response is flushed and FIN is sent; then input is read and dropped for a while, so
 * that the response is not lost to a reset). See conn.h.
 */
#include "proxy/conn.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/metric.h"
#include "io/loop.h"
#include "io/stream.h"
#include "io/wheel.h"
#include "proxy/client.h"
#include "proxy/introduction.h"
#include "proxy/io_thread.h"
#include "proxy/request.h"

#include <stdlib.h>
#include <unistd.h>

#define CONN_MAGIC 0x434f4e4eu
#define LINGER_MS 1000
#define LINGER_BYTES 65536 /* after a broken request */
#define LINGER_BODY_BYTES \
	(64u << 20) /* of a sound but refused one: its client may read only when it has \
		       sent all */
#define LINGER_READS 4   /* of IO_SCRATCH_BYTES in a turn */
#define LINGER_ROUNDS 10 /* of LINGER_MS, for such a client that goes on sending */

enum conn_state { CONN_OPEN, CONN_CLOSING, CONN_CLOSED };

struct conn {
	uint32_t magic;
	enum conn_state state;
	struct reap reap;
	struct client client;
	struct request *r;  /* NULL: between requests */
	bool is_introduced; /* a header of the PROXY protocol is to come first */
	bool is_full;       /* no request is begun: the client has much to read yet */
	TAILQ_ENTRY(conn) link;
	struct wheel_timer timer; /* head, body, idleness, linger */
	struct wheel_timer stall; /* armed while the client's queue is not empty */
	struct stream_mark mark;  /* where the client was when it was armed */
	uint64_t moved_ms;        /* closing: when the client took bytes last */
	unsigned requests;
	size_t lingered, linger_bytes, linger_seen;
	unsigned linger_rounds; /* left */
};

static void conn_run(void *client);

static const struct router_opts *opts(const struct conn *c)
{
	return &c->client.t->site->conf->router;
}

/* ---- the end ---- */

/* Draining, and nobody is left who is waited for. */
static bool is_drained(const struct io_thread *t)
{
	return t->is_draining && t->n_conns == (t->keeps_listening ? t->n_late : 0);
}

static void tell_if_drained(struct io_thread *t)
{
	if (is_drained(t) && t->on_last_conn != NULL)
		t->on_last_conn(t->on_last_conn_arg);
}

static void conn_destroy(struct reap *r)
{
	struct conn *c = container_of(r, struct conn, reap);

	c->magic = 0;
	free(c);
}

static void conn_close(struct conn *c, bool with_reset)
{
	struct io_thread *t = c->client.t;

	assert(c->r == NULL && c->state != CONN_CLOSED);
	c->state = CONN_CLOSED;
	if (with_reset)
		stream_abort(&c->client.stream);
	else
		stream_close(&c->client.stream);
	client_drop_buffer(&c->client);
	wheel_stop(t->wheel, &c->timer);
	wheel_stop(t->wheel, &c->stall);
	TAILQ_REMOVE(&t->conns, c, link);
	t->n_conns--;
	t->n_late -= c->client.is_late;
	metric_add(METRIC_CONN_CLIENT, -1);
	conn_leave_place(t);
	loop_reap(t->loop, &c->reap, conn_destroy);
	tell_if_drained(t);
}

static void end_request(struct conn *c)
{
	struct request *r = c->r;

	c->r = NULL;
	c->requests++;
	request_free(r);
}

/* Cuts what is going on. */
static void conn_cut(struct conn *c, enum fail why)
{
	if (c->r != NULL) {
		request_abort(c->r, why);
		if (!request_run(c->r))
			assert(!"an aborted request finishes");
		end_request(c);
	}
	conn_close(c, true);
}

static void watch_closing(struct conn *c)
{
	(void)stream_moved(&c->client.stream, &c->mark);
	c->linger_seen = c->lingered;
	wheel_set(c->client.t->wheel, &c->timer,
		clock_now_ms() + MIN(opts(c)->write_timeout_ms, (uint64_t)LINGER_MS));
}

static void start_closing(struct conn *c)
{
	struct io_thread *t = c->client.t;

	/* Nothing more to say and the client has said all: done. */
	if (c->client.is_broken ||
		(c->client.saw_eof && stream_queued(&c->client.stream) == 0)) {
		conn_close(c, false);
		return;
	}
	c->state = CONN_CLOSING;
	client_drop_buffer(&c->client);
	stream_shutdown_write(&c->client.stream);
	if (!c->client.saw_eof)
		stream_resume(&c->client.stream);
	c->client.can_read = true;
	c->moved_ms = clock_now_ms();
	wheel_stop(t->wheel, &c->stall);
	watch_closing(c);
}

/* Reads and drops what the client still sends; others get their turn in between. */
static void linger(struct conn *c)
{
	int reads = LINGER_READS;

	while (reads-- > 0) {
		ssize_t n = client_read(
			&c->client, io_scratch(c->client.t), IO_SCRATCH_BYTES);

		if (n > 0)
			c->lingered += (size_t)n;
		if (n == ERR_AGAIN)
			return;
		if (n > 0 && c->lingered <= c->linger_bytes)
			continue;
		if (n > 0 || c->client.is_broken ||
			stream_queued(&c->client.stream) == 0) {
			conn_close(c, false);
			return;
		}
		/* FIN, but our answer is still on its way. */
		stream_pause(&c->client.stream);
		return;
	}
}

/* The answer is flushed as long as the client takes it; then what a sound request still
 * has is read as long as it comes, for a while. */
static void closing_timer(struct conn *c)
{
	bool is_flushing = stream_queued(&c->client.stream) > 0;
	bool has_flushed = c->client.stream.bytes_out > c->mark.out;
	/* Once all is in the kernel, its queue is the kernel's to deliver. */
	bool has_moved =
		has_flushed || (is_flushing && stream_moved(&c->client.stream, &c->mark));
	bool is_sending = c->lingered > c->linger_seen && c->linger_rounds > 0;

	if (has_moved)
		c->moved_ms = clock_now_ms();
	if (is_flushing ? clock_now_ms() - c->moved_ms >= opts(c)->write_timeout_ms
			: c->client.saw_eof || (!has_moved && !is_sending)) {
		conn_close(c, is_flushing);
		return;
	}
	if (is_sending)
		c->linger_rounds--;
	watch_closing(c);
}

/* ---- requests one after another ---- */

static void watch_stall(struct conn *c)
{
	if (stream_queued(&c->client.stream) == 0 || wheel_is_set(&c->stall) ||
		opts(c)->write_timeout_ms == 0)
		return;
	(void)stream_moved(&c->client.stream, &c->mark);
	wheel_set(c->client.t->wheel, &c->stall,
		clock_now_ms() + opts(c)->write_timeout_ms);
}

/* Arms the deadline of the request's reading, and watches for a slow client. */
static void watch_request(struct conn *c)
{
	uint64_t due = request_deadline_ms(c->r);

	if (due > 0)
		wheel_set(c->client.t->wheel, &c->timer, due);
	watch_stall(c);
}

static void watch_idle(struct conn *c)
{
	if (c->requests > 0 && opts(c)->keepalive_timeout_ms > 0)
		wheel_set(c->client.t->wheel, &c->timer,
			clock_now_ms() + opts(c)->keepalive_timeout_ms);
	else if (c->requests > 0) /* the deadline of a head would cut it */
		wheel_stop(c->client.t->wheel, &c->timer);
	watch_stall(c);
}

/* A connection that was accepted during a drain may send one request before it is
 * closed. */
static bool must_leave(const struct conn *c)
{
	const struct io_thread *t = c->client.t;

	return t->is_draining && !t->keeps_idle &&
	       !(t->keeps_listening && c->client.is_late && c->requests == 0);
}

static void idle(struct conn *c)
{
	client_return_buffer(&c->client);
	if (must_leave(c))
		start_closing(c);
	else
		watch_idle(c);
}

/*
 * The high mark stops the next request, the low one lets it begin: then the stream calls
 * on_writable. Whatever answers a request, the router or a worker, so a client that does
 * not read holds the answer to one request beyond the mark, and sends no more.
 */
static bool must_rest(struct conn *c)
{
	size_t queued = stream_queued(&c->client.stream);

	c->is_full = queued > (c->is_full ? STREAM_LOW_BYTES : STREAM_HIGH_BYTES);
	return c->is_full;
}

static void rest(struct conn *c)
{
	client_return_buffer(&c->client);
	stream_pause(&c->client.stream);
	watch_idle(c);
}

/* False: the client is not known yet, or never will be. */
static bool meet(struct conn *c)
{
	int err = introduction_read(&c->client);

	if (err == ERR_AGAIN)
		idle(c);
	else if (err != 0)
		conn_close(c, true);
	else
		c->is_introduced = false;
	return err == 0;
}

/* False: nothing to run now. */
static bool next_request(struct conn *c)
{
	if (must_rest(c)) {
		rest(c);
		return false;
	}
	stream_resume(&c->client.stream);
	if (c->is_introduced && !meet(c))
		return false;
	if (c->client.len == 0) {
		ssize_t got = client_fill(&c->client);

		if (got == ERR_AGAIN)
			idle(c);
		else if (got <= 0)
			conn_close(c, false);
		if (got <= 0)
			return false;
	}
	c->r = request_new(c->client.t, &c->client);
	if (c->r == NULL)
		conn_close(c, true);
	return c->r != NULL;
}

/* True: the connection goes on with the next request. */
static bool after_request(struct conn *c)
{
	bool keep = request_keeps_alive(c->r), cut = request_was_cut(c->r);
	size_t used = request_used(c->r);

	if (request_is_unread(c->r)) {
		c->linger_bytes = LINGER_BODY_BYTES;
		c->linger_rounds = LINGER_ROUNDS;
	}
	end_request(c);
	if (!keep) {
		if (cut)
			conn_close(c, true);
		else
			start_closing(c);
		return false;
	}
	client_consume(&c->client, used);
	return true;
}

static void conn_run(void *client)
{
	struct conn *c = container_of((struct client *)client, struct conn, client);

	assert(c->magic == CONN_MAGIC);
	while (c->state == CONN_OPEN) {
		if (c->r == NULL && !next_request(c))
			return;
		if (!request_run(c->r)) {
			watch_request(c);
			return;
		}
		if (!after_request(c))
			return;
	}
}

/* ---- what the stream says ---- */

/* FIN or breakage while a request is being answered. Some clients get their response
 * all the same (half_close). */
static void client_ended(struct conn *c)
{
	if (!c->client.is_broken && request_survives_eof(c->r)) {
		stream_pause(&c->client.stream);
		return;
	}
	request_abort(c->r, FAIL_CLIENT_GONE);
	conn_run(&c->client);
}

/* Bytes while a request is being answered: the next request (kept), or the client's end.
 */
static void read_ahead(struct conn *c)
{
	ssize_t got = client_fill(&c->client);

	if (got == ERR_CLOSED)
		client_ended(c);
	else if (got == ERR_LIMIT || got == ERR_NOMEM)
		stream_pause(&c->client.stream); /* its end is still noticed */
}

static void on_readable(void *arg)
{
	struct conn *c = arg;

	assert(c->magic == CONN_MAGIC);
	c->client.can_read = true;
	if (c->state == CONN_CLOSING)
		linger(c);
	else if (c->r != NULL && !request_is_reading(c->r))
		read_ahead(c);
	else
		conn_run(&c->client);
}

static void on_writable(void *arg)
{
	struct conn *c = arg;

	assert(c->magic == CONN_MAGIC);
	if (c->state == CONN_OPEN && (c->r != NULL || c->is_full))
		conn_run(&c->client);
}

static void on_peer_closed(void *arg)
{
	struct conn *c = arg;

	assert(c->magic == CONN_MAGIC);
	/* Requests before it are still to be read. */
	if (c->is_full && c->state == CONN_OPEN && c->r == NULL)
		return;
	/* The second time: the client had sent FIN and waited for its response, and has
	 * now broken off. */
	if (c->client.saw_eof)
		c->client.is_broken = true;
	c->client.saw_eof = true;
	if (c->state == CONN_OPEN && c->r != NULL)
		client_ended(c);
}

static const struct stream_ops stream_ops = {
	.on_readable = on_readable,
	.on_writable = on_writable,
	.on_peer_closed = on_peer_closed,
};

/* ---- deadlines ---- */

static void on_timer(void *arg)
{
	struct conn *c = arg;
	uint64_t due;

	assert(c->magic == CONN_MAGIC);
	if (c->state == CONN_CLOSING) {
		closing_timer(c);
		return;
	}
	if (c->r == NULL && c->is_introduced)
		introduction_is_late(&c->client);
	if (c->r == NULL) {
		/* The connection is idle once the client has its last response. Until
		 * then a slow client is watched. */
		if (stream_queued(&c->client.stream) > 0)
			watch_idle(c);
		else
			conn_close(c, false);
		return;
	}
	due = request_deadline_ms(c->r);
	if (due == 0)
		return;
	if (due > clock_now_ms()) {
		wheel_set(c->client.t->wheel, &c->timer, due);
		return;
	}
	/* Any other deadline is the request's own, and its step looks at the clock. */
	if (request_is_reading(c->r))
		request_abort(c->r, FAIL_CLIENT_TIMEOUT);
	conn_run(&c->client);
}

static void on_stall(void *arg)
{
	struct conn *c = arg;

	assert(c->magic == CONN_MAGIC);
	if (stream_queued(&c->client.stream) == 0)
		return;
	if (!stream_moved(&c->client.stream, &c->mark)) {
		conn_cut(c, FAIL_CLIENT_STALLED);
		return;
	}
	wheel_set(c->client.t->wheel, &c->stall,
		clock_now_ms() + opts(c)->write_timeout_ms);
}

/* ---- begin, drain ---- */

void conn_leave_place(struct io_thread *t)
{
	atomic_fetch_sub_explicit(&t->process->connections, 1, memory_order_relaxed);
}

int conn_open(
	struct io_thread *t, int fd, const union sock_addr *peer, bool is_introduced)
{
	struct ip ip = sock_addr_ip(peer);
	bool is_welcome = !is_introduced || introduction_is_allowed(t, &ip);
	struct conn *c = is_welcome ? calloc(1, sizeof(*c)) : NULL;

	if (c == NULL) {
		close(fd);
		conn_leave_place(t);
		return is_welcome ? ERR_NOMEM : 0;
	}
	c->magic = CONN_MAGIC;
	c->linger_bytes = LINGER_BYTES;
	c->client.t = t;
	c->client.run = conn_run;
	c->client.id = atomic_fetch_add_explicit(
		&t->process->next_conn_id, 1, memory_order_relaxed);
	c->is_introduced = is_introduced;
	http_who_set(&c->client.peer, &ip);
	stream_init(&c->client.stream, t->loop, &stream_ops, c);
	if (stream_open(&c->client.stream, fd) != 0) {
		conn_leave_place(t);
		free(c);
		return ERR_NOMEM;
	}
	wheel_timer_init(&c->timer, on_timer, c);
	wheel_timer_init(&c->stall, on_stall, c);
	TAILQ_INSERT_TAIL(&t->conns, c, link);
	t->n_conns++;
	c->client.is_late = t->is_draining;
	t->n_late += c->client.is_late;
	metric_inc(METRIC_CONN_CLIENT);
	metric_inc(METRIC_CONN_ACCEPTED);
	/* Until its first byte a connection has as long as a head may take. */
	if (opts(c)->head_timeout_ms > 0)
		wheel_set(t->wheel, &c->timer, clock_now_ms() + opts(c)->head_timeout_ms);
	return 0;
}

void conn_drain_all(struct io_thread *t, bool keeps_idle, bool keeps_listening)
{
	struct conn *c, *next;

	t->is_draining = true;
	t->keeps_idle = keeps_idle;
	t->keeps_listening = keeps_listening;
	TAILQ_FOREACH_SAFE(c, &t->conns, link, next)
	{
		/* A request may lie in the socket already: it is answered, then the
		 * connection closes. */
		if (!keeps_idle && c->state == CONN_OPEN && c->r == NULL) {
			c->client.can_read = true;
			conn_run(&c->client);
		}
	}
	tell_if_drained(t);
}

void conn_drain_late(struct io_thread *t)
{
	struct conn *c, *next;

	t->keeps_listening = false;
	TAILQ_FOREACH_SAFE(c, &t->conns, link, next)
	{
		if (c->state != CONN_OPEN)
			continue;
		/* Its request may lie in the socket. */
		c->client.can_read = true;
		conn_run(&c->client);
		if (c->state == CONN_OPEN && c->r != NULL) {
			request_abort(c->r, FAIL_DRAINING);
			conn_run(&c->client);
		}
	}
	tell_if_drained(t);
}

void conn_close_all(struct io_thread *t)
{
	struct conn *c, *next;

	TAILQ_FOREACH_SAFE(c, &t->conns, link, next)
	conn_cut(c, FAIL_SHUTDOWN);
}
