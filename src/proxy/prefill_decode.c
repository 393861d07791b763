/*
 * The order of things for a request on two workers: which worker is asked for which leg,
 * what happens where none can be had or one fails, and what is given back. See
 * prefill_decode.h.
 *
 * Decode is looked at before prefill is asked, so that no prompt is computed for a decode
 * worker that is not there. Where all of them are full, the request waits for one, and
 * holds it from then on; requests that wait for decode after their prefill are served
 * first. A request waits for decode with no guard, and for prefill at most with a guard
 * of decode that is reserved: with prefill's guard it waits for nothing but the answer.
 */
#include "proxy/prefill_decode.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "pool/site.h"
#include "proxy/access_log.h"
#include "proxy/attempt.h"
#include "proxy/prefill_decode_state.h"
#include "worker/worker.h"

#include <stdlib.h>

/* ---- the beginning ---- */

static const struct role_opts *role_opts(
	const struct site *s, const struct pool *p, enum role role)
{
	size_t i = 0;

	while (s->pools[i] != p)
		i++;
	return &s->conf->pools[i].roles[role];
}

int pd_would_skip(const struct site *site, const struct pool *p,
	enum route_endpoint endpoint, struct span body, uint64_t uncached_tokens,
	enum pd_skip *skip)
{
	struct kv_request kv = {0};
	int err = kv_request_read(
		&kv, role_opts(site, p, ROLE_PREFILL)->kv_connector, endpoint, body);

	*skip = PD_SKIP_NOT;
	if (err != 0)
		return err;
	if (kv.verdict != KV_SPLIT)
		*skip = PD_SKIP_WHOLE;
	else if (kv_form(kv.connector)->decodes_alone &&
		 uncached_tokens < role_opts(site, p, ROLE_DECODE)->pd_min_prefill)
		*skip = PD_SKIP_SHORT;
	kv_request_free(&kv);
	return 0;
}

/* A prefill worker by name: the client wants that leg there, and any decode worker. */
static void read_pin(struct pd *m, const struct pd_opts *o)
{
	uint64_t group;
	enum role role;

	if (o->pinned.n == 0 || !pool_find_role(o->pool, o->pinned, &role, &group) ||
		role != ROLE_PREFILL)
		return;
	m->is_prefill_pinned = true;
	m->pinned_group = m->kv_group = group;
}

static enum fail read_body(struct pd *m, const struct pd_opts *o)
{
	if (kv_request_read(&m->kv,
		    role_opts(o->site, o->pool, ROLE_PREFILL)->kv_connector, o->endpoint,
		    o->body) != 0)
		return FAIL_OVERLOADED;
	if (m->kv.verdict == KV_UNSAFE)
		return FAIL_BAD_TRANSFER;
	m->form = kv_form(m->kv.connector);
	m->min_prefill = role_opts(o->site, o->pool, ROLE_DECODE)->pd_min_prefill;
	m->max_answer = role_opts(o->site, o->pool, ROLE_PREFILL)->max_prefill_response;
	if (o->is_stored && m->form->decodes_alone)
		m->kv.verdict = KV_WHOLE;
	if (m->kv.verdict == KV_SPLIT)
		read_pin(m, o);
	return FAIL_NONE;
}

struct pd *pd_new(const struct pd_opts *o, enum fail *why)
{
	struct pd *m = calloc(1, sizeof(*m));

	*why = FAIL_OVERLOADED;
	if (m == NULL)
		return NULL;
	m->budget = o->budget;
	route_key_init(&m->decode_key);
	*why = read_body(m, o);
	if (*why == FAIL_NONE)
		return m;
	pd_free(m);
	return NULL;
}

struct route_key *pd_decode_key(struct pd *m)
{
	return &m->decode_key;
}

/* ---- what is asked for ---- */

static bool is_whole(const struct pd *m)
{
	return m == NULL || m->kv.verdict != KV_SPLIT;
}

enum role pd_role(const struct pd *m, const struct pool *pool)
{
	if (is_whole(m))
		return pool_whole_role(pool);
	return m->at == PD_PREFILL ? ROLE_PREFILL : ROLE_DECODE;
}

struct route_key *pd_key(struct pd *m, struct route_key *key)
{
	return m != NULL && m->decode_key.is_sealed && m->at != PD_PREFILL
		       ? &m->decode_key
		       : key;
}

void pd_ask(const struct pd *m, struct pool_ask *ask)
{
	bool is_prefill;

	if (is_whole(m))
		return;
	is_prefill = m->at == PD_PREFILL;
	ask->kv_group = m->kv_group;
	ask->is_further_leg = m->is_computed || m->reserved.guard.worker != NULL;
	if (is_prefill != m->is_prefill_pinned)
		ask->pinned = span_make(NULL, 0);
	if (is_prefill) {
		ask->is_rank_pinned = false;
		ask->home = 0;
	}
}

bool pd_was_tried(const struct pd *m, unsigned n_tried)
{
	if (is_whole(m))
		return n_tried > 0;
	return m->failed[m->at == PD_PREFILL ? ROLE_PREFILL : ROLE_DECODE] > 0;
}

bool pd_is_begun(const struct pd *m)
{
	return m != NULL && m->is_computed;
}

bool pd_has_slot(const struct pd *m)
{
	return m != NULL && (m->slot != NULL || m->reserved.guard.slots != NULL);
}

bool pd_is_prefill(const struct pd *m)
{
	return m != NULL && m->at == PD_PREFILL && !m->is_relayed;
}

/* An overloaded prefill role is back pressure: decode is not given its work. */
bool pd_may_skip(const struct pd *m)
{
	return pd_is_prefill(m) && m->form->decodes_alone && !m->is_prefill_pinned &&
	       !m->is_pressed;
}

/* ---- PICK ---- */

static bool is_short(const struct pd *m, uint64_t uncached_tokens)
{
	return m->form->decodes_alone && !m->is_prefill_pinned &&
	       uncached_tokens < m->min_prefill;
}

static void go_alone(struct pd *m, enum pd_way way)
{
	m->at = PD_DECODE;
	m->way = way;
}

bool pd_wants_look(const struct pd *m)
{
	return m->at == PD_LOOK;
}

int pd_look(struct pd *m, struct pool *pool, const struct pool_ask *ask)
{
	struct pool_look seen;
	int err;

	if (is_whole(m)) {
		go_alone(m, WAY_WHOLE);
		return 0;
	}
	err = pool_look(pool, ask, &seen);
	if (err == ERR_LIMIT || err == ERR_STATE) {
		m->at = PD_RESERVE; /* and wait there */
		return 0;
	}
	if (err != 0)
		return err;
	m->kv_group = seen.kv_group;
	if (is_short(m, seen.uncached_tokens))
		go_alone(m, WAY_SHORT);
	else
		m->at = m->form->needs_both ? PD_RESERVE : PD_PREFILL;
	return 0;
}

static void reserve(struct pd *m, struct placement *p)
{
	m->reserved = *p;
	*p = (struct placement){0};
	m->kv_group = m->reserved.pick.kv_group;
	if (is_short(m, m->reserved.pick.uncached_tokens))
		go_alone(m, WAY_SHORT);
	else
		m->at = PD_PREFILL;
}

bool pd_take_reserved(struct pd *m, struct placement *p)
{
	if (m->at != PD_DECODE || m->reserved.guard.worker == NULL)
		return false;
	*p = m->reserved;
	m->reserved = (struct placement){0};
	return true;
}

static void note_prefill(struct pd *m, struct pool *pool, const struct placement *p)
{
	struct worker *w = p->guard.worker;
	size_t n = strnlen(w->name, sizeof(m->prefill_name) - 1);

	worker_unref(m->prefill);
	m->prefill = worker_ref(w);
	memcpy(m->prefill_name, w->name, n);
	m->prefill_name[n] = '\0';
	m->prefill_pick = p->pick;
	m->usage = (struct kv_usage){.has_cached = false};
	m->began_us = clock_us();
	if (pool_note_prefill(pool, false))
		log_notice(
			"pool %s: a prefill worker is available again", pool_name(pool));
}

/* Decode must name prefill's engine, which is not known (yet): it would wait in vain. */
static bool lacks_engine(struct pd *m, struct pool *pool, const struct worker *w)
{
	return m->form->needs_engine && pool_engine(pool, w, m->engine) == 0;
}

static struct decision prefill_picked(
	struct pd *m, struct pool *pool, struct placement *p, const void *request)
{
	if (lacks_engine(m, pool, p->guard.worker)) {
		log_at(LOG_LEVEL_DEBUG, request,
			"the engine id of worker %s is not known", p->guard.worker->name);
		return next_is(NEXT_SKIP_PREFILL);
	}
	note_prefill(m, pool, p);
	if (m->form->is_concurrent)
		pd_begin_parallel(m, p);
	return next_is(NEXT_STEP);
}

struct decision pd_picked(
	struct pd *m, struct pool *pool, struct placement *p, const void *request)
{
	if (m->at == PD_PREFILL)
		return prefill_picked(m, pool, p, request);
	if (m->at == PD_RESERVE) {
		reserve(m, p);
		return next_is(NEXT_AGAIN);
	}
	if (m->slot != NULL)
		guard_hold(&p->guard, pd_take_slot(m));
	return next_is(NEXT_STEP);
}

/* No request of the pool finds a prefill worker: others need not wait for one, too. */
static void note_lack(struct pool *pool, struct span model)
{
	struct pool_ask ask = {
		.role = ROLE_PREFILL, .model = model, .now_ms = clock_now_ms()};
	struct pool_look seen;
	int err = pool_look(pool, &ask, &seen);

	if ((err == ERR_STATE || err == ERR_NOENT) && pool_note_prefill(pool, true))
		log_warn("pool %s: no prefill worker is available: decode workers "
			 "compute prompts themselves",
			pool_name(pool));
}

void pd_skip_prefill(struct pd *m, struct pool *pool, struct span model)
{
	note_lack(pool, model);
	go_alone(m, WAY_NO_PREFILL);
}

/* ---- FORWARD and HAND_OFF ---- */

uint64_t pd_since(const struct pd *m)
{
	return clock_us() - m->began_us;
}

struct decision pd_prefill_failed(
	struct pd *m, struct retry_case *c, const struct no_response *end)
{
	struct attempts *a = c->attempts;
	bool is_large = end->why == FAIL_WORKER_PREFILL_TOO_LARGE;
	bool is_fatal = end->is_death || is_large,
	     may_repeat = !is_fatal || !a->died_fresh;

	a->died_fresh |= is_fatal;
	a->last_failure = end->why;
	if (may_repeat && attempt_retry(c, c->at->guard.worker->host_id, 0, end->why))
		return next_is(NEXT_ELSEWHERE);
	/* No other prefill worker may have it, and decode can compute the prompt. */
	if ((may_repeat || is_large) && c->has_time && pd_may_skip(m))
		return next_is(NEXT_SKIP_PREFILL);
	return attempt_gives_up(a, end->why);
}

static bool is_pressure(const struct http_head *a)
{
	return a->status == 429 ||
	       (a->status == 503 && http_head_find(a, FIELD_RETRY_AFTER) != NULL);
}

/* Not where two prefill workers fell over it: it may be the request's doing. */
static bool may_skip_after(const struct pd *m, const struct retry_case *c, int status)
{
	return status >= 500 && attempt_is_worth_a_retry(c, status) &&
	       !(status == 500 && c->attempts->had_500) && c->has_time && pd_may_skip(m);
}

struct decision pd_prefill_refused(
	struct pd *m, struct retry_case *c, const struct http_head *a, const char *base)
{
	m->is_pressed |= is_pressure(a);
	if (attempt_is_worth_a_retry(c, a->status) &&
		attempt_retry(c, c->at->guard.worker->id, a->status, FAIL_NONE)) {
		attempt_keep(c, a, base);
		return next_is(NEXT_ELSEWHERE);
	}
	if (may_skip_after(m, c, a->status))
		return next_is(NEXT_SKIP_PREFILL);
	m->is_relayed = true;
	return next_is(NEXT_STEP);
}

void pd_hand_over(struct pd *m, struct placement *p)
{
	m->took_us = pd_since(m);
	m->is_computed = true;
	m->at = PD_DECODE;
	m->slot = guard_let_go(&p->guard);
	pd_drop_body(m);
	/* Prefill has computed the prompt: what was noted of it stands. */
	p->pick.insertion.stamp = 0;
	p->is_confirmed = false;
}

void pd_answered(struct pd *m, int status)
{
	if (status >= 200 && status < 300)
		m->is_taken = true;
}

/* ---- the ends ---- */

char *pd_release(const struct pd *m, struct worker **prefill, size_t *n)
{
	char *body = NULL;

	if (m->params.n == 0 || m->is_taken || kv_release_body(m->params, &body, n) != 0)
		return NULL;
	*prefill = m->prefill;
	return body;
}

struct placement *pd_reserved(struct pd *m)
{
	return &m->reserved;
}

struct slots *pd_take_slot(struct pd *m)
{
	struct slots *s = m->slot;

	m->slot = NULL;
	return s;
}

bool pd_repeats_leg(struct pd *m, bool is_unheard)
{
	/* One that was connected may have taken the blocks, and an engine that refuses a
	 * request (vLLM) tells prefill to let go of them. */
	if (m->at != PD_PREFILL) {
		m->failed[ROLE_DECODE]++;
		return is_unheard && m->is_computed && m->form->waits_for_any;
	}
	m->failed[ROLE_PREFILL]++;
	pd_drop_answer(m);
	m->way = WAY_SPLIT;
	return true;
}

void pd_begin_again(struct pd *m)
{
	m->at = PD_LOOK;
	m->way = WAY_SPLIT;
	m->kv_group = m->pinned_group;
	m->is_computed = false;
}

void pd_count(const struct pd *m)
{
	static const enum metric_id metrics[] = {
		[WAY_SPLIT] = METRIC_PD_SPLIT,
		[WAY_RECOMPUTED] = METRIC_PD_RECOMPUTED,
		[WAY_SHORT] = METRIC_PD_SHORT,
		[WAY_WHOLE] = METRIC_PD_WHOLE,
		[WAY_NO_PREFILL] = METRIC_PD_NO_PREFILL,
	};

	metric_inc(metrics[m->way]);
}

void pd_free(struct pd *m)
{
	if (m == NULL)
		return;
	assert(m->reserved.guard.worker == NULL && !pd_is_parallel(m) &&
		m->slot == NULL && m->body == NULL && m->answer == NULL);
	worker_unref(m->prefill);
	kv_request_free(&m->kv);
	route_key_free(&m->decode_key);
	free(m);
}

void pd_tell(const struct pd *m, struct access_line *line)
{
	if (m == NULL || m->prefill == NULL)
		return;
	line->prefill = m->prefill_name;
	line->prefill_reason = pick_reason_name(m->prefill_pick.reason);
	line->prefill_us = m->took_us;
	line->has_prefill_cached = m->usage.has_cached;
	line->prefill_cached = m->usage.cached;
	line->prefill_tokens = m->usage.has_prompt ? m->usage.prompt : 0;
}

bool pd_cached(const struct pd *m, uint64_t *cached, uint64_t *prompt)
{
	if (m == NULL || !m->usage.has_cached)
		return false;
	*cached = m->usage.cached;
	*prompt = m->usage.has_prompt ? m->usage.prompt : 0;
	return true;
}

void pd_matched(const struct pd *m, const struct pool_pick *pick, uint32_t *matched,
	uint32_t *blocks)
{
	bool is_by_prefill = m != NULL && m->prefill != NULL && m->at == PD_DECODE &&
			     (m->is_computed || m->form->is_concurrent);
	const struct pool_pick *p = is_by_prefill ? &m->prefill_pick : pick;

	*matched = p->matched;
	*blocks = p->blocks;
}
