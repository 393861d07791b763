/*
 * The hand-off of prompts, both sides. A lease holds a scheduler's pin; a load feeds a
 * sequence that is in the scheduler's state of loading. Always true: the lease timer is
 * set to the end of the next lease, or earlier; a load that has started and not ended has
 * a pull that runs, or its own timer set to tell why there is none. Called by serve.c and
 * completion.c; called back by kvx_server.c and kvx_client.c.
 */
#include "kvx/kv_handoff.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/log.h"
#include "core/engine.h"
#include "core/histograms.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/wheel.h"
#include "kvx/kvx_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct handoff {
	struct loop *loop;
	struct engine *engine;
	struct handoff_opts opts;
	const char *engine_id;
	struct engine_histograms *histograms;
	struct kvx_hello self;
	char group[17], host[SOCK_ADDR_TEXT_MAX];
	uint16_t port;
	int listen_fd; /* until the server has it; -1: there is none */
	struct leases *leases;
	struct kvx_server *server;
	struct kvx_client *client;
	struct wheel_timer timer; /* of leases */
	uint64_t failed, recomputed;
};

struct kv_load {
	struct handoff *handoff;
	struct kvx_pull *pull; /* NULL: there is none, or it has ended */
	struct sched_seq *seq; /* while it loads */
	const struct kv_load_ops *ops;
	void *arg;
	struct wheel_timer timer; /* tells that there is no pull */
	uint64_t begun_us;
	size_t n_blocks; /* to load */
	char request[KVX_REQUEST_MAX + 1], peer[SOCK_ADDR_TEXT_MAX];
};

const char *role_text(enum engine_role role)
{
	static const char *const texts[] = {"unified", "prefill", "decode"};

	return texts[role];
}

/* Leases */

static void set_lease_timer(void *arg)
{
	struct handoff *h = arg;
	uint64_t wake_ms = leases_wake_ms(h->leases);

	if (wake_ms == UINT64_MAX)
		wheel_stop(loop_wheel(h->loop), &h->timer);
	else
		wheel_set(loop_wheel(h->loop), &h->timer, wake_ms);
}

static void on_lease_timer(void *arg)
{
	struct handoff *h = arg;
	size_t n = leases_expire(h->leases, clock_now_ms());

	if (n > 0)
		log_warn("%zu leases of KV blocks are over: nobody took them in time", n);
	set_lease_timer(h);
}

static void drop_pin(void *arg UNUSED, void *held)
{
	sched_unpin(held);
}

static int read_block(void *arg UNUSED, const struct lease *lease, uint32_t i, void *dst)
{
	return sched_read_pin(lease->held, i, dst);
}

static uint32_t blocks_of(const struct handoff *h, size_t n_tokens)
{
	uint32_t tokens = h->self.block_tokens;

	return (uint32_t)((n_tokens + tokens - 1) / tokens);
}

bool handoff_reserve(struct handoff *h, size_t n_tokens)
{
	return leases_reserve(h->leases, blocks_of(h, n_tokens));
}

void handoff_unreserve(struct handoff *h, size_t n_tokens)
{
	leases_unreserve(h->leases, blocks_of(h, n_tokens));
}

static struct js *block_ids(const struct sched_pin *pin)
{
	struct js *groups = js_array(), *ids = js_array();

	for (size_t i = 0; i < pin->n_blocks; i++)
		js_push(ids, js_int(pin->blocks[i]));
	js_push(groups, ids);
	return groups;
}

static struct js *offer_json(const struct handoff *h, const struct lease *lease,
	const struct sched_pin *pin, size_t cached)
{
	struct js *o = js_object();
	char token[2 * KVX_TOKEN_BYTES + 1];

	kv_token_text(lease->token, token);
	js_set_bool(o, "do_remote_prefill", true);
	js_set_bool(o, "do_remote_decode", false);
	js_set(o, "remote_block_ids", block_ids(pin));
	js_set_str(o, "remote_engine_id", h->engine_id);
	js_set_str(o, "remote_request_id", lease->id);
	js_set_str(o, "remote_host", h->host);
	js_set_int(o, "remote_port", h->port);
	js_set_int(o, "tp_size", 1);
	js_set_int(o, "dcp_size", 1);
	js_set_int(o, "pp_size", 1);
	js_set_int(o, "remote_num_tokens", pin->n_tokens);
	js_set_int(o, "remote_prefill_cached_tokens", (int64_t)cached);
	js_set(o, "remote_blocks_expiry_time", js_null());
	js_set_str(o, "transfer_mode", "pull");
	js_set_int(o, "kvx_proto", KVX_VERSION);
	js_set_str(o, "kvx_token", token);
	js_set_u64(o, "kvx_lease_ms", h->opts.lease_ms);
	return o;
}

struct js *handoff_offer(struct handoff *h, struct sched_seq *seq, const char *request)
{
	struct sched_pin *pin = sched_take_pin(seq);
	const struct lease *lease;

	if (pin == NULL)
		return NULL;
	lease = lease_new(
		h->leases, request, pin, pin->n_blocks, pin->n_tokens, clock_now_ms());
	if (lease == NULL) {
		sched_unpin(pin);
		return NULL;
	}
	set_lease_timer(h);
	return offer_json(h, lease, pin, sched_cached(seq));
}

bool handoff_release(struct handoff *h, struct span request,
	const unsigned char token[KVX_TOKEN_BYTES], bool *was_kept)
{
	const struct lease *lease = lease_find(h->leases, request);

	if (!lease_token_is_ours(h->leases, request, token))
		return false;
	*was_kept = lease != NULL;
	if (lease != NULL)
		lease_end(h->leases, lease);
	set_lease_timer(h);
	return true;
}

/* Loads */

static bool is_peer(const struct handoff *h, const union sock_addr *addr)
{
	struct ip ip = sock_addr_ip(addr);

	for (size_t i = 0; i < h->opts.n_peers; i++) {
		if (ip_net_has(&h->opts.peers[i], &ip))
			return true;
	}
	return false;
}

static void count_load(const struct kv_load *load)
{
	struct engine_histograms *histograms = load->handoff->histograms;

	engine_observe(histograms, ENGINE_KV_SECONDS, clock_us() - load->begun_us);
	engine_observe(histograms, ENGINE_KV_BYTES,
		load->n_blocks * load->handoff->self.block_bytes);
	engine_observe(histograms, ENGINE_KV_BLOCKS, load->n_blocks);
}

/* The pull has ended, and the blocks are not there. */
static void fail_load(struct kv_load *load, enum kvx_end_why why)
{
	struct handoff *h = load->handoff;
	struct sched_seq *seq = load->seq;

	h->failed++;
	log_warn("KV of %s was not loaded from %s: %s%s", load->request, load->peer,
		kvx_end_text(why), h->opts.recomputes ? "; it is computed here" : "");
	kvx_pull_free(load->pull, h->opts.recomputes ? KVX_FAILED : 0);
	load->pull = NULL;
	load->seq = NULL;
	if (!h->opts.recomputes) {
		load->ops->on_failed(load->arg, why);
		return;
	}
	h->recomputed++;
	sched_load_fail(seq);
	load->ops->on_loaded(load->arg, KV_LOADED_RECOMPUTED);
}

static bool on_block(void *arg, uint32_t index, struct span bytes)
{
	struct kv_load *load = arg;

	return sched_load_block(load->seq, index, bytes.p) == 0;
}

static void on_pull_end(void *arg, enum kvx_end_why why)
{
	struct kv_load *load = arg;

	if (why == KVX_OK && !sched_load_done(load->seq))
		why = KVX_CORRUPT;
	if (why != KVX_OK) {
		fail_load(load, why);
		return;
	}
	count_load(load);
	kvx_pull_free(load->pull, KVX_DONE);
	load->pull = NULL;
	load->seq = NULL;
	load->ops->on_loaded(load->arg, KV_LOADED_TRANSFERRED);
}

static void on_no_pull(void *arg)
{
	fail_load(arg, KVX_REFUSED);
}

struct kv_load *kv_load_new(struct handoff *h, const struct kv_params *params,
	const struct kv_load_ops *ops, void *arg)
{
	static const struct kvx_pull_ops pull_ops = {on_block, on_pull_end};
	struct kv_load *load = calloc(1, sizeof(*load));
	struct kvx_source source = {
		.addr = &params->addr,
		.request = span_str(params->request),
		.engine_id = span_str(params->engine_id),
		.lease_ms = params->lease_ms > 0 ? params->lease_ms : h->opts.lease_ms,
	};

	if (load == NULL)
		return NULL;
	load->handoff = h;
	load->ops = ops;
	load->arg = arg;
	memcpy(load->request, params->request, sizeof(load->request));
	memcpy(source.token, params->token, sizeof(source.token));
	(void)sock_addr_text(&params->addr, true, load->peer, sizeof(load->peer));
	wheel_timer_init(&load->timer, on_no_pull, load);
	if (!is_peer(h, &params->addr)) {
		log_warn("kvx: %s is not in --kvx-peers", load->peer);
		return load;
	}
	load->pull = kvx_pull_new(h->client, &source, &pull_ops, load);
	if (load->pull == NULL) {
		free(load);
		return NULL;
	}
	return load;
}

void kv_load_start(struct kv_load *load, struct sched_seq *seq, size_t found, size_t n,
	size_t n_tokens)
{
	load->begun_us = clock_us();
	if (found == n) {
		kvx_pull_free(load->pull, KVX_LOCAL_HIT);
		load->pull = NULL;
		load->ops->on_loaded(load->arg, KV_LOADED_LOCAL);
		return;
	}
	load->seq = seq;
	load->n_blocks = n - found;
	if (load->pull != NULL)
		kvx_pull_start(
			load->pull, (uint32_t)found, (uint32_t)n, (uint32_t)n_tokens);
	else
		wheel_set(loop_wheel(load->handoff->loop), &load->timer, clock_now_ms());
}

void kv_load_free(struct kv_load *load)
{
	if (load == NULL)
		return;
	kvx_pull_free(load->pull, KVX_ABORTED);
	wheel_stop(loop_wheel(load->handoff->loop), &load->timer);
	free(load);
}

/* The whole */

/* Everything that must be the same on both sides for blocks to mean the same. */
static bool fill_compat(struct handoff *h)
{
	struct digester *d = digester_new();
	char text[1024];
	int n = snprintf(text, sizeof(text), "KVX%d %s %s %zu %d %d %d", KVX_VERSION,
		engine_backend(h->engine), h->opts.model, (size_t)h->self.block_bytes,
		h->self.block_tokens, h->self.dtype, h->self.layout);
	bool ok = d != NULL && n > 0 && (size_t)n < sizeof(text) &&
		  digest_sha256(d, span_make(text, (size_t)n), h->self.compat);

	digester_free(d);
	for (size_t i = 0; ok && i < (sizeof(h->group) - 1) / 2; i++)
		(void)snprintf(h->group + 2 * i, 3, "%02x", h->self.compat[i]);
	return ok;
}

static void name_self(struct handoff *h)
{
	(void)snprintf(h->self.engine_id, sizeof(h->self.engine_id), "%s", h->engine_id);
}

static bool fill_self(struct handoff *h)
{
	const struct backend_shape *shape = sched_shape(engine_sched(h->engine));

	h->self.version = KVX_VERSION;
	h->self.role = (uint8_t)h->opts.role;
	h->self.block_bytes = shape->block_bytes;
	h->self.block_tokens = (uint16_t)shape->block_tokens;
	h->self.max_frame = (uint32_t)h->self.block_bytes + KVX_BLOCK_HEAD;
	h->self.caps = KVX_CAP_TCP;
	name_self(h);
	return fill_compat(h);
}

static int listen_for_peers(struct handoff *h)
{
	union sock_addr a;
	socklen_t n = sizeof(a);

	if (h->opts.listen.sa.sa_family == AF_UNSPEC)
		return 0;
	if (sock_listen(&h->opts.listen, &h->listen_fd) != 0) {
		h->listen_fd = -1;
		return ERR_IO;
	}
	if (getsockname(h->listen_fd, &a.sa, &n) != 0)
		return ERR_IO;
	h->port = ntohs(sock_addr_port(&a));
	if (h->opts.advertise != NULL)
		(void)snprintf(h->host, sizeof(h->host), "%s", h->opts.advertise);
	else
		(void)sock_addr_text(&a, false, h->host, sizeof(h->host));
	return 0;
}

static int open_server(struct handoff *h)
{
	struct kvx_server_opts opts = {
		.self = &h->self,
		.leases = h->leases,
		.peers = h->opts.peers,
		.n_peers = h->opts.n_peers,
		.read = read_block,
		.on_leases = set_lease_timer,
		.arg = h,
	};

	h->server = kvx_server_new(h->loop, h->listen_fd, &opts);
	if (h->server == NULL)
		return ERR_NOMEM;
	h->listen_fd = -1; /* the server's */
	return 0;
}

int handoff_ready(struct handoff *h, struct engine *engine)
{
	uint32_t n_blocks = sched_shape(engine_sched(engine))->n_blocks;
	struct leases_opts leases_opts = {
		.ttl_ms = h->opts.lease_ms,
		.max_blocks = (uint32_t)(n_blocks * h->opts.max_leased),
		.drop = drop_pin,
	};
	struct kvx_client_opts client_opts = {
		&h->self, h->opts.connect_ms, h->opts.stall_ms};

	h->engine = engine;
	h->leases = leases_new(&leases_opts);
	h->client = kvx_client_new(h->loop, &client_opts);
	if (h->leases == NULL || h->client == NULL || !fill_self(h))
		return ERR_NOMEM;
	return h->listen_fd >= 0 ? open_server(h) : 0;
}

int handoff_new(struct loop *l, const struct handoff_opts *opts, const char *engine_id,
	struct engine_histograms *histograms, struct handoff **out)
{
	struct handoff *h = calloc(1, sizeof(*h));
	int err;

	if (h == NULL)
		return ERR_NOMEM;
	h->loop = l;
	h->opts = *opts;
	h->engine_id = engine_id;
	h->histograms = histograms;
	h->listen_fd = -1;
	wheel_timer_init(&h->timer, on_lease_timer, h);
	err = listen_for_peers(h);
	if (err != 0)
		handoff_free(h);
	else
		*out = h;
	return err;
}

void handoff_restart(struct handoff *h)
{
	if (h->server != NULL)
		kvx_server_cut(h->server);
	kvx_client_cut(h->client);
	leases_reset(h->leases);
	set_lease_timer(h);
	h->failed = h->recomputed = 0;
	name_self(h);
}

void handoff_free(struct handoff *h)
{
	if (h == NULL)
		return;
	kvx_server_free(h->server);
	kvx_client_free(h->client);
	leases_free(h->leases);
	if (h->listen_fd >= 0)
		close(h->listen_fd);
	wheel_stop(loop_wheel(h->loop), &h->timer);
	free(h);
}

bool handoff_is_on(const struct handoff *h)
{
	return h->server != NULL;
}

enum engine_role handoff_role(const struct handoff *h)
{
	return h->opts.role;
}

uint16_t handoff_port(const struct handoff *h)
{
	return h->port;
}

const char *handoff_host(const struct handoff *h)
{
	return h->host;
}

const char *handoff_group(const struct handoff *h)
{
	return h->group;
}

bool handoff_is_idle(const struct handoff *h)
{
	return h->leases == NULL || leases_counts(h->leases)->n == 0;
}

struct handoff_counts handoff_counts(const struct handoff *h)
{
	const struct lease_counts *leases = leases_counts(h->leases);

	return (struct handoff_counts){
		.failed = h->failed,
		.recomputed = h->recomputed,
		.lost_releases = kvx_client_lost_releases(h->client),
		.expired = leases->expired,
		.leases = leases->n,
		.leased_blocks = leases->blocks,
		.sent_blocks =
			h->server != NULL ? kvx_server_counts(h->server)->blocks : 0,
	};
}
