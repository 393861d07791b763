/*
 * The small HTTP server: its listener, its connections, and the choice of the handler.
 * A connection is always in one state with one deadline; requests are served one at a
 * time, in order; reading stays armed while a handler works, so that a client that leaves
 * is noticed. Handlers are called from conn_run() only, never from inside an answer: work
 * that remains after an answer (a pipelined request, a client that left) waits for the
 * end of the turn. Called by the admin side, the metrics listener and the engine.
 */
#include "http/http_server.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http_conn.h"
#include "http/http_parse.h"
#include "http/http_write.h"
#include "io/accepter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	CONN_MAGIC = 0x68636f6e,
	READ_BYTES = 16384,
	BODY_READ_BYTES = 65536,
	IN_MAX =
		65536, /* pipelined bytes kept while a call is open; a head always fits */
	LINGER_MS = 1000,
	LINGER_POLL_MS = 50,
	LINGER_BYTES = 65536,
	CONNECTIONS_DEFAULT = 1024,
	HEAD_TIMEOUT_MS = 10000,
	BODY_TIMEOUT_MS = 30000,
	KEEPALIVE_TIMEOUT_MS = 75000,
	WRITE_TIMEOUT_MS = 60000,
};

static void conn_run(struct http_conn *c);

static void conn_deadline(struct http_conn *c, uint64_t ms)
{
	wheel_set(loop_wheel(c->server->loop), &c->timer, clock_now_ms() + ms);
}

static void conn_no_deadline(struct http_conn *c)
{
	wheel_stop(loop_wheel(c->server->loop), &c->timer);
}

/* The end of a connection */

static void call_free(struct http_call *call)
{
	if (call == NULL)
		return;
	free(call->body);
	free(call);
}

static void conn_destroy(struct reap *r)
{
	struct http_conn *c = container_of(r, struct http_conn, reap);

	call_free(c->call);
	free(c->in);
	c->magic = 0;
	free(c);
}

static void conn_close(struct http_conn *c)
{
	struct http_server *s = c->server;

	if (c->state == CONN_DEAD)
		return;
	c->state = CONN_DEAD;
	stream_close(&c->stream);
	conn_no_deadline(c);
	if (c->is_ready)
		LIST_REMOVE(c, ready_link);
	c->is_ready = false;
	LIST_REMOVE(c, link);
	s->n_conns--;
	if (s->accepter != NULL)
		accepter_has_place(s->accepter);
	loop_reap(s->loop, &c->reap, conn_destroy);
}

void conn_cut(struct http_conn *c)
{
	stream_abort(&c->stream);
	conn_close(c);
}

/* The client is not there any more; an open call is told, or waits for its handler. */
static void conn_gone(struct http_conn *c)
{
	struct http_call *call = c->call;

	if (c->state != CONN_CALL) {
		conn_cut(c);
		return;
	}
	stream_abort(&c->stream);
	conn_no_deadline(c);
	c->state = CONN_ORPHAN;
	if (call->on_gone != NULL) {
		if (!call->has_begun)
			conn_note_answer(call, 0);
		call->on_gone(call->arg);
		conn_close(c);
	}
}

/* Has conn_run() or conn_gone() called at the end of this turn. */
static void conn_later(struct http_conn *c)
{
	if (c->is_ready || c->state == CONN_DEAD)
		return;
	c->is_ready = true;
	LIST_INSERT_HEAD(&c->server->ready, c, ready_link);
}

static void run_ready(void *arg)
{
	struct http_server *s = arg;
	struct http_conn *c;

	while ((c = LIST_FIRST(&s->ready)) != NULL) {
		LIST_REMOVE(c, ready_link);
		c->is_ready = false;
		if (!stream_is_open(&c->stream))
			conn_gone(c);
		else
			conn_run(c);
	}
}

/* FIN behind what is queued; then input is discarded until the client closes, within
 * bounds (C22). */
static void conn_linger(struct http_conn *c)
{
	c->state = CONN_LINGER;
	c->in_len = 0;
	c->drained = 0;
	(void)stream_moved(&c->stream, &c->mark);
	c->out_moved_ms = clock_now_ms();
	c->is_flushed = stream_queued(&c->stream) == 0;
	stream_shutdown_write(&c->stream);
	if (c->peer_eof && c->is_flushed) {
		conn_close(c);
		return;
	}
	if (!c->peer_eof)
		stream_resume(&c->stream);
	conn_deadline(c, c->peer_eof ? LINGER_POLL_MS : LINGER_MS);
}

static bool conn_stalls(struct http_conn *c)
{
	uint64_t now_ms = clock_now_ms();

	if (stream_moved(&c->stream, &c->mark))
		c->out_moved_ms = now_ms;
	return now_ms - c->out_moved_ms >= c->server->opts.write_timeout_ms;
}

static void linger_timeout(struct http_conn *c)
{
	if (stream_queued(&c->stream) > 0) {
		if (conn_stalls(c))
			conn_cut(c);
		else
			conn_deadline(c, c->peer_eof ? LINGER_POLL_MS : LINGER_MS);
	} else if (c->is_flushed || c->peer_eof) {
		conn_close(c);
	} else {
		c->is_flushed = true;
		conn_deadline(c, LINGER_MS);
	}
}

/* Writing */

/* From now on the client must take bytes within the write timeout. */
static void watch_stall(struct http_conn *c)
{
	if (stream_queued(&c->stream) == 0 || wheel_is_set(&c->timer))
		return;
	(void)stream_moved(&c->stream, &c->mark);
	c->out_moved_ms = clock_now_ms();
	conn_deadline(c, c->server->opts.write_timeout_ms);
}

int conn_write(struct http_conn *c, const struct iovec *iov, int n)
{
	int err = stream_write(&c->stream, iov, n);

	if (err == 0 || err == ERR_LIMIT) {
		watch_stall(c);
		return err;
	}
	stream_abort(&c->stream);
	conn_later(c);
	return ERR_CLOSED;
}

bool conn_closes(const struct http_conn *c)
{
	return c->must_close || c->peer_eof || c->server->is_draining ||
	       c->call->head.wants_close;
}

/* Answers a fault for which there is no call, and ends the connection. */
static void conn_refuse(struct http_conn *c, enum fail why)
{
	char body[1024], head[HTTP_WRITE_ROOM];
	struct iovec iov[2];
	size_t body_len = fail_body(why, body, sizeof(body));

	if (fail_status(why) == 0) {
		conn_cut(c);
		return;
	}
	iov[0].iov_base = head;
	iov[0].iov_len = http_write_own(fail_status(why), SPAN_LIT("application/json"),
		body_len, true, span_make(NULL, 0), head, sizeof(head));
	iov[1].iov_base = body;
	iov[1].iov_len = body_len;
	if (conn_write(c, iov, 2) == ERR_CLOSED)
		conn_cut(c);
	else
		conn_linger(c);
}

/* Reading */

static void conn_set_reading(struct http_conn *c)
{
	if (!stream_is_open(&c->stream))
		return;
	if (c->peer_eof || c->in_len >= IN_MAX)
		stream_pause(&c->stream);
	else
		stream_resume(&c->stream);
}

static char *conn_in(const struct http_conn *c)
{
	return c->in + c->in_at;
}

/* The rest of the input moves to the front when the next bytes are read, not with each of
 * many pipelined requests. */
static void conn_consume(struct http_conn *c, size_t n)
{
	c->in_at += n;
	c->in_len -= n;
}

/* Waits for the next request: idle, or with a part of it there already. */
static void wait_for_head(struct http_conn *c)
{
	c->state = CONN_HEAD;
	c->has_head_timer = false;
	http_scan_start(&c->scan, HTTP_SCAN_REQUEST);
	if (c->in_len == 0) {
		free(c->in);
		c->in = NULL;
		c->in_cap = c->in_at = 0;
	}
	conn_deadline(c, c->server->opts.keepalive_timeout_ms);
	if ((c->in_len > 0 || c->server->is_draining) && !c->is_running)
		conn_later(c);
}

void conn_call_over(struct http_conn *c, bool close)
{
	call_free(c->call);
	c->call = NULL;
	if (!conn_is_up(c)) {
		conn_close(c);
	} else if (close) {
		conn_linger(c);
	} else {
		wait_for_head(c);
		conn_set_reading(c);
	}
}

/* Finds the route; HEAD is served by GET's. */
static void find_route(struct http_call *call)
{
	const struct http_server_opts *opts = &call->conn->server->opts;
	const char *method = http_method_name(call->head.method);
	struct span path = http_call_path(call);

	call->refusal = FAIL_PATH_NOT_FOUND;
	for (size_t i = 0; i < opts->n_routes; i++) {
		const struct http_route *r = &opts->routes[i];
		struct span want = span_str(r->path);
		bool is_prefix = want.n > 0 && want.p[want.n - 1] == '*';

		if (is_prefix)
			want.n--;
		if (is_prefix ? !span_starts(path, want) : !span_eq(path, want))
			continue;
		if (strcmp(r->method, method) == 0 ||
			(call->head.method == HTTP_HEAD &&
				strcmp(r->method, "GET") == 0)) {
			call->route = r;
			return;
		}
		call->refusal = FAIL_METHOD_NOT_ALLOWED;
	}
}

/* Hands the call to its handler, which may answer at once. */
static void dispatch(struct http_conn *c)
{
	const struct http_server_opts *opts = &c->server->opts;
	struct http_call *call = c->call;

	c->state = CONN_CALL;
	conn_no_deadline(c);
	watch_stall(c);
	if (call->route != NULL)
		call->route->handle(opts->arg, call);
	else if (opts->on_fail != NULL)
		opts->on_fail(opts->arg, call, call->refusal);
	else
		http_call_fail(call, call->refusal);
}

/* A fault found with the head complete: answered before the body, which is never read. */
static bool refuse_early(struct http_conn *c, enum fail why)
{
	call_free(c->call);
	c->call = NULL;
	conn_refuse(c, why);
	return false;
}

static bool start_body(struct http_conn *c)
{
	static char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
	struct http_call *call = c->call;
	const struct http_server_opts *opts = &c->server->opts;
	struct iovec iov = {go_on, sizeof(go_on) - 1};

	if (call->route == NULL) {
		c->must_close = true;
		dispatch(c);
		return true;
	}
	if (call->head.framing == HTTP_BODY_LENGTH &&
		call->head.content_length > opts->max_body)
		return refuse_early(c, FAIL_BODY_TOO_LARGE);
	call->body_left = call->head.content_length;
	http_chunk_start(&c->chunk, false, opts->max_body);
	c->state = CONN_BODY;
	conn_deadline(c, opts->body_timeout_ms);
	if (call->head.expect_100 && c->in_len == 0 &&
		conn_write(c, &iov, 1) == ERR_CLOSED)
		return false;
	return true;
}

static struct http_call *call_new(struct http_conn *c, const struct http_head *head)
{
	struct http_call *call = malloc(sizeof(*call) + head->head_len);

	if (call == NULL)
		return NULL;
	memset(call, 0, offsetof(struct http_call, head));
	call->head = *head;
	memcpy(call->raw, conn_in(c), head->head_len);
	call->conn = c;
	return call;
}

static bool has_body(const struct http_head *h)
{
	return h->framing == HTTP_BODY_CHUNKED ||
	       (h->framing == HTTP_BODY_LENGTH && h->content_length > 0);
}

/* CONN_HEAD: true when something was done and there may be more to do. */
static bool read_head(struct http_conn *c)
{
	struct http_head head;
	enum fail why = FAIL_MALFORMED_REQUEST;
	uint32_t head_len = 0;
	int err;

	if (c->in_len == 0 || stream_queued(&c->stream) > STREAM_HIGH_BYTES)
		return false;
	err = http_scan_run(&c->scan, conn_in(c), c->in_len, &head_len, &why);
	if (err == ERR_AGAIN) {
		if (!c->has_head_timer)
			conn_deadline(c, c->server->opts.head_timeout_ms);
		c->has_head_timer = true;
		return false;
	}
	if (err == 0)
		err = http_parse_request(conn_in(c), head_len, &head, &why);
	if (err != 0) {
		conn_refuse(c, why);
		return false;
	}
	head.head_len = head_len;
	c->call = call_new(c, &head);
	if (c->call == NULL) {
		conn_refuse(c, FAIL_OVERLOADED);
		return false;
	}
	conn_consume(c, head_len);
	find_route(c->call);
	if (has_body(&head))
		return start_body(c);
	dispatch(c);
	return true;
}

static int add_body(struct http_call *call, const char *bytes, size_t n)
{
	if (n == 0)
		return 0;
	if (mem_grow(&call->body, &call->body_cap, call->body_len + n, 1) != 0)
		return ERR_NOMEM;
	memcpy(call->body + call->body_len, bytes, n);
	call->body_len += n;
	return 0;
}

static int decode_chunks(struct http_conn *c, enum fail *why)
{
	size_t data_len = 0, used = 0;
	int err = http_chunk_decode(
		&c->chunk, conn_in(c), c->in_len, &data_len, &used, why);

	if (err != 0 && err != ERR_AGAIN)
		return err;
	if (add_body(c->call, conn_in(c), data_len) != 0) {
		*why = FAIL_OVERLOADED;
		return ERR_NOMEM;
	}
	conn_consume(c, used);
	return err;
}

static int take_length(struct http_conn *c, enum fail *why)
{
	struct http_call *call = c->call;
	size_t n = MIN(call->body_left, (uint64_t)c->in_len);

	if (add_body(call, conn_in(c), n) != 0) {
		*why = FAIL_OVERLOADED;
		return ERR_NOMEM;
	}
	call->body_left -= n;
	conn_consume(c, n);
	return call->body_left == 0 ? 0 : ERR_AGAIN;
}

/* CONN_BODY */
static bool read_body(struct http_conn *c)
{
	enum fail why = FAIL_BAD_CHUNK;
	int err;

	if (!stream_is_open(&c->stream))
		return false;
	if (c->call->head.framing == HTTP_BODY_CHUNKED)
		err = c->in_len == 0 ? ERR_AGAIN : decode_chunks(c, &why);
	else
		err = take_length(c, &why);
	if (err == ERR_AGAIN)
		return false;
	if (err != 0)
		return refuse_early(c, why);
	dispatch(c);
	return true;
}

/* Does what can be done with the bytes that are there. */
static void conn_run(struct http_conn *c)
{
	bool goes_on = !c->is_running;

	if (c->is_running)
		return;
	c->is_running = true;
	while (goes_on) {
		if (c->state == CONN_HEAD && c->in_len == 0 && c->server->is_draining)
			conn_linger(c);
		if (c->state == CONN_HEAD)
			goes_on = read_head(c);
		else if (c->state == CONN_BODY)
			goes_on = read_body(c);
		else
			goes_on = false;
	}
	c->is_running = false;
	if (c->state != CONN_DEAD)
		conn_set_reading(c);
}

/*
 * The client sent FIN. Before the answer that means gone, unless the request said that it
 * would be the last.
 */
static void conn_on_eof(struct http_conn *c)
{
	c->peer_eof = true;
	switch (c->state) {
	case CONN_HEAD:
		conn_linger(c);
		break;
	case CONN_CALL:
		if (c->call->head.wants_close)
			stream_pause(&c->stream);
		else
			conn_gone(c);
		break;
	case CONN_LINGER:
		stream_pause(&c->stream);
		if (stream_queued(&c->stream) == 0)
			conn_close(c);
		break;
	default:
		conn_gone(c);
	}
}

static void discard_input(struct http_conn *c)
{
	char buf[READ_BYTES];
	ssize_t n = stream_read(&c->stream, buf, sizeof(buf));

	if (n == ERR_AGAIN)
		return;
	if (n == ERR_CLOSED)
		conn_on_eof(c);
	else if (n <= 0)
		conn_cut(c);
	else if ((c->drained += (size_t)n) > LINGER_BYTES)
		conn_close(c);
}

/* Reads a long body to where it belongs. */
static ssize_t read_to_body(struct http_conn *c)
{
	struct http_call *call = c->call;
	size_t want = MIN(call->body_left, (uint64_t)BODY_READ_BYTES);
	ssize_t n;

	if (mem_grow(&call->body, &call->body_cap, call->body_len + want, 1) != 0)
		return ERR_NOMEM;
	n = stream_read(&c->stream, call->body + call->body_len, want);
	if (n > 0) {
		call->body_len += (size_t)n;
		call->body_left -= (size_t)n;
	}
	return n;
}

static ssize_t read_to_in(struct http_conn *c)
{
	ssize_t n;

	if (c->in_at > 0 && c->in_len > 0)
		memmove(c->in, conn_in(c), c->in_len);
	c->in_at = 0;
	if (mem_grow(&c->in, &c->in_cap, c->in_len + READ_BYTES, 1) != 0)
		return ERR_NOMEM;
	n = stream_read(&c->stream, c->in + c->in_len, READ_BYTES);
	if (n > 0)
		c->in_len += (size_t)n;
	return n;
}

static void conn_on_readable(void *arg)
{
	struct http_conn *c = arg;
	ssize_t n;

	assert(c->magic == CONN_MAGIC);
	if (c->state == CONN_LINGER) {
		discard_input(c);
		return;
	}
	if (c->state == CONN_BODY && c->in_len == 0 &&
		c->call->head.framing == HTTP_BODY_LENGTH)
		n = read_to_body(c);
	else
		n = read_to_in(c);
	if (n == ERR_AGAIN)
		return;
	if (n == ERR_CLOSED) {
		conn_on_eof(c);
	} else if (n == ERR_NOMEM && c->state != CONN_CALL) {
		refuse_early(c, FAIL_OVERLOADED);
	} else if (n <= 0) {
		conn_gone(c);
	} else {
		if (c->state == CONN_BODY)
			conn_deadline(c, c->server->opts.body_timeout_ms);
		conn_run(c);
	}
}

static void conn_on_writable(void *arg)
{
	struct http_conn *c = arg;

	assert(c->magic == CONN_MAGIC);
	if (c->state == CONN_CALL && c->call->on_writable != NULL)
		c->call->on_writable(c->call->arg);
	else if (c->state == CONN_HEAD)
		conn_run(c);
}

/* While paused: pipelined bytes fill the buffer, or the FIN was read already. */
static void conn_on_peer_closed(void *arg)
{
	struct http_conn *c = arg;

	assert(c->magic == CONN_MAGIC);
	if (c->state == CONN_CALL && !c->peer_eof)
		conn_on_eof(c);
}

static const struct stream_ops conn_ops = {
	.on_readable = conn_on_readable,
	.on_writable = conn_on_writable,
	.on_peer_closed = conn_on_peer_closed,
};

/* The deadline of the state has passed; where bytes are queued, the client's reading
 * counts. */
static void conn_timeout(void *arg)
{
	struct http_conn *c = arg;

	assert(c->magic == CONN_MAGIC);
	if (c->state == CONN_LINGER) {
		linger_timeout(c);
	} else if (stream_queued(&c->stream) > 0) {
		if (conn_stalls(c))
			conn_gone(c);
		else
			conn_deadline(c, c->server->opts.write_timeout_ms);
	} else if (c->state == CONN_BODY || (c->state == CONN_HEAD && c->in_len > 0)) {
		refuse_early(c, FAIL_CLIENT_TIMEOUT);
	} else if (c->state == CONN_HEAD) {
		conn_linger(c);
	}
}

/* The listener */

static bool is_waiting(const struct http_conn *c)
{
	return c->state == CONN_HEAD && stream_queued(&c->stream) == 0;
}

static bool has_no_call(const struct http_conn *c)
{
	return c->state == CONN_HEAD || c->state == CONN_BODY || c->state == CONN_LINGER;
}

static struct http_conn *oldest(
	const struct http_server *s, bool (*is_one)(const struct http_conn *c))
{
	struct http_conn *c, *found = NULL;

	LIST_FOREACH (c, &s->conns, link)
		if (is_one(c))
			found = c;
	return found;
}

/* One too many: somebody makes room, itself where nobody else can. */
static void make_room(struct http_server *s)
{
	struct http_conn *c;

	if (s->n_conns <= s->opts.max_connections)
		return;
	c = oldest(s, is_waiting);
	/* It is in the list itself, and the youngest. */
	if (c == LIST_FIRST(&s->conns) && oldest(s, has_no_call) != NULL)
		c = oldest(s, has_no_call);
	conn_cut(c);
}

static struct http_peer find_peer(int fd, const union sock_addr *peer)
{
	struct http_peer found = {.is_known = false};
	struct ucred who;
	socklen_t n = sizeof(who);

	if (peer->sa.sa_family != AF_UNIX ||
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0)
		return found;
	return (struct http_peer){
		.is_known = true, .uid = (unsigned)who.uid, .pid = (long)who.pid};
}

static int conn_new(void *server, int fd, const union sock_addr *peer)
{
	struct http_server *s = server;
	struct http_conn *c = calloc(1, sizeof(*c));

	if (c == NULL) {
		close(fd);
		return ERR_NOMEM;
	}
	c->magic = CONN_MAGIC;
	c->server = s;
	c->peer = find_peer(fd, peer);
	stream_init(&c->stream, s->loop, &conn_ops, c);
	if (stream_open(&c->stream, fd) != 0) {
		free(c);
		return ERR_NOMEM;
	}
	wheel_timer_init(&c->timer, conn_timeout, c);
	LIST_INSERT_HEAD(&s->conns, c, link);
	s->n_conns++;
	wait_for_head(c);
	c->has_head_timer = true;
	conn_deadline(c, s->opts.head_timeout_ms);
	make_room(s);
	return 0;
}

static bool has_place(void *server)
{
	const struct http_server *s = server;

	return s->opts.gives_way || s->n_conns < s->opts.max_connections;
}

static const struct accepter_ops accepter_ops = {
	.on_conn = conn_new,
	.take_place = has_place,
	.limit = "its limit of connections",
};

static void set_defaults(struct http_server_opts *o)
{
	if (o->max_connections == 0)
		o->max_connections = CONNECTIONS_DEFAULT;
	if (o->head_timeout_ms == 0)
		o->head_timeout_ms = HEAD_TIMEOUT_MS;
	if (o->body_timeout_ms == 0)
		o->body_timeout_ms = BODY_TIMEOUT_MS;
	if (o->keepalive_timeout_ms == 0)
		o->keepalive_timeout_ms = KEEPALIVE_TIMEOUT_MS;
	if (o->write_timeout_ms == 0)
		o->write_timeout_ms = WRITE_TIMEOUT_MS;
}

struct http_server *http_server_new(
	struct loop *l, int listen_fd, const struct http_server_opts *opts)
{
	struct http_server *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->loop = l;
	s->opts = *opts;
	set_defaults(&s->opts);
	LIST_INIT(&s->conns);
	LIST_INIT(&s->ready);
	s->accepter = accepter_new(l, listen_fd, &accepter_ops, s);
	if (s->accepter == NULL) {
		free(s);
		return NULL;
	}
	s->hook.fn = run_ready;
	s->hook.arg = s;
	loop_turn_hook_add(l, &s->hook);
	return s;
}

static void stop_accepting(struct http_server *s)
{
	accepter_free(s->accepter);
	s->accepter = NULL;
}

void http_server_drain(struct http_server *s)
{
	struct http_conn *c, *next;

	stop_accepting(s);
	s->is_draining = true;
	LIST_FOREACH_SAFE(c, &s->conns, link, next)
	{
		if (c->state == CONN_HEAD && c->in_len == 0 && !c->is_running)
			conn_linger(c);
	}
}

void http_server_pause(struct http_server *s, bool on)
{
	if (s->accepter != NULL)
		accepter_enable(s->accepter, !on);
}

void http_server_cut(struct http_server *s)
{
	struct http_conn *c, *next;

	LIST_FOREACH_SAFE(c, &s->conns, link, next)
	{
		if (c->state != CONN_ORPHAN)
			conn_gone(c);
	}
}

unsigned http_server_connections(const struct http_server *s)
{
	return s->n_conns;
}

static void server_destroy(struct reap *r)
{
	free(container_of(r, struct http_server, reap));
}

void http_server_free(struct http_server *s)
{
	struct http_conn *c;

	if (s == NULL)
		return;
	stop_accepting(s);
	s->is_draining = true;
	while ((c = LIST_FIRST(&s->conns)) != NULL) {
		conn_gone(c);
		conn_close(c);
	}
	loop_turn_hook_remove(s->loop, &s->hook);
	loop_reap(s->loop, &s->reap, server_destroy);
}
