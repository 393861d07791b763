/*
 * The spine: one request, a table of named steps from top to bottom. A step says what is
 * next (decision.h), and apply() does it: there alone the step changes, and there alone a
 * request leaves its workers before its end. Always true: guards are dropped in this file
 * (and by cleanup.c, for what outlives its request); once a response byte went to the
 * client, failing means closing. Other modules never call the spine: an exchange calls
 * the wake that it was given, conn runs the step again, and every step may be run again.
 * Called by conn.
 */
#include "proxy/request.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "proxy/admission.h"
#include "proxy/cache_drop.h"
#include "proxy/decide.h"
#include "proxy/dispatch.h"
#include "proxy/fan_out.h"
#include "proxy/intake.h"
#include "proxy/outcome.h"
#include "proxy/own_answer.h"
#include "proxy/pick.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_leave.h"
#include "proxy/request_log.h"
#include "proxy/request_state.h"
#include "proxy/response.h"
#include "proxy/resume.h"
#include "proxy/upstream.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>

/* clang-format off */
#define STEPS(X)                                                                        \
	X(READ_HEAD, read_head) /* until http reports a full header */                  \
	X(READ_BODY, read_body) /* until the body is complete and scanned; skipped if   \
				 * routing does not need it */                          \
	X(ROUTE_KEY, route_key) /* header + body -> pool and struct route_key */        \
	X(PICK, pick)		/* policy chooses, guard is taken; or it waits */       \
	X(FORWARD, forward)	/* connect, send, await the response's header */        \
	X(HAND_OFF, hand_off)	/* a prefill's response, whole: then pick for decode */ \
	X(RELAY, relay)		/* the response's body to the client */                 \
	X(FINISH, finish)	/* drop the guard, log, count */
/* clang-format on */

enum step_id {
#define X(id, fn) STEP_##id,
	STEPS(X)
#undef X
		STEP_MAX
};

/* ---- decisions, applied ---- */

/* Another attempt: of the leg that failed alone, or of both. */
static void begin_again(struct request *r)
{
	bool is_unheard = r->place.ex != NULL && exchange_never_connected(r->place.ex) &&
			  !r->attempts.died_reused;

	assert(!r->head_sent || r->resume != NULL);
	upload_pause(&r->upload, r->c);
	request_leave_worker(r);
	if (r->pd == NULL || pd_repeats_leg(r->pd, is_unheard))
		return;
	request_leave_legs(r, false);
	pd_begin_again(r->pd);
}

static void end_prefill(struct request *r)
{
	outcome_end(&r->place.guard, r->place.ex, FAIL_NONE);
	exchange_finish(&r->place.ex);
	pd_hand_over(r->pd, &r->place);
	r->attempts.died_reused = false;
	request_leave_worker(r);
}

/* The last bytes that the client gets, of no worker. The guard is dropped before them: a
 * client may act on them, on another thread, before this one goes on. */
static struct decision send_end(struct request *r, struct span rest)
{
	enum fail why;

	request_leave_worker(r);
	caller_leave(&r->caller);
	why = response_send(r, rest, true);
	return why == FAIL_NONE ? next_is(NEXT_END) : next_fail(why);
}

static bool is_good(int status)
{
	return status >= 200 && status < 300;
}

/* sent, of what fails for this reason. */
static struct decision end_as(struct decision sent, enum fail why)
{
	return sent.next == NEXT_END && why != FAIL_NONE ? next_fail(why) : sent;
}

static struct decision send_kept(struct request *r)
{
	struct http_head a;
	const char *base;
	struct span body;

	if (!attempt_kept(&r->attempts, r->head.method, &a, &base, &body))
		return next_fail(FAIL_INTERNAL);
	memcpy(r->worker_name, r->attempts.kept_worker, sizeof(r->worker_name));
	request_leave_prefill(r);
	if (!response_make_header(r, &a, base))
		return next_fail(FAIL_WORKER_HEAD_TOO_LARGE);
	return end_as(
		send_end(r, body), is_good(a.status) ? FAIL_WORKER_ERROR : FAIL_NONE);
}

/* Does what was decided; what is left to do then is to go to a step, to wait or to
 * fail. */
static struct decision carry_out(struct request *r, struct decision d)
{
	switch (d.next) {
	case NEXT_SEND_AGAIN:
		exchange_cancel(&r->place.ex);
		return dispatch(r, true) ? next_is(NEXT_AGAIN) : next_fail(FAIL_INTERNAL);
	case NEXT_ELSEWHERE:
		begin_again(r);
		return d;
	case NEXT_DECODE:
		end_prefill(r);
		return d;
	case NEXT_SKIP_PREFILL:
		request_leave_worker(r);
		pd_skip_prefill(r->pd, r->pool, r->key.model);
		return d;
	case NEXT_LOCAL:
		request_leave_worker(r);
		own_answer_local(r);
		return next_is(NEXT_END);
	case NEXT_KEPT:
		return send_kept(r);
	case NEXT_REST:
		return end_as(send_end(r, resume_rest(r->resume)), d.why);
	case NEXT_CUT:
		return next_fail(response_cut(r, d.why));
	default:
		return d;
	}
}

static unsigned step_after(unsigned at, enum next next)
{
	switch (next) {
	case NEXT_STEP:
		return at + 1;
	case NEXT_ELSEWHERE:
	case NEXT_DECODE:
	case NEXT_SKIP_PREFILL:
		return STEP_PICK;
	case NEXT_END:
	case NEXT_FAIL:
		return STEP_FINISH;
	default:
		return at;
	}
}

static __attribute__((noinline)) void act(struct request *r, struct decision decided)
{
	struct decision d = carry_out(r, decided);

	assert(d.next != NEXT_WAIT);
	if (d.next == NEXT_FAIL && r->why == FAIL_NONE)
		r->why = d.why;
	r->at = step_after(r->at, d.next);
}

/* The one place where a decision takes effect and the step changes. False: wait. Most
 * decisions are one of two. */
static inline bool apply(struct request *r, struct decision d)
{
	if (d.next == NEXT_WAIT)
		return false;
	if (LIKELY(d.next == NEXT_STEP))
		r->at++;
	else
		act(r, d);
	return true;
}

/* ---- READ_HEAD, READ_BODY, ROUTE_KEY ---- */

static struct decision read_head(struct request *r)
{
	return intake_read_header(r);
}

static struct decision read_body(struct request *r)
{
	return intake_read_body(r);
}

/* The control thread has it: all workers of the pool are asked, or the router itself is. */
static struct decision ask_all(struct request *r)
{
	enum fail why;

	if (r->fan_out == NULL) {
		/* One worker was there when its header came, so its body was not read. */
		if (r->upload.is_on)
			return next_fail(FAIL_NO_WORKER);
		why = fan_out_start(r);
		return why == FAIL_NONE ? next_is(NEXT_WAIT) : next_fail(why);
	}
	if (!r->fan_out->has_come)
		return next_is(NEXT_WAIT);
	if (r->fan_out->answer == NULL)
		return next_fail(
			r->fan_out->is_refused ? FAIL_QUEUE_FULL : FAIL_OVERLOADED);
	own_answer_of_all(r);
	return r->fan_out->is_good || r->fan_out->status != 0
		       ? next_is(NEXT_END)
		       : next_fail(FAIL_NOT_BY_ALL);
}

static struct decision ask_router(struct request *r)
{
	enum fail why = r->fan_out == NULL ? own_answer_gate(r) : FAIL_NONE;

	return why == FAIL_NONE ? ask_all(r) : next_fail(why);
}

static struct decision route_key(struct request *r)
{
	uint64_t began;
	enum fail why;

	if (r->verdict.action == PATH_ROUTER)
		return ask_router(r);
	if (r->verdict.action != PATH_FORWARD) {
		own_answer_local(r);
		return next_is(NEXT_END);
	}
	began = clock_us();
	why = intake_route_key(r);
	if (why != FAIL_NONE)
		return next_fail(why);
	metric_observe(METRIC_ROUTE_SECONDS, clock_us() - began);
	return next_is(NEXT_STEP);
}

/* ---- PICK ---- */

static struct decision pick(struct request *r)
{
	if (UNLIKELY(r->verdict.is_for_all) &&
		(r->fan_out != NULL || fan_out_is_meant(r)))
		return ask_all(r);
	return attempt_is_waiting(&r->attempts) ? next_is(NEXT_WAIT) : pick_worker(r);
}

/* ---- FORWARD ---- */

/* Streams may be resumed only with the body at hand, and on one worker. */
static void begin_resume(struct request *r, const struct http_head *a, const char *base)
{
	bool is_chat = r->verdict.endpoint == ENDPOINT_CHAT;

	assert(r->resume == NULL);
	if (!r->place.pick.resumes_streams || r->upload.is_on || r->pd != NULL ||
		(!is_chat && r->verdict.endpoint != ENDPOINT_COMPLETIONS) ||
		r->relay.framing == HTTP_BODY_LENGTH)
		return;
	r->resume = resume_new(a, base, is_chat, request_body(r), &r->budget);
}

/* A response that is no success: decode's, or a prefill's refusal. A prefill beside it
 * would wait for decode in vain. */
static void note_refusal(struct request *r)
{
	placement_withdraw(&r->place, r->pool, pick_key(r));
	request_leave_prefill(r);
	guard_prefilled(&r->place.guard);
	r->place.guard.began_us = 0; /* an error comes sooner than a response */
}

static void note_success(struct request *r)
{
	r->place.is_confirmed = true;
	if (r->is_event_stream)
		exchange_count_events(r->place.ex);
	else
		guard_prefilled(&r->place.guard);
	if (r->verdict.drops_caches)
		cache_drop_note(r->pool, r->place.guard.worker,
			http_head_path(r->c->buf, &r->head));
	if (r->verdict.stops_requests)
		worker_expect_aborts(r->place.guard.worker, clock_now_ms());
}

/* Few requests have to do with objects that one worker keeps. */
static void note_object(struct request *r, int status)
{
	struct stored_answer a = {
		.makes_object = r->verdict.makes_object,
		.is_response = r->verdict.endpoint == ENDPOINT_RESPONSES,
		.stream = field(r, FIELD_X_CONVERSATION_ID),
		.method = r->head.method,
		.status = status,
	};

	if (a.makes_object || a.stream.n > 0 || r->stored.is_asked_for)
		stored_note_answer(&r->stored, &a, r->place.guard.worker);
}

/* The client gets this response. */
static struct decision begin_response(
	struct request *r, const struct http_head *a, const char *base)
{
	if (!response_make_header(r, a, base)) {
		outcome_end(&r->place.guard, r->place.ex, FAIL_WORKER_HEAD_TOO_LARGE);
		return next_fail(FAIL_WORKER_HEAD_TOO_LARGE);
	}
	note_object(r, a->status);
	if (r->pd != NULL)
		pd_answered(r->pd, a->status);
	if (!is_good(a->status) || exchange_said_error(r->place.ex)) {
		note_refusal(r);
		return next_is(NEXT_STEP);
	}
	note_success(r);
	begin_resume(r, a, base);
	return next_is(NEXT_STEP);
}

static struct decision answered(
	struct request *r, const struct http_head *a, const char *base)
{
	bool is_resumed = resume_is_on(r->resume);
	struct decision d = next_is(NEXT_STEP);

	if (pd_is_prefill(r->pd) && is_good(a->status)) { /* HAND_OFF reads it */
		r->place.is_confirmed = true;
		/* With the prompt it has done all that it had to do. */
		guard_streams(&r->place.guard, clock_now_ms());
		return d;
	}
	/* vLLM has no such path, but lists its models. */
	if (a->status == 404 && own_answer_has_model(r)) {
		r->verdict.action = PATH_MODEL;
		return next_is(NEXT_LOCAL);
	}
	if (is_resumed || !is_good(a->status))
		d = decide_response(r, a, base);
	if (d.next != NEXT_STEP)
		return d;
	if (!is_resumed)
		return begin_response(r, a, base);
	r->place.is_confirmed = true;
	exchange_count_events(r->place.ex);
	return d;
}

/* Prefill failed beside decode, and the client has nothing yet: what a prefill's failure
 * means is decided as if it had gone first. */
static struct decision parallel_failed(
	struct request *r, enum parallel end, const struct http_head *a, const char *base)
{
	exchange_cancel(&r->place.ex);
	pd_swap_to_prefill(r->pd, &r->place, r->worker_name);
	if (end == PARALLEL_REFUSES) {
		outcome_header(&r->place.guard, r->place.ex, a, base,
			&r->attempts.has_paused, r);
		return answered(r, a, base);
	}
	if (end == PARALLEL_FAILED)
		return decide_no_response(r);
	return decide_prefill_broke(r, exchange_failure(r->place.ex));
}

/* It is over, and decode's response is the client's: its end concerns its worker alone. */
static void parallel_ended(struct request *r, enum parallel end, int status)
{
	struct placement *prefill = pd_parallel(r->pd);

	if (end == PARALLEL_DONE) {
		outcome_end(&prefill->guard, prefill->ex, FAIL_NONE);
		exchange_finish(&prefill->ex);
	} else if (end != PARALLEL_REFUSES) {
		outcome_end(&prefill->guard, prefill->ex, exchange_failure(prefill->ex));
	} else if (status >= 500) {
		outcome_end(&prefill->guard, prefill->ex, FAIL_WORKER_ERROR);
	}
	request_leave_prefill(r);
}

/* Of a request with legs: reads what has come of a prefill in parallel. True: it failed,
 * and *d is next. */
static bool prefill_takes_over(struct request *r, struct decision *d)
{
	const struct http_head *a = NULL;
	const char *base = NULL;
	enum parallel end;

	if (pd_parallel(r->pd) == NULL)
		return false;
	end = pd_run_parallel(r->pd, &a, &base);
	if (end == PARALLEL_GOES_ON)
		return false;
	if (end == PARALLEL_DONE || r->head_sent) {
		parallel_ended(r, end, a != NULL ? a->status : 0);
		return false;
	}
	*d = parallel_failed(r, end, a, base);
	return true;
}

/* A body that routing does not need goes on as it comes. */
static struct decision hand_on(struct request *r)
{
	return r->upload.is_on ? intake_hand_on(r) : next_is(NEXT_STEP);
}

static struct decision forward(struct request *r)
{
	struct decision d;
	enum exchange_late late;
	const struct http_head *a;
	const char *base;

	if (r->place.ex == NULL) {
		enum fail why = dispatch_attempt(r);

		if (why != FAIL_NONE)
			return next_fail(why);
		if (UNLIKELY(r->verdict.stops_requests))
			worker_expect_aborts(r->place.guard.worker, clock_now_ms());
	}
	d = hand_on(r);
	if (d.next != NEXT_STEP || (r->pd != NULL && prefill_takes_over(r, &d)))
		return d;
	late = exchange_late(r->place.ex);
	if (late != EXCHANGE_IN_TIME)
		d = decide_late(r, late);
	if (d.next != NEXT_STEP)
		return d;
	switch (exchange_head(r->place.ex, &a, &base)) {
	case EXCHANGE_OK:
		outcome_header(&r->place.guard, r->place.ex, a, base,
			&r->attempts.has_paused, r);
		if (exchange_said_error(r->place.ex))
			d = decide_said_error(r, a, base);
		return d.next != NEXT_STEP ? d : answered(r, a, base);
	case EXCHANGE_AGAIN:
		return next_is(NEXT_WAIT);
	default:
		return decide_no_response(r);
	}
}

/* ---- HAND_OFF ---- */

static struct decision hand_off(struct request *r)
{
	enum fail why;
	int err;

	if (!pd_is_prefill(r->pd))
		return next_is(NEXT_STEP);
	err = pd_read_answer(r->pd, r->place.ex, &why);
	if (err == ERR_AGAIN)
		return next_is(NEXT_WAIT);
	if (err == 0)
		return next_is(NEXT_DECODE);
	return fail_is_workers(why) ? decide_prefill_broke(r, why) : next_fail(why);
}

/* ---- RELAY ---- */

/* The worker is done. Before the last byte is sent: a client may act on it, on another
 * thread, before this one goes on. */
static void worker_is_done(struct request *r)
{
	bool has_failed = exchange_said_error(r->place.ex);

	if (!r->place.guard.is_reported || !has_failed)
		outcome_end(&r->place.guard, r->place.ex,
			has_failed ? FAIL_WORKER_ERROR : FAIL_NONE);
	placement_drop(&r->place, r->t, r->pool);
	caller_leave(&r->caller);
}

/* A stream's first content: its prefill is over. */
static void note_content(struct request *r)
{
	if (exchange_awaits_content(r->place.ex))
		return;
	guard_streams(&r->place.guard, clock_now_ms());
	r->place.guard.content_us = clock_turn_us();
	if (r->first_byte_us == 0)
		r->first_byte_us = r->place.guard.content_us;
}

/* Some of the body: data, which may be empty; last: the worker has no more. FAIL_NONE; or
 * why the request ends. */
static enum fail relay_part(struct request *r, struct span data, bool last)
{
	if (r->sent_last || (data.n == 0 && !last && r->head_sent))
		return FAIL_NONE;
	if (last)
		worker_is_done(r);
	return response_send(r, data, last);
}

static bool is_held_back(struct request *r)
{
	return (r->relay.is_full || r->worker_rests) && response_is_held_back(r);
}

/* Another look would find nothing: neither to send nor to hold back. */
static bool is_drained(const struct request *r)
{
	return !r->relay.is_full && !r->worker_rests && exchange_is_drained(r->place.ex);
}

/* A response that ends well may say that its worker failed, and the client has it. */
static struct decision end_of(const struct request *r)
{
	return exchange_said_error(r->place.ex) ? next_fail(FAIL_WORKER_ERROR)
						: next_is(NEXT_STEP);
}

static struct decision relay(struct request *r)
{
	struct decision d = hand_on(r); /* it answers before it has the body */
	struct span data;

	if (d.next != NEXT_STEP)
		return d;
	if (r->pd != NULL && r->head_sent)
		prefill_takes_over(r, &d);
	while (!is_held_back(r)) {
		enum exchange_result res = exchange_body(r->place.ex, &data);
		bool last = res == EXCHANGE_END ||
			    (res == EXCHANGE_OK && exchange_at_end(r->place.ex));
		enum fail why;

		if (data.n > 0 && res != EXCHANGE_FAILED) {
			if (!r->place.guard.is_stream)
				note_content(r);
			stored_read(&r->stored, data, r->place.guard.worker);
			r->is_alike = r->resume == NULL && exchange_is_alike(r->place.ex);
		}
		if (r->resume != NULL && res != EXCHANGE_FAILED &&
			resume_relay(r->resume, &data, last,
				exchange_abort_was_asked(r->place.ex)) != 0)
			return next_cut(FAIL_OVERLOADED);
		last = last && !resume_has_error(r->resume);
		why = relay_part(r, data, last);
		if (why != FAIL_NONE)
			return next_fail(why);
		if (res == EXCHANGE_FAILED)
			return decide_broke(r);
		d = exchange_said_error(r->place.ex) ? decide_error_event(r) : d;
		if (d.next != NEXT_STEP)
			return d;
		if (res == EXCHANGE_END)
			return end_of(r);
		if (res == EXCHANGE_AGAIN || is_drained(r))
			return next_is(NEXT_WAIT);
	}
	return next_is(NEXT_WAIT);
}

/* ---- FINISH ---- */

static void leave_all(struct request *r)
{
	/* First: while it waits, guard and pick are the pool's. */
	admission_leave(&r->ticket);
	fan_out_leave(&r->fan_out);
	if (r->place.ex != NULL && r->why == FAIL_NONE)
		exchange_finish(&r->place.ex);
	request_leave_worker(r);
	if (r->pd != NULL && r->picked_us > 0)
		pd_count(r->pd);
	if (r->pd != NULL)
		request_leave_legs(r, r->why == FAIL_NONE);
	caller_leave(&r->caller);
}

static struct decision finish(struct request *r)
{
	uint64_t now_us;

	leave_all(r);
	if (r->why != FAIL_NONE && !r->head_sent && !r->was_cut &&
		fail_status(r->why) != 0)
		own_answer_failure(r);
	if (r->why != FAIL_NONE && (r->was_cut || fail_status(r->why) == 0))
		r->keep = false;
	now_us = clock_us();
	if (request_is_worth_a_line(r)) {
		request_count(r, now_us);
		if (opts(r)->access_log)
			request_log_line(r, now_us);
	}
	return next_is(NEXT_STEP);
}

/* ---- the driver, and what conn asks of the step ---- */

static const struct step {
	const char *name;
	struct decision (*run)(struct request *r);
} steps[] = {
#define X(id, fn) [STEP_##id] = {#fn, fn},
	STEPS(X)
#undef X
};

bool request_run(struct request *r)
{
	assert(r->magic == REQUEST_MAGIC);
	while (r->at < STEP_MAX) {
		if (!apply(r, steps[r->at].run(r)))
			return false;
	}
	return true;
}

void request_abort(struct request *r, enum fail why)
{
	if (r->at == STEP_RELAY || (r->at < STEP_RELAY && r->head_sent))
		r->was_cut = true;
	if (r->at < STEP_FINISH)
		apply(r, next_fail(why));
}

bool request_is_reading(const struct request *r)
{
	if (r->ticket != NULL)
		return false;
	return r->at <= STEP_READ_BODY ||
	       (r->at <= STEP_RELAY && r->upload.awaits_client);
}

uint64_t request_deadline_ms(const struct request *r)
{
	if (r->at == STEP_READ_HEAD && opts(r)->head_timeout_ms > 0)
		return r->began_ms + opts(r)->head_timeout_ms;
	if (r->at != STEP_READ_HEAD && request_is_reading(r) &&
		opts(r)->body_timeout_ms > 0)
		return r->progress_ms + opts(r)->body_timeout_ms;
	return r->ticket != NULL ? admission_deadline_ms(r->ticket)
				 : r->attempts.not_before_ms;
}

size_t request_log_prefix(const void *request, char *out, size_t n)
{
	const struct request *r = request;
	int len = snprintf(out, n, "c=%llu w=%s step=%s", (unsigned long long)r->c->id,
		r->worker_name[0] != '\0' ? r->worker_name : "-",
		r->at < STEP_MAX ? steps[r->at].name : "done");

	return len < 0 ? 0 : MIN((size_t)len, n);
}
