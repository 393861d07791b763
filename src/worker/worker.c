/*
 * One backend: identity, address, health, load counter, reference count. See worker.h.
 */
#include "worker/worker.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/ring.h"
#include "io/resolve.h"
#include "worker/model_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANK_LINE "X-data-parallel-rank: %u\r\n"

/* Authorization values that a reload replaced: I/O threads may still read them. */
struct retired {
	struct retired *next;
	char *text;
};

static _Atomic uint64_t next_id = 1;

static const char *const state_names[] = {
	[WORKER_STARTING] = "starting",
	[WORKER_HEALTHY] = "healthy",
	[WORKER_SUSPECT] = "suspect",
	[WORKER_STALLED] = "stalled",
	[WORKER_DEGRADED] = "degraded",
	[WORKER_UNHEALTHY] = "unhealthy",
	[WORKER_LOADING] = "loading",
	[WORKER_SLEEPING] = "sleeping",
	[WORKER_DRAINING] = "draining",
};
static_assert(ARRAY_LEN(state_names) == WORKER_STATE_MAX, "a name for each state");

const char *worker_state_name(enum worker_state s)
{
	return state_names[s];
}

static void free_secret(char *text)
{
	if (text != NULL)
		mem_wipe(text, strlen(text));
	free(text);
}

/* The value for key, and where its predecessor will be kept. */
static int prepare_authorization(
	const struct worker *w, const char *key, struct worker_change *c)
{
	const char *old = atomic_load(&w->authorization);

	if (key != NULL && asprintf(&c->authorization, "Bearer %s", key) < 0) {
		c->authorization = NULL;
		return ERR_NOMEM;
	}
	if (old != NULL) {
		c->retired = malloc(sizeof(*c->retired));
		if (c->retired == NULL)
			return ERR_NOMEM;
	}
	return 0;
}

static void commit_authorization(struct worker *w, struct worker_change *c)
{
	char *old = atomic_load(&w->authorization);

	if (old != NULL && c->authorization != NULL && strcmp(old, c->authorization) == 0)
		return;
	if (old != NULL) {
		struct retired *r = take_ptr(c->retired);

		*r = (struct retired){w->retired, old};
		w->retired = r;
	}
	atomic_store(&w->authorization, take_ptr(c->authorization));
}

static void free_conf(struct worker_conf *c)
{
	if (c == NULL)
		return;
	worker_conf_free(c);
	free(c);
}

static int copy_conf(const struct worker_conf *from, struct worker_conf **out)
{
	struct worker_conf *c = calloc(1, sizeof(*c));
	int err = c == NULL ? ERR_NOMEM : worker_conf_copy(from, c);

	if (err != 0) {
		free(c);
		return err;
	}
	*out = c;
	return 0;
}

void worker_number_rank(struct worker *w, unsigned number)
{
	struct engine_rank *was = atomic_load(&w->engine_rank), *e;

	if (number == (was != NULL ? was->number : w->rank))
		return;
	e = calloc(1, sizeof(*e));
	if (e == NULL)
		return;
	e->older = was;
	e->number = number;
	snprintf(e->text, sizeof(e->text), RANK_LINE, number);
	e->line = span_str(e->text);
	atomic_store_explicit(&w->engine_rank, e, memory_order_release);
}

static void free_engine_ranks(struct worker *w)
{
	struct engine_rank *e, *older;

	for (e = atomic_load(&w->engine_rank); e != NULL; e = older) {
		older = e->older;
		free(e);
	}
}

static void worker_destroy(struct worker *w)
{
	struct retired *r, *next;

	for (r = w->retired; r != NULL; r = next) {
		next = r->next;
		free_secret(r->text);
		free(r);
	}
	free(atomic_load(&w->authorization));
	addr_list_unref(w->addrs);
	model_set_unref(w->pool.models);
	model_set_unref(w->pool.adapters_listed);
	pthread_mutex_destroy(&w->addr_lock);
	breaker_destroy(&w->breaker);
	free_conf(w->conf);
	conf_url_free(&w->url);
	free((char *)w->host_line.p);
	free((char *)w->rank_line.p);
	free_engine_ranks(w);
	free(w->stable_id);
	free(w->group);
	free(w->name);
	free(w);
}

/* The names that tell ranks apart: for people, for hashing, and for the engine. */
static int fill_names(struct worker *w, const struct worker_conf *c)
{
	char *line = NULL;

	w->group = strdup(c->name);
	if (w->group == NULL)
		return ERR_NOMEM;
	if (!w->has_rank) {
		w->name = strdup(c->name);
		w->stable_id = strdup(w->url.text);
		return w->name == NULL || w->stable_id == NULL ? ERR_NOMEM : 0;
	}
	if (asprintf(&w->name, "%s@%u", c->name, w->rank) < 0) {
		w->name = NULL;
		return ERR_NOMEM;
	}
	if (asprintf(&w->stable_id, "%s@%u", w->url.text, w->rank) < 0) {
		w->stable_id = NULL;
		return ERR_NOMEM;
	}
	if (asprintf(&line, RANK_LINE, w->rank) < 0)
		return ERR_NOMEM;
	w->rank_line = span_str(line);
	return 0;
}

static bool is_literal(const char *host)
{
	union sock_addr unused;

	return sock_addr_parse(host, 0, &unused) == 0;
}

static int fill_identity(struct worker *w, const struct worker_conf *c)
{
	char *host = NULL;
	const char *why;

	if (conf_url_parse(span_str(c->url.text), &w->url, &why) != 0)
		return ERR_NOMEM;
	if (fill_names(w, c) != 0)
		return ERR_NOMEM;
	w->stable_len = strlen(w->stable_id);
	w->stable_hash = ring_id(span_make(w->stable_id, w->stable_len));
	if (asprintf(&host, "Host: %s\r\n", w->url.host_header) < 0)
		return ERR_NOMEM;
	w->host_line = span_str(host);
	w->url_base = span_str(w->url.base);
	w->role = c->role;
	w->origin = c->origin;
	w->addrs = addr_list_literal(w->url.host, w->url.port);
	return w->addrs == NULL && is_literal(w->url.host) ? ERR_NOMEM : 0;
}

struct worker *worker_new(const struct worker_conf *c)
{
	return worker_new_rank(c, c->dp_start_rank, NULL);
}

static void take_after(struct worker *w, struct worker *sibling)
{
	struct addr_list *addrs;
	unsigned start;

	atomic_store(&w->health, atomic_load(&sibling->health));
	atomic_store(&w->is_draining, atomic_load(&sibling->is_draining));
	memcpy(w->probe.reason, sibling->probe.reason, sizeof(w->probe.reason));
	w->probe.state_since_ms = sibling->probe.state_since_ms;
	addrs = worker_addrs(sibling, &start);
	if (addrs != NULL)
		worker_set_addrs(w, addrs);
}

static struct breaker_opts breaker_opts(const struct worker_conf *c)
{
	return (struct breaker_opts){
		.failure_threshold = c->opts.cb_failure_threshold,
		.failure_percent = c->opts.cb_failure_ratio,
		.counts_5xx = c->opts.cb_full_5xx,
		.success_threshold = c->opts.cb_success_threshold,
		.timeout_ms = c->opts.cb_timeout_ms,
		.window_ms = c->opts.cb_window_ms,
	};
}

struct worker *worker_new_rank(
	const struct worker_conf *c, unsigned rank, struct worker *sibling)
{
	struct breaker_opts breaker = breaker_opts(c);
	struct worker *w = aligned_alloc(CACHE_LINE, sizeof(*w));

	if (w == NULL)
		return NULL;
	memset(w, 0, sizeof(*w));
	atomic_store(&w->refs, 1);
	w->id = atomic_fetch_add(&next_id, 1);
	w->host_id = sibling != NULL ? sibling->host_id : atomic_fetch_add(&next_id, 1);
	w->has_rank = worker_conf_has_ranks(c);
	w->rank = rank;
	w->pool.index_slot = UINT32_MAX;
	w->report.engine_tokens = -1;
	w->report.engine_generated = -1;
	pthread_mutex_init(&w->addr_lock, NULL);
	breaker_init(&w->breaker, &breaker);
	atomic_store(&w->health, WORKER_STARTING);
	snprintf(w->probe.reason, sizeof(w->probe.reason), "not probed yet");
	if (fill_identity(w, c) != 0 || worker_configure(w, c) != 0) {
		worker_destroy(w);
		return NULL;
	}
	if (sibling != NULL)
		take_after(w, sibling);
	return w;
}

struct worker *worker_ref(struct worker *w)
{
	atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
	return w;
}

void worker_unref(struct worker *w)
{
	if (w == NULL)
		return;
	if (atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1)
		return;
	assert(worker_load(w) == 0);
	assert(worker_queued_blocks(w) == 0 && worker_streams(w) == 0);
	worker_destroy(w);
}

int worker_prepare(
	const struct worker *w, const struct worker_conf *c, struct worker_change *out)
{
	int err;

	*out = (struct worker_change){NULL, NULL, NULL};
	err = copy_conf(c, &out->conf);
	if (err == 0)
		err = prepare_authorization(w, c->worker_key, out);
	if (err != 0)
		worker_abandon(out);
	return err;
}

void worker_commit(struct worker *w, struct worker_change *c)
{
	struct worker_conf *old = w->conf;
	struct breaker_opts breaker;

	commit_authorization(w, c);
	w->conf = take_ptr(c->conf);
	breaker = breaker_opts(w->conf);
	breaker_configure(&w->breaker, &breaker);
	w->origin = w->conf->origin; /* the file may adopt a worker that the API added */
	free_conf(old);
	worker_abandon(c);
}

void worker_abandon(struct worker_change *c)
{
	free_conf(c->conf);
	free_secret(c->authorization);
	free(c->retired);
	*c = (struct worker_change){NULL, NULL, NULL};
}

int worker_configure(struct worker *w, const struct worker_conf *c)
{
	struct worker_change change;
	int err = worker_prepare(w, c, &change);

	if (err == 0)
		worker_commit(w, &change);
	return err;
}

bool worker_is_sibling(const struct worker *w, const struct worker_conf *c)
{
	return strcmp(w->group, c->name) == 0 && strcmp(w->url.text, c->url.text) == 0 &&
	       w->role == c->role;
}

bool worker_same_identity(const struct worker *w, const struct worker_conf *c)
{
	return worker_is_sibling(w, c) && w->has_rank == worker_conf_has_ranks(c) &&
	       (!w->has_rank || worker_conf_has_rank(c, w->rank));
}

uint64_t worker_kv_group(const struct worker *w)
{
	const char *group = w->conf->kv_group;

	return group == NULL ? 1 : hash64(group, strlen(group), 0) | 1;
}

bool worker_has_name(const struct worker *w, struct span name)
{
	return span_is(name, w->name) || (w->has_rank && span_is(name, w->group));
}

enum worker_state worker_state(const struct worker *w)
{
	if (atomic_load_explicit(&w->is_draining, memory_order_relaxed))
		return WORKER_DRAINING;
	return (enum worker_state)atomic_load_explicit(&w->health, memory_order_relaxed);
}

bool worker_is_full(const struct worker *w)
{
	return w->conf->max_requests != 0 && worker_load(w) >= w->conf->max_requests;
}

bool worker_is_usable(const struct worker *w)
{
	enum worker_state s = worker_state(w);

	return (s == WORKER_HEALTHY || s == WORKER_SUSPECT) && !worker_is_full(w);
}

void worker_report(struct worker *w, unsigned running, unsigned waiting, unsigned own,
	uint64_t now_ms, uint64_t until_ms)
{
	unsigned all = running + waiting;

	atomic_store_explicit(&w->report.running, running, memory_order_relaxed);
	atomic_store_explicit(&w->report.waiting, waiting, memory_order_relaxed);
	atomic_store_explicit(
		&w->report.others, all - MIN(all, own), memory_order_relaxed);
	atomic_store_explicit(&w->report.at_ms, now_ms, memory_order_relaxed);
	atomic_store_explicit(&w->report.until_ms, until_ms, memory_order_relaxed);
}

bool worker_offers_trial(const struct worker *w)
{
	enum worker_state s = worker_state(w);

	return (s == WORKER_STALLED || s == WORKER_DEGRADED) && worker_load(w) == 0 &&
	       atomic_load_explicit(&w->trial, memory_order_relaxed) == TRIAL_OFFERED;
}

/* The control thread may just have withdrawn it: no harm, one goes. */
bool worker_take_trial(struct worker *w)
{
	int offered = TRIAL_OFFERED;

	if (atomic_load_explicit(&w->trial, memory_order_relaxed) != TRIAL_OFFERED)
		return false;
	(void)atomic_compare_exchange_strong(&w->trial, &offered, TRIAL_TAKEN);
	return true;
}

double worker_share(const struct worker *w, uint64_t now_ms)
{
	uint64_t ramp_ms = w->conf->opts.slow_start_ms, since_ms;

	if (ramp_ms == 0)
		return 1;
	since_ms = atomic_load_explicit(&w->probe.warm_since_ms, memory_order_relaxed);
	if (since_ms == 0 || now_ms >= since_ms + ramp_ms)
		return 1;
	if (now_ms <= since_ms)
		return WARM_SHARE_MIN;
	return MAX(WARM_SHARE_MIN, (double)(now_ms - since_ms) / (double)ramp_ms);
}

void worker_set_addrs(struct worker *w, struct addr_list *list)
{
	struct addr_list *old;

	pthread_mutex_lock(&w->addr_lock);
	old = w->addrs;
	w->addrs = list;
	pthread_mutex_unlock(&w->addr_lock);
	if (!addr_list_equal(old, list))
		atomic_fetch_add(&w->addr_epoch, 1);
	addr_list_unref(old);
}

struct addr_list *worker_addrs(struct worker *w, unsigned *start)
{
	struct addr_list *list;

	pthread_mutex_lock(&w->addr_lock);
	list = w->addrs != NULL ? addr_list_ref(w->addrs) : NULL;
	*start = w->addr_next++;
	pthread_mutex_unlock(&w->addr_lock);
	return list;
}

/* ---- hits ---- */

/* Only the lock's holder writes: no read-modify-write of the bus is needed. */
static void hit_add(_Atomic uint64_t *at, uint64_t n, unsigned halvings)
{
	uint64_t was = atomic_load_explicit(at, memory_order_relaxed);

	atomic_store_explicit(at, (was >> halvings) + n, memory_order_relaxed);
}

void hit_count_add(
	struct hit_count *h, uint32_t matched, uint32_t blocks, uint64_t now_ms)
{
	enum { MINUTE_MS = 60000 };
	uint64_t minutes =
		now_ms > h->minute_ms ? (now_ms - h->minute_ms) / MINUTE_MS : 0;
	unsigned halvings = (unsigned)MIN(minutes, 63u);

	h->minute_ms += minutes * MINUTE_MS;
	hit_add(&h->blocks, blocks, 0);
	hit_add(&h->matched, matched, 0);
	hit_add(&h->recent_blocks, blocks, halvings);
	hit_add(&h->recent_matched, matched, halvings);
}
