/*
 * Workers by the admin API: shown, added, drained, removed. Handlers are rows of
 * admin.c's table. A worker that is to drain before it goes is kept in a short list until
 * its last request ended or its time is up; it is found again by its id, in case it went
 * meanwhile. A name is a worker's, or that of a group of data-parallel ranks: then all of
 * them are meant.
 */
#include "control/admin_calls.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf_lex.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "control/admin_reply.h"
#include "control/worker_change.h"
#include "http/http_server.h"
#include "worker/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PREFIX "/admin/v1/workers/"
#define REMOVAL_POLL_MS 50
#define PAIRS_MAX 128

struct removal {
	struct removal *next;
	uint64_t id;
	uint64_t due_ms;
};

/* ---- finding ---- */

/* The workers of one pool that a name means, in order. */
struct named {
	struct pool *pool;
	struct worker **list; /* a reference to each */
	size_t n, cap;
	bool is_group; /* the name is not that of a worker, but of its ranks */
};

static void named_free(struct named *named)
{
	while (named->n > 0)
		worker_unref(named->list[--named->n]);
	free(named->list);
}

static int find_in_pool(struct pool *pool, struct span name, struct named *out)
{
	struct worker *w;
	size_t i;

	*out = (struct named){.pool = pool};
	for (i = 0; (w = pool_worker_at(pool, i)) != NULL; i++) {
		if (!worker_has_name(w, name))
			continue;
		if (mem_grow(&out->list, &out->cap, out->n + 1, sizeof(w)) != 0) {
			named_free(out);
			return ERR_NOMEM;
		}
		out->is_group = !span_is(name, w->name);
		out->list[out->n++] = worker_ref(w);
	}
	return out->n > 0 ? 0 : ERR_NOENT;
}

static int find_named(const struct site *site, struct span name, struct named *out)
{
	int err = ERR_NOENT;
	size_t i;

	for (i = 0; err == ERR_NOENT && i < site->n_pools; i++)
		err = find_in_pool(site->pools[i], name, out);
	return err;
}

/* The workers that the path names. False: there are none, and the call is answered. */
static bool path_named(
	struct admin *a, struct http_call *call, struct span *rest, struct named *out)
{
	struct span name = admin_path_word(call, PREFIX, rest);
	int err = find_named(a->control->site, name, out);

	if (err == ERR_NOMEM)
		admin_fail(call, ADMIN_MEMORY, "out of memory");
	else if (err != 0)
		admin_fail(call, ADMIN_NO_WORKER, "there is no worker " SPAN_FMT,
			SPAN_ARG(name));
	return err == 0;
}

/* ---- showing ---- */

static const char *origin_name(enum worker_origin o)
{
	return o == ORIGIN_FILE ? "file" : o == ORIGIN_FLAG ? "flag" : "api";
}

static struct js *failures_object(const struct worker *w)
{
	uint64_t errors = atomic_load(&w->guard.errors);
	struct js *out = js_object();
	unsigned i;

	for (i = 0; i < FAIL_MAX; i++) {
		uint64_t n = atomic_load(&w->guard.failures[i]);

		if (n > 0)
			js_set_int(out, fail_code((enum fail)i), (int64_t)n);
	}
	if (errors > 0)
		js_set_int(out, "status_5xx", (int64_t)errors);
	return out;
}

static uint64_t failures_total(const struct worker *w)
{
	uint64_t n = atomic_load(&w->guard.errors);
	unsigned i;

	for (i = 0; i < FAIL_MAX; i++)
		n += atomic_load(&w->guard.failures[i]);
	return n;
}

/* The share of prompts that was believed to be held; null: there were no prompts. */
static struct js *share(uint64_t matched, uint64_t blocks)
{
	/* They were read one after the other. */
	return blocks == 0 ? js_null()
			   : js_real((double)MIN(matched, blocks) / (double)blocks);
}

struct js *admin_hit_share(const struct site *site)
{
	uint64_t matched = 0, blocks = 0;
	const struct worker *w;
	size_t i, j;

	for (i = 0; i < site->n_pools; i++) {
		for (j = 0; (w = pool_worker_at(site->pools[i], j)) != NULL; j++) {
			matched += atomic_load(&w->pool.hits.recent_matched);
			blocks += atomic_load(&w->pool.hits.recent_blocks);
		}
	}
	return share(matched, blocks);
}

static void set_prompts(struct js *out, const struct worker *w)
{
	js_set(out, "hit_share",
		share(atomic_load(&w->pool.hits.recent_matched),
			atomic_load(&w->pool.hits.recent_blocks)));
	js_set_int(out, "prompt_blocks", (int64_t)atomic_load(&w->pool.hits.blocks));
	js_set_int(out, "matched_blocks", (int64_t)atomic_load(&w->pool.hits.matched));
}

/* The worker's report on its own requests; null: none yet. */
static struct js *reported_object(const struct worker *w)
{
	uint64_t at_ms = atomic_load(&w->report.at_ms), now_ms = clock_now_ms();
	struct js *out;

	if (at_ms == 0)
		return js_null();
	out = js_object();
	js_set_int(out, "running", atomic_load(&w->report.running));
	js_set_int(out, "waiting", atomic_load(&w->report.waiting));
	js_set_int(out, "of_others", atomic_load(&w->report.others));
	js_set_int(out, "age_ms", (int64_t)(now_ms - MIN(at_ms, now_ms)));
	js_set_bool(out, "is_fresh", worker_report_is_fresh(w, now_ms));
	return out;
}

/* The KV cache in tokens, and who said so. */
static void set_capacity(struct js *out, const struct worker *w)
{
	bool is_set = w->conf->capacity != 0;
	uint64_t tokens = is_set ? w->conf->capacity : w->pool.learned_tokens;

	if (tokens == 0)
		js_set(out, "capacity_tokens", js_null());
	else
		js_set_int(out, "capacity_tokens", (int64_t)tokens);
	js_set_str(out, "capacity_from",
		is_set        ? "configured"
		: tokens != 0 ? "learned"
			      : NULL);
}

static struct js *breaker_object(struct worker *w)
{
	uint64_t now_ms = clock_now_ms();
	uint64_t paused_ms = atomic_load(&w->breaker.paused_until_ms);
	struct js *out = js_object();

	js_set_str(out, "state", breaker_state_name(breaker_state(&w->breaker, now_ms)));
	js_set_int(out, "failures", breaker_failures(&w->breaker, now_ms));
	js_set_int(
		out, "paused_ms", paused_ms > now_ms ? (int64_t)(paused_ms - now_ms) : 0);
	js_set_u64(out, "wait_ms", breaker_wait_ms(&w->breaker, now_ms));
	return out;
}

static void set_outlier(struct js *out, const struct worker *w)
{
	enum outlier o = (enum outlier)atomic_load(&w->pool.outlier);

	if (o == OUTLIER_NONE)
		js_set(out, "outlier", js_null());
	else
		js_set_str(out, "outlier", outlier_name(o));
}

/* Of the last one to two minutes; null: nothing ended in them. */
static struct js *latency_object(const struct worker *w, enum latency_kind kind)
{
	struct latency_figures f = latency_recent(&w->latency, &w->pool.latency, kind);
	struct js *out;

	if (f.n == 0)
		return js_null();
	out = js_object();
	js_set_int(out, "n", (int64_t)f.n);
	js_set(out, "p50_ms", js_real((double)f.p50_us / 1000));
	js_set(out, "p99_ms", js_real((double)f.p99_us / 1000));
	return out;
}

static struct js *worker_document(struct pool *p, struct worker *w)
{
	uint64_t last_ms = atomic_load(&w->relay.last_byte_ms), now_ms = clock_now_ms();
	struct js *out = js_object();

	js_set_str(out, "name", w->name);
	js_set_str(out, "url", w->url.text);
	js_set_str(out, "pool", pool_name(p));
	js_set_str(out, "role", role_name(w->role));
	js_set(out, "rank", w->has_rank ? js_int(w->rank) : js_null());
	js_set_str(out, "state", worker_state_name(worker_state(w)));
	js_set_str(out, "health",
		worker_state_name((enum worker_state)atomic_load(&w->health)));
	js_set_str(out, "reason", w->probe.reason);
	js_set_int(out, "state_age_ms", (int64_t)(now_ms - w->probe.state_since_ms));
	js_set_int(out, "load", worker_load(w));
	js_set_int(out, "streams", worker_streams(w));
	js_set_int(out, "queued_blocks", (int64_t)worker_queued_blocks(w));
	js_set(out, "reported", reported_object(w));
	js_set_int(out, "max_requests", w->conf->max_requests);
	set_capacity(out, w);
	if (last_ms == 0)
		js_set(out, "progress_age_ms", js_null());
	else
		js_set_int(
			out, "progress_age_ms", (int64_t)(now_ms - MIN(last_ms, now_ms)));
	js_set_int(
		out, "silent_ms", (int64_t)progress_age_ms(&w->watch.progress, now_ms));
	js_set_int(out, "blocks", (int64_t)pool_worker_blocks(p, w));
	set_prompts(out, w);
	js_set(out, "ttft", latency_object(w, LATENCY_TTFT));
	js_set(out, "response_time", latency_object(w, LATENCY_WHOLE));
	js_set(out, "breaker", breaker_object(w));
	set_outlier(out, w);
	js_set_int(out, "requests", (int64_t)atomic_load(&w->guard.requests));
	js_set_int(out, "completions", (int64_t)atomic_load(&w->guard.completions));
	js_set_int(out, "failures", (int64_t)failures_total(w));
	js_set(out, "failures_by_reason", failures_object(w));
	js_set_str(out, "origin", origin_name(w->origin));
	return out;
}

struct js *admin_workers_array(const struct site *site)
{
	struct js *list = js_array();
	struct worker *w;
	size_t i, j;

	for (i = 0; i < site->n_pools; i++) {
		for (j = 0; (w = pool_worker_at(site->pools[i], j)) != NULL; j++)
			js_push(list, worker_document(site->pools[i], w));
	}
	return list;
}

/* A worker's document; of a group what its ranks have in common, and each of them. */
static struct js *named_document(const struct named *named)
{
	const struct worker *first = named->list[0];
	struct js *out, *ranks;
	bool is_one_state = true;
	int64_t load = 0;
	size_t i;

	if (!named->is_group)
		return worker_document(named->pool, named->list[0]);
	ranks = js_array();
	for (i = 0; i < named->n; i++) {
		is_one_state &= worker_state(named->list[i]) == worker_state(first);
		load += worker_load(named->list[i]);
		js_push(ranks, worker_document(named->pool, named->list[i]));
	}
	out = js_object();
	js_set_str(out, "name", first->group);
	js_set_str(out, "url", first->url.text);
	js_set_str(out, "pool", pool_name(named->pool));
	js_set_str(out, "role", role_name(first->role));
	js_set_int(out, "dp_size", first->conf->dp_size);
	js_set_int(out, "dp_start_rank", first->conf->dp_start_rank);
	js_set_str(out, "state",
		is_one_state ? worker_state_name(worker_state(first)) : "mixed");
	js_set_int(out, "load", load);
	js_set(out, "ranks", ranks);
	return out;
}

void admin_list_workers(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	struct js *out = js_object();

	js_set(out, "workers", admin_workers_array(a->control->site));
	admin_reply(call, 200, out);
}

void admin_show_worker(void *arg, struct http_call *call)
{
	struct span rest;
	struct named named;

	if (!path_named(arg, call, &rest, &named))
		return;
	if (rest.n > 0)
		http_call_fail(call, FAIL_PATH_NOT_FOUND);
	else
		admin_reply(call, 200, named_document(&named));
	named_free(&named);
}

/* ---- adding ---- */

/* Key and value pairs of a [worker] section, from the members of a JSON object. */
struct pairs {
	struct conf_pair items[PAIRS_MAX];
	size_t n;
	char *values[PAIRS_MAX]; /* owned */
	char *name;              /* owned; NULL: not given */
};

static void pairs_free(struct pairs *p)
{
	while (p->n > 0)
		free(p->values[--p->n]);
	free(p->name);
}

/* A scalar as it would stand in a file. ERR_PARSE: it is none. ERR_NOMEM. */
static int scalar_text(const struct js *v, char **text)
{
	struct span s;
	int64_t n;
	double d;
	bool b;

	if (js_as_str(v, &s))
		*text = span_dup(s);
	else if (js_as_bool(v, &b))
		*text = strdup(b ? "on" : "off");
	else if (js_as_int(v, &n))
		*text = mem_format("%" PRId64, n);
	else if (js_as_real(v, &d))
		*text = mem_format("%.17g", d);
	else
		return ERR_PARSE;
	return *text != NULL ? 0 : ERR_NOMEM;
}

static int add_pair(struct pairs *p, const char *key, const struct js *v)
{
	char *text = NULL;
	int err = p->n < PAIRS_MAX ? scalar_text(v, &text) : ERR_PARSE;

	if (err != 0)
		return err;
	p->values[p->n] = text;
	p->items[p->n++] = (struct conf_pair){key, text};
	return 0;
}

static int add_member(struct pairs *p, const char *key, const struct js *v)
{
	int err = 0;
	size_t i;

	if (strcmp(key, "name") == 0) {
		free(take_ptr(p->name));
		return scalar_text(v, &p->name);
	}
	if (js_is_null(v))
		return 0;
	if (!js_is_array(v))
		return add_pair(p, key, v);
	for (i = 0; err == 0 && i < js_len(v); i++)
		err = add_pair(p, key, js_at(v, i));
	return err;
}

/* False: the call is answered. */
static bool read_pairs(struct http_call *call, const struct js *body, struct pairs *p)
{
	const char *key;
	struct js *v;
	size_t i;
	int err;

	if (body == NULL || !js_is_object(body)) {
		admin_fail(call, ADMIN_INVALID,
			"a JSON object is needed: {\"name\", \"url\"}");
		return false;
	}
	for (i = 0; js_member(body, i, &key, &v); i++) {
		err = add_member(p, key, v);
		if (err == 0)
			continue;
		if (err == ERR_NOMEM)
			admin_fail(call, ADMIN_MEMORY, "out of memory");
		else
			admin_fail(call, ADMIN_INVALID,
				"%.64s: a string, number, boolean or a list of them is "
				"needed",
				key);
		return false;
	}
	return true;
}

/* As on the command line: host:port. "" where there is no URL. NULL: out of memory. */
static char *default_name(const struct js *body)
{
	struct conf_url url;
	struct span text;
	const char *why;
	char *name;
	int err = ERR_PARSE;

	if (js_as_str(js_get(body, "url"), &text))
		err = conf_url_parse(text, &url, &why);
	if (err != 0)
		return err == ERR_NOMEM ? NULL : strdup("");
	name = conf_url_name(&url);
	conf_url_free(&url);
	return name;
}

static void add_worker(
	struct admin *a, struct http_call *call, const struct worker_conf *wc)
{
	struct site *site = a->control->site;
	struct named named;
	char why[256];

	switch (worker_change_add(site, wc, why, sizeof(why))) {
	case WORKER_ADDED:
		break;
	case WORKER_IS_TAKEN:
		admin_fail(call, ADMIN_EXISTS, "%s", why);
		return;
	case WORKER_HAS_NO_POOL:
		admin_fail(call, ADMIN_NO_POOL, "%s", why);
		return;
	default:
		admin_fail(call, ADMIN_MEMORY, "%s", why);
		return;
	}
	if (find_in_pool(site_pool(site, span_str(wc->pool)), span_str(wc->name),
		    &named) == 0) {
		admin_reply_done(call, 201, named_document(&named));
		named_free(&named);
	} else {
		admin_reply_done(call, 201, NULL);
	}
}

static void make_worker(
	struct admin *a, struct http_call *call, const struct pairs *pairs)
{
	struct conf_errors errors = {0};
	struct worker_conf wc;
	int err = conf_worker_make(a->control->site->conf, pairs->name, pairs->items,
		pairs->n, &errors, &wc);

	if (err == 0) {
		add_worker(a, call, &wc);
		worker_conf_free(&wc);
	} else {
		admin_fail_conf(
			call, err == ERR_NOMEM ? ADMIN_MEMORY : ADMIN_INVALID, &errors);
	}
	conf_errors_free(&errors);
}

void admin_add_worker(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	const char *why = "";
	struct js *body = js_parse(http_call_body(call), &why);
	struct pairs pairs = {.n = 0};

	if (read_pairs(call, body, &pairs)) {
		if (pairs.name == NULL)
			pairs.name = default_name(body);
		if (pairs.name != NULL)
			make_worker(a, call, &pairs);
		else
			admin_fail(call, ADMIN_MEMORY, "out of memory");
	}
	pairs_free(&pairs);
	js_free(body);
}

/* ---- draining and removing ---- */

static void drain(struct worker *w, bool on)
{
	if (atomic_exchange(&w->is_draining, on) == on)
		return;
	log_notice(on ? "worker %s is drained: no new requests, %u in flight"
		      : "worker %s takes requests again, %u in flight",
		w->name, worker_load(w));
}

static void cancel_removal(struct admin *a, uint64_t id)
{
	struct removal **at = &a->removals, *r;

	while ((r = *at) != NULL) {
		if (r->id != id) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		free(r);
	}
}

void admin_post_worker(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	struct span rest;
	struct named named;
	bool on;
	size_t i;

	if (!path_named(a, call, &rest, &named))
		return;
	on = span_is(rest, "drain");
	if (!on && !span_is(rest, "undrain")) {
		http_call_fail(call, FAIL_PATH_NOT_FOUND);
		named_free(&named);
		return;
	}
	for (i = 0; i < named.n; i++) {
		if (!on)
			cancel_removal(a, named.list[i]->id);
		drain(named.list[i], on);
	}
	admin_reply_done(call, 202, named_document(&named));
	named_free(&named);
}

static struct worker *worker_by_id(
	const struct site *site, uint64_t id, struct pool **pool)
{
	struct worker *w;
	size_t i, j;

	for (i = 0; i < site->n_pools; i++) {
		*pool = site->pools[i];
		for (j = 0; (w = pool_worker_at(*pool, j)) != NULL; j++) {
			if (w->id == id)
				return w;
		}
	}
	return NULL;
}

static void on_removal_timer(void *arg)
{
	struct admin *a = arg;
	struct removal **at = &a->removals, *r;

	while ((r = *at) != NULL) {
		struct pool *pool;
		struct worker *w = worker_by_id(a->control->site, r->id, &pool);

		if (w != NULL && worker_load(w) > 0 && clock_now_ms() < r->due_ms) {
			at = &r->next;
		} else {
			if (w != NULL)
				worker_change_remove(pool, w);
			*at = r->next;
			free(r);
		}
	}
	if (a->removals != NULL)
		wheel_set(loop_wheel(a->control->loop), &a->removal_timer,
			clock_now_ms() + REMOVAL_POLL_MS);
}

static void free_removals(struct removal *list)
{
	struct removal *next;

	for (; list != NULL; list = next) {
		next = list->next;
		free(list);
	}
}

/* n of them, linked. NULL: out of memory. */
static struct removal *make_removals(size_t n)
{
	struct removal *list = NULL, *r;

	for (; n > 0; n--) {
		r = calloc(1, sizeof(*r));
		if (r == NULL) {
			free_removals(list);
			return NULL;
		}
		r->next = list;
		list = r;
	}
	return list;
}

static void remove_now(const struct named *named)
{
	size_t i;

	for (i = 0; i < named->n; i++) {
		drain(named->list[i], true);
		worker_change_remove(named->pool, named->list[i]);
	}
}

/* ERR_NOMEM: none of them drains. */
static int remove_later(struct admin *a, const struct named *named, uint64_t wait_ms)
{
	struct removal *made = make_removals(named->n), *r;
	size_t i;

	if (made == NULL)
		return ERR_NOMEM;
	for (i = 0; i < named->n; i++) {
		drain(named->list[i], true);
		cancel_removal(a, named->list[i]->id);
		r = made;
		made = r->next;
		*r = (struct removal){
			a->removals, named->list[i]->id, clock_now_ms() + wait_ms};
		a->removals = r;
	}
	wheel_set(loop_wheel(a->control->loop), &a->removal_timer, clock_now_ms());
	return 0;
}

static void remove_named(struct admin *a, struct http_call *call,
	const struct named *named, uint64_t wait_ms)
{
	int err = wait_ms > 0 ? remove_later(a, named, wait_ms) : 0;

	if (err != 0) {
		admin_fail(call, ADMIN_MEMORY, "out of memory");
		return;
	}
	if (wait_ms == 0)
		remove_now(named);
	admin_reply_done(call, 202, named_document(named));
}

/* DELETE workers/NAME[?drain=30s] */
void admin_delete_worker(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	char text[32];
	struct span rest;
	uint64_t wait_ms = 0;
	struct named named;

	if (!path_named(a, call, &rest, &named))
		return;
	if (rest.n > 0) {
		http_call_fail(call, FAIL_PATH_NOT_FOUND);
	} else if (http_call_query_value(call, "drain", text, sizeof(text)) &&
		   conf_duration_ms(span_str(text), &wait_ms, NULL) != 0) {
		admin_fail(call, ADMIN_INVALID, "drain: a time such as 30s is needed");
	} else {
		remove_named(a, call, &named, wait_ms);
	}
	named_free(&named);
}

void admin_removals_start(struct admin *a)
{
	wheel_timer_init(&a->removal_timer, on_removal_timer, a);
}

void admin_removals_stop(struct admin *a)
{
	wheel_stop(loop_wheel(a->control->loop), &a->removal_timer);
	free_removals(take_ptr(a->removals));
}
