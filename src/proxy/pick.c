/*
 * A request asks its pool for a worker. See pick.h.
 */
#include "proxy/pick.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/metric.h"
#include "policy/routing_key.h"
#include "pool/priority.h"
#include "proxy/admission.h"
#include "proxy/pin.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"
#include "proxy/resume.h"
#include "worker/worker.h"

/* ---- the question ---- */

struct route_key *pick_key(struct request *r)
{
	return r->is_keyed ? pd_key(r->pd, &r->key) : NULL;
}

struct pool_ask pick_ask(struct request *r, struct routing *routing)
{
	struct pool_ask ask = {
		.role = pd_role(r->pd, r->pool),
		.key = pick_key(r),
		.model = r->key.model,
		.lora = r->key.lora,
		.home = r->stored.home,
		.tried = r->attempts.tried,
		.n_tried = r->attempts.n_tried,
		.tenant = caller_id(&r->caller),
		.is_no_trial = r->attempts.was_trial || r->head_sent,
		.body_bytes = MAX(r->body.expected, r->body.total), /* or promised */
		.now_ms = clock_now_ms(),
	};

	ask.routing = routing_find(pool_wants(r->pool, ask.role),
		&opts(r)->routing_key_headers, r->c->buf, &r->head, &r->key, routing);
	if (opts(r)->allow_pin)
		pin_read_head(r->c->buf, &r->head, &ask);
	pd_ask(r->pd, &ask);
	return ask;
}

/* ---- the queue ---- */

static enum priority priority_of(const struct request *r)
{
	enum priority p;

	if (pd_is_begun(r->pd))
		return PRIORITY_BEGUN;
	if (caller_priority(&r->caller, &p))
		return p;
	return priority_read(&opts(r)->priority_headers, r->c->buf, &r->head);
}

static int wait_for_worker(struct request *r, const struct pool_ask *ask)
{
	struct admission_wait wait = {
		.t = r->t,
		.pool = r->pool,
		.opts = opts(r),
		.guard = &r->place.guard,
		.pick = &r->place.pick,
		.wake = r->c->run,
		.arg = r->c,
		.priority = priority_of(r),
		.is_begun = pd_is_begun(r->pd),
		.was_tried = pd_was_tried(r->pd, r->attempts.n_tried),
		.may_skip = pd_may_skip(r->pd),
	};
	int err;

	wait.skips_at_once = wait.may_skip && pool_lacks_prefill(r->pool);
	err = admission_wait(&r->ticket, &wait, ask);
	if (err == ERR_AGAIN)
		upload_pause(&r->upload, r->c);
	return err;
}

static int ask_for_worker(struct request *r)
{
	struct routing routing;
	int err;

	do {
		struct pool_ask ask = pick_ask(r, &routing);

		ask.slots = pd_has_slot(r->pd) ? NULL : &r->t->process->slots;
		ask.max_slots = opts(r)->max_concurrent_requests;
		err = admission_pick(r->pool, &ask, &r->place.guard, &r->place.pick);
		if (err == ERR_LIMIT || err == ERR_STATE)
			err = wait_for_worker(r, &ask);
	} while ((err == ERR_NOENT || err == ERR_STATE) &&
		 stored_asks_others(&r->stored, &r->pool));
	return err;
}

/* The wait may end since the worker with the stored response left: others may have it. */
static int resume_waiting(struct request *r)
{
	int err = admission_resume(&r->ticket);

	if ((err == ERR_NOENT || err == ERR_STATE) &&
		stored_asks_others(&r->stored, &r->pool))
		return ask_for_worker(r);
	return err;
}

/* ---- the answer ---- */

static struct decision no_worker(const struct request *r, int err)
{
	/* The last worker's failure says more than "no worker". */
	enum fail why = r->attempts.last_failure != FAIL_NONE ? r->attempts.last_failure
							      : FAIL_NO_WORKER;

	if (err == ERR_AGAIN)
		return next_is(NEXT_WAIT);
	if (err == ERR_PARSE)
		why = FAIL_BAD_WORKER;
	else if (err == ERR_LIMIT)
		why = FAIL_QUEUE_FULL;
	else if (err == ERR_TIMEOUT)
		why = FAIL_QUEUE_TIMEOUT;
	else if (err == ERR_NOMEM)
		why = FAIL_OVERLOADED;
	return resume_is_on(r->resume) ? resume_gives_up(why)
				       : attempt_gives_up(&r->attempts, why);
}

static void keep_worker_name(struct request *r)
{
	const char *name = r->place.guard.worker->name;
	size_t n = strnlen(name, sizeof(r->worker_name) - 1);

	memcpy(r->worker_name, name, n);
	r->worker_name[n] = '\0';
}

static void note_worker(struct request *r)
{
	const struct pool_pick *pick = &r->place.pick;

	uint64_t now_us = clock_us();

	r->place.is_confirmed = false;
	if (route_computes(r->verdict.endpoint))
		r->place.guard.began_us = now_us;
	r->attempts.was_trial |= pick->is_trial;
	keep_worker_name(r);
	if (r->attempts.n_tried > 0 || pd_is_begun(r->pd))
		return;
	r->picked_us = now_us;
	if (pick->blocks > 0)
		metric_observe(METRIC_PREFIX_MATCH_RATIO,
			(uint64_t)pick->matched * 1000 / pick->blocks);
}

static int look(struct request *r)
{
	struct routing routing;
	struct pool_ask ask = pick_ask(r, &routing);

	return pd_look(r->pd, r->pool, &ask);
}

struct decision pick_worker(struct request *r)
{
	struct decision d = next_is(NEXT_STEP);
	int err = 0;

	if (r->pd != NULL && pd_wants_look(r->pd))
		err = look(r);
	if (err != 0)
		return no_worker(r, err);
	if (r->pd == NULL || !pd_take_reserved(r->pd, &r->place))
		err = r->ticket != NULL ? resume_waiting(r) : ask_for_worker(r);
	if ((err == ERR_NOENT || err == ERR_STATE) && pd_may_skip(r->pd))
		return next_is(NEXT_SKIP_PREFILL);
	if (err != 0)
		return no_worker(r, err);
	if (r->pd != NULL)
		d = pd_picked(r->pd, r->pool, &r->place, r);
	if (d.next == NEXT_STEP)
		note_worker(r);
	return d;
}
