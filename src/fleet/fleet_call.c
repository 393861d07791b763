/*
 * A call to every worker of a pool. See fleet_call.h.
 *
 * Always true: a leg has a fetch under way, or it is done; on_done comes when the last
 * leg is, from the loop.
 */
#include "fleet/fleet_call.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "fleet/host.h"
#include "io/js.h"
#include "pool/pool.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLUSH_TIMEOUT_MS 20000

struct leg {
	struct fleet_call *call;
	struct host host;
	struct host_seat *seats; /* its workers: the first one's address counts */
	struct fetch *fetch;
	size_t at; /* the path in hand */
	bool did_it, is_cut;
	int status;
	char why_not[128];
	char *answer;
	size_t answer_n;
};

struct fleet_call {
	struct fetcher *fetcher;
	struct pool *pool; /* a reference */
	struct leg *legs;
	struct host_seat *seats; /* of all legs */
	size_t n, left;
	void (*on_done)(void *arg, struct fleet_call *call);
	void *arg;
	char *method, *paths[FLEET_CALL_PATHS_MAX], *fields[FLEET_CALL_FIELDS_MAX];
	char *own_body; /* NULL: it stays where it is */
	struct span body;
	uint64_t timeout_ms;
	bool drops_caches, stops_requests, hides_key;
};

static_assert(FLEET_CALL_FIELDS_MAX < HOST_FIELDS_MAX, "a host is sent all fields");

static void ask(struct leg *l);

/* ---- what it leaves behind ---- */

static size_t count_good(const struct fleet_call *c)
{
	size_t i, good = 0;

	for (i = 0; i < c->n; i++)
		good += c->legs[i].did_it;
	return good;
}

static void clear_caches(struct fleet_call *c)
{
	size_t i;

	/* Requests that came in between were keyed before: they are forgotten too. */
	if (fleet_call_is_good(c)) {
		pool_bump_generation(c->pool);
		return;
	}
	for (i = 0; i < c->n; i++) {
		if (c->legs[i].did_it)
			pool_clear_host(c->pool, host_worker(&c->legs[i].host));
	}
}

static void all_done(struct fleet_call *c)
{
	if (c->drops_caches)
		clear_caches(c);
	pool_doubt_models(c->pool, clock_now_ms());
	log_notice("pool %s: %s on %zu of %zu workers, generation %llu",
		pool_name(c->pool), c->paths[0], count_good(c), c->n,
		(unsigned long long)pool_generation(c->pool));
	c->on_done(c->arg, c);
}

/* ---- one worker ---- */

static void leg_done(struct leg *l)
{
	struct fleet_call *c = l->call;

	c->left--;
	if (c->left == 0)
		all_done(c);
}

static void keep_answer(struct leg *l, struct span body)
{
	free(take_ptr(l->answer));
	l->answer_n = 0;
	if (body.n == 0)
		return;
	l->answer = malloc(body.n);
	if (l->answer == NULL)
		return;
	memcpy(l->answer, body.p, body.n);
	l->answer_n = body.n;
}

/* Another engine has another call for it. */
static bool has_next(const struct leg *l, const struct fetch_answer *a)
{
	return a->result == FETCH_OK && (a->status == 404 || a->status == 405) &&
	       l->at + 1 < FLEET_CALL_PATHS_MAX && l->call->paths[l->at + 1] != NULL;
}

/* Aborts that are counted from now on for a while: a call may take longer than that. */
static void expect_aborts(const struct leg *l)
{
	struct host_seat *seat;

	HOST_FOREACH(seat, &l->host)
	{
		if (l->call->stops_requests)
			worker_expect_aborts(seat->worker, clock_now_ms());
	}
}

static void on_answer(void *arg, const struct fetch_answer *a)
{
	struct leg *l = arg;

	l->fetch = NULL;
	l->did_it = host_said_yes(a);
	l->status = a->result == FETCH_OK ? a->status : 0;
	if (a->result != FETCH_OK)
		snprintf(l->why_not, sizeof(l->why_not), "%s",
			fetch_result_text(a->result));
	else if (!l->did_it)
		snprintf(l->why_not, sizeof(l->why_not), "%s: status %d",
			l->call->paths[l->at], a->status);
	l->is_cut = a->is_cut;
	keep_answer(l, a->body);
	if (has_next(l, a)) {
		l->at++;
		ask(l);
		if (l->fetch != NULL)
			return;
	}
	expect_aborts(l);
	leg_done(l);
}

static void ask(struct leg *l)
{
	struct fleet_call *c = l->call;
	const struct worker_opts *o = &host_worker(&l->host)->conf->opts;
	struct host_ask what = {
		.method = c->method,
		.path = c->paths[l->at],
		.hides_key = c->hides_key,
		.body = c->body,
		.body_stays = true,
		.max_body = FLEET_CALL_ANSWER_MAX,
		.cuts_body = true,
		.connect_timeout_ms = o->connect_timeout_ms,
		.timeout_ms =
			c->timeout_ms > 0 ? c->timeout_ms : o->first_byte_timeout_ms,
	};
	size_t i;

	for (i = 0; i < FLEET_CALL_FIELDS_MAX; i++)
		what.fields[i] = c->fields[i];
	what.fields[i] = "Via: 1.1 kvsteer";
	expect_aborts(l);
	l->fetch = host_fetch(&l->host, c->fetcher, &what, on_answer, l);
	if (l->fetch == NULL)
		snprintf(l->why_not, sizeof(l->why_not), "it has no address yet");
}

/* ---- all of them ---- */

static struct leg *find_leg(const struct fleet_call *c, const struct worker *w)
{
	size_t i;

	for (i = 0; i < c->n; i++) {
		if (c->legs[i].host.id == w->host_id)
			return &c->legs[i];
	}
	return NULL;
}

/* One leg for each host. */
static int fill_legs(struct fleet_call *c)
{
	struct worker *w;
	size_t i, n = 0;

	while (pool_worker_at(c->pool, n) != NULL)
		n++;
	c->legs = calloc(n + 1, sizeof(*c->legs));
	c->seats = calloc(n + 1, sizeof(*c->seats));
	if (c->legs == NULL || c->seats == NULL)
		return ERR_NOMEM;
	for (i = 0; (w = pool_worker_at(c->pool, i)) != NULL; i++) {
		struct leg *l = find_leg(c, w);

		if (l == NULL) {
			l = &c->legs[c->n++];
			l->call = c;
			host_init(&l->host, c->pool, w->host_id);
		}
		host_add(&l->host, &c->seats[i], w);
	}
	return 0;
}

/* False: out of memory. */
static bool copy_text(char **to, const char *text)
{
	*to = text != NULL ? strdup(text) : NULL;
	return text == NULL || *to != NULL;
}

static bool copy_body(struct fleet_call *c, const struct fleet_call_ask *ask)
{
	c->body = ask->body;
	if (ask->body_stays || ask->body.n == 0)
		return true;
	c->own_body = malloc(ask->body.n);
	if (c->own_body == NULL)
		return false;
	memcpy(c->own_body, ask->body.p, ask->body.n);
	c->body.p = c->own_body;
	return true;
}

static int copy_ask(struct fleet_call *c, const struct fleet_call_ask *ask)
{
	bool is_copied = copy_text(&c->method, ask->method) && copy_body(c, ask);
	size_t i;

	c->timeout_ms = ask->timeout_ms;
	c->drops_caches = ask->drops_caches;
	c->stops_requests = ask->stops_requests;
	c->hides_key = ask->hides_key;
	for (i = 0; i < FLEET_CALL_PATHS_MAX; i++)
		is_copied &= copy_text(&c->paths[i], ask->paths[i]);
	for (i = 0; i < FLEET_CALL_FIELDS_MAX; i++)
		is_copied &= copy_text(&c->fields[i], ask->fields[i]);
	return is_copied ? 0 : ERR_NOMEM;
}

struct fleet_call *fleet_call_start(struct fetcher *f, struct pool *p,
	const struct fleet_call_ask *what,
	void (*on_done)(void *arg, struct fleet_call *call), void *arg)
{
	struct fleet_call *c = calloc(1, sizeof(*c));
	size_t i, asked = 0;

	if (c == NULL)
		return NULL;
	*c = (struct fleet_call){
		.fetcher = f, .pool = pool_ref(p), .on_done = on_done, .arg = arg};
	if (copy_ask(c, what) != 0 || fill_legs(c) != 0) {
		fleet_call_free(c);
		return NULL;
	}
	for (i = 0; i < c->n; i++) {
		ask(&c->legs[i]);
		asked += c->legs[i].fetch != NULL;
	}
	c->left = asked;
	return c;
}

struct fleet_call *fleet_call_flush(struct fetcher *f, struct pool *p,
	void (*on_done)(void *arg, struct fleet_call *call), void *arg)
{
	/* SGLang's and our engine's call, then vLLM's. */
	static const struct fleet_call_ask flush = {
		.method = "POST",
		.paths = {"/flush_cache", "/reset_prefix_cache"},
		.timeout_ms = FLUSH_TIMEOUT_MS,
		.drops_caches = true,
		.stops_requests = true,
	};

	return fleet_call_start(f, p, &flush, on_done, arg);
}

bool fleet_call_is_over(const struct fleet_call *c)
{
	return c->left == 0;
}

/* It may be somebody's key. */
static void free_field(char *field)
{
	if (field != NULL)
		mem_wipe(field, strlen(field));
	free(field);
}

void fleet_call_free(struct fleet_call *c)
{
	size_t i;

	if (c == NULL)
		return;
	for (i = 0; i < c->n; i++) {
		if (c->legs[i].fetch != NULL)
			fetch_cancel(c->legs[i].fetch);
		host_clear(&c->legs[i].host);
		free(c->legs[i].answer);
	}
	for (i = 0; i < FLEET_CALL_PATHS_MAX; i++)
		free(c->paths[i]);
	for (i = 0; i < FLEET_CALL_FIELDS_MAX; i++)
		free_field(c->fields[i]);
	free(c->legs);
	free(c->seats);
	free(c->method);
	free(c->own_body);
	pool_unref(c->pool);
	free(c);
}

/* ---- what came of it ---- */

struct pool *fleet_call_pool(const struct fleet_call *c)
{
	return c->pool;
}

size_t fleet_call_count(const struct fleet_call *c)
{
	return c->n;
}

struct fleet_call_outcome fleet_call_outcome(const struct fleet_call *c, size_t i)
{
	const struct leg *l = &c->legs[i];

	return (struct fleet_call_outcome){
		.worker = host_worker(&l->host)->group,
		.did_it = l->did_it,
		.status = l->status,
		.why_not = l->did_it ? "" : l->why_not,
		.answer = span_make(l->answer, l->answer_n),
		.is_cut = l->is_cut,
	};
}

bool fleet_call_is_good(const struct fleet_call *c)
{
	return count_good(c) == c->n;
}

void fleet_call_say(const struct fleet_call *c, char *out, size_t n)
{
	size_t i, failed = c->n - count_good(c);

	for (i = 0; i < c->n; i++) {
		struct fleet_call_outcome o = fleet_call_outcome(c, i);

		if (o.did_it)
			continue;
		snprintf(out, n, "%zu of %zu workers did not do it: %s (%s)", failed,
			c->n, o.worker, o.why_not);
		return;
	}
	snprintf(out, n, "all of %zu workers did it", c->n);
}

/* As JSON where it is that, else as a text. */
static struct js *answer_value(struct span answer)
{
	const char *why;
	struct js *value = answer.n > 0 ? js_parse(answer, &why) : NULL;

	return value != NULL ? value : js_string(answer);
}

struct js *fleet_call_list(const struct fleet_call *c)
{
	struct js *list = js_array();
	size_t i;

	for (i = 0; i < c->n; i++) {
		struct fleet_call_outcome o = fleet_call_outcome(c, i);
		struct js *item = js_object();

		js_set_str(item, "worker", o.worker);
		js_set_int(item, "status", o.status);
		if (!o.did_it)
			js_set_str(item, "message", o.why_not);
		if (o.answer.n > 0)
			js_set(item, "answer", answer_value(o.answer));
		if (o.is_cut)
			js_set_bool(item, "is_cut", true);
		js_push(list, item);
	}
	return list;
}
