/*
 * Health probes that are not answered yet: silent ones until the fault ends, delayed ones
 * until their time, deep ones until the next step or until it is clear that there is
 * none. Always true: a probe is in the list while its call is open; its timer is set
 * except while it is silent. Called by serve.c (probes) and fault_socket.c (changes);
 * called back by the engine (a step) and the server (the client left).
 */
#include "api/engine_health.h"
#include "base/clock.h"
#include "base/list.h"
#include "core/engine.h"
#include "http/http_server.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/wheel.h"
#include "lab/fault.h"

#include <stdlib.h>

struct probe {
	LIST_ENTRY(probe) link;
	struct engine_health *health;
	struct http_call *call;
	struct wheel_timer timer;
	struct engine_poke poke;
	bool is_deep, is_silent;
};

struct engine_health {
	struct loop *loop;
	struct engine *engine;
	const struct faults *faults;
	const char *role, *engine_id;
	bool is_draining;
	LIST_HEAD(, probe) probes;
};

static void probe_free(struct probe *p)
{
	engine_poke_cancel(p->health->engine, &p->poke);
	wheel_stop(loop_wheel(p->health->loop), &p->timer);
	LIST_REMOVE(p, link);
	free(p);
}

static void on_gone(void *arg)
{
	probe_free(arg);
}

static void reply_status(const struct engine_health *h, struct http_call *call,
	int status, const char *text_of_it)
{
	struct js *root = js_object();
	char *text;

	js_set_str(root, "status", text_of_it);
	js_set_str(root, "role", h->role);
	js_set_str(root, "engine_id", h->engine_id);
	text = js_print(root, false);
	js_free(root);
	if (text == NULL)
		http_call_fail_text(
			call, FAIL_OVERLOADED, "The engine is out of memory.");
	else
		http_call_reply(call, status, "application/json", span_str(text),
			span_make(NULL, 0));
	free(text);
}

/* is_alive: as far as the step loop is concerned. */
static void reply(const struct engine_health *h, struct http_call *call, bool is_alive)
{
	if (h->is_draining)
		http_call_fail_text(call, FAIL_DRAINING, "The engine is shutting down.");
	else if (h->faults->health == FAULT_HEALTH_FAIL)
		http_call_fail_text(
			call, FAIL_OVERLOADED, "The engine was told to fail this.");
	else if (!engine_is_ready(h->engine))
		reply_status(h, call, 503, "loading");
	else if (h->faults->is_core_dead)
		http_call_fail_text(call, FAIL_OVERLOADED, "The engine failed.");
	else if (!is_alive)
		http_call_fail_text(call, FAIL_OVERLOADED, "The engine makes no steps.");
	else
		reply_status(h, call, 200, "ok");
}

/* Answers and frees the probe. */
static void end_probe(struct probe *p, bool is_alive)
{
	struct http_call *call = p->call;
	const struct engine_health *h = p->health;

	http_call_watch(call, NULL, NULL, NULL);
	probe_free(p);
	reply(h, call, is_alive);
}

static void on_step(void *arg, int err)
{
	end_probe(arg, err == 0);
}

/* No step came in time. */
static void on_late(void *arg)
{
	end_probe(arg, false);
}

static void set_timer(struct probe *p, void (*fn)(void *arg), uint64_t ms)
{
	struct wheel *w = loop_wheel(p->health->loop);

	wheel_stop(w, &p->timer);
	wheel_timer_init(&p->timer, fn, p);
	wheel_set(w, &p->timer, clock_now_ms() + ms);
}

/* The probe has waited for as long as its faults said. */
static void judge(void *arg)
{
	struct probe *p = arg;
	struct engine_health *h = p->health;

	if (!p->is_deep || h->is_draining || h->faults->health == FAULT_HEALTH_FAIL ||
		h->faults->is_core_dead || !engine_is_ready(h->engine)) {
		end_probe(p, engine_is_live(h->engine, clock_us()));
		return;
	}
	set_timer(p, on_late, engine_stall_ms(h->engine));
	p->poke.fn = on_step;
	p->poke.arg = p;
	engine_poke(h->engine, &p->poke);
}

static bool is_deep(const struct http_call *call)
{
	char value[8];

	return http_call_query_value(call, "deep", value, sizeof(value)) &&
	       strcmp(value, "1") == 0;
}

void engine_health_handle(struct engine_health *h, struct http_call *call)
{
	struct probe *p = calloc(1, sizeof(*p));

	if (p == NULL) {
		http_call_fail_text(
			call, FAIL_OVERLOADED, "The engine is out of memory.");
		return;
	}
	p->health = h;
	p->call = call;
	p->is_deep = is_deep(call);
	p->is_silent = h->faults->health == FAULT_HEALTH_SILENT && !h->is_draining;
	wheel_timer_init(&p->timer, judge, p);
	LIST_INSERT_HEAD(&h->probes, p, link);
	http_call_watch(call, on_gone, NULL, p);
	if (p->is_silent)
		return;
	if (h->faults->health_delay_ms > 0 && !h->is_draining)
		set_timer(p, judge, (uint64_t)h->faults->health_delay_ms);
	else
		judge(p);
}

void engine_health_refresh(struct engine_health *h)
{
	struct probe *p, *next;

	LIST_FOREACH_SAFE(p, &h->probes, link, next)
	{
		if (!p->is_silent || h->faults->health == FAULT_HEALTH_SILENT)
			continue;
		p->is_silent = false;
		judge(p);
	}
}

void engine_health_drain(struct engine_health *h)
{
	struct probe *p, *next;

	h->is_draining = true;
	LIST_FOREACH_SAFE(p, &h->probes, link, next)
	end_probe(p, false);
}

struct engine_health *engine_health_new(struct loop *l, struct engine *engine,
	const struct faults *faults, const char *role, const char *engine_id)
{
	struct engine_health *h = calloc(1, sizeof(*h));

	if (h == NULL)
		return NULL;
	h->loop = l;
	h->engine = engine;
	h->faults = faults;
	h->role = role;
	h->engine_id = engine_id;
	LIST_INIT(&h->probes);
	return h;
}

void engine_health_free(struct engine_health *h)
{
	assert(h == NULL || LIST_EMPTY(&h->probes));
	free(h);
}
