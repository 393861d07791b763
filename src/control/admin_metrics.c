/*
 * The metrics as Prometheus text: those counted per thread (base/metric.c), and those
 * read from workers, pools and the daemon when scraped. Names and labels are listed in
 * kvsteerd(8).
 */
#include "control/admin_calls.h"

#include "base/clock.h"
#include "base/metric.h"
#include "control/admin_reply.h"
#include "http/http_server.h"
#include "pool/pool.h"
#include "worker/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A worker with its pool, for families that walk over all of them. */
struct item {
	struct pool *pool;
	struct worker *w;
};

struct items {
	struct item *list;
	size_t n;
};

static struct items all_workers(const struct site *site)
{
	struct items out = {NULL, 0};
	size_t i, j, n;

	for (i = 0; i < site->n_pools; i++) {
		struct worker **workers = pool_list(site->pools[i], &n);
		struct item *grown = realloc(out.list, (out.n + n + 1) * sizeof(*grown));

		if (grown != NULL)
			out.list = grown;
		for (j = 0; j < n; j++) {
			if (grown != NULL)
				out.list[out.n++] =
					(struct item){site->pools[i], workers[j]};
			else
				worker_unref(workers[j]);
		}
		free(workers);
	}
	return out;
}

static void items_free(struct items *items)
{
	while (items->n > 0)
		worker_unref(items->list[--items->n].w);
	free(items->list);
}

static void label(struct text *out, const char *name, const char *value, bool is_first)
{
	text_printf(out, "%s%s=\"", is_first ? "" : ",", name);
	metric_label(out, span_str(value));
	text_printf(out, "\"");
}

/* name{worker="…",pool="…",role="…" and no closing brace */
static void worker_labels(struct text *out, const char *name, const struct item *it)
{
	text_printf(out, "%s{", name);
	label(out, "worker", it->w->name, true);
	label(out, "pool", pool_name(it->pool), false);
	label(out, "role", role_name(it->w->role), false);
}

typedef double worker_value_fn(const struct item *it);

static void worker_gauge(struct text *out, const struct items *items, const char *name,
	const char *type, const char *help, worker_value_fn *value)
{
	size_t i;

	metric_family(out, name, type, help);
	for (i = 0; i < items->n; i++) {
		double v = value(&items->list[i]);

		worker_labels(out, name, &items->list[i]);
		text_printf(out, "} %.17g\n", v);
	}
}

static double value_load(const struct item *it)
{
	return worker_load(it->w);
}

static double value_streams(const struct item *it)
{
	return worker_streams(it->w);
}

static double value_queued(const struct item *it)
{
	return (double)worker_queued_blocks(it->w);
}

/* Since the last byte of any answer; a worker that never sent one has made no progress
 * yet: 0. */
static double value_progress_age(const struct item *it)
{
	uint64_t last_ms = atomic_load(&it->w->relay.last_byte_ms),
		 now_ms = clock_now_ms();

	return last_ms == 0 || last_ms > now_ms ? 0 : (double)(now_ms - last_ms) / 1000;
}

static double value_breaker(const struct item *it)
{
	return breaker_state(&it->w->breaker, clock_now_ms());
}

static double value_outlier(const struct item *it)
{
	return atomic_load(&it->w->pool.outlier) != OUTLIER_NONE;
}

static double value_breaker_wait(const struct item *it)
{
	return (double)breaker_wait_ms(&it->w->breaker, clock_now_ms()) / 1000;
}

static double value_silent(const struct item *it)
{
	return (double)progress_age_ms(&it->w->watch.progress, clock_now_ms()) / 1000;
}

static double value_blocks(const struct item *it)
{
	return (double)pool_worker_blocks(it->pool, it->w);
}

/* The KV cache; 0: not known. */
static double value_capacity(const struct item *it)
{
	uint64_t set = it->w->conf->capacity;

	return (double)(set != 0 ? set : it->w->pool.learned_tokens);
}

static double value_requests(const struct item *it)
{
	return (double)atomic_load(&it->w->guard.requests);
}

static double value_prompt_blocks(const struct item *it)
{
	return (double)atomic_load(&it->w->pool.hits.blocks);
}

static double value_matched_blocks(const struct item *it)
{
	return (double)atomic_load(&it->w->pool.hits.matched);
}

/* name{pool="…",…,what="value"} n */
static void worker_sample(struct text *out, const char *name, const struct item *it,
	const char *what, const char *value, uint64_t n)
{
	worker_labels(out, name, it);
	label(out, what, value, false);
	text_printf(out, "} %" PRIu64 "\n", n);
}

/* Only of workers that said something lately: a number that nobody says is no zero. */
static void print_reported(struct text *out, const struct items *items)
{
	static const char name[] = "kvsteer_worker_reported_requests";
	uint64_t now_ms = clock_now_ms();
	size_t i;

	metric_family(out, name, "gauge", "Requests that the worker says it has");
	for (i = 0; i < items->n; i++) {
		const struct worker *w = items->list[i].w;

		if (!worker_report_is_fresh(w, now_ms))
			continue;
		worker_sample(out, name, &items->list[i], "state", "running",
			atomic_load(&w->report.running));
		worker_sample(out, name, &items->list[i], "state", "waiting",
			atomic_load(&w->report.waiting));
	}
}

static void print_states(struct text *out, const struct items *items)
{
	static const char name[] = "kvsteer_worker_state";
	size_t i;
	int s;

	metric_family(out, name, "gauge", "1 for the state that holds");
	for (i = 0; i < items->n; i++) {
		enum worker_state now = worker_state(items->list[i].w);

		for (s = 0; s < WORKER_STATE_MAX; s++)
			worker_sample(out, name, &items->list[i], "state",
				worker_state_name((enum worker_state)s),
				now == (enum worker_state)s);
	}
}

/* The failures that are a worker's. */
static bool is_workers_own(enum fail why)
{
	return fail_is_workers(why);
}

static void print_failures(struct text *out, const struct items *items)
{
	static const char name[] = "kvsteer_upstream_failures_total";
	size_t i;
	int f;

	metric_family(out, name, "counter", "Exchanges with a worker that failed");
	for (i = 0; i < items->n; i++) {
		for (f = 0; f < FAIL_MAX; f++) {
			if (is_workers_own((enum fail)f))
				worker_sample(out, name, &items->list[i], "reason",
					fail_code((enum fail)f),
					atomic_load(
						&items->list[i].w->guard.failures[f]));
		}
		worker_sample(out, name, &items->list[i], "reason", "status_5xx",
			atomic_load(&items->list[i].w->guard.errors));
	}
}

/* Of the buckets of a worker's latency those with these bounds are printed. */
static const uint64_t latency_bounds_us[] = {10000, 25000, 50000, 100000, 250000, 500000,
	1000000, 2500000, 5000000, 10000000, 25000000, 50000000, 100000000, 250000000};

static void print_latency(
	struct text *out, const char *name, const struct item *it, enum latency_kind kind)
{
	const struct latency *l = &it->w->latency;
	uint64_t sum_us = atomic_load(&l->sum_us[kind]), n = 0;
	unsigned i, at = 0;
	char series[96], bound[24];

	snprintf(series, sizeof(series), "%s_bucket", name);
	for (i = 0; i < ARRAY_LEN(latency_bounds_us); i++) {
		while (at < LATENCY_BOUNDS &&
			latency_bound_us(at) <= latency_bounds_us[i])
			n += atomic_load(&l->buckets[kind][at++]);
		snprintf(bound, sizeof(bound), "%g", (double)latency_bounds_us[i] / 1e6);
		worker_sample(out, series, it, "le", bound, n);
	}
	while (at < LATENCY_BUCKETS)
		n += atomic_load(&l->buckets[kind][at++]);
	worker_sample(out, series, it, "le", "+Inf", n);
	snprintf(series, sizeof(series), "%s_sum", name);
	worker_labels(out, series, it);
	text_printf(out, "} %.6f\n", (double)sum_us / 1e6);
	snprintf(series, sizeof(series), "%s_count", name);
	worker_labels(out, series, it);
	text_printf(out, "} %" PRIu64 "\n", n);
}

static void print_latencies(struct text *out, const struct items *items)
{
	static const struct {
		const char *name, *help;
		enum latency_kind kind;
	} families[] = {
		{"kvsteer_worker_ttft_seconds",
			"Time from the choice of the worker to the first content of its "
			"event stream",
			LATENCY_TTFT},
		{"kvsteer_worker_response_seconds",
			"Time from the choice of the worker to the end of its response",
			LATENCY_WHOLE},
	};
	size_t i, j;

	for (i = 0; i < ARRAY_LEN(families); i++) {
		metric_family(out, families[i].name, "histogram", families[i].help);
		for (j = 0; j < items->n; j++)
			print_latency(
				out, families[i].name, &items->list[j], families[i].kind);
	}
}

static void print_workers(struct text *out, const struct site *site)
{
	struct items items = all_workers(site);

	worker_gauge(out, &items, "kvsteer_worker_load", "gauge", "Requests in flight",
		value_load);
	worker_gauge(out, &items, "kvsteer_worker_streams", "gauge",
		"Requests in flight whose prefill is over", value_streams);
	worker_gauge(out, &items, "kvsteer_worker_queued_blocks", "gauge",
		"Uncached blocks of the requests whose prefill is not over",
		value_queued);
	print_reported(out, &items);
	print_states(out, &items);
	worker_gauge(out, &items, "kvsteer_worker_progress_age_seconds", "gauge",
		"Time since the last byte of any answer", value_progress_age);
	worker_gauge(out, &items, "kvsteer_worker_silent_seconds", "gauge",
		"How long requests have waited there without any progress", value_silent);
	worker_gauge(out, &items, "kvsteer_worker_requests_total", "counter",
		"Requests that this worker was chosen for", value_requests);
	worker_gauge(out, &items, "kvsteer_worker_prompt_blocks_total", "counter",
		"Blocks of the prompts that this worker was chosen for",
		value_prompt_blocks);
	worker_gauge(out, &items, "kvsteer_worker_matched_blocks_total", "counter",
		"Blocks of them that it was believed to hold", value_matched_blocks);
	worker_gauge(out, &items, "kvsteer_prefix_blocks", "gauge",
		"Blocks of prompts that the worker is believed to hold", value_blocks);
	worker_gauge(out, &items, "kvsteer_worker_capacity_tokens", "gauge",
		"KV cache of the worker, configured or learned", value_capacity);
	print_latencies(out, &items);
	print_failures(out, &items);
	worker_gauge(out, &items, "kvsteer_breaker_state", "gauge",
		"Circuit breaker: 0 closed, 1 half-open, 2 open", value_breaker);
	worker_gauge(out, &items, "kvsteer_worker_outlier", "gauge",
		"1 while its 4xx or its speed set the worker apart from its peers",
		value_outlier);
	worker_gauge(out, &items, "kvsteer_breaker_wait_seconds", "gauge",
		"Until the breaker, or the worker's Retry-After, admits a request",
		value_breaker_wait);
	items_free(&items);
}

/* Whether the role is used: others would print zeros for ever. */
static bool has_role(struct pool *p, enum role r)
{
	return r == ROLE_UNIFIED || pool_workers(p, r) > 0;
}

/* name{pool="…",role="…" and no closing brace */
static void pool_labels(struct text *out, const char *name, struct pool *p, enum role r)
{
	text_printf(out, "%s{", name);
	label(out, "pool", pool_name(p), true);
	label(out, "role", role_name(r), false);
}

static void print_decisions(struct text *out, const struct site *site)
{
	static const char name[] = "kvsteer_route_decisions_total";
	size_t i;
	enum role r;
	int reason;

	metric_family(out, name, "counter", "Decisions by policy and reason");
	for (i = 0; i < site->n_pools; i++) {
		struct pool *p = site->pools[i];

		for (r = 0; r < ROLE_MAX; r++) {
			for (reason = PICK_NONE + 1;
				has_role(p, r) && reason < PICK_REASON_MAX; reason++) {
				uint64_t n =
					pool_decisions(p, r, (enum pick_reason)reason);

				pool_labels(out, name, p, r);
				label(out, "policy", pool_policy_name(p, r), false);
				label(out, "reason",
					pick_reason_name((enum pick_reason)reason),
					false);
				text_printf(out, "} %llu\n", (unsigned long long)n);
			}
		}
	}
}

static void print_generations(struct text *out, const struct site *site)
{
	static const char name[] = "kvsteer_pool_generation";
	size_t i;

	metric_family(
		out, name, "gauge", "Generation of the weights that the pool serves");
	for (i = 0; i < site->n_pools; i++) {
		text_printf(out, "%s{", name);
		label(out, "pool", pool_name(site->pools[i]), true);
		text_printf(out, "} %llu\n",
			(unsigned long long)pool_generation(site->pools[i]));
	}
}

static void print_index_bytes(struct text *out, const struct site *site)
{
	static const char name[] = "kvsteer_index_bytes";
	size_t i;
	enum role r;

	metric_family(out, name, "gauge", "Memory of the prefix index");
	for (i = 0; i < site->n_pools; i++) {
		for (r = 0; r < ROLE_MAX; r++) {
			struct prefix_index_stats s;

			if (!has_role(site->pools[i], r))
				continue;
			pool_index_stats(site->pools[i], r, &s);
			pool_labels(out, name, site->pools[i], r);
			text_printf(out, "} %zu\n", s.bytes);
		}
	}
}

static void print_evictions(struct text *out, const struct site *site)
{
	static const char *const reasons[] = {[PREFIX_EVICT_CAPACITY] = "capacity",
		[PREFIX_EVICT_MEMORY] = "memory",
		[PREFIX_EVICT_TTL] = "ttl",
		[PREFIX_EVICT_DROPPED] = "dropped"};
	static const char name[] = "kvsteer_prefix_evictions_total";
	size_t i;
	enum role r;
	int e;

	static_assert(ARRAY_LEN(reasons) == PREFIX_EVICT_MAX, "a name for each reason");
	metric_family(
		out, name, "counter", "Blocks that left the index, one for each worker");
	for (i = 0; i < site->n_pools; i++) {
		for (r = 0; r < ROLE_MAX; r++) {
			struct prefix_index_stats s;

			pool_index_stats(site->pools[i], r, &s);
			for (e = 0; has_role(site->pools[i], r) && e < PREFIX_EVICT_MAX;
				e++) {
				pool_labels(out, name, site->pools[i], r);
				label(out, "reason", reasons[e], false);
				text_printf(out, "} %llu\n",
					(unsigned long long)s.evicted[e]);
			}
		}
	}
}

static void print_daemon(struct text *out, const struct control *c)
{
	metric_family(out, "kvsteer_reloads_total", "counter", "Reloads by result");
	text_printf(out, "kvsteer_reloads_total{result=\"ok\"} %llu\n",
		(unsigned long long)c->reloads[RELOAD_OK]);
	text_printf(out, "kvsteer_reloads_total{result=\"failed\"} %llu\n",
		(unsigned long long)c->reloads[RELOAD_FAILED]);
}

void admin_metrics_print(const struct control *c, struct text *out)
{
	metric_print(out);
	print_workers(out, c->site);
	print_decisions(out, c->site);
	print_generations(out, c->site);
	print_index_bytes(out, c->site);
	print_evictions(out, c->site);
	print_daemon(out, c);
}

void admin_metrics(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	struct text text = {0};

	admin_metrics_print(a->control, &text);
	if (text.failed)
		http_call_fail(call, FAIL_INTERNAL);
	else
		http_call_reply(call, 200, "text/plain; version=0.0.4; charset=utf-8",
			span_make(text.p, text.n), span_make(NULL, 0));
	text_free(&text);
}
