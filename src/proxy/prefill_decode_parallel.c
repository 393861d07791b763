/*
 * Both legs at once: while decode's exchange is the request's, prefill's goes on beside
 * it, is drained, and holds prefill's guard until its end. See prefill_decode.h.
 *
 * Where it fails before the client has a byte, pd_turn_back() makes it the request's
 * only leg again, as if it had gone first: what a failed prefill means is told in one
 * place. After that its end is its worker's affair alone. It is never cut off because
 * decode was faster: an engine that still sends blocks would take them back.
 */
#include "base/cleanup.h"
#include "proxy/admission.h"
#include "proxy/cleanup.h"
#include "proxy/dispatch.h"
#include "proxy/outcome.h"
#include "proxy/prefill_decode.h"
#include "proxy/prefill_decode_state.h"
#include "proxy/request_state.h"
#include "proxy/upstream.h"
#include "worker/worker.h"

#include <stdlib.h>

bool pd_is_parallel(const struct request *r)
{
	return r->pd != NULL && r->pd->parallel.worker != NULL;
}

void pd_go_parallel(struct request *r)
{
	struct pd *m = r->pd;

	assert(m->parallel.worker == NULL && m->reserved.worker != NULL);
	m->parallel = r->guard;
	r->guard = m->reserved;
	r->pick = m->reserved_pick;
	m->reserved = (struct guard){0};
	m->reserved_pick = (struct pool_pick){0};
	m->is_parallel_good = false;
	m->at = PD_DECODE;
}

bool pd_start_parallel(struct request *r)
{
	struct pd *m = r->pd;

	if (!pd_is_parallel(r))
		return true;
	m->parallel_ex = dispatch_parallel(r, m->parallel.worker, &m->prefill_pick,
		span_make(m->parallel_body, m->parallel_len));
	return m->parallel_ex != NULL;
}

static void drop_beside(struct request *r)
{
	guard_drop(&r->pd->parallel);
	admission_freed(r);
}

/* Its end, good or bad. */
static void end_beside(struct request *r, enum fail why)
{
	struct pd *m = r->pd;

	m->took_us = why == FAIL_NONE ? pd_since(m) : 0;
	outcome_of(&m->parallel, m->parallel_ex, why);
	if (why == FAIL_NONE)
		exchange_finish(&m->parallel_ex);
	exchange_cancel(&m->parallel_ex);
	drop_beside(r);
}

/* Its head: END where it is no good one. */
static enum exchange_result read_head(
	struct request *r, const struct http_head **a, const char **base)
{
	struct pd *m = r->pd;
	enum exchange_result res;

	if (m->is_parallel_good)
		return EXCHANGE_OK;
	res = exchange_head(m->parallel_ex, a, base);
	if (res != EXCHANGE_OK)
		return res;
	if ((*a)->status < 200 || (*a)->status >= 300)
		return EXCHANGE_END;
	m->is_parallel_good = true;
	return EXCHANGE_OK;
}

static enum parallel drain(struct request *r)
{
	struct span data;
	enum exchange_result res;

	do
		res = exchange_body(r->pd->parallel_ex, &data);
	while (res == EXCHANGE_OK);
	if (res == EXCHANGE_END)
		end_beside(r, FAIL_NONE);
	return res == EXCHANGE_FAILED ? PARALLEL_BROKE : PARALLEL_GOES_ON;
}

static enum parallel run(struct request *r, const struct http_head **a, const char **base)
{
	switch (read_head(r, a, base)) {
	case EXCHANGE_OK:
		return drain(r);
	case EXCHANGE_AGAIN:
		return PARALLEL_GOES_ON;
	case EXCHANGE_END:
		return PARALLEL_REFUSES;
	default:
		return PARALLEL_FAILED;
	}
}

enum parallel pd_run_parallel(
	struct request *r, const struct http_head **a, const char **base)
{
	enum parallel end;

	if (!pd_is_parallel(r) || r->pd->parallel_ex == NULL)
		return PARALLEL_GOES_ON;
	end = run(r, a, base);
	if (end == PARALLEL_GOES_ON || !r->head_sent)
		return end;
	if (end == PARALLEL_REFUSES && (*a)->status < 500)
		pd_end_parallel(r, false);
	else
		end_beside(r, end == PARALLEL_REFUSES
				      ? FAIL_WORKER_PROTOCOL
				      : exchange_failure(r->pd->parallel_ex));
	return PARALLEL_GOES_ON;
}

void pd_turn_back(struct request *r)
{
	struct pd *m = r->pd;

	assert(!r->head_sent);
	exchange_cancel(&r->ex);
	r->ex = m->parallel_ex;
	m->parallel_ex = NULL;
	m->reserved = r->guard;
	m->reserved_pick = r->pick;
	r->guard = m->parallel;
	r->pick = m->prefill_pick;
	m->parallel = (struct guard){0};
	m->at = PD_PREFILL;
	m->is_taken = false;
	r->is_confirmed = false;
	memcpy(r->worker_name, m->prefill_name, sizeof(r->worker_name));
}

/* What it inserted has no answer that confirms it. */
static void withdraw_beside(struct request *r)
{
	const struct pd *m = r->pd;

	if (r->is_keyed && !m->is_parallel_good)
		pool_withdraw(r->pool, &r->key, &m->prefill_pick.insertion);
}

void pd_end_parallel(struct request *r, bool may_go_on)
{
	struct pd *m = r->pd;

	if (!pd_is_parallel(r))
		return;
	if (may_go_on && m->parallel_ex != NULL) {
		pd_give_body(r);
		errand_drain(r->t, r->pool, &m->parallel_ex, m->is_parallel_good,
			&m->parallel, take_ptr(m->parallel_body));
		m->parallel_len = 0;
		return;
	}
	withdraw_beside(r);
	exchange_cancel(&m->parallel_ex);
	drop_beside(r);
}
