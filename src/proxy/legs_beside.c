/*
 * Both legs at once: while decode's exchange is the request's, prefill's goes on beside
 * it, is drained, and holds prefill's guard until its end. See legs.h.
 *
 * Where it fails before the client has a byte, legs_turn_back() makes it the request's
 * only leg again, as if it had gone first: what a failed prefill means is told in one
 * place. After that its end is its worker's affair alone. It is never cut off because
 * decode was faster: an engine that still sends blocks would take them back.
 */
#include "base/cleanup.h"
#include "proxy/admission.h"
#include "proxy/dispatch.h"
#include "proxy/errand.h"
#include "proxy/legs.h"
#include "proxy/legs_state.h"
#include "proxy/outcome.h"
#include "proxy/request_state.h"
#include "proxy/upstream.h"
#include "worker/worker.h"

#include <stdlib.h>

bool legs_is_beside(const struct request *r)
{
	return r->legs != NULL && r->legs->beside.worker != NULL;
}

void legs_go_beside(struct request *r)
{
	struct legs *m = r->legs;

	assert(m->beside.worker == NULL && m->reserved.worker != NULL);
	m->beside = r->guard;
	r->guard = m->reserved;
	r->pick = m->reserved_pick;
	m->reserved = (struct guard){0};
	m->reserved_pick = (struct pool_pick){0};
	m->is_beside_good = false;
	m->at = LEGS_DECODE;
}

bool legs_start_beside(struct request *r)
{
	struct legs *m = r->legs;

	if (!legs_is_beside(r))
		return true;
	m->beside_ex = dispatch_beside(r, m->beside.worker, &m->prefill_pick,
		span_make(m->beside_body, m->beside_len));
	return m->beside_ex != NULL;
}

static void drop_beside(struct request *r)
{
	guard_drop(&r->legs->beside);
	admission_freed(r);
}

/* Its end, good or bad. */
static void end_beside(struct request *r, enum fail why)
{
	struct legs *m = r->legs;

	m->took_us = why == FAIL_NONE ? legs_since(m) : 0;
	outcome_of(&m->beside, m->beside_ex, why);
	if (why == FAIL_NONE)
		exchange_finish(&m->beside_ex);
	exchange_cancel(&m->beside_ex);
	drop_beside(r);
}

/* Its head: END where it is no good one. */
static enum exchange_result read_head(
	struct request *r, const struct http_head **a, const char **base)
{
	struct legs *m = r->legs;
	enum exchange_result res;

	if (m->is_beside_good)
		return EXCHANGE_OK;
	res = exchange_head(m->beside_ex, a, base);
	if (res != EXCHANGE_OK)
		return res;
	if ((*a)->status < 200 || (*a)->status >= 300)
		return EXCHANGE_END;
	m->is_beside_good = true;
	return EXCHANGE_OK;
}

static enum beside drain(struct request *r)
{
	struct span data;
	enum exchange_result res;

	do
		res = exchange_body(r->legs->beside_ex, &data);
	while (res == EXCHANGE_OK);
	if (res == EXCHANGE_END)
		end_beside(r, FAIL_NONE);
	return res == EXCHANGE_FAILED ? BESIDE_BROKE : BESIDE_GOES_ON;
}

static enum beside run(struct request *r, const struct http_head **a, const char **base)
{
	switch (read_head(r, a, base)) {
	case EXCHANGE_OK:
		return drain(r);
	case EXCHANGE_AGAIN:
		return BESIDE_GOES_ON;
	case EXCHANGE_END:
		return BESIDE_REFUSES;
	default:
		return BESIDE_FAILED;
	}
}

enum beside legs_run_beside(
	struct request *r, const struct http_head **a, const char **base)
{
	enum beside end;

	if (!legs_is_beside(r) || r->legs->beside_ex == NULL)
		return BESIDE_GOES_ON;
	end = run(r, a, base);
	if (end == BESIDE_GOES_ON || !r->head_sent)
		return end;
	if (end == BESIDE_REFUSES && (*a)->status < 500)
		legs_end_beside(r, false);
	else
		end_beside(r, end == BESIDE_REFUSES
				      ? FAIL_WORKER_PROTOCOL
				      : exchange_failure(r->legs->beside_ex));
	return BESIDE_GOES_ON;
}

void legs_turn_back(struct request *r)
{
	struct legs *m = r->legs;

	assert(!r->head_sent);
	exchange_cancel(&r->ex);
	r->ex = m->beside_ex;
	m->beside_ex = NULL;
	m->reserved = r->guard;
	m->reserved_pick = r->pick;
	r->guard = m->beside;
	r->pick = m->prefill_pick;
	m->beside = (struct guard){0};
	m->at = LEGS_PREFILL;
	m->is_taken = false;
	r->is_confirmed = false;
	memcpy(r->worker_name, m->prefill_name, sizeof(r->worker_name));
}

/* What it inserted has no answer that confirms it. */
static void withdraw_beside(struct request *r)
{
	const struct legs *m = r->legs;

	if (r->is_keyed && !m->is_beside_good)
		pool_withdraw(r->pool, &r->key, &m->prefill_pick.insertion);
}

void legs_end_beside(struct request *r, bool may_go_on)
{
	struct legs *m = r->legs;

	if (!legs_is_beside(r))
		return;
	if (may_go_on && m->beside_ex != NULL) {
		legs_give_body(r);
		errand_drain(r->t, r->pool, &m->beside_ex, m->is_beside_good, &m->beside,
			take_ptr(m->beside_body));
		m->beside_len = 0;
		return;
	}
	withdraw_beside(r);
	exchange_cancel(&m->beside_ex);
	drop_beside(r);
}
