/*
 * Pools by the admin API: POST pools/NAME/generation and pools/NAME/flush. A flush is
 * answered when every worker has answered it. It continues if the caller leaves before.
 */
#include "control/admin_calls.h"

#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "control/admin_reply.h"
#include "fleet/flush.h"
#include "http/http_server.h"
#include "io/fetch.h"

#include <stdio.h>
#include <stdlib.h>

#define PREFIX "/admin/v1/pools/"

/* A flush under way, and who waits for it. */
struct flush_wait {
	LIST_ENTRY(flush_wait) link;
	struct http_call *call; /* NULL: the caller left */
	struct flush *flush;
};

struct admin_flushes {
	struct fetcher *fetcher;
	LIST_HEAD(, flush_wait) waits;
};

/* ---- generation ---- */

/* Bumped, or set to what the body says; false: that is no generation. */
static bool change_generation(struct pool *p, const struct js *body)
{
	const struct js *set = body != NULL ? js_get(body, "set") : NULL;
	int64_t n;

	if (set == NULL) {
		pool_bump_generation(p);
		return true;
	}
	if (!js_as_int(set, &n) || n < 0)
		return false;
	pool_set_generation(p, (uint64_t)n);
	return true;
}

static struct js *generation_object(struct pool *p)
{
	struct js *out = js_object();

	js_set_str(out, "pool", pool_name(p));
	js_set_int(out, "generation", (int64_t)pool_generation(p));
	return out;
}

static void generation(struct http_call *call, struct pool *p)
{
	struct js *body;

	if (!admin_read_body(call, &body))
		return;
	if (change_generation(p, body)) {
		log_notice("pool %s: generation %llu", pool_name(p),
			(unsigned long long)pool_generation(p));
		admin_reply(call, 200, generation_object(p));
	} else {
		admin_fail(call, ADMIN_INVALID, "set: a number from 0 is needed");
	}
	js_free(body);
}

/* ---- flush ---- */

/* "1 of 3 workers did not flush: gpu1 (connection refused)" */
static struct js *flush_error(const struct flush *f, const struct js *failed)
{
	struct js *error = js_object();
	struct span worker = {0}, why = {0};
	char text[512];

	js_as_str(js_get(js_at(failed, 0), "worker"), &worker);
	js_as_str(js_get(js_at(failed, 0), "message"), &why);
	snprintf(text, sizeof(text),
		"%zu of %zu workers did not flush: " SPAN_FMT " (" SPAN_FMT ")",
		js_len(failed), flush_count(f), SPAN_ARG(worker), SPAN_ARG(why));
	js_set_str(error, "message", text);
	js_set_str(error, "code", "flush_failed");
	return error;
}

static void answer_flush(struct http_call *call, const struct flush *f)
{
	struct js *out = generation_object(flush_pool(f));
	struct js *flushed = js_array(), *failed = js_array();
	bool is_good;
	size_t i;

	for (i = 0; i < flush_count(f); i++) {
		struct flush_outcome o = flush_outcome(f, i);
		struct js *item;

		if (o.is_flushed) {
			js_push(flushed, js_string(span_str(o.worker)));
			continue;
		}
		item = js_object();
		js_set_str(item, "worker", o.worker);
		js_set_str(item, "message", o.why_not);
		js_push(failed, item);
	}
	is_good = js_len(failed) == 0;
	if (!is_good)
		js_set(out, "error", flush_error(f, failed));
	js_set(out, "flushed", flushed);
	js_set(out, "failed", failed);
	admin_reply(call, is_good ? 200 : 502, out);
}

static void wait_free(struct flush_wait *w)
{
	LIST_REMOVE(w, link);
	flush_free(w->flush);
	free(w);
}

static void on_flushed(void *arg, struct flush *f)
{
	struct flush_wait *w = arg;

	if (w->call != NULL)
		answer_flush(w->call, f);
	wait_free(w);
}

static void on_caller_gone(void *arg)
{
	struct flush_wait *w = arg;

	w->call = NULL;
}

static void flush(struct admin *a, struct http_call *call, struct pool *p)
{
	struct flush_wait *w = calloc(1, sizeof(*w));

	if (w != NULL)
		w->flush = flush_start(a->flushes->fetcher, p, on_flushed, w);
	if (w == NULL || w->flush == NULL) {
		free(w);
		admin_fail(call, ADMIN_MEMORY, "out of memory");
		return;
	}
	w->call = call;
	LIST_INSERT_HEAD(&a->flushes->waits, w, link);
	http_call_watch(call, on_caller_gone, NULL, w);
	if (flush_is_over(w->flush))
		on_flushed(w, w->flush);
}

/* POST pools/NAME/generation, pools/NAME/flush */
void admin_post_pool(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	struct span rest, name = admin_path_word(call, PREFIX, &rest);
	struct pool *p = site_pool(a->control->site, name);
	bool is_flush = span_is(rest, "flush");

	if (!is_flush && !span_is(rest, "generation"))
		http_call_fail(call, FAIL_PATH_NOT_FOUND);
	else if (p == NULL)
		admin_fail(call, ADMIN_NO_POOL, "there is no pool " SPAN_FMT,
			SPAN_ARG(name));
	else if (is_flush)
		flush(a, call, p);
	else
		generation(call, p);
}

bool admin_flushes_start(struct admin *a)
{
	a->flushes = xcalloc(1, sizeof(*a->flushes));
	LIST_INIT(&a->flushes->waits);
	a->flushes->fetcher = fetcher_new(a->control->loop);
	return a->flushes->fetcher != NULL;
}

void admin_flushes_stop(struct admin *a)
{
	struct flush_wait *w;

	while ((w = LIST_FIRST(&a->flushes->waits)) != NULL)
		wait_free(w);
	fetcher_free(a->flushes->fetcher);
	free(a->flushes);
}
