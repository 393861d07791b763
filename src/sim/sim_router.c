/*
 * The router of a simulation. See sim_router.h. Called by sim.c.
 */
#include "sim/sim_router.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/metric.h"
#include "conf/conf.h"
#include "conf/conf_flags.h"
#include "policy/routing_key.h"
#include "pool/pool.h"
#include "worker/worker.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEEP_MS 1000

struct sim_router {
	struct pool *pool;
	struct worker **workers; /* references, in file order */
	size_t n_workers;
	struct route_key key; /* of the pick in progress */
	uint32_t parts, ids;  /* blocks of the pool in one of the trace, and vice versa */
	char session[32];     /* its session; key points to it */
	uint64_t swept_ms;
};

static const struct pool_ops no_ops = {NULL, NULL, NULL};

/* ---- the spec as a command line of kvsteerd ---- */

struct words {
	char **items;
	size_t n, cap;
};

static void add_word(struct words *w, char *word)
{
	if (mem_grow(&w->items, &w->cap, w->n + 2, sizeof(*w->items)) != 0)
		abort();
	w->items[w->n++] = word;
	w->items[w->n] = NULL;
}

static void free_words(struct words *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->items[i]);
	free(w->items);
}

/* "decode_weight" -> "--decode-weight". */
static char *flag_of(struct span key)
{
	char *flag = xasprintf("--" SPAN_FMT, SPAN_ARG(key));

	for (char *c = flag; *c != '\0'; c++)
		*c = *c == '_' ? '-' : *c;
	return flag;
}

static void add_option(struct words *w, struct span key, struct span value)
{
	add_word(w, flag_of(key));
	add_word(w, xstrndup(value.p, value.n));
}

static int add_spec(struct words *w, const char *spec, char **why)
{
	static const char *const parts[] = {"policy", "signal", "cost"};
	struct span rest = span_str(spec), names = {NULL, 0}, one;
	size_t i;

	(void)span_next(&rest, ',', &names);
	if (names.n == 0) {
		*why = xstrdup("expected the name of a policy");
		return ERR_PARSE;
	}
	for (i = 0; span_next(&names, ':', &one); i++) {
		if (i == ARRAY_LEN(parts)) {
			*why = xstrdup("expected POLICY[:SIGNAL[:COST]]");
			return ERR_PARSE;
		}
		add_option(w, span_str(parts[i]), one);
	}
	while (span_next(&rest, ',', &one)) {
		struct span key;

		if (memchr(one.p, '=', one.n) == NULL) {
			*why = xasprintf("\"" SPAN_FMT "\" is not KEY=VALUE with a key "
					 "of [pool NAME] in kvsteer.conf(5)",
				SPAN_ARG(one));
			return ERR_PARSE;
		}
		(void)span_next(&one, '=', &key);
		add_option(w, key, one);
	}
	return 0;
}

static void add_workers(struct words *w, unsigned n)
{
	add_word(w, xstrdup("--worker-urls"));
	for (unsigned i = 0; i < n; i++)
		add_word(w, xasprintf("http://10.%u.%u.%u:8000", i >> 16, i >> 8 & 255,
				    i & 255));
}

/* The text of the first error, or of the first warning. */
static char *first_text(const struct conf_errors *errors, bool warnings)
{
	for (size_t i = 0; i < errors->n; i++) {
		if (errors->items[i].is_warning == warnings)
			return conf_error_text(&errors->items[i]);
	}
	return NULL;
}

static int load(struct words *w, struct conf **out, char **why)
{
	struct conf_errors errors = {0};
	struct conf_flags flags;
	char *warning;
	int err = conf_flags_parse((int)w->n, w->items, &errors, &flags);

	if (err == 0) {
		err = conf_load(NULL, &flags, &errors, out);
		conf_flags_free(&flags);
	}
	if (err != 0)
		*why = first_text(&errors, false);
	else if ((warning = first_text(&errors, true)) != NULL) {
		(void)fprintf(stderr, "kvsteer-bench: warning: %s\n", warning);
		free(warning);
	}
	conf_errors_free(&errors);
	return err;
}

static int make_conf(
	const char *spec, const struct sim_router_opts *o, struct conf **out, char **why)
{
	struct words words = {NULL, 0, 0};
	int err;

	add_word(&words, xstrdup("kvsteerd"));
	add_workers(&words, o->workers);
	err = add_spec(&words, spec, why);
	if (err == 0)
		err = load(&words, out, why);
	free_words(&words);
	return err;
}

/* ---- the pool ---- */

/* The pool's blocks must be whole parts of the trace's, or so many of them. */
static int set_block(struct sim_router *r, uint32_t id_tokens, char **why)
{
	uint32_t id_bytes = id_tokens * TOKEN_BYTES;
	struct route_key_opts opts;

	pool_key_opts(r->pool, ROLE_UNIFIED, &opts);
	r->key.block = opts.block_bytes;
	r->parts = id_bytes / opts.block_bytes;
	r->ids = opts.block_bytes / id_bytes;
	if (r->parts * opts.block_bytes == id_bytes ||
		r->ids * id_bytes == opts.block_bytes)
		return 0;
	*why = xasprintf(
		"prefix_block = %u: it must divide %u, the size of a block of this "
		"trace, or be a multiple of it",
		opts.block_bytes, id_bytes);
	return ERR_PARSE;
}

static void fill_pool(struct sim_router *r, const struct sim_router_opts *o)
{
	r->workers = pool_list(r->pool, &r->n_workers);
	assert(r->n_workers == o->workers);
	for (size_t i = 0; i < r->n_workers; i++) {
		atomic_store(&r->workers[i]->health, WORKER_HEALTHY);
		if (o->kv_tokens > 0)
			pool_worker_capacity(r->pool, r->workers[i], o->kv_tokens);
	}
}

int sim_router_new(const char *spec, const struct sim_router_opts *opts,
	struct sim_router **out, char **why)
{
	const uint64_t secret[2] = {opts->seed, ~opts->seed};
	struct sim_router *r;
	struct conf *conf;

	if (make_conf(spec, opts, &conf, why) != 0)
		return ERR_PARSE;
	for (size_t i = 0; i < conf->n_workers; i++)
		conf->workers[i].max_requests = opts->max_requests;
	metric_thread_start();
	r = xcalloc(1, sizeof(*r));
	r->pool = pool_new(conf->pools[0].name, secret, &no_ops, NULL);
	if (r->pool == NULL || pool_update(r->pool, &conf->pools[0], conf, 0) != 0)
		abort();
	conf_unref(conf);
	pool_seed(r->pool, opts->seed);
	fill_pool(r, opts);
	route_key_init(&r->key);
	if (set_block(r, opts->id_tokens, why) != 0) {
		sim_router_free(r);
		return ERR_PARSE;
	}
	*out = r;
	return 0;
}

void sim_router_free(struct sim_router *r)
{
	if (r == NULL)
		return;
	for (size_t i = 0; i < r->n_workers; i++) {
		assert(worker_load(r->workers[i]) == 0);
		worker_unref(r->workers[i]);
	}
	free(r->workers);
	route_key_free(&r->key);
	pool_close(r->pool);
	pool_unref(r->pool);
	free(r);
}

/* ---- picks ---- */

/* A block of the trace is several of the pool, or one of these several of the trace's,
 * whose last one stands for all of them. */
static void fill_hashes(struct sim_router *r, const struct sim_request *req, size_t n)
{
	uint64_t *to = r->key.hashes;

	for (size_t i = 0; i < n; i++) {
		if (r->parts > 1)
			to[i] = hash_mix64(req->hashes[i / r->parts], i % r->parts);
		else
			to[i] = req->hashes[i * r->ids + r->ids - 1];
	}
}

/* The key as route_key_build() leaves it, sealed. */
static void make_key(struct sim_router *r, const struct sim_request *req)
{
	struct route_key *k = &r->key;
	size_t n;

	k->prompt_units = (uint64_t)req->prompt.tokens * TOKEN_BYTES;
	n = req->prompt.n_ids > 0 ? k->prompt_units / k->block : 0;
	if (mem_grow(&k->hashes, &k->cap_blocks, n, sizeof(*k->hashes)) != 0)
		abort();
	fill_hashes(r, req, n);
	k->n_blocks = n;
	k->readable = true;
	k->stream = true;
	k->endpoint = ENDPOINT_CHAT;
	k->unit = 'b';
	k->is_sealed = false;
	pool_seal_key(r->pool, k, SPAN_LIT(""));
}

static void sweep(struct sim_router *r, uint64_t now_ms)
{
	while (r->swept_ms + SWEEP_MS <= now_ms) {
		r->swept_ms += SWEEP_MS;
		pool_sweep(r->pool, r->swept_ms);
	}
}

/* The policy's key, as if the body's session_id gave it. */
static const struct routing *find_routing(
	struct sim_router *r, const struct sim_request *req, struct routing *out)
{
	static const struct conf_list no_headers = {NULL, 0};
	unsigned wants = pool_wants(r->pool, ROLE_UNIFIED);
	int n = snprintf(r->session, sizeof(r->session), "talk-%llu",
		(unsigned long long)req->session);

	r->key.session[SESSION_ID] =
		req->session != 0 ? span_make(r->session, (size_t)n) : span_make(NULL, 0);
	return routing_find(wants, &no_headers, "", NULL, &r->key, out);
}

static unsigned number_of(const struct sim_router *r, const struct worker *w)
{
	unsigned i = 0;

	while (r->workers[i] != w)
		i++;
	return i;
}

int sim_router_pick(struct sim_router *r, const struct sim_request *req, uint64_t now_ms,
	struct guard *g, struct sim_choice *out)
{
	struct pool_ask ask = {.role = ROLE_UNIFIED,
		.body_bytes = (uint64_t)req->prompt.tokens * TOKEN_BYTES,
		.now_ms = now_ms};
	struct routing routing;
	struct pool_pick pick;
	int err;

	sweep(r, now_ms);
	if (pool_needs_key(r->pool, ROLE_UNIFIED)) {
		make_key(r, req);
		ask.key = &r->key;
	}
	ask.routing = find_routing(r, req, &routing);
	err = pool_pick(r->pool, &ask, g, &pick);
	if (err != 0)
		return err;
	*out = (struct sim_choice){.worker = number_of(r, g->worker),
		.reason = pick.reason,
		.matched_tokens = pick.matched * (r->key.block / TOKEN_BYTES)};
	return 0;
}

void sim_router_first_token(struct guard *g, uint64_t now_ms)
{
	guard_streams(g, now_ms);
}

void sim_router_end(struct guard *g)
{
	guard_drop(g);
}

/* ---- every policy ---- */

/* The text of the i-th value of an enum's key; it is a new one. */
static char *value_text(const char *key, int i)
{
	const struct conf_key *k = conf_key_find(SECTION_POOL, span_str(key));
	struct role_opts opts = {.policy = {.policy = (enum policy_kind)0}};

	assert(k != NULL);
	memcpy((char *)&opts + k->offset, &i, sizeof(i));
	return conf_value_text(k, &opts);
}

static void add_costs(struct words *w, const char *policy)
{
	for (int s = 0; s < SIGNAL_KIND_MAX; s++) {
		char *signal = value_text("signal", s);

		for (int c = 0; c < COST_KIND_MAX; c++) {
			char *cost = value_text("cost", c);

			add_word(w, xasprintf("%s:%s:%s", policy, signal, cost));
			free(cost);
		}
		free(signal);
	}
}

char **sim_router_all_specs(size_t *n)
{
	struct words w = {NULL, 0, 0};

	for (int i = 0; i < POLICY_KIND_MAX; i++) {
		char *policy = value_text("policy", i);

		if (i == POLICY_CACHE_AWARE)
			add_costs(&w, policy);
		else
			add_word(&w, xstrdup(policy));
		free(policy);
	}
	*n = w.n;
	return w.items;
}
