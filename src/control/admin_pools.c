/*
 * Pools by the admin API: POST pools/NAME/generation, pools/NAME/flush and
 * pools/NAME/call, which asks every worker whatever is said. Both are answered when every
 * worker has answered, and continue if the caller leaves before.
 */
#include "control/admin_calls.h"

#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "control/admin_reply.h"
#include "fleet/fleet_call.h"
#include "http/http_server.h"
#include "io/fetch.h"
#include "route/path_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "/admin/v1/pools/"
#define TARGET_MAX 4096

/* A call to all workers under way, and who waits for it. */
struct call_wait {
	LIST_ENTRY(call_wait) link;
	struct http_call *call; /* NULL: the caller left */
	struct fleet_call *fleet_call;
	void (*answer)(struct http_call *call, const struct fleet_call *c);
};

struct admin_pool_calls {
	struct fetcher *fetcher;
	LIST_HEAD(, call_wait) waits;
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

/* ---- calls to all workers ---- */

static struct js *call_error(const struct fleet_call *c, const char *code)
{
	struct js *error = js_object();
	char text[512];

	fleet_call_say(c, text, sizeof(text));
	js_set_str(error, "message", text);
	js_set_str(error, "code", code);
	return error;
}

static void answer_flush(struct http_call *call, const struct fleet_call *c)
{
	struct js *out = generation_object(fleet_call_pool(c));
	struct js *flushed = js_array(), *failed = js_array();
	bool is_good = fleet_call_is_good(c);
	size_t i;

	for (i = 0; i < fleet_call_count(c); i++) {
		struct fleet_call_outcome o = fleet_call_outcome(c, i);
		struct js *item;

		if (o.did_it) {
			js_push(flushed, js_string(span_str(o.worker)));
			continue;
		}
		item = js_object();
		js_set_str(item, "worker", o.worker);
		js_set_str(item, "message", o.why_not);
		js_push(failed, item);
	}
	if (!is_good)
		js_set(out, "error", call_error(c, "flush_failed"));
	js_set(out, "flushed", flushed);
	js_set(out, "failed", failed);
	admin_reply(call, is_good ? 200 : 502, out);
}

static void answer_call(struct http_call *call, const struct fleet_call *c)
{
	struct js *out = generation_object(fleet_call_pool(c));
	bool is_good = fleet_call_is_good(c);

	if (!is_good)
		js_set(out, "error", call_error(c, "call_failed"));
	js_set(out, "workers", fleet_call_list(c));
	admin_reply(call, is_good ? 200 : 502, out);
}

static void wait_free(struct call_wait *w)
{
	LIST_REMOVE(w, link);
	fleet_call_free(w->fleet_call);
	free(w);
}

static void on_done(void *arg, struct fleet_call *c)
{
	struct call_wait *w = arg;

	if (w->call != NULL)
		w->answer(w->call, c);
	wait_free(w);
}

static void on_caller_gone(void *arg)
{
	struct call_wait *w = arg;

	w->call = NULL;
}

/* Goes on if the caller leaves before it is over. */
static void wait_for(struct admin *a, struct http_call *call, struct call_wait *w)
{
	w->call = call;
	LIST_INSERT_HEAD(&a->pool_calls->waits, w, link);
	http_call_watch(call, on_caller_gone, NULL, w);
	if (fleet_call_is_over(w->fleet_call))
		on_done(w, w->fleet_call);
}

static void flush(struct admin *a, struct http_call *call, struct pool *p)
{
	struct call_wait *w = calloc(1, sizeof(*w));

	if (w != NULL)
		w->fleet_call = fleet_call_flush(a->pool_calls->fetcher, p, on_done, w);
	if (w == NULL || w->fleet_call == NULL) {
		free(w);
		admin_fail(call, ADMIN_MEMORY, "out of memory");
		return;
	}
	w->answer = answer_flush;
	wait_for(a, call, w);
}

/* The target of an engine: "/sleep?level=1". */
static bool is_target(const char *path)
{
	size_t i;

	for (i = 0; path[i] != '\0'; i++) {
		if (path[i] <= ' ' || path[i] == 0x7f || path[i] == '#')
			return false;
	}
	return path[0] == '/';
}

static struct fleet_call *start_call(
	struct admin *a, struct http_call *call, struct pool *p, struct call_wait *w)
{
	char path[TARGET_MAX], method[8];
	struct path_effects effects;
	struct fleet_call_ask ask = {
		.method = method, .paths = {path}, .body = http_call_body(call)};

	if (!http_call_query_value(call, "path", path, sizeof(path)) ||
		!is_target(path)) {
		admin_fail(call, ADMIN_INVALID,
			"path: what workers are asked, like /sleep?level=1, is needed");
		return NULL;
	}
	if (!http_call_query_value(call, "method", method, sizeof(method)))
		memcpy(method, "POST", sizeof("POST"));
	if (strcmp(method, "POST") != 0 && strcmp(method, "GET") != 0 &&
		strcmp(method, "PUT") != 0 && strcmp(method, "DELETE") != 0) {
		admin_fail(call, ADMIN_INVALID,
			"method %s: GET, POST, PUT or DELETE is expected", method);
		return NULL;
	}
	path_find_effects(method, span_str(path), &effects);
	ask.drops_caches = effects.drops_caches;
	ask.stops_requests = effects.stops_requests;
	w->fleet_call = fleet_call_start(a->pool_calls->fetcher, p, &ask, on_done, w);
	if (w->fleet_call == NULL)
		admin_fail(call, ADMIN_MEMORY, "out of memory");
	return w->fleet_call;
}

static void call_all(struct admin *a, struct http_call *call, struct pool *p)
{
	struct call_wait *w = calloc(1, sizeof(*w));

	if (w == NULL) {
		admin_fail(call, ADMIN_MEMORY, "out of memory");
		return;
	}
	if (start_call(a, call, p, w) == NULL) {
		free(w);
		return;
	}
	w->answer = answer_call;
	wait_for(a, call, w);
}

/* POST pools/NAME/generation, pools/NAME/flush, pools/NAME/call?path=&method= */
void admin_post_pool(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	struct span rest, name = admin_path_word(call, PREFIX, &rest);
	struct pool *p = site_pool(a->control->site, name);
	bool is_flush = span_is(rest, "flush"), is_call = span_is(rest, "call");

	if (!is_flush && !is_call && !span_is(rest, "generation"))
		http_call_fail(call, FAIL_PATH_NOT_FOUND);
	else if (p == NULL)
		admin_fail(call, ADMIN_NO_POOL, "there is no pool " SPAN_FMT,
			SPAN_ARG(name));
	else if (is_flush)
		flush(a, call, p);
	else if (is_call)
		call_all(a, call, p);
	else
		generation(call, p);
}

bool admin_pool_calls_start(struct admin *a)
{
	a->pool_calls = xcalloc(1, sizeof(*a->pool_calls));
	LIST_INIT(&a->pool_calls->waits);
	a->pool_calls->fetcher = fetcher_new(a->control->loop);
	return a->pool_calls->fetcher != NULL;
}

void admin_pool_calls_stop(struct admin *a)
{
	struct call_wait *w;

	while ((w = LIST_FIRST(&a->pool_calls->waits)) != NULL)
		wait_free(w);
	fetcher_free(a->pool_calls->fetcher);
	free(a->pool_calls);
}
