/*
 * The bench's HTTP client. See wire.h. Called by run.c.
 * Always true: a connection is in the idle list, or has the one trip whose conn it is; a
 * trip has a connection from wire_send() to its end. The code that ends a trip
 * (finish) first unlinks it, so that callbacks may start others on the same connection.
 */
#include "bench/wire.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "http/http_chunk.h"
#include "http/http_parse.h"
#include "http/http_scan.h"
#include "io/loop.h"
#include "io/resolve.h"
#include "io/stream.h"
#include "io/wheel.h"

#include <stdlib.h>

#define CONN_MAGIC 0x57434f4eu
#define READ_BYTES 65536u
/* A head, and what comes with it in one read. */
#define GATHER_BYTES (HTTP_RESPONSE_HEAD_MAX + 4096u)

struct wire_conn {
	uint32_t magic;
	struct reap reap;
	struct wire *wire;
	struct wire_trip *trip; /* NULL: idle */
	struct stream stream;
	TAILQ_ENTRY(wire_conn) link; /* idle */
	uint64_t trips;              /* completed */
};

struct wire_trip {
	struct wire *wire;
	struct wire_conn *conn; /* NULL: connecting failed, the timer tells */
	const struct wire_ops *ops;
	void *arg;
	struct wheel_timer timer;
	uint64_t due_ms;         /* 0: no deadline */
	enum wire_end early_end; /* of a connection that could not even begin */

	/* connecting */
	unsigned addrs_left, addr_at;
	bool was_refused, was_resent;

	/* sending */
	struct span head, body;
	size_t sent; /* of both */
	bool is_connected, send_broke;

	/* receiving */
	bool got_byte, in_body, is_last, may_keep;
	unsigned interim;
	enum http_framing framing;
	uint64_t left;
	struct http_scan scan;
	struct http_chunk chunk;
	char *gather; /* a head that came in pieces */
	size_t gathered;
};

struct wire {
	struct loop *loop;
	struct addr_list *addrs;
	unsigned addr_first; /* the address that answered last */
	uint64_t timeout_ms;
	bool new_connections;
	unsigned n_trips;
	struct wire_counts counts; /* bytes: of closed connections */
	TAILQ_HEAD(conn_list, wire_conn) idle;
	struct http_head parsed;
	char scratch[READ_BYTES];
};

static void connect_next(struct wire_trip *t);
static void send_more(struct wire_trip *t);
static void receive(struct wire_trip *t);

const char *wire_end_text(enum wire_end end)
{
	static const char *const texts[WIRE_END_MAX] = {
		[WIRE_OK] = "ok",
		[WIRE_REFUSED] = "refused",
		[WIRE_UNREACHABLE] = "unreachable",
		[WIRE_TIMEOUT] = "timeout",
		[WIRE_RESET] = "reset",
		[WIRE_BROKEN] = "broken",
		[WIRE_PROTOCOL] = "protocol",
		[WIRE_STOPPED] = "stopped",
		[WIRE_LOCAL] = "local",
	};

	return texts[end];
}

/* ---- connections ---- */

static void destroy_conn(struct reap *r)
{
	struct wire_conn *c = container_of(r, struct wire_conn, reap);

	c->magic = 0;
	free(c);
}

static void close_conn(struct wire_conn *c)
{
	struct wire *w = c->wire;

	w->counts.bytes_in += c->stream.bytes_in;
	w->counts.bytes_out += c->stream.bytes_out;
	stream_close(&c->stream);
	loop_reap(w->loop, &c->reap, destroy_conn);
}

static void close_idle(struct wire_conn *c)
{
	TAILQ_REMOVE(&c->wire->idle, c, link);
	close_conn(c);
}

/* ---- ends ---- */

/* The trip's connection is closed, or kept. */
static void release_conn(struct wire_trip *t, bool keep)
{
	struct wire_conn *c = t->conn;

	t->conn = NULL;
	if (c == NULL)
		return;
	c->trip = NULL;
	if (!keep) {
		close_conn(c);
		return;
	}
	c->trips++;
	TAILQ_INSERT_HEAD(&c->wire->idle, c, link);
}

static void free_trip(struct wire_trip *t)
{
	wheel_stop(loop_wheel(t->wire->loop), &t->timer);
	t->wire->n_trips--;
	free(t->gather);
	free(t);
}

static void finish(struct wire_trip *t, enum wire_end end)
{
	const struct wire_ops *ops = t->ops;
	void *arg = t->arg;

	release_conn(t, end == WIRE_OK && t->may_keep && !t->wire->new_connections);
	free_trip(t);
	ops->on_end(arg, end);
}

void wire_cancel(struct wire_trip *t)
{
	if (t == NULL)
		return;
	release_conn(t, false);
	free_trip(t);
}

/* Later, since it may be from inside wire_send(). */
static void finish_soon(struct wire_trip *t, enum wire_end end)
{
	release_conn(t, false);
	t->early_end = end;
	wheel_set(loop_wheel(t->wire->loop), &t->timer, clock_now_ms());
}

static void on_timer(void *arg)
{
	struct wire_trip *t = arg;

	finish(t, t->early_end != WIRE_OK ? t->early_end : WIRE_TIMEOUT);
}

/* ---- connecting and sending ---- */

static void start_over(struct wire_trip *t)
{
	t->sent = 0;
	t->is_connected = t->send_broke = t->got_byte = t->in_body = false;
	t->gathered = 0;
	http_scan_start(&t->scan, HTTP_SCAN_RESPONSE);
}

static void on_connected(void *arg, int err)
{
	struct wire_conn *c = arg;
	struct wire_trip *t = c->trip;

	assert(c->magic == CONN_MAGIC && t != NULL);
	if (err != 0) {
		t->was_refused = err == ERR_REFUSED;
		release_conn(t, false);
		connect_next(t);
		return;
	}
	t->wire->addr_first = t->addr_at;
	t->wire->counts.connects++;
	t->is_connected = true;
	send_more(t);
}

static void on_readable(void *arg)
{
	struct wire_conn *c = arg;

	assert(c->magic == CONN_MAGIC);
	if (c->trip == NULL)
		close_idle(c); /* its end, or bytes that nobody asked for */
	else
		receive(c->trip);
}

static void on_writable(void *arg)
{
	struct wire_conn *c = arg;

	if (c->trip != NULL)
		send_more(c->trip);
}

static void on_peer_closed(void *arg)
{
	(void)arg; /* reading tells */
}

static const struct stream_ops stream_ops = {
	on_connected, on_readable, on_writable, on_peer_closed};

static int open_conn(struct wire_trip *t)
{
	struct wire *w = t->wire;
	struct wire_conn *c = calloc(1, sizeof(*c));
	int err;

	if (c == NULL)
		return ERR_NOMEM;
	c->magic = CONN_MAGIC;
	c->wire = w;
	stream_init(&c->stream, w->loop, &stream_ops, c);
	err = stream_connect(&c->stream, &w->addrs->addrs[t->addr_at]);
	if (err != 0) {
		free(c);
		return err;
	}
	c->trip = t;
	t->conn = c;
	return 0;
}

/* Tries the addresses from the one that worked last on. */
static void connect_next(struct wire_trip *t)
{
	struct wire *w = t->wire;
	int err = ERR_REFUSED;

	while (t->addrs_left > 0) {
		t->addr_at = (w->addr_first + (unsigned)w->addrs->n - t->addrs_left) %
			     (unsigned)w->addrs->n;
		t->addrs_left--;
		err = open_conn(t);
		if (err == 0)
			return;
		t->was_refused = err == ERR_REFUSED;
	}
	finish_soon(t, err == ERR_LIMIT || err == ERR_NOMEM ? WIRE_LOCAL
		       : t->was_refused                     ? WIRE_REFUSED
							    : WIRE_UNREACHABLE);
}

static void start_connecting(struct wire_trip *t)
{
	start_over(t);
	t->addrs_left = (unsigned)t->wire->addrs->n;
	connect_next(t);
}

static void send_more(struct wire_trip *t)
{
	size_t total = t->head.n + t->body.n;

	while (t->is_connected && t->sent < total && !t->send_broke) {
		size_t of_head = MIN(t->sent, t->head.n), of_body = t->sent - of_head;
		struct iovec iov[2] = {
			{(void *)(uintptr_t)(t->head.p + of_head), t->head.n - of_head},
			{(void *)(uintptr_t)(t->body.p + of_body), t->body.n - of_body},
		};
		ssize_t n = stream_send(&t->conn->stream, iov, 2);

		if (n < 0) {
			/* It may have answered and closed before it read all: reading
			 * decides. */
			t->send_broke = true;
			return;
		}
		if (n == 0)
			return;
		t->sent += (size_t)n;
	}
}

static struct wire_trip *new_trip(struct wire *w)
{
	struct wire_trip *t = calloc(1, sizeof(*t));

	if (t == NULL)
		return NULL;
	t->wire = w;
	wheel_timer_init(&t->timer, on_timer, t);
	if (w->timeout_ms > 0) {
		t->due_ms = clock_now_ms() + w->timeout_ms;
		wheel_set(loop_wheel(w->loop), &t->timer, t->due_ms);
	}
	w->n_trips++;
	return t;
}

struct wire_trip *wire_send(struct wire *w, struct span head, struct span body,
	const struct wire_ops *ops, void *arg)
{
	struct wire_trip *t = new_trip(w);

	if (t == NULL)
		return NULL;
	t->ops = ops;
	t->arg = arg;
	t->head = head;
	t->body = body;
	t->conn = w->new_connections ? NULL : TAILQ_FIRST(&w->idle);
	if (t->conn == NULL) {
		start_connecting(t);
		return t;
	}
	TAILQ_REMOVE(&w->idle, t->conn, link);
	t->conn->trip = t;
	start_over(t);
	t->is_connected = true;
	send_more(t);
	return t;
}

/* ---- receiving ---- */

static void begin_body(struct wire_trip *t, const struct http_head *h)
{
	t->in_body = true;
	t->framing = h->framing;
	t->left = h->framing == HTTP_BODY_LENGTH ? h->content_length : 0;
	t->may_keep = h->minor == 1 && !h->wants_close;
	t->is_last = h->framing == HTTP_BODY_NONE ||
		     (h->framing == HTTP_BODY_LENGTH && t->left == 0);
	if (h->framing == HTTP_BODY_CHUNKED)
		http_chunk_start(&t->chunk, true, UINT64_MAX);
}

/* The head at the beginning of p[0..n): 0 and its length (0: an interim one), or ERR_*.
 */
static int take_head(struct wire_trip *t, const char *p, size_t n, uint32_t *head_len)
{
	struct http_head *h = &t->wire->parsed;
	enum fail why;
	int err = http_scan_run(&t->scan, p, n, head_len, &why);

	if (err == 0)
		err = http_parse_response(p, *head_len, HTTP_POST, h, &why);
	if (err != 0)
		return err;
	if (h->status < 200) {
		http_scan_start(&t->scan, HTTP_SCAN_RESPONSE);
		return ++t->interim > HTTP_INTERIM_MAX ? ERR_PARSE : 0;
	}
	begin_body(t, h);
	t->ops->on_head(t->arg, p, h);
	return 0;
}

/* Bytes beyond the response make the connection useless. */
static enum wire_end take_plain(struct wire_trip *t, struct span data)
{
	if (t->framing == HTTP_BODY_LENGTH) {
		if (data.n > t->left)
			t->may_keep = false;
		data.n = MIN(data.n, t->left);
		t->left -= data.n;
		t->is_last = t->left == 0;
	}
	return data.n > 0 && t->ops->on_body(t->arg, data) != 0 ? WIRE_STOPPED : WIRE_OK;
}

static enum wire_end take_chunks(struct wire_trip *t, char *p, size_t n)
{
	size_t data_len = 0, used = 0;
	enum fail why;
	int err = http_chunk_decode(&t->chunk, p, n, &data_len, &used, &why);

	if (data_len > 0 && t->ops->on_body(t->arg, span_make(p, data_len)) != 0)
		return WIRE_STOPPED;
	t->is_last = err == 0;
	if (err == 0 && used < n)
		t->may_keep = false;
	return err == 0 || err == ERR_AGAIN ? WIRE_OK : WIRE_PROTOCOL;
}

static enum wire_end take_body(struct wire_trip *t, char *p, size_t n)
{
	if (t->is_last) {
		t->may_keep = t->may_keep && n == 0;
		return WIRE_OK;
	}
	if (n == 0)
		return WIRE_OK;
	if (t->framing == HTTP_BODY_CHUNKED)
		return take_chunks(t, p, n);
	return take_plain(t, span_make(p, n));
}

/* Keeps the beginning of a head, which may lie in the scratch buffer. */
static enum wire_end keep_partial(struct wire_trip *t, const char *p, size_t n)
{
	if (t->gather == NULL)
		t->gather = malloc(GATHER_BYTES);
	if (t->gather == NULL)
		return WIRE_LOCAL;
	memmove(t->gather, p, n);
	t->gathered = n;
	return WIRE_OK;
}

static enum wire_end take_bytes(struct wire_trip *t, char *p, size_t n)
{
	while (!t->in_body && n > 0) {
		uint32_t head_len;
		int err = take_head(t, p, n, &head_len);

		if (err == ERR_AGAIN)
			return keep_partial(t, p, n);
		if (err != 0)
			return WIRE_PROTOCOL;
		p += head_len;
		n -= head_len;
		t->gathered = 0;
	}
	return t->in_body ? take_body(t, p, n) : WIRE_OK;
}

/* A kept connection may have been closed by the server as the request left. */
static bool send_again(struct wire_trip *t)
{
	if (t->got_byte || t->was_resent || t->conn->trips == 0)
		return false;
	t->was_resent = true;
	t->wire->counts.resent++;
	release_conn(t, false);
	start_connecting(t);
	return true;
}

static void end_of_stream(struct wire_trip *t, bool was_clean)
{
	if (t->in_body && t->framing == HTTP_BODY_UNTIL_CLOSE && was_clean)
		finish(t, WIRE_OK);
	else if (!send_again(t))
		finish(t, t->got_byte ? WIRE_BROKEN : WIRE_RESET);
}

/* A short read has emptied the socket: what comes next is an event of its own. */
static void receive(struct wire_trip *t)
{
	bool is_full;

	do {
		bool gathers = !t->in_body && t->gathered > 0;
		char *p = gathers ? t->gather : t->wire->scratch;
		size_t room = gathers ? GATHER_BYTES - t->gathered : READ_BYTES;
		size_t before = gathers ? t->gathered : 0;
		enum wire_end end;
		ssize_t n;

		assert(room > 0); /* the scanner refuses sooner */
		n = stream_read(&t->conn->stream, p + before, room);
		if (n == ERR_AGAIN)
			return;
		if (n <= 0) {
			end_of_stream(t, n == ERR_CLOSED);
			return;
		}
		t->got_byte = true;
		end = take_bytes(t, p, before + (size_t)n);
		if (end != WIRE_OK || (t->in_body && t->is_last)) {
			t->may_keep = t->may_keep && t->sent == t->head.n + t->body.n;
			finish(t, end);
			return;
		}
		is_full = (size_t)n == room;
	} while (is_full);
}

/* ---- the wire ---- */

struct wire *wire_new(struct loop *l, struct addr_list *addrs, uint64_t timeout_ms,
	bool new_connections)
{
	struct wire *w = xcalloc(1, sizeof(*w));

	w->loop = l;
	w->addrs = addr_list_ref(addrs);
	w->timeout_ms = timeout_ms;
	w->new_connections = new_connections;
	TAILQ_INIT(&w->idle);
	return w;
}

void wire_free(struct wire *w)
{
	if (w == NULL)
		return;
	assert(w->n_trips == 0);
	while (!TAILQ_EMPTY(&w->idle))
		close_idle(TAILQ_FIRST(&w->idle));
	addr_list_unref(w->addrs);
	free(w);
}

struct wire_counts wire_counts(const struct wire *w)
{
	struct wire_counts counts = w->counts;
	const struct wire_conn *c;

	TAILQ_FOREACH (c, &w->idle, link) {
		counts.bytes_in += c->stream.bytes_in;
		counts.bytes_out += c->stream.bytes_out;
	}
	return counts;
}
