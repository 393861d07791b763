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
#include "proxy/upstream.h"
#include "worker/guard.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>

struct errand {
	TAILQ_ENTRY(errand) link;
	struct reap reap;
	struct io_thread *t;
	struct worker *worker; /* a reference */
	struct pool *pool;     /* a reference, where it drains */
	struct guard guard;    /* likewise */
	struct exchange *ex;
	bool has_head;
	char *body; /* owned */
};

static void errand_destroy(struct reap *r)
{
	struct errand *e = container_of(r, struct errand, reap);

	free(e->body);
	free(e);
}

static enum fail failure(const struct errand *e)
{
	enum fail why = exchange_failure(e->ex);

	return why != FAIL_NONE ? why : FAIL_WORKER_PROTOCOL;
}

/* Its worker's breaker and load learn of it, and who waits is served. */
static void end_drain(struct errand *e, bool is_done)
{
	outcome_of(&e->guard, e->ex, is_done ? FAIL_NONE : failure(e));
	guard_drop(&e->guard);
	if (atomic_load(&e->t->process->queued) > 0)
		pool_serve(e->pool, clock_now_ms());
	pool_unref(e->pool);
}

static void errand_end(struct errand *e, bool is_done)
{
	if (e->pool != NULL)
		end_drain(e, is_done);
	else
		metric_inc(is_done ? METRIC_KV_RELEASES_DONE : METRIC_KV_RELEASES_FAILED);
	if (is_done)
		exchange_finish(&e->ex);
	exchange_cancel(&e->ex);
	worker_unref(e->worker);
	TAILQ_REMOVE(&e->t->errands, e, link);
	e->t->n_errands--;
	loop_reap(e->t->loop, &e->reap, errand_destroy);
}

static bool is_good(int status)
{
	return status >= 200 && status < 300;
}

/* As exchange_head(); END: it is no good answer. */
static enum exchange_result read_head(struct errand *e)
{
	const struct http_head *a;
	const char *base;
	enum exchange_result res;

	if (e->has_head)
		return EXCHANGE_OK;
	res = exchange_head(e->ex, &a, &base);
	if (res != EXCHANGE_OK)
		return res;
	e->has_head = true;
	return is_good(a->status) ? EXCHANGE_OK : EXCHANGE_END;
}

static void errand_run(void *arg)
{
	struct errand *e = arg;
	enum exchange_result res = read_head(e);
	struct span data;

	if (res == EXCHANGE_AGAIN)
		return;
	if (res != EXCHANGE_OK) {
		errand_end(e, false);
		return;
	}
	do
		res = exchange_body(e->ex, &data);
	while (res == EXCHANGE_OK);
	if (res != EXCHANGE_AGAIN)
		errand_end(e, res == EXCHANGE_END);
}

/* Into the thread's scratch. 0: it does not fit. */
static size_t write_head(struct io_thread *t, const struct worker *w,
	struct span authorization, size_t body_bytes)
{
	int n = snprintf(t->out, IO_OUT_BYTES,
		"POST " SPAN_FMT "/v1/kv/release HTTP/1.1\r\n" SPAN_FMT SPAN_FMT
		"Via: 1.1 kvsteer\r\n"
		"Content-Type: application/json\r\n"
		"Content-Length: %zu\r\n"
		"%s" SPAN_FMT "%s\r\n",
		SPAN_ARG(w->url_base), SPAN_ARG(w->host_line), SPAN_ARG(w->rank_line),
		body_bytes, authorization.n > 0 ? "Authorization: " : "",
		SPAN_ARG(authorization), authorization.n > 0 ? "\r\n" : "");

	return n > 0 && n < IO_OUT_BYTES ? (size_t)n : 0;
}

static bool start(struct errand *e, size_t n, struct span authorization)
{
	struct exchange_opts o = {
		.body = span_make(e->body, n),
		.method = HTTP_POST,
		.fresh_only = true, /* it is not tried again */
		.connect_timeout_ms = ERRAND_TIMEOUT_MS,
		.first_byte_timeout_ms = ERRAND_TIMEOUT_MS,
		.stream_idle_timeout_ms = ERRAND_TIMEOUT_MS,
		.total_due_ms = clock_now_ms() + 2 * ERRAND_TIMEOUT_MS,
	};
	size_t len = write_head(e->t, e->worker, authorization, n);

	if (len == 0)
		return false;
	o.head = span_make(e->t->out, len);
	e->ex = exchange_start(e->t, e->worker, &o, errand_run, e);
	return e->ex != NULL;
}

void errand_release(struct io_thread *t, struct worker *w, struct span authorization,
	char *body, size_t n)
{
	struct errand *e = t->n_errands < ERRANDS_MAX ? calloc(1, sizeof(*e)) : NULL;

	if (e == NULL) {
		metric_inc(METRIC_KV_RELEASES_FAILED);
		free(body);
		return;
	}
	e->t = t;
	e->worker = worker_ref(w);
	e->body = body;
	TAILQ_INSERT_TAIL(&t->errands, e, link);
	t->n_errands++;
	if (start(e, n, authorization))
		errand_run(e); /* it may have failed already */
	else
		errand_end(e, false);
}

void errand_drain(struct io_thread *t, struct pool *p, struct exchange **ex,
	bool has_head, struct guard *g, char *body)
{
	struct errand *e = t->n_errands < ERRANDS_MAX ? calloc(1, sizeof(*e)) : NULL;

	if (e == NULL) {
		exchange_cancel(ex);
		guard_drop(g);
		free(body);
		return;
	}
	e->t = t;
	e->pool = pool_ref(p);
	e->guard = *g;
	*g = (struct guard){0};
	e->ex = *ex;
	*ex = NULL;
	e->has_head = has_head;
	e->body = body;
	TAILQ_INSERT_TAIL(&t->errands, e, link);
	t->n_errands++;
	exchange_set_wake(e->ex, errand_run, e);
	errand_run(e);
}

void errand_cancel_all(struct io_thread *t)
{
	while (!TAILQ_EMPTY(&t->errands)) {
		struct errand *e = TAILQ_FIRST(&t->errands);

		/* Not its worker's failure: a guard that nobody reported is neutral. */
		if (e->pool != NULL)
			e->guard.is_reported = true;
		errand_end(e, false);
	}
}
