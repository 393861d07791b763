/*
 * Exchanges that outlive their request. See cleanup.h.
 */
#include "proxy/cleanup.h"

#include "base/clock.h"
#include "base/metric.h"
#include "http/http_write.h"
#include "pool/pool.h"
#include "proxy/io_thread.h"
#include "proxy/outcome.h"
#include "proxy/placement.h"
#include "proxy/upstream.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>

/* A call that gives back KV blocks. */
struct kv_release {
	LIST_ENTRY(kv_release) link;
	struct reap reap;
	struct io_thread *t;
	struct worker *worker; /* a reference */
	struct exchange *ex;
	bool has_header;
	char *body; /* owned */
};

/* A prefill that goes on, with its slot. */
struct drain {
	LIST_ENTRY(drain) link;
	struct reap reap;
	struct io_thread *t;
	struct pool *pool; /* a reference */
	struct placement at;
	char *body; /* owned */
};

static bool may_begin(const struct io_thread *t)
{
	return t->n_cleanups < CLEANUPS_MAX;
}

/* As exchange_head(), once; END: the header is no 2xx. */
static enum exchange_result read_header(struct exchange *ex, bool *has_header)
{
	const struct http_head *a;
	const char *base;
	enum exchange_result res;

	if (*has_header)
		return EXCHANGE_OK;
	res = exchange_head(ex, &a, &base);
	if (res != EXCHANGE_OK)
		return res;
	*has_header = a->status >= 200 && a->status < 300;
	return *has_header ? EXCHANGE_OK : EXCHANGE_END;
}

/* Reads what there is. AGAIN: more is to come; END: the response is whole, and good. */
static enum exchange_result read_all(struct exchange *ex, bool *has_header)
{
	enum exchange_result res = read_header(ex, has_header);
	struct span data;

	if (res == EXCHANGE_END)
		return EXCHANGE_FAILED;
	while (res == EXCHANGE_OK)
		res = exchange_body(ex, &data);
	return res;
}

/* ---- KV blocks ---- */

static void release_destroy(struct reap *r)
{
	struct kv_release *k = container_of(r, struct kv_release, reap);

	free(k->body);
	free(k);
}

static void release_end(struct kv_release *k, bool is_done)
{
	metric_inc(is_done ? METRIC_KV_RELEASES_DONE : METRIC_KV_RELEASES_FAILED);
	if (is_done)
		exchange_finish(&k->ex);
	exchange_cancel(&k->ex);
	worker_unref(k->worker);
	LIST_REMOVE(k, link);
	k->t->n_cleanups--;
	loop_reap(k->t->loop, &k->reap, release_destroy);
}

static void release_run(void *arg)
{
	struct kv_release *k = arg;
	enum exchange_result res = read_all(k->ex, &k->has_header);

	if (res != EXCHANGE_AGAIN)
		release_end(k, res == EXCHANGE_END);
}

/* Into the thread's scratch. 0: it does not fit. */
static size_t write_header(struct io_thread *t, const struct worker *w,
	struct span authorization, size_t body_bytes)
{
	struct span rank_line = worker_rank_line(w);
	int n = snprintf(io_out(t), IO_OUT_BYTES,
		"POST " SPAN_FMT "/v1/kv/release HTTP/1.1\r\n" SPAN_FMT SPAN_FMT
		"Via: 1.1 kvsteer\r\n"
		"Content-Type: application/json\r\n"
		"Content-Length: %zu\r\n"
		"%s" SPAN_FMT "%s\r\n",
		SPAN_ARG(w->url_base), SPAN_ARG(w->host_line), SPAN_ARG(rank_line),
		body_bytes, authorization.n > 0 ? "Authorization: " : "",
		SPAN_ARG(authorization), authorization.n > 0 ? "\r\n" : "");

	return n > 0 && n < IO_OUT_BYTES ? (size_t)n : 0;
}

static bool release_start(struct kv_release *k, size_t n, struct span authorization)
{
	struct exchange_opts o = {
		.body = span_make(k->body, n),
		.method = HTTP_POST,
		.fresh_only = true, /* it is not tried again */
		.connect_timeout_ms = RELEASE_TIMEOUT_MS,
		.first_byte_timeout_ms = RELEASE_TIMEOUT_MS,
		.stream_idle_timeout_ms = RELEASE_TIMEOUT_MS,
		.total_due_ms = clock_now_ms() + 2 * RELEASE_TIMEOUT_MS,
	};
	size_t len = write_header(k->t, k->worker, authorization, n);

	if (len == 0)
		return false;
	o.head = span_make(io_out(k->t), len);
	k->ex = exchange_start(k->t, k->worker, &o, release_run, k);
	return k->ex != NULL;
}

void cleanup_release(struct io_thread *t, struct worker *w, struct span authorization,
	char *body, size_t n)
{
	struct kv_release *k = may_begin(t) ? calloc(1, sizeof(*k)) : NULL;

	if (k == NULL) {
		metric_inc(METRIC_KV_RELEASES_FAILED);
		free(body);
		return;
	}
	k->t = t;
	k->worker = worker_ref(w);
	k->body = body;
	LIST_INSERT_HEAD(&t->releases, k, link);
	t->n_cleanups++;
	if (release_start(k, n, authorization))
		release_run(k); /* it may have failed already */
	else
		release_end(k, false);
}

/* ---- a prefill that is slower than its decode ---- */

static void drain_destroy(struct reap *r)
{
	struct drain *d = container_of(r, struct drain, reap);

	free(d->body);
	free(d);
}

static void drain_end(struct drain *d)
{
	placement_leave(&d->at, d->t, d->pool, NULL);
	pool_unref(d->pool);
	LIST_REMOVE(d, link);
	d->t->n_cleanups--;
	loop_reap(d->t->loop, &d->reap, drain_destroy);
}

static enum fail failure(const struct exchange *ex)
{
	enum fail why = exchange_failure(ex);

	return why != FAIL_NONE ? why : FAIL_WORKER_PROTOCOL;
}

static void drain_run(void *arg)
{
	struct drain *d = arg;
	enum exchange_result res = read_all(d->at.ex, &d->at.is_confirmed);

	if (res == EXCHANGE_AGAIN)
		return;
	if (res == EXCHANGE_END) {
		outcome_end(&d->at.guard, d->at.ex, FAIL_NONE);
		exchange_finish(&d->at.ex);
	} else {
		outcome_end(&d->at.guard, d->at.ex, failure(d->at.ex));
	}
	drain_end(d);
}

void cleanup_drain(
	struct io_thread *t, struct pool *pool, struct placement *p, char *body)
{
	struct drain *d = may_begin(t) ? calloc(1, sizeof(*d)) : NULL;

	if (d == NULL) {
		placement_leave(p, t, pool, NULL);
		free(body);
		return;
	}
	d->t = t;
	d->pool = pool_ref(pool);
	d->at = *p;
	*p = (struct placement){0};
	d->body = body;
	LIST_INSERT_HEAD(&t->drains, d, link);
	t->n_cleanups++;
	exchange_set_wake(d->at.ex, drain_run, d);
	drain_run(d);
}

void cleanup_cancel_all(struct io_thread *t)
{
	while (!LIST_EMPTY(&t->releases))
		release_end(LIST_FIRST(&t->releases), false);
	/* Without a report: that the thread ends is not the worker's failure. */
	while (!LIST_EMPTY(&t->drains))
		drain_end(LIST_FIRST(&t->drains));
}
