/*
 * The vLLM router's API. See router_calls.h. Called by fleet_calls.c.
 *
 * Facts of that router, version 0.1.17: POST /add_worker?url=U answers when the worker is
 * healthy, POST /remove_worker?url=U always well, GET /list_workers {"urls"}, GET
 * /get_loads {"workers": [{"worker", "load"}]}, /workers the same as objects.
 */
#include "control/router_calls.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "conf/conf.h"
#include "control/control.h"
#include "control/worker_change.h"
#include "http/http_query.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/wheel.h"
#include "proxy/fan_out.h"
#include "worker/worker.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_MS 50
#define ADD_MS 600000
#define URL_MAX 2048

/* A call that is answered when its worker is healthy. */
struct adding {
	LIST_ENTRY(adding) link;
	struct fan_out *f;
	uint64_t worker, due_ms; /* worker: its id */
	char url[URL_MAX];
};

struct router_calls {
	struct control *control;
	struct wheel_timer timer;
	LIST_HEAD(, adding) adding;
};

/* ---- answers ---- */

static void answer_text(struct fan_out *f, int status, const char *fmt, const char *arg)
{
	f->status = status;
	f->is_text = true;
	f->answer = mem_format(fmt, arg);
	f->answer_n = f->answer != NULL ? strlen(f->answer) : 0;
	fan_out_answer(f);
}

static void answer_js(struct fan_out *f, int status, struct js *doc)
{
	f->status = status;
	f->answer = js_print(doc, false);
	f->answer_n = f->answer != NULL ? strlen(f->answer) : 0;
	js_free(doc);
	fan_out_answer(f);
}

static void answer_unknown(struct fan_out *f)
{
	struct js *doc = js_object();

	js_set_str(doc, "error", "Worker not found");
	js_set_str(doc, "code", "WORKER_NOT_FOUND");
	answer_js(f, 404, doc);
}

/* ---- workers ---- */

typedef void worker_fn(struct pool *p, struct worker *w, void *arg);

static void each_worker(struct router_calls *calls, worker_fn *fn, void *arg)
{
	const struct site *site = calls->control->site;
	struct worker *w;
	size_t i, k;

	for (i = 0; i < site->n_pools; i++) {
		for (k = 0; (w = pool_worker_at(site->pools[i], k)) != NULL; k++)
			fn(site->pools[i], w, arg);
	}
}

/* One of several ranks is told once. */
static bool is_first_rank(const struct pool *p, const struct worker *w)
{
	const struct worker *other;
	size_t i;

	for (i = 0; (other = pool_worker_at(p, i)) != w; i++) {
		if (other->host_id == w->host_id)
			return false;
	}
	return true;
}

static void add_url(struct pool *p, struct worker *w, void *arg)
{
	if (is_first_rank(p, w))
		js_push(arg, js_string(span_str(w->url.text)));
}

static void add_load(struct pool *p UNUSED, struct worker *w, void *arg)
{
	struct js *item = js_object();

	js_set_str(item, "worker", w->has_rank ? w->stable_id : w->url.text);
	js_set_int(item, "load", worker_load(w));
	js_push(arg, item);
}

static const char *type_of(const struct worker *w)
{
	return w->role == ROLE_UNIFIED ? "regular" : role_name(w->role);
}

static struct js *worker_object(const struct worker *w)
{
	struct js *out = js_object();

	js_set_str(out, "url", w->has_rank ? w->stable_id : w->url.text);
	js_set_str(out, "model_id", "unknown");
	js_set_str(out, "worker_type", type_of(w));
	js_set_bool(out, "is_healthy", worker_state(w) == WORKER_HEALTHY);
	js_set_int(out, "load", worker_load(w));
	js_set_str(out, "connection_mode", "Http");
	js_set_int(out, "priority", 50);
	js_set_real(out, "cost", 1);
	return out;
}

static void add_object(struct pool *p UNUSED, struct worker *w, void *arg)
{
	js_push(arg, worker_object(w));
}

static void count_role(struct pool *p UNUSED, struct worker *w, void *arg)
{
	((unsigned *)arg)[w->role]++;
}

static void list_workers(struct router_calls *calls, struct fan_out *f)
{
	struct js *doc = js_object(), *list = js_array(), *stats = js_object();
	unsigned n[ROLE_MAX] = {0};

	each_worker(calls, add_object, list);
	each_worker(calls, count_role, n);
	js_set_int(stats, "prefill_count", n[ROLE_PREFILL]);
	js_set_int(stats, "decode_count", n[ROLE_DECODE]);
	js_set_int(stats, "regular_count", n[ROLE_UNIFIED]);
	js_set_int(doc, "total", (int64_t)js_len(list));
	js_set(doc, "workers", list);
	js_set(doc, "stats", stats);
	answer_js(f, 200, doc);
}

static void list_of(
	struct router_calls *calls, struct fan_out *f, const char *name, worker_fn *fn)
{
	struct js *doc = js_object(), *list = js_array();

	each_worker(calls, fn, list);
	js_set(doc, name, list);
	answer_js(f, 200, doc);
}

struct found {
	const char *url;
	struct worker *w;
	struct pool *p;
};

static void find_url(struct pool *p, struct worker *w, void *arg)
{
	struct found *found = arg;

	if (found->w != NULL || (strcmp(w->url.text, found->url) != 0 &&
					strcmp(w->stable_id, found->url) != 0))
		return;
	found->w = w;
	found->p = p;
}

static struct found find_worker(struct router_calls *calls, const char *url)
{
	struct found found = {.url = url};

	each_worker(calls, find_url, &found);
	return found;
}

/* ---- adding ---- */

static void look_again(struct router_calls *calls)
{
	wheel_set(loop_wheel(calls->control->loop), &calls->timer,
		clock_now_ms() + LOOK_MS);
}

static void adding_end(struct adding *a)
{
	LIST_REMOVE(a, link);
	free(a);
}

struct by_id {
	uint64_t id;
	struct worker *w;
	struct pool *p;
};

static void find_id(struct pool *p, struct worker *w, void *arg)
{
	struct by_id *found = arg;

	if (w->id != found->id)
		return;
	found->w = w;
	found->p = p;
}

/* True: it was answered. */
static bool look_at(struct router_calls *calls, struct adding *a)
{
	struct by_id found = {.id = a->worker};

	each_worker(calls, find_id, &found);
	if (found.w == NULL) {
		answer_text(a->f, 400, "Worker %s was removed", a->url);
		return true;
	}
	if (worker_state(found.w) == WORKER_HEALTHY) {
		answer_text(a->f, 200, "Successfully added worker: %s", a->url);
		return true;
	}
	if (clock_now_ms() < a->due_ms)
		return false;
	worker_change_remove(found.p, found.w);
	answer_text(a->f, 400, "Timeout: worker %s is not healthy", a->url);
	return true;
}

static void on_timer(void *arg)
{
	struct router_calls *calls = arg;
	struct adding *a, *next;

	for (a = LIST_FIRST(&calls->adding); a != NULL; a = next) {
		next = LIST_NEXT(a, link);
		if (look_at(calls, a))
			adding_end(a);
	}
	if (!LIST_EMPTY(&calls->adding))
		look_again(calls);
}

static void wait_for(struct router_calls *calls, struct fan_out *f, const char *url)
{
	struct found found = find_worker(calls, url);
	struct adding *a = calloc(1, sizeof(*a));

	if (a == NULL || found.w == NULL) {
		free(a);
		answer_text(f, 200, "Successfully added worker: %s", url);
		return;
	}
	a->f = f;
	a->worker = found.w->id;
	a->due_ms = clock_now_ms() + ADD_MS;
	memcpy(a->url, url, strlen(url) + 1);
	LIST_INSERT_HEAD(&calls->adding, a, link);
	look_again(calls);
}

/* "host:port", as on the command line. */
static char *name_of(const char *text)
{
	struct conf_url url;
	const char *why;
	char *name;

	if (conf_url_parse(span_str(text), &url, &why) != 0)
		return NULL;
	name = conf_url_name(&url);
	conf_url_free(&url);
	return name;
}

static void add_worker(struct router_calls *calls, struct fan_out *f, const char *given)
{
	const struct conf_pair pairs[] = {{"url", given}};
	struct conf_errors errors = {0};
	scoped_free char *name = name_of(given);
	struct worker_conf wc;
	char why[256], url[URL_MAX];

	if (name == NULL || conf_worker_make(calls->control->site->conf, name, pairs,
				    ARRAY_LEN(pairs), &errors, &wc) != 0) {
		conf_errors_free(&errors);
		answer_text(f, 400, "%s is no URL of a worker", given);
		return;
	}
	conf_errors_free(&errors);
	snprintf(url, sizeof(url), "%s", wc.url.text);
	switch (worker_change_add(calls->control->site, &wc, why, sizeof(why))) {
	case WORKER_ADDED:
		wait_for(calls, f, url);
		break;
	case WORKER_IS_TAKEN:
		answer_text(f, 400, "Worker %s already exists", url);
		break;
	default:
		answer_text(f, 400, "%s", why);
		break;
	}
	worker_conf_free(&wc);
}

/* All its ranks go. */
static bool remove_worker(struct router_calls *calls, const char *url)
{
	struct found found = find_worker(calls, url);
	bool was_there = found.w != NULL;

	while (found.w != NULL) {
		worker_change_remove(found.p, found.w);
		found = find_worker(calls, url);
	}
	return was_there;
}

/* ---- calls ---- */

/* As spelled there, with or without a '/' at its end. */
static bool read_url(const struct fan_out *f, char out[URL_MAX])
{
	struct span target = span_str(f->target), path;

	if (!span_next(&target, '?', &path) ||
		!http_query_value(target, "url", out, URL_MAX) || out[0] == '\0')
		return false;
	for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--)
		out[n - 1] = '\0';
	return true;
}

static void call_add(struct router_calls *calls, struct fan_out *f)
{
	char url[URL_MAX];

	if (read_url(f, url))
		add_worker(calls, f, url);
	else
		answer_text(f, 400, "%s",
			"Worker URL required. Provide 'url' as a query parameter.");
}

static void call_remove(struct router_calls *calls, struct fan_out *f)
{
	char url[URL_MAX];

	if (!read_url(f, url)) {
		answer_text(f, 400, "%s",
			"Worker URL required. Provide 'url' as a query parameter.");
		return;
	}
	(void)remove_worker(calls, url);
	answer_text(f, 200, "Successfully removed worker: %s", url);
}

static void post_worker(struct router_calls *calls, struct fan_out *f)
{
	const char *why;
	struct js *doc = js_parse(span_make(f->body, f->body_n), &why);
	char text[URL_MAX];
	struct span url;

	if (doc != NULL && js_as_str(js_get(doc, "url"), &url) && url.n < sizeof(text)) {
		snprintf(text, sizeof(text), SPAN_FMT, SPAN_ARG(url));
		add_worker(calls, f, text);
	} else {
		answer_text(f, 400, "%s", "A JSON object with url is needed.");
	}
	js_free(doc);
}

/* /workers/URL, percent-encoded */
static void one_worker(struct router_calls *calls, struct fan_out *f, struct span path)
{
	static const struct span prefix = SPAN_LIT("/workers/");
	char url[URL_MAX];
	struct found found = {.w = NULL};

	if (http_path_decode(
		    span_make(path.p + prefix.n, path.n - prefix.n), url, sizeof(url)))
		found = find_worker(calls, url);
	if (found.w == NULL) {
		answer_unknown(f);
	} else if (strcmp(f->method, "DELETE") == 0) {
		(void)remove_worker(calls, url);
		answer_text(f, 200, "Successfully removed worker: %s", url);
	} else {
		answer_js(f, 200, worker_object(found.w));
	}
}

void router_calls_take(struct router_calls *calls, struct fan_out *f)
{
	struct span target = span_str(f->target), path;

	if (!span_next(&target, '?', &path))
		path = target;
	if (span_is(path, "/add_worker"))
		call_add(calls, f);
	else if (span_is(path, "/remove_worker"))
		call_remove(calls, f);
	else if (span_is(path, "/list_workers"))
		list_of(calls, f, "urls", add_url);
	else if (span_is(path, "/get_loads"))
		list_of(calls, f, "workers", add_load);
	else if (span_is(path, "/workers") && strcmp(f->method, "POST") == 0)
		post_worker(calls, f);
	else if (span_is(path, "/workers"))
		list_workers(calls, f);
	else
		one_worker(calls, f, path);
}

struct router_calls *router_calls_new(struct control *c)
{
	struct router_calls *calls = calloc(1, sizeof(*calls));

	if (calls == NULL)
		return NULL;
	calls->control = c;
	LIST_INIT(&calls->adding);
	wheel_timer_init(&calls->timer, on_timer, calls);
	return calls;
}

void router_calls_free(struct router_calls *calls)
{
	struct adding *a;

	if (calls == NULL)
		return;
	wheel_stop(loop_wheel(calls->control->loop), &calls->timer);
	while ((a = LIST_FIRST(&calls->adding)) != NULL) {
		fan_out_free(a->f);
		adding_end(a);
	}
	free(calls);
}
