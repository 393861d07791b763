/*
 * The decode side of KVX/1: peers, which are connections, and their pulls. Always true: a
 * pull is in its peer's list; a peer's timer is set while it connects, or has something
 * to tell, or nothing to do; its beat timer is set while it has pulls that need one, and
 * fires within a sixth of the shortest of their leases. A freed pull whose RELEASE waits
 * for the connection stays in the list without an owner. Called by kv_handoff.c; called
 * back by the loop.
 */
#include "kvx/kvx_client.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/log.h"
#include "io/loop.h"
#include "io/sock.h"
#include "io/wheel.h"
#include "kvx/kvx_link.h"

#include <stdlib.h>

enum {
	TRIES = 2,
	IDLE_MS = 10000,    /* without a pull a connection ends */
	CREDIT_BLOCKS = 64, /* of a pull, on their way at once */
	CREDIT_BYTES = 64 << 20,
	BEATS = 6, /* heartbeats in the time of a lease */
};

enum peer_state { PEER_DOWN, PEER_CONNECTING, PEER_HELLO, PEER_READY };
/* WAITING: for its turn; ASKED: for the connection; PULLING; ENDED: on_end was called;
 * RELEASING: without an owner, for the connection. */
enum pull_state { PULL_WAITING, PULL_ASKED, PULL_PULLING, PULL_ENDED, PULL_RELEASING };

struct kvx_peer {
	LIST_ENTRY(kvx_peer) entry;
	struct kvx_client *client;
	union sock_addr addr;
	char name[SOCK_ADDR_TEXT_MAX];
	enum peer_state state;
	unsigned tries;
	int failed; /* connecting failed at once: to be told by the timer */
	struct kvx_link link;
	struct wheel_timer timer, beat;
	uint64_t beat_at_ms; /* when beat fires, while it is set */
	struct reap reap;
	uint32_t last_stream;
	char engine_id[KVX_ENGINE_ID_BYTES + 1]; /* as it said */
	TAILQ_HEAD(, kvx_pull) pulls;
};

struct kvx_pull {
	TAILQ_ENTRY(kvx_pull) link;
	struct kvx_peer *peer;
	enum pull_state state;
	const struct kvx_pull_ops *ops;
	void *arg;
	struct wheel_timer timer; /* no frame came; or, with why, what is to be told */
	enum kvx_end_why why;
	uint32_t stream;
	uint32_t skip, next, n_blocks, n_tokens;
	uint32_t credit_used; /* blocks that came since credit was given */
	uint64_t digest, lease_ms;
	unsigned reason; /* while RELEASING */
	bool was_accepted;
	unsigned char token[KVX_TOKEN_BYTES];
	char request[KVX_REQUEST_MAX + 1], engine_id[KVX_ENGINE_ID_BYTES + 1];
};

struct kvx_client {
	struct loop *loop;
	struct kvx_client_opts opts;
	LIST_HEAD(, kvx_peer) peers;
	uint64_t lost_releases;
};

const char *kvx_end_text(enum kvx_end_why why)
{
	static const char *const texts[KVX_WHY_MAX] = {
		[KVX_OK] = "done",
		[KVX_UNREACHABLE] = "the prefill worker cannot be reached",
		[KVX_BROKE] = "the connection to the prefill worker broke",
		[KVX_STALLED] = "the prefill worker sends nothing",
		[KVX_CORRUPT] = "what came is damaged",
		[KVX_INCOMPATIBLE] = "the engines do not fit together",
		[KVX_OTHER_ENGINE] = "the prefill worker is another process than the one "
				     "that has the blocks",
		[KVX_GONE] = "the lease is over",
		[KVX_REFUSED] = "the prefill worker refuses",
	};

	return texts[why];
}

static struct wheel *wheel_of(const struct kvx_peer *peer)
{
	return loop_wheel(peer->client->loop);
}

static void set_timer(struct kvx_peer *peer, struct wheel_timer *t, uint64_t ms)
{
	wheel_set(wheel_of(peer), t, clock_now_ms() + ms);
}

/* The ends of pulls */

static void pull_destroy(struct kvx_pull *p)
{
	TAILQ_REMOVE(&p->peer->pulls, p, link);
	wheel_stop(wheel_of(p->peer), &p->timer);
	free(p);
}

/* Tells its owner, who may free it. */
static void end_pull(struct kvx_pull *p, enum kvx_end_why why)
{
	assert(p->state == PULL_ASKED || p->state == PULL_PULLING);
	wheel_stop(wheel_of(p->peer), &p->timer);
	p->state = PULL_ENDED;
	p->ops->on_end(p->arg, why);
}

static void on_pull_timer(void *arg)
{
	struct kvx_pull *p = arg;
	unsigned char none;
	struct kvx_out out = {&none, 0, 0, false};

	if (p->state == PULL_PULLING)
		(void)kvx_link_send_out(&p->peer->link, KVX_CANCEL, p->stream, &out);
	end_pull(p, p->why != KVX_OK ? p->why : KVX_STALLED);
}

/* The pull cannot succeed. Its owner hears that later. */
static void end_pull_later(struct kvx_pull *p, enum kvx_end_why why)
{
	p->why = why;
	set_timer(p->peer, &p->timer, 0);
}

/* Sending */

static void send_release(struct kvx_pull *p, unsigned reason)
{
	unsigned char room[256];
	struct kvx_out out = {room, 0, sizeof(room), false};
	struct kvx_release r = {
		.request = span_str(p->request), .reason = (uint8_t)reason};

	memcpy(r.token, p->token, sizeof(r.token));
	kvx_put_release(&out, &r);
	(void)kvx_link_send_out(&p->peer->link, KVX_RELEASE, 0, &out);
}

static uint32_t credit_of(const struct kvx_client *c)
{
	uint64_t fit = (uint64_t)CREDIT_BYTES / c->opts.self->block_bytes;

	fit = MAX(fit, (uint64_t)1);
	return (uint32_t)MIN(fit, (uint64_t)CREDIT_BLOCKS);
}

static void send_pull(struct kvx_pull *p)
{
	struct kvx_peer *peer = p->peer;
	unsigned char room[256];
	struct kvx_out out = {room, 0, sizeof(room), false};
	struct kvx_pull_frame f = {.request = span_str(p->request),
		.skip = p->skip,
		.credit = credit_of(peer->client)};

	p->state = PULL_PULLING;
	p->stream = ++peer->last_stream;
	memcpy(f.token, p->token, sizeof(f.token));
	kvx_put_pull(&out, &f);
	(void)kvx_link_send_out(&peer->link, KVX_PULL, p->stream, &out);
	set_timer(peer, &p->timer, peer->client->opts.stall_ms);
}

/* One that waits for the connection, which is there: asks, or finds that it is another
 * engine's. */
static void begin_pull(struct kvx_pull *p)
{
	if (strcmp(p->engine_id, p->peer->engine_id) != 0)
		end_pull_later(p, KVX_OTHER_ENGINE);
	else
		send_pull(p);
}

static void send_beats(struct kvx_peer *peer, struct kvx_out *beats, size_t n)
{
	beats->p[0] = (unsigned char)n;
	beats->p[1] = (unsigned char)(n >> 8);
	(void)kvx_link_send_out(&peer->link, KVX_HEARTBEAT, 0, beats);
}

/* Whether it has a lease that time ends. */
static bool needs_beat(const struct kvx_pull *p)
{
	return p->state <= PULL_PULLING;
}

/* For all pulls that have blocks over there. */
static void send_heartbeat(struct kvx_peer *peer)
{
	unsigned char
		room[2 + KVX_HEARTBEAT_MAX * (2 + KVX_REQUEST_MAX + KVX_TOKEN_BYTES)];
	struct kvx_out out = {room, 2, sizeof(room), false};
	const struct kvx_pull *p;
	size_t n = 0;

	TAILQ_FOREACH (p, &peer->pulls, link) {
		struct kvx_beat beat = {.request = span_str(p->request)};

		if (!needs_beat(p) || strcmp(p->engine_id, peer->engine_id) != 0)
			continue;
		memcpy(beat.token, p->token, sizeof(beat.token));
		kvx_put_beat(&out, &beat);
		if (++n < KVX_HEARTBEAT_MAX)
			continue;
		send_beats(peer, &out, n);
		out.n = 2;
		n = 0;
	}
	if (n > 0)
		send_beats(peer, &out, n);
}

/* The next heartbeat comes in time for a lease of lease_ms. */
static void beat_for(struct kvx_peer *peer, uint64_t lease_ms)
{
	uint64_t at_ms = clock_now_ms() + MAX(lease_ms / BEATS, (uint64_t)1);

	if (wheel_is_set(&peer->beat) && peer->beat_at_ms <= at_ms)
		return;
	peer->beat_at_ms = at_ms;
	wheel_set(wheel_of(peer), &peer->beat, at_ms);
}

static void send_hello(struct kvx_peer *peer)
{
	unsigned char room[256];
	struct kvx_out out = {room, 0, sizeof(room), false};

	kvx_put_hello(&out, peer->client->opts.self);
	(void)kvx_link_send_out(&peer->link, KVX_HELLO, 0, &out);
}

/* Peers */

static void peer_destroy(struct reap *r)
{
	struct kvx_peer *peer = container_of(r, struct kvx_peer, reap);

	kvx_link_free(&peer->link);
	free(peer);
}

static void peer_free(struct kvx_peer *peer)
{
	struct kvx_pull *p;

	while ((p = TAILQ_FIRST(&peer->pulls)) != NULL) {
		assert(p->state == PULL_RELEASING);
		peer->client->lost_releases++;
		pull_destroy(p);
	}
	kvx_link_close(&peer->link);
	wheel_stop(wheel_of(peer), &peer->timer);
	wheel_stop(wheel_of(peer), &peer->beat);
	LIST_REMOVE(peer, entry);
	loop_reap(peer->client->loop, &peer->reap, peer_destroy);
}

static void peer_connect(struct kvx_peer *peer)
{
	int err = kvx_link_connect(&peer->link, &peer->addr);

	peer->state = PEER_CONNECTING;
	peer->tries++;
	peer->failed = err;
	set_timer(peer, &peer->timer, err != 0 ? 0 : peer->client->opts.connect_ms);
}

static struct kvx_pull *first_asked(const struct kvx_peer *peer)
{
	struct kvx_pull *p;

	TAILQ_FOREACH (p, &peer->pulls, link) {
		if (p->state == PULL_ASKED || p->state == PULL_PULLING)
			return p;
	}
	return NULL;
}

static void drop_releasing(struct kvx_peer *peer)
{
	struct kvx_pull *p, *next;

	TAILQ_FOREACH_SAFE(p, &peer->pulls, link, next)
	{
		if (p->state != PULL_RELEASING)
			continue;
		peer->client->lost_releases++;
		pull_destroy(p);
	}
}

/* The connection is gone. Pulls that use it end. Pulls that wait for their turn stay, and
 * the next heartbeat connects again. */
static void peer_fail(struct kvx_peer *peer, enum kvx_end_why why)
{
	struct kvx_pull *p;

	kvx_link_close(&peer->link);
	peer->state = PEER_DOWN;
	peer->tries = 0;
	set_timer(peer, &peer->timer, IDLE_MS);
	drop_releasing(peer);
	while ((p = first_asked(peer)) != NULL)
		end_pull(p, why);
}

static enum kvx_end_why why_of(int err, bool was_ready)
{
	if (err == ERR_PARSE || err == ERR_LIMIT)
		return KVX_CORRUPT;
	return was_ready ? KVX_BROKE : KVX_UNREACHABLE;
}

/* The connection broke or was not made: tries once more, or fails. */
static void peer_down(struct kvx_peer *peer, int err)
{
	bool was_ready = peer->state == PEER_READY;

	kvx_link_close(&peer->link);
	if (!was_ready && peer->tries < TRIES) {
		peer_connect(peer);
		return;
	}
	if (first_asked(peer) != NULL || !was_ready)
		log_warn("kvx: %s: %s", peer->name, kvx_end_text(why_of(err, was_ready)));
	peer_fail(peer, why_of(err, was_ready));
}

static void on_down(void *arg, int err)
{
	peer_down(arg, err);
}

/* Connecting took too long or failed at once, or the peer is idle. */
static void on_peer_timer(void *arg)
{
	struct kvx_peer *peer = arg;

	if (peer->state == PEER_CONNECTING || peer->state == PEER_HELLO)
		peer_down(peer, peer->failed != 0 ? peer->failed : ERR_TIMEOUT);
	else if (TAILQ_EMPTY(&peer->pulls))
		peer_free(peer);
	else
		set_timer(peer, &peer->timer, IDLE_MS);
}

static void on_beat(void *arg)
{
	struct kvx_peer *peer = arg;
	const struct kvx_pull *p;

	TAILQ_FOREACH (p, &peer->pulls, link) {
		if (needs_beat(p))
			beat_for(peer, p->lease_ms);
	}
	if (!wheel_is_set(&peer->beat))
		return;
	if (peer->state == PEER_READY)
		send_heartbeat(peer);
	else if (peer->state == PEER_DOWN)
		peer_connect(peer);
}

static void on_up(void *arg)
{
	struct kvx_peer *peer = arg;

	peer->state = PEER_HELLO; /* with what is left of the time */
	send_hello(peer);
}

/* All that waited for the connection. */
static void peer_ready(struct kvx_peer *peer)
{
	struct kvx_pull *p, *next;

	peer->state = PEER_READY;
	peer->tries = 0;
	set_timer(peer, &peer->timer, IDLE_MS);
	TAILQ_FOREACH_SAFE(p, &peer->pulls, link, next)
	{
		if (p->state == PULL_ASKED) {
			begin_pull(p);
		} else if (p->state == PULL_RELEASING) {
			send_release(p, p->reason);
			pull_destroy(p);
		}
	}
	send_heartbeat(peer);
}

static bool on_hello_ok(struct kvx_peer *peer, struct span payload)
{
	const struct kvx_hello *self = peer->client->opts.self;
	struct kvx_hello h;

	if (peer->state != PEER_HELLO || kvx_get_hello(payload, &h) != 0)
		return false;
	memcpy(peer->engine_id, h.engine_id, sizeof(peer->engine_id));
	if (h.version != self->version || h.block_bytes != self->block_bytes ||
		memcmp(h.compat, self->compat, sizeof(h.compat)) != 0)
		peer_fail(peer, KVX_INCOMPATIBLE);
	else
		peer_ready(peer);
	return true;
}

/* Frames of pulls */

static struct kvx_pull *find_pull(const struct kvx_peer *peer, uint32_t stream)
{
	struct kvx_pull *p;

	TAILQ_FOREACH (p, &peer->pulls, link) {
		if (p->state == PULL_PULLING && p->stream == stream)
			return p;
	}
	return NULL; /* it was cancelled */
}

static void on_pull_ok(struct kvx_pull *p, struct span payload)
{
	struct kvx_pull_ok ok;

	if (kvx_get_pull_ok(payload, &ok) != 0 || p->was_accepted ||
		ok.blocks != p->n_blocks - p->skip || ok.tokens != p->n_tokens)
		end_pull(p, KVX_CORRUPT);
	else
		p->was_accepted = true;
}

static void give_credit(struct kvx_pull *p)
{
	unsigned char room[8];
	struct kvx_out out = {room, 0, sizeof(room), false};

	if (++p->credit_used < MAX(credit_of(p->peer->client) / 2, 1u) ||
		p->next == p->n_blocks)
		return;
	kvx_put_credit(&out, p->credit_used);
	p->credit_used = 0;
	(void)kvx_link_send_out(&p->peer->link, KVX_CREDIT, p->stream, &out);
}

static void on_block(struct kvx_pull *p, struct span payload)
{
	const struct kvx_hello *self = p->peer->client->opts.self;
	struct kvx_block_head head;
	struct span block;

	if (!p->was_accepted || kvx_get_block(payload, &head, &block) != 0 ||
		block.n != self->block_bytes || head.index != p->next ||
		p->next == p->n_blocks ||
		head.tokens != MIN(p->n_tokens - p->next * self->block_tokens,
				       (uint32_t)self->block_tokens) ||
		!p->ops->on_block(p->arg, head.index, block)) {
		end_pull(p, KVX_CORRUPT);
		return;
	}
	p->digest = hash64(block.p, block.n, p->digest);
	p->next++;
	give_credit(p);
}

static void on_end(struct kvx_pull *p, struct span payload)
{
	struct kvx_end end;

	if (kvx_get_end(payload, &end) != 0 || p->next != p->n_blocks ||
		end.blocks != p->n_blocks - p->skip || end.digest != p->digest)
		end_pull(p, KVX_CORRUPT);
	else
		end_pull(p, KVX_OK);
}

static enum kvx_end_why why_of_code(enum kvx_code code)
{
	switch (code) {
	case KVX_E_COMPAT:
		return KVX_INCOMPATIBLE;
	case KVX_E_WRONG_ENGINE:
		return KVX_OTHER_ENGINE;
	case KVX_E_LEASE_GONE:
		return KVX_GONE;
	default:
		return KVX_REFUSED;
	}
}

static bool on_err(struct kvx_peer *peer, uint32_t stream, struct span payload)
{
	struct kvx_pull *p = find_pull(peer, stream);
	enum kvx_code code;
	struct span text;

	if (kvx_get_err(payload, &code, &text) != 0)
		return false;
	if (stream == 0) {
		log_warn("kvx: %s says: " SPAN_FMT, peer->name, SPAN_ARG(text));
		peer_fail(peer, why_of_code(code));
	} else if (p != NULL) {
		end_pull(p, why_of_code(code));
	}
	return true;
}

/* A lease that is gone is told when it is pulled. */
static bool on_heartbeat_ok(struct kvx_peer *peer, struct span payload)
{
	uint32_t ms_left[KVX_HEARTBEAT_MAX];
	size_t n;

	return peer->state == PEER_READY &&
	       kvx_get_heartbeat_ok(payload, ms_left, &n) == 0;
}

/* False: it is not expected. */
static bool take_frame(
	struct kvx_peer *peer, const struct kvx_header *h, struct span payload)
{
	struct kvx_pull *p = find_pull(peer, h->stream);

	if (p != NULL && peer->state == PEER_READY)
		set_timer(peer, &p->timer, peer->client->opts.stall_ms);
	switch (h->type) {
	case KVX_HELLO_OK:
		return on_hello_ok(peer, payload);
	case KVX_ERR:
		return on_err(peer, h->stream, payload);
	case KVX_PING:
		kvx_link_answer_ping(&peer->link, h);
		return true;
	case KVX_HEARTBEAT_OK:
		return on_heartbeat_ok(peer, payload);
	case KVX_PULL_OK:
	case KVX_BLOCK:
	case KVX_END:
	case KVX_PONG:
		break;
	default:
		return false;
	}
	if (peer->state != PEER_READY)
		return false;
	if (p != NULL && h->type == KVX_PULL_OK)
		on_pull_ok(p, payload);
	else if (p != NULL && h->type == KVX_BLOCK)
		on_block(p, payload);
	else if (p != NULL && h->type == KVX_END)
		on_end(p, payload);
	return true;
}

static void on_frame(void *arg, const struct kvx_header *h, struct span payload)
{
	struct kvx_peer *peer = arg;

	if (!take_frame(peer, h, payload))
		peer_fail(peer, KVX_CORRUPT);
}

static bool is_same(const union sock_addr *a, const union sock_addr *b)
{
	return a->sa.sa_family == b->sa.sa_family && memcmp(a, b, sock_addr_len(a)) == 0;
}

static struct kvx_peer *peer_new(struct kvx_client *c, const union sock_addr *addr)
{
	static const struct kvx_link_ops ops = {
		.on_up = on_up, .on_frame = on_frame, .on_down = on_down};
	struct kvx_peer *peer = calloc(1, sizeof(*peer));
	uint64_t max =
		MAX(c->opts.self->block_bytes + KVX_BLOCK_HEAD, (uint64_t)KVX_SMALL_MAX);

	if (peer == NULL)
		return NULL;
	peer->client = c;
	peer->addr = *addr;
	(void)sock_addr_text(addr, true, peer->name, sizeof(peer->name));
	TAILQ_INIT(&peer->pulls);
	kvx_link_init(&peer->link, c->loop, (uint32_t)max, &ops, peer);
	wheel_timer_init(&peer->timer, on_peer_timer, peer);
	wheel_timer_init(&peer->beat, on_beat, peer);
	LIST_INSERT_HEAD(&c->peers, peer, entry);
	set_timer(peer, &peer->timer, IDLE_MS);
	return peer;
}

static struct kvx_peer *peer_for(struct kvx_client *c, const union sock_addr *addr)
{
	struct kvx_peer *peer;

	LIST_FOREACH (peer, &c->peers, entry) {
		if (is_same(&peer->addr, addr))
			return peer;
	}
	return peer_new(c, addr);
}

/* The outside */

struct kvx_client *kvx_client_new(struct loop *l, const struct kvx_client_opts *opts)
{
	struct kvx_client *c = calloc(1, sizeof(*c));

	if (c == NULL)
		return NULL;
	c->loop = l;
	c->opts = *opts;
	LIST_INIT(&c->peers);
	return c;
}

void kvx_client_cut(struct kvx_client *c)
{
	struct kvx_peer *peer;

	while ((peer = LIST_FIRST(&c->peers)) != NULL)
		peer_free(peer);
	c->lost_releases = 0;
}

void kvx_client_free(struct kvx_client *c)
{
	if (c == NULL)
		return;
	kvx_client_cut(c);
	free(c);
}

uint64_t kvx_client_lost_releases(const struct kvx_client *c)
{
	return c->lost_releases;
}

static void copy_text(char *to, struct span from, size_t max)
{
	assert(from.n <= max);
	if (from.n > 0)
		memcpy(to, from.p, from.n);
	to[from.n] = '\0';
}

struct kvx_pull *kvx_pull_new(struct kvx_client *c, const struct kvx_source *source,
	const struct kvx_pull_ops *ops, void *arg)
{
	struct kvx_peer *peer = peer_for(c, source->addr);
	struct kvx_pull *p = peer != NULL ? calloc(1, sizeof(*p)) : NULL;

	if (p == NULL)
		return NULL; /* an idle peer goes by itself */
	p->peer = peer;
	p->ops = ops;
	p->arg = arg;
	p->lease_ms = source->lease_ms;
	memcpy(p->token, source->token, sizeof(p->token));
	copy_text(p->request, source->request, KVX_REQUEST_MAX);
	copy_text(p->engine_id, source->engine_id, KVX_ENGINE_ID_BYTES);
	wheel_timer_init(&p->timer, on_pull_timer, p);
	TAILQ_INSERT_TAIL(&peer->pulls, p, link);
	if (peer->state == PEER_DOWN)
		peer_connect(peer);
	beat_for(peer, p->lease_ms);
	return p;
}

void kvx_pull_start(
	struct kvx_pull *p, uint32_t skip, uint32_t n_blocks, uint32_t n_tokens)
{
	assert(p->state == PULL_WAITING && skip < n_blocks);
	p->state = PULL_ASKED;
	p->skip = p->next = skip;
	p->n_blocks = n_blocks;
	p->n_tokens = n_tokens;
	if (p->peer->state == PEER_READY)
		begin_pull(p);
	else if (p->peer->state == PEER_DOWN)
		peer_connect(p->peer);
}

void kvx_pull_free(struct kvx_pull *p, unsigned reason)
{
	unsigned char none;
	struct kvx_out out = {&none, 0, 0, false};
	bool is_ready;

	if (p == NULL)
		return;
	is_ready = p->peer->state == PEER_READY;
	if (p->state == PULL_PULLING)
		(void)kvx_link_send_out(&p->peer->link, KVX_CANCEL, p->stream, &out);
	wheel_stop(wheel_of(p->peer), &p->timer);
	if (reason != 0 && !is_ready && p->peer->state != PEER_DOWN) {
		p->reason = reason;
		p->state = PULL_RELEASING;
		p->ops = NULL;
		return;
	}
	if (reason != 0 && is_ready)
		send_release(p, reason);
	else if (reason != 0)
		p->peer->client->lost_releases++;
	pull_destroy(p);
}
