/*
 * Which feature decides. See decide.h.
 */
#include "proxy/decide.h"

#include "base/log.h"
#include "policy/routing_key.h"
#include "proxy/outcome.h"
#include "proxy/pick.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"
#include "proxy/resume.h"
#include "proxy/upstream.h"

/* routing lives as long as what is returned. */
static struct retry_case retry_case(struct request *r, struct routing *routing)
{
	return (struct retry_case){
		.attempts = &r->attempts,
		.at = &r->place,
		.pool = r->pool,
		.ask = pick_ask(r, routing),
		.body = request_body(r),
		.may_repeat = upload_is_repeatable(&r->upload, &r->body),
		.has_time = request_has_time(r),
		.worker_name = r->worker_name,
		.rng = &r->t->rng,
		.request = r,
	};
}

/* The exchange ended without a response. */
struct decision decide_no_response(struct request *r)
{
	struct no_response end;
	struct routing routing;
	struct retry_case c;

	if (attempt_sends_again(&r->attempts, r->place.ex,
		    upload_is_repeatable(&r->upload, &r->body)))
		return next_is(NEXT_SEND_AGAIN);
	end = attempt_no_response(&r->attempts, &r->place);
	outcome_end(&r->place.guard, r->place.ex, end.why);
	log_at(LOG_LEVEL_DEBUG, r, "no answer: %s", fail_code(end.why));
	c = retry_case(r, &routing);
	if (resume_is_on(r->resume))
		return resume_no_response(r->resume, &c, &end);
	if (pd_is_prefill(r->pd))
		return pd_prefill_failed(r->pd, &c, &end);
	return attempt_failed(&c, &end);
}

/* The worker was tried with the request, and sent nothing in time; or it cannot be
 * connected to now, which says nothing of it that is not known. */
struct decision decide_late(struct request *r, enum exchange_late late)
{
	struct routing routing;
	struct retry_case c = retry_case(r, &routing);

	if (late == EXCHANGE_DIAL_LATE)
		return attempt_dial_is_late(&c);
	outcome_end(&r->place.guard, r->place.ex, FAIL_WORKER_TIMEOUT);
	return attempt_trial_is_over(&c);
}

/* A response that may not be the client's: one to a stream that is resumed, or one that
 * another worker may better. NEXT_STEP: the client gets it, or has its beginning. */
struct decision decide_response(
	struct request *r, const struct http_head *a, const char *base)
{
	struct routing routing;
	struct retry_case c = retry_case(r, &routing);

	if (resume_is_on(r->resume))
		return resume_answered(r->resume, &c, a, base);
	if (pd_is_prefill(r->pd))
		return pd_prefill_refused(r->pd, &c, a, base);
	if (r->stored.is_asked_for)
		return stored_answered(&r->stored, &c, a->status, &r->pool);
	return attempt_answered(&c, a, base);
}

struct decision decide_said_error(
	struct request *r, const struct http_head *a, const char *base)
{
	struct routing routing;
	struct retry_case c = retry_case(r, &routing);

	log_at(LOG_LEVEL_DEBUG, r, "a stream begins with an error");
	outcome_end(&r->place.guard, r->place.ex, FAIL_WORKER_ERROR);
	if (resume_is_on(r->resume))
		return resume_failed(r->resume, &c, FAIL_WORKER_ERROR);
	return attempt_said_error(&c, a, base);
}

struct decision decide_error_event(struct request *r)
{
	struct routing routing;
	struct retry_case c;

	if (!r->place.guard.is_reported)
		outcome_end(&r->place.guard, r->place.ex, FAIL_WORKER_ERROR);
	if (!resume_has_error(r->resume))
		return next_is(NEXT_STEP);
	r->attempts.last_failure = FAIL_WORKER_ERROR;
	c = retry_case(r, &routing);
	return resume_failed(r->resume, &c, FAIL_WORKER_ERROR);
}

struct decision decide_prefill_broke(struct request *r, enum fail why)
{
	struct no_response end = {.why = why};
	struct routing routing;
	struct retry_case c = retry_case(r, &routing);

	outcome_end(&r->place.guard, r->place.ex, why);
	r->place.is_confirmed = false;
	return pd_prefill_failed(r->pd, &c, &end);
}

struct decision decide_broke(struct request *r)
{
	enum fail why = exchange_failure(r->place.ex);
	struct routing routing;
	struct retry_case c;

	outcome_end(&r->place.guard, r->place.ex, why);
	r->attempts.last_failure = why;
	if (!r->head_sent)
		return next_fail(why);
	if (r->resume == NULL)
		return next_cut(why);
	c = retry_case(r, &routing);
	return resume_failed(r->resume, &c, why);
}
