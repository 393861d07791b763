/*
 * The order of things for a request on two workers: who is asked for which leg, what
 * happens where one cannot be had or fails, and what is given back. See prefill_decode.h.
 *
 * Decode is looked at before prefill is asked, so that no prompt is computed for a decode
 * worker that is not there. Where all of them are full, the request waits for one, and
 * has it from then on; who waits for decode after its prefill is served first. A request
 * waits for decode with no guard, and for prefill at most with a reserved guard of
 * decode: nobody who has prefill's guard waits for anything but its answer.
 */
#include "proxy/prefill_decode.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "pool/request_key.h"
#include "proxy/access_log.h"
#include "proxy/admission.h"
#include "proxy/attempt.h"
#include "proxy/cleanup.h"
#include "proxy/client_key.h"
#include "proxy/dispatch.h"
#include "proxy/own_answer.h"
#include "proxy/pick.h"
#include "proxy/pin.h"
#include "proxy/prefill_decode_state.h"
#include "proxy/request_state.h"
#include "worker/worker.h"

#include <stdlib.h>

/* ---- the key ---- */

struct route_key *pd_key(struct request *r)
{
	struct pd *m = r->pd;

	return m != NULL && m->decode_key.is_sealed && m->at != PD_PREFILL
		       ? &m->decode_key
		       : &r->key;
}

/* ---- the beginning ---- */

static const struct role_opts *role_opts(
	const struct site *s, const struct pool *p, enum role role)
{
	size_t i = 0;

	while (s->pools[i] != p)
		i++;
	return &s->conf->pools[i].roles[role];
}

enum pd_skip pd_would_skip(const struct site *site, const struct pool *p,
	enum route_endpoint endpoint, struct span body, uint64_t uncached_tokens)
{
	struct kv_request kv = {0};
	enum pd_skip skip = PD_SKIP_NOT;

	if (kv_request_read(&kv, role_opts(site, p, ROLE_PREFILL)->kv_connector, endpoint,
		    body) != 0)
		return PD_SKIP_NOT;
	if (kv.verdict != KV_SPLIT)
		skip = PD_SKIP_WHOLE;
	else if (kv_form(kv.connector)->decodes_alone &&
		 uncached_tokens < role_opts(site, p, ROLE_DECODE)->pd_min_prefill)
		skip = PD_SKIP_SHORT;
	kv_request_free(&kv);
	return skip;
}

/* A prefill worker by name: the client wants that leg there, and decode wherever. */
static void read_pin(struct request *r)
{
	struct pd *m = r->pd;
	struct pool_ask ask = {0};
	uint64_t group;
	enum role role;

	if (!opts(r)->allow_pin)
		return;
	pin_read_head(r->c->buf, &r->head, &ask);
	if (ask.pinned.n == 0 || !pool_find_role(r->pool, ask.pinned, &role, &group) ||
		role != ROLE_PREFILL)
		return;
	m->is_prefill_pinned = true;
	m->pinned_group = m->kv_group = group;
}

static enum fail read_body(struct request *r)
{
	struct pd *m = r->pd;

	if (kv_request_read(&m->kv,
		    role_opts(r->site, r->pool, ROLE_PREFILL)->kv_connector,
		    r->verdict.endpoint, body_bytes(&r->body, r->c)) != 0)
		return FAIL_OVERLOADED;
	if (m->kv.verdict == KV_UNSAFE)
		return FAIL_BAD_TRANSFER;
	m->form = kv_form(m->kv.connector);
	m->min_prefill = role_opts(r->site, r->pool, ROLE_DECODE)->pd_min_prefill;
	/* Only the decode worker that made it knows what is continued. */
	if (r->stored.is_asked_for && m->form->decodes_alone)
		m->kv.verdict = KV_WHOLE;
	if (m->kv.verdict == KV_SPLIT)
		read_pin(r);
	return FAIL_NONE;
}

enum fail pd_begin(struct request *r, const struct request_key_source *src)
{
	enum fail why;

	if (!pool_is_split(r->pool))
		return FAIL_NONE;
	if (kv_id_names_peers(request_id(r)))
		own_answer_new_id(r);
	/* Its pool was none of those when its head came: what is in it, nobody has read.
	 */
	if (r->upload.is_on)
		return FAIL_NO_WORKER;
	if (r->body.total == 0)
		return FAIL_NONE;
	r->pd = calloc(1, sizeof(*r->pd));
	if (r->pd == NULL)
		return FAIL_OVERLOADED;
	route_key_init(&r->pd->decode_key);
	why = read_body(r);
	if (why == FAIL_NONE && request_key_decode(src, r->pool, client_key_salt(r),
					&r->key, &r->pd->decode_key) != 0)
		why = FAIL_OVERLOADED;
	return why;
}

/* ---- who is asked ---- */

static bool is_whole(const struct pd *m)
{
	return m == NULL || m->kv.verdict != KV_SPLIT;
}

enum role pd_role(const struct request *r)
{
	if (is_whole(r->pd))
		return pool_whole_role(r->pool);
	return r->pd->at == PD_PREFILL ? ROLE_PREFILL : ROLE_DECODE;
}

void pd_ask(const struct request *r, struct pool_ask *ask)
{
	const struct pd *m = r->pd;
	bool is_prefill;

	if (is_whole(m))
		return;
	is_prefill = m->at == PD_PREFILL;
	ask->kv_group = m->kv_group;
	ask->is_further_leg = m->is_computed || m->reserved.worker != NULL;
	if (is_prefill != m->is_prefill_pinned)
		ask->pinned = span_make(NULL, 0);
	if (is_prefill) {
		ask->is_rank_pinned = false;
		ask->home = 0;
	}
}

unsigned pd_n_failed(const struct request *r)
{
	if (is_whole(r->pd))
		return r->n_tried;
	return r->pd->failed[pd_role(r)];
}

bool pd_is_begun(const struct request *r)
{
	return r->pd != NULL && r->pd->is_computed;
}

bool pd_has_slot(const struct request *r)
{
	const struct pd *m = r->pd;

	return m != NULL && (m->slot != NULL || m->reserved.slots != NULL);
}

bool pd_is_prefill(const struct request *r)
{
	return r->pd != NULL && r->pd->at == PD_PREFILL && !r->pd->is_relayed;
}

bool pd_can_skip(const struct request *r)
{
	return pd_is_prefill(r) && r->pd->form->decodes_alone &&
	       !r->pd->is_prefill_pinned && r->attempts.kept == NULL;
}

bool pd_skips_at_once(const struct request *r)
{
	return pd_can_skip(r) && pool_lacks_prefill(r->pool);
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

static int look(struct request *r)
{
	struct pd *m = r->pd;
	struct routing routing;
	struct pool_ask ask;
	struct pool_look seen;
	int err;

	if (is_whole(m)) {
		go_alone(m, WAY_WHOLE);
		return 0;
	}
	ask = pick_ask(r, &routing);
	err = pool_look(r->pool, &ask, &seen);
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

static void keep_reserved(struct request *r)
{
	struct pd *m = r->pd;

	m->reserved = r->guard;
	m->reserved_pick = r->pick;
	r->guard = (struct guard){0};
	r->pick = (struct pool_pick){0};
	m->kv_group = m->reserved_pick.kv_group;
	if (is_short(m, m->reserved_pick.uncached_tokens))
		go_alone(m, WAY_SHORT);
	else
		m->at = PD_PREFILL;
}

static bool take_reserved(struct request *r)
{
	struct pd *m = r->pd;

	if (m->reserved.worker == NULL)
		return false;
	r->guard = m->reserved;
	r->pick = m->reserved_pick;
	m->reserved = (struct guard){0};
	m->reserved_pick = (struct pool_pick){0};
	return true;
}

static void note_prefill(struct request *r)
{
	struct pd *m = r->pd;
	size_t n = strnlen(r->guard.worker->name, sizeof(m->prefill_name) - 1);

	worker_unref(m->prefill);
	m->prefill = worker_ref(r->guard.worker);
	memcpy(m->prefill_name, r->guard.worker->name, n);
	m->prefill_name[n] = '\0';
	m->prefill_pick = r->pick;
	m->began_us = clock_us();
	if (pool_note_prefill(r->pool, false))
		log_notice("pool %s: a prefill worker is available again",
			pool_name(r->pool));
}

/* If that is so for any request of the pool: others need not wait for it, too. */
static void note_lack(struct request *r)
{
	struct pool_ask ask = {
		.role = ROLE_PREFILL, .model = r->key.model, .now_ms = clock_now_ms()};
	struct pool_look seen;
	int err = pool_look(r->pool, &ask, &seen);

	if ((err == ERR_STATE || err == ERR_NOENT) && pool_note_prefill(r->pool, true))
		log_warn(
			"pool %s: no prefill worker is available: decode workers compute "
			"prompts themselves",
			pool_name(r->pool));
}

bool pd_skip_prefill(struct request *r)
{
	if (!pd_can_skip(r))
		return false;
	note_lack(r);
	go_alone(r->pd, WAY_NO_PREFILL);
	return true;
}

/* Decode must name prefill's engine, which is not known (yet): it would wait in vain. */
static bool lacks_engine(struct request *r)
{
	struct pd *m = r->pd;

	return m->form->needs_engine &&
	       pool_engine(r->pool, r->guard.worker, m->engine) == 0;
}

static void give_prefill_up(struct request *r)
{
	log_at(LOG_LEVEL_DEBUG, r, "the engine id of worker %s is not known",
		r->guard.worker->name);
	if (r->is_keyed)
		pool_withdraw(r->pool, pd_key(r), &r->pick.insertion);
	r->pick.insertion.stamp = 0;
	guard_drop(&r->guard);
	admission_freed(r);
	go_alone(r->pd, WAY_NO_PREFILL);
}

static int pick_prefill(struct request *r)
{
	int err = pick_worker(r);

	if (err == 0 && lacks_engine(r)) {
		give_prefill_up(r);
		return ERR_EXISTS;
	}
	if (err == 0) {
		note_prefill(r);
		if (r->pd->form->is_concurrent)
			pd_go_parallel(r);
	} else if ((err == ERR_NOENT || err == ERR_STATE) && pd_skip_prefill(r)) {
		return ERR_EXISTS; /* decode is picked next */
	}
	return err;
}

static int pick_decode(struct request *r)
{
	struct pd *m = r->pd;
	int err = take_reserved(r) ? 0 : pick_worker(r);

	if (err == 0 && m->slot != NULL) {
		guard_hold(&r->guard, m->slot);
		m->slot = NULL;
	}
	return err;
}

int pd_pick(struct request *r)
{
	struct pd *m = r->pd;
	int err;

	for (;;) {
		switch (m->at) {
		case PD_LOOK:
			err = look(r);
			if (err != 0)
				return err;
			break;
		case PD_RESERVE:
			err = pick_worker(r);
			if (err != 0)
				return err;
			keep_reserved(r);
			break;
		case PD_PREFILL:
			err = pick_prefill(r);
			if (err != ERR_EXISTS)
				return err;
			break;
		default:
			return pick_decode(r);
		}
	}
}

/* ---- FORWARD and HAND_OFF ---- */

bool pd_is_worth(int status)
{
	return status >= 500 || attempt_is_worth(status);
}

uint64_t pd_since(const struct pd *m)
{
	return clock_us() - m->began_us;
}

void pd_relay(struct request *r)
{
	r->pd->is_relayed = true;
}

void pd_hand_over(struct request *r)
{
	struct pd *m = r->pd;

	m->took_us = pd_since(m);
	m->is_computed = true;
	m->at = PD_DECODE;
	m->slot = guard_let_go(&r->guard);
	pd_drop_body(r);
	/* Prefill has computed the prompt: what was noted of it stands. */
	r->pick.insertion.stamp = 0;
	r->is_confirmed = false;
	r->died_reused = false;
}

void pd_answered(struct request *r, int status)
{
	if (r->pd == NULL)
		return;
	if (status >= 200 && status < 300)
		r->pd->is_taken = true;
	else if (r->pd->at == PD_DECODE)
		pd_end_parallel(r, false); /* it would wait for decode in vain */
}

/* ---- the ends ---- */

static void release_kv(struct request *r)
{
	struct pd *m = r->pd;
	char *body;
	size_t n;

	if (m->params.n == 0 || m->is_taken)
		return;
	if (kv_release_body(m->params, &body, &n) == 0 && body != NULL)
		errand_release(
			r->t, m->prefill, dispatch_authorization(r, m->prefill), body, n);
}

/* Of the attempt that was; is_answered: by decode, in full. True: something was freed
 * that others may wait for. */
static bool end_attempt(struct request *r, bool is_answered)
{
	struct pd *m = r->pd;
	bool is_freed = m->reserved.worker != NULL || m->slot != NULL;

	release_kv(r);
	pd_end_parallel(r, is_answered);
	pd_drop_answer(r);
	pd_drop_body(r);
	m->id_len = 0;
	if (m->reserved.worker != NULL && r->is_keyed) {
		m->at = PD_RESERVE; /* decode's key */
		pool_withdraw(r->pool, pd_key(r), &m->reserved_pick.insertion);
	}
	guard_drop(&m->reserved);
	if (m->slot != NULL)
		slots_give(m->slot);
	m->slot = NULL;
	return is_freed;
}

void pd_retry(struct request *r)
{
	struct pd *m = r->pd;

	if (m == NULL)
		return;
	if (m->at == PD_PREFILL) {
		m->failed[ROLE_PREFILL]++;
		pd_drop_answer(r);
		m->way = WAY_SPLIT;
		return;
	}
	m->failed[ROLE_DECODE]++;
	if (end_attempt(r, false))
		admission_freed(r);
	m->at = PD_LOOK;
	m->way = WAY_SPLIT;
	m->kv_group = m->pinned_group;
	m->is_computed = false;
}

static void count(const struct request *r)
{
	static const enum metric_id metrics[] = {
		[WAY_SPLIT] = METRIC_PD_SPLIT,
		[WAY_RECOMPUTED] = METRIC_PD_RECOMPUTED,
		[WAY_SHORT] = METRIC_PD_SHORT,
		[WAY_WHOLE] = METRIC_PD_WHOLE,
		[WAY_NO_PREFILL] = METRIC_PD_NO_PREFILL,
	};

	if (r->picked_us > 0)
		metric_inc(metrics[r->pd->way]);
}

void pd_end(struct request *r)
{
	if (r->pd == NULL)
		return;
	count(r);
	if (end_attempt(r, r->why == FAIL_NONE))
		admission_freed(r);
}

void pd_free(struct request *r)
{
	struct pd *m = r->pd;

	if (m == NULL)
		return;
	assert(m->reserved.worker == NULL && m->parallel.worker == NULL &&
		m->slot == NULL && m->counted == 0);
	worker_unref(m->prefill);
	kv_request_free(&m->kv);
	route_key_free(&m->decode_key);
	free(m);
	r->pd = NULL;
}

void pd_tell(const struct request *r, struct access_line *line)
{
	const struct pd *m = r->pd;

	if (m == NULL || m->prefill == NULL)
		return;
	line->prefill = m->prefill_name;
	line->prefill_reason = pick_reason_name(m->prefill_pick.reason);
	line->prefill_us = m->took_us;
}

void pd_matched(const struct request *r, uint32_t *matched, uint32_t *blocks)
{
	const struct pd *m = r->pd;
	bool is_by_prefill = m != NULL && m->prefill != NULL && m->at == PD_DECODE &&
			     (m->is_computed || m->form->is_concurrent);
	const struct pool_pick *p = is_by_prefill ? &m->prefill_pick : &r->pick;

	*matched = p->matched;
	*blocks = p->blocks;
}
