/*
 * What a request asks its pool. See pick.h.
 */
#include "proxy/pick.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/metric.h"
#include "policy/routing_key.h"
#include "proxy/admission.h"
#include "proxy/pin.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"
#include "proxy/stored_response.h"
#include "worker/worker.h"

struct pool_ask pick_ask(struct request *r, struct routing *routing)
{
	struct pool_ask ask = {
		.role = pd_role(r),
		.key = r->is_keyed ? pd_key(r) : NULL,
		.model = r->key.model,
		.home = r->stored.home,
		.tried = r->tried,
		.n_tried = r->n_tried,
		.is_no_trial = r->attempts.was_trial || r->head_sent,
		.body_bytes = MAX(r->body.expected, r->body.total), /* or promised */
		.now_ms = clock_now_ms(),
	};

	ask.routing = routing_find(pool_wants(r->pool, ask.role),
		&opts(r)->routing_key_headers, r->c->buf, &r->head, &r->key, routing);
	if (opts(r)->allow_pin)
		pin_read_head(r->c->buf, &r->head, &ask);
	pd_ask(r, &ask);
	return ask;
}

static int ask_for_worker(struct request *r)
{
	struct routing routing;
	struct pool_ask ask;
	int err;

	do {
		ask = pick_ask(r, &routing);
		err = admission_ask(r, &ask, &routing);
	} while ((err == ERR_NOENT || err == ERR_STATE) && stored_look_elsewhere(r));
	return err;
}

int pick_worker(struct request *r)
{
	return admission_is_waiting(r) ? admission_resume(r) : ask_for_worker(r);
}

static void keep_worker_name(struct request *r)
{
	size_t n = strnlen(r->guard.worker->name, sizeof(r->worker_name) - 1);

	memcpy(r->worker_name, r->guard.worker->name, n);
	r->worker_name[n] = '\0';
}

void pick_note(struct request *r)
{
	r->is_confirmed = false;
	r->attempts.was_trial |= r->pick.is_trial;
	keep_worker_name(r);
	if (r->n_tried > 0 || pd_is_begun(r))
		return;
	r->picked_us = clock_us();
	if (r->pick.blocks > 0)
		metric_observe(METRIC_PREFIX_MATCH_RATIO,
			(uint64_t)r->pick.matched * 1000 / r->pick.blocks);
}
