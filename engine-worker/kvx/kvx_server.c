/*
 * The prefill side of KVX/1. Nothing here holds a block: a pull knows its lease by id,
 * and looks it up each time it is about to send. Always true: a pull in a connection's
 * list has blocks to send, and is sent from as far as there is credit and room in the
 * queue; a connection has a deadline: for its HELLO, for its end after an ERR, else for
 * its next frame. Called by kv_handoff.c; called back by the loop.
 */
#include "kvx/kvx_server.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/log.h"
#include "io/accepter.h"
#include "io/loop.h"
#include "io/sock.h"
#include "io/wheel.h"
#include "kvx/kvx_link.h"

#include <stdlib.h>
#include <unistd.h>

enum {
	CONNECTIONS_MAX = 256,
	PULLS_MAX = 1024,            /* of a connection */
	CREDIT_MAX = 1024,           /* blocks of a pull that may be asked for ahead */
	CREDIT_BYTES_MAX = 64 << 20, /* and their bytes */
	HELLO_TIMEOUT_MS = 5000,
	IDLE_TIMEOUT_MS = 120000,
	LINGER_MS = 1000,
};

struct pull {
	TAILQ_ENTRY(pull) link;
	uint32_t stream, first, next, end, credit;
	uint64_t digest;
	char id[KVX_REQUEST_MAX + 1];
};

struct kvx_conn {
	LIST_ENTRY(kvx_conn) entry;
	struct kvx_server *server;
	struct kvx_link link;
	struct wheel_timer timer;
	struct reap reap;
	TAILQ_HEAD(, pull) pulls;
	unsigned n_pulls;
	bool said_hello, is_ending, is_full;
	char peer[SOCK_ADDR_TEXT_MAX];
};

struct kvx_server {
	struct loop *loop;
	struct kvx_server_opts opts;
	struct accepter *accepter;
	LIST_HEAD(, kvx_conn) conns;
	unsigned n_conns;
	struct kvx_server_counts counts;
	unsigned char *block; /* room for one */
};

/* The end of a connection */

static void conn_destroy(struct reap *r)
{
	struct kvx_conn *c = container_of(r, struct kvx_conn, reap);

	kvx_link_free(&c->link);
	free(c);
}

static void pull_free(struct kvx_conn *c, struct pull *p)
{
	TAILQ_REMOVE(&c->pulls, p, link);
	c->n_pulls--;
	free(p);
}

static void conn_close(struct kvx_conn *c)
{
	struct pull *p;

	while ((p = TAILQ_FIRST(&c->pulls)) != NULL)
		pull_free(c, p);
	kvx_link_close(&c->link);
	wheel_stop(loop_wheel(c->server->loop), &c->timer);
	LIST_REMOVE(c, entry);
	c->server->n_conns--;
	accepter_has_place(c->server->accepter);
	loop_reap(c->server->loop, &c->reap, conn_destroy);
}

static void set_deadline(struct kvx_conn *c, uint64_t ms)
{
	wheel_set(loop_wheel(c->server->loop), &c->timer, clock_now_ms() + ms);
}

static void on_deadline(void *arg)
{
	conn_close(arg);
}

static void on_down(void *arg, int err)
{
	struct kvx_conn *c = arg;

	if (err == ERR_PARSE || err == ERR_LIMIT)
		log_warn("kvx: %s sent a damaged frame", c->peer);
	conn_close(c);
}

/* Errors */

static void send_err(struct kvx_conn *c, uint32_t stream, enum kvx_code code)
{
	unsigned char room[256];
	struct kvx_out out = {room, 0, sizeof(room), false};

	c->server->counts.refused++;
	kvx_put_err(&out, code, kvx_code_text(code));
	(void)kvx_link_send_out(&c->link, KVX_ERR, stream, &out);
}

/* Says why, and ends the connection: the peer closes it, or time does. */
static void end_conn(struct kvx_conn *c, enum kvx_code code)
{
	log_warn("kvx: %s: %s", c->peer, kvx_code_text(code));
	send_err(c, 0, code);
	c->is_ending = true;
	stream_shutdown_write(&c->link.stream);
	set_deadline(c, LINGER_MS);
}

/* Blocks */

/* Sends the next block; false: it cannot be had. */
static bool send_block(struct kvx_conn *c, struct pull *p, const struct lease *lease)
{
	struct kvx_server *s = c->server;
	size_t n = s->opts.self->block_bytes;
	uint32_t before = p->next * s->opts.self->block_tokens;
	struct kvx_block_head head = {
		p->next, (uint16_t)MIN(lease->n_tokens - before,
				 (uint32_t)s->opts.self->block_tokens)};
	unsigned char room[KVX_BLOCK_HEAD];
	struct kvx_out out = {room, 0, sizeof(room), false};

	if (s->opts.read(s->opts.arg, lease, p->next, s->block) != 0)
		return false;
	p->digest = hash64(s->block, n, p->digest);
	kvx_put_block_head(&out, &head);
	c->is_full = kvx_link_send(&c->link, KVX_BLOCK, p->stream,
		span_make((const char *)room, out.n),
		span_make((const char *)s->block, n));
	s->counts.blocks++;
	s->counts.bytes += n;
	p->next++;
	p->credit--;
	return true;
}

static void send_end(struct kvx_conn *c, const struct pull *p)
{
	unsigned char room[16];
	struct kvx_out out = {room, 0, sizeof(room), false};
	struct kvx_end end = {p->end - p->first, p->digest};

	kvx_put_end(&out, &end);
	(void)kvx_link_send_out(&c->link, KVX_END, p->stream, &out);
}

/* Sends what may be sent of a pull; it is freed when it is done, or cannot be. */
static void serve_pull(struct kvx_conn *c, struct pull *p)
{
	const struct lease *lease = lease_find(c->server->opts.leases, span_str(p->id));

	if (lease == NULL) {
		send_err(c, p->stream, KVX_E_LEASE_GONE);
		pull_free(c, p);
		return;
	}
	while (p->next < p->end && p->credit > 0 && !c->is_full) {
		if (!send_block(c, p, lease)) {
			send_err(c, p->stream, KVX_E_INTERNAL);
			pull_free(c, p);
			return;
		}
	}
	if (p->next < p->end)
		return;
	send_end(c, p);
	pull_free(c, p);
}

static void serve_pulls(struct kvx_conn *c)
{
	struct pull *p, *next;

	TAILQ_FOREACH_SAFE(p, &c->pulls, link, next)
	{
		if (c->is_full)
			return;
		if (p->credit > 0)
			serve_pull(c, p);
	}
}

static void on_writable(void *arg)
{
	struct kvx_conn *c = arg;

	c->is_full = false;
	serve_pulls(c);
}

/* Frames */

static struct pull *find_pull(const struct kvx_conn *c, uint32_t stream)
{
	struct pull *p;

	TAILQ_FOREACH (p, &c->pulls, link) {
		if (p->stream == stream)
			return p;
	}
	return NULL;
}

static void on_hello(struct kvx_conn *c, struct span payload)
{
	const struct kvx_hello *self = c->server->opts.self;
	unsigned char room[256];
	struct kvx_out out = {room, 0, sizeof(room), false};
	struct kvx_hello peer;

	if (kvx_get_hello(payload, &peer) != 0) {
		end_conn(c, KVX_E_PROTOCOL);
		return;
	}
	if (peer.version != self->version || peer.block_bytes != self->block_bytes ||
		peer.block_tokens != self->block_tokens ||
		(peer.caps & KVX_CAP_TCP) == 0 ||
		memcmp(peer.compat, self->compat, sizeof(peer.compat)) != 0) {
		end_conn(c, KVX_E_COMPAT);
		return;
	}
	c->said_hello = true;
	kvx_put_hello(&out, self);
	(void)kvx_link_send_out(&c->link, KVX_HELLO_OK, 0, &out);
}

/* The error code that refuses the pull; 0: none does. */
static unsigned refuse_pull(struct kvx_conn *c, uint32_t stream,
	const struct kvx_pull_frame *f, const struct lease *lease)
{
	if (stream == 0 || find_pull(c, stream) != NULL || f->request.n > KVX_REQUEST_MAX)
		return KVX_E_PROTOCOL;
	if (!lease_token_is_ours(c->server->opts.leases, f->request, f->token))
		return KVX_E_WRONG_ENGINE;
	if (lease == NULL)
		return KVX_E_LEASE_GONE;
	if (f->skip > lease->n_blocks)
		return KVX_E_PROTOCOL;
	return c->n_pulls >= PULLS_MAX ? KVX_E_LIMIT : 0;
}

static uint32_t credit_max(const struct kvx_server *s)
{
	uint64_t fit = (uint64_t)CREDIT_BYTES_MAX / s->opts.self->block_bytes;

	fit = MAX(fit, (uint64_t)1);
	return (uint32_t)MIN(fit, (uint64_t)CREDIT_MAX);
}

static void open_pull(struct kvx_conn *c, uint32_t stream, const struct kvx_pull_frame *f,
	const struct lease *lease)
{
	unsigned char room[32];
	struct kvx_out out = {room, 0, sizeof(room), false};
	struct pull *p = calloc(1, sizeof(*p));
	uint64_t left_ms = lease_renew(c->server->opts.leases, lease, clock_now_ms());
	struct kvx_pull_ok ok = {
		lease->n_blocks - f->skip, lease->n_tokens, (uint32_t)left_ms, 0};

	if (p == NULL) {
		send_err(c, stream, KVX_E_LIMIT);
		return;
	}
	c->server->opts.on_leases(c->server->opts.arg);
	memcpy(p->id, f->request.p, f->request.n);
	p->stream = stream;
	p->first = p->next = f->skip;
	p->end = lease->n_blocks;
	p->credit = MIN(f->credit, credit_max(c->server));
	TAILQ_INSERT_TAIL(&c->pulls, p, link);
	c->n_pulls++;
	c->server->counts.pulls++;
	kvx_put_pull_ok(&out, &ok);
	c->is_full |= kvx_link_send_out(&c->link, KVX_PULL_OK, stream, &out);
	serve_pull(c, p);
}

static bool on_pull(struct kvx_conn *c, uint32_t stream, struct span payload)
{
	struct kvx_pull_frame f;
	const struct lease *lease;
	unsigned why;

	if (kvx_get_pull(payload, &f) != 0)
		return false;
	lease = lease_find(c->server->opts.leases, f.request);
	why = refuse_pull(c, stream, &f, lease);
	if (why == KVX_E_PROTOCOL)
		return false;
	if (why != 0)
		send_err(c, stream, (enum kvx_code)why);
	else
		open_pull(c, stream, &f, lease);
	return true;
}

static bool on_credit(struct kvx_conn *c, uint32_t stream, struct span payload)
{
	struct pull *p = find_pull(c, stream);
	uint32_t n, most = credit_max(c->server);

	if (kvx_get_credit(payload, &n) != 0)
		return false;
	if (p == NULL)
		return true; /* it has just ended */
	p->credit = n > most - MIN(p->credit, most) ? most : p->credit + n;
	if (!c->is_full)
		serve_pull(c, p);
	return true;
}

static bool on_release(struct kvx_conn *c, struct span payload)
{
	struct leases *leases = c->server->opts.leases;
	struct kvx_release r;
	const struct lease *lease;

	if (kvx_get_release(payload, &r) != 0)
		return false;
	lease = lease_find(leases, r.request);
	if (lease == NULL || !lease_token_is_ours(leases, r.request, r.token))
		return true; /* it is gone already, or not theirs */
	log_debug("kvx: %s released %s, reason %u", c->peer, lease->id, r.reason);
	lease_end(leases, lease);
	c->server->opts.on_leases(c->server->opts.arg);
	return true;
}

/* Returns how long the lease has; 0: it is gone, or its token is another one. */
static uint32_t renew(struct leases *leases, const struct kvx_beat *beat)
{
	const struct lease *lease = lease_find(leases, beat->request);

	if (lease == NULL || !lease_token_is_ours(leases, beat->request, beat->token))
		return 0;
	return (uint32_t)lease_renew(leases, lease, clock_now_ms());
}

static bool on_heartbeat(struct kvx_conn *c, struct span payload)
{
	unsigned char room[2 + 4 * KVX_HEARTBEAT_MAX];
	struct kvx_out out = {room, 0, sizeof(room), false};
	struct kvx_beat beats[KVX_HEARTBEAT_MAX];
	size_t n;

	if (kvx_get_heartbeat(payload, beats, &n) != 0)
		return false;
	kvx_put_u16(&out, (uint16_t)n);
	for (size_t i = 0; i < n; i++)
		kvx_put_u32(&out, renew(c->server->opts.leases, &beats[i]));
	c->server->opts.on_leases(c->server->opts.arg);
	(void)kvx_link_send_out(&c->link, KVX_HEARTBEAT_OK, 0, &out);
	return true;
}

static bool on_cancel(struct kvx_conn *c, uint32_t stream)
{
	struct pull *p = find_pull(c, stream);

	if (p != NULL)
		pull_free(c, p);
	return true;
}

/* False: it is not expected. */
static bool take_frame(
	struct kvx_conn *c, const struct kvx_header *h, struct span payload)
{
	switch (h->type) {
	case KVX_PULL:
		return on_pull(c, h->stream, payload);
	case KVX_CREDIT:
		return on_credit(c, h->stream, payload);
	case KVX_RELEASE:
		return on_release(c, payload);
	case KVX_HEARTBEAT:
		return on_heartbeat(c, payload);
	case KVX_CANCEL:
		return on_cancel(c, h->stream);
	case KVX_PING:
		kvx_link_answer_ping(&c->link, h);
		return true;
	default:
		return false;
	}
}

static void on_frame(void *arg, const struct kvx_header *h, struct span payload)
{
	struct kvx_conn *c = arg;

	if (c->is_ending)
		return;
	if (c->said_hello)
		set_deadline(c, IDLE_TIMEOUT_MS);
	if (!c->said_hello && h->type == KVX_HELLO)
		on_hello(c, payload);
	else if (!c->said_hello || !take_frame(c, h, payload))
		end_conn(c, KVX_E_PROTOCOL);
}

/* The listener */

static bool is_peer(const struct kvx_server *s, const union sock_addr *a)
{
	struct ip ip = sock_addr_ip(a);

	for (size_t i = 0; i < s->opts.n_peers; i++) {
		if (ip_net_has(&s->opts.peers[i], &ip))
			return true;
	}
	return false;
}

static int conn_new(struct kvx_server *s, int fd, const union sock_addr *peer)
{
	static const struct kvx_link_ops ops = {
		.on_frame = on_frame, .on_writable = on_writable, .on_down = on_down};
	struct kvx_conn *c = calloc(1, sizeof(*c));

	if (c == NULL) {
		close(fd);
		return ERR_NOMEM;
	}
	c->server = s;
	TAILQ_INIT(&c->pulls);
	(void)sock_addr_text(peer, true, c->peer, sizeof(c->peer));
	kvx_link_init(&c->link, s->loop, KVX_SMALL_MAX, &ops, c);
	wheel_timer_init(&c->timer, on_deadline, c);
	if (kvx_link_open(&c->link, fd) != 0) {
		free(c);
		return ERR_NOMEM;
	}
	LIST_INSERT_HEAD(&s->conns, c, entry);
	s->n_conns++;
	set_deadline(c, HELLO_TIMEOUT_MS);
	return 0;
}

static int on_conn(void *arg, int fd, const union sock_addr *peer)
{
	struct kvx_server *s = arg;

	if (is_peer(s, peer))
		return conn_new(s, fd, peer);
	s->counts.refused++;
	sock_abort_on_close(fd);
	close(fd);
	return 0;
}

static bool has_place(void *arg)
{
	const struct kvx_server *s = arg;

	return s->n_conns < CONNECTIONS_MAX;
}

static const struct accepter_ops accepter_ops = {
	.on_conn = on_conn,
	.take_place = has_place,
	.limit = "its limit of connections",
};

struct kvx_server *kvx_server_new(
	struct loop *l, int listen_fd, const struct kvx_server_opts *opts)
{
	struct kvx_server *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->loop = l;
	s->opts = *opts;
	LIST_INIT(&s->conns);
	s->block = malloc(opts->self->block_bytes);
	if (s->block != NULL)
		s->accepter = accepter_new(l, listen_fd, &accepter_ops, s);
	if (s->accepter == NULL) {
		free(s->block);
		free(s);
		return NULL;
	}
	return s;
}

void kvx_server_cut(struct kvx_server *s)
{
	struct kvx_conn *c;

	while ((c = LIST_FIRST(&s->conns)) != NULL) {
		stream_abort(&c->link.stream);
		conn_close(c);
	}
	s->counts = (struct kvx_server_counts){0};
}

const struct kvx_server_counts *kvx_server_counts(const struct kvx_server *s)
{
	return &s->counts;
}

void kvx_server_free(struct kvx_server *s)
{
	if (s == NULL)
		return;
	kvx_server_cut(s);
	accepter_free(s->accepter);
	free(s->block);
	free(s);
}
