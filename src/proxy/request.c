/*
 * The spine: one request, a table of named steps from top to bottom. Always true: two
 * jumps only, request_fail() to FINISH and request_retry() to PICK, and back to PICK goes
 * what HAND_OFF has done with (prefill_decode.h); the guard is dropped in those places, and as the
 * last byte is relayed; once an answer byte went to the
 * client, failing means closing. Leaves never call the spine: an exchange calls the wake
 * it was given, conn runs the steps again, and every step may be run again. Called by
 * conn.
 */
#include "proxy/request.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "http/http_parse.h"
#include "http/http_scan.h"
#include "http/http_write.h"
#include "policy/routing_key.h"
#include "pool/pool.h"
#include "proxy/admission.h"
#include "proxy/answer.h"
#include "proxy/attempt.h"
#include "proxy/body.h"
#include "proxy/cache_drop.h"
#include "proxy/client.h"
#include "proxy/client_key.h"
#include "proxy/dispatch.h"
#include "proxy/intake.h"
#include "proxy/io_thread.h"
#include "proxy/outcome.h"
#include "proxy/own_answer.h"
#include "proxy/pick.h"
#include "proxy/prefill_decode.h"
#include "proxy/relay.h"
#include "proxy/request_log.h"
#include "proxy/request_state.h"
#include "proxy/resume.h"
#include "proxy/stored_response.h"
#include "proxy/upstream.h"
#include "route/path_table.h"
#include "worker/guard.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>

/* clang-format off */
#define STEPS(X)                                                         \
	X(READ_HEAD, read_head) /* until http reports a full head */     \
	X(READ_BODY, read_body) /* until it is there, scanned; or not, if nobody needs it */ \
	X(ROUTE_KEY, route_key) /* head + body -> pool and struct route_key */ \
	X(PICK, pick)		/* policy chooses, guard is taken; or it waits */     \
	X(FORWARD, forward)	/* connect, send, await the answer's head */ \
	X(HAND_OFF, hand_off)	/* a prefill's answer, whole: then pick for decode */ \
	X(RELAY, relay)		/* the answer's body to the client */    \
	X(FINISH, finish)	/* drop guard, log, count */
/* clang-format on */

enum step_id {
#define X(id, fn) STEP_##id,
	STEPS(X)
#undef X
		STEP_MAX
};

enum step_result { STEP_NEXT, STEP_WAIT };

/* ---- the two jumps ---- */

static enum step_result request_fail(struct request *r, enum fail why)
{
	if (r->why == FAIL_NONE)
		r->why = why;
	r->at = STEP_FINISH;
	return STEP_NEXT;
}

static void withdraw(struct request *r)
{
	if (!r->is_confirmed && r->is_keyed && r->pool != NULL)
		pool_withdraw(r->pool, pd_key(r), &r->pick.insertion);
	r->pick.insertion.stamp = 0;
}

/* And whoever waits for it is served. */
static void drop_guard(struct request *r)
{
	if (r->guard.worker == NULL)
		return;
	guard_drop(&r->guard);
	admission_freed(r);
}

/* Its worker is among r->tried. */
static enum step_result request_retry(struct request *r)
{
	assert(!r->head_sent || r->resume != NULL);
	exchange_cancel(&r->ex);
	withdraw(r);
	drop_guard(r);
	pd_retry(r);
	r->at = STEP_PICK;
	return STEP_NEXT;
}

/* ---- READ_HEAD ---- */

static enum step_result head_is_complete(struct request *r)
{
	enum fail why;

	r->has_head = r->reads_body = true;
	r->progress_ms = clock_now_ms();
	own_answer_make_id(r);
	why = body_start(&r->body, &r->head, opts(r)->max_body_size);
	r->refused = intake_judge(r);
	if (why == FAIL_NONE || r->refused != FAIL_NONE)
		why = r->refused;
	if (why == FAIL_NONE) {
		intake_start_scan(r);
		return STEP_NEXT;
	}
	/* The client has not sent the body yet, or too much of it: say so now. */
	if (r->head.expect_100 || r->body.expected > BODY_DISCARD_MAX)
		return request_fail(r, why);
	r->refused = why;
	body_discard(&r->body);
	return STEP_NEXT;
}

static enum step_result head_failed(struct request *r, ssize_t got)
{
	return request_fail(r, got == ERR_CLOSED  ? FAIL_CLIENT_GONE
			       : got == ERR_LIMIT ? FAIL_HEAD_TOO_LARGE
						  : FAIL_OVERLOADED);
}

static enum step_result read_head(struct request *r)
{
	enum fail why;
	uint32_t head_len;
	int err;

	for (;;) {
		ssize_t got;

		err = http_scan_run(&r->scan, r->c->buf, r->c->len, &head_len, &why);
		if (err == 0)
			break;
		if (err != ERR_AGAIN)
			return request_fail(r, why);
		if (r->c->len == r->c->cap && r->c->cap < HTTP_REQUEST_HEAD_MAX + 16 &&
			client_reserve(r->c, HTTP_REQUEST_HEAD_MAX + 16) != 0)
			return request_fail(r, FAIL_OVERLOADED);
		got = client_fill(r->c);
		if (got == ERR_AGAIN)
			return STEP_WAIT;
		if (got <= 0)
			return head_failed(r, got);
	}
	if (http_parse_request(r->c->buf, head_len, &r->head, &why) != 0)
		return request_fail(r, why);
	return head_is_complete(r);
}

/* ---- READ_BODY ---- */

/* Only after limits and route are right, and only if the client is still holding its body
 * back. */
static int send_continue(struct request *r)
{
	static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
	struct iovec iov = {(void *)text, sizeof(text) - 1};
	int err;

	if (!r->head.expect_100 || r->sent_continue || r->c->len > r->head.head_len ||
		r->body.total > 0 || r->body.is_complete)
		return 0;
	r->sent_continue = true;
	err = stream_write(&r->c->stream, &iov, 1);
	return err == ERR_LIMIT ? 0 : err;
}

/* Nobody needs it: what is not here yet is handed on as it comes, in FORWARD and RELAY.
 */
static enum step_result hand_on_later(struct request *r)
{
	r->is_scanning = false;
	upload_start(&r->upload, &r->body);
	return STEP_NEXT;
}

static enum step_result read_body(struct request *r)
{
	enum fail why = FAIL_NONE;
	size_t before = r->body.len;
	int err;

	if (!r->reads_body && !r->body.is_inline)
		return hand_on_later(r);
	if (r->reads_body && send_continue(r) != 0)
		return request_fail(r, FAIL_CLIENT_GONE);
	err = body_read(&r->body, r->c, r->t->process, opts(r)->body_memory, &why);
	if (r->body.len != before)
		r->progress_ms = clock_now_ms();
	if (err == ERR_PARSE)
		return request_fail(r, why);
	if (err == ERR_CLOSED)
		return request_fail(r, r->refused != FAIL_NONE && !r->c->saw_eof
					       ? r->refused
					       : FAIL_CLIENT_GONE);
	if (err == ERR_AGAIN && !r->reads_body)
		return hand_on_later(r);
	intake_scan_body(r);
	if (err == ERR_AGAIN)
		return STEP_WAIT;
	return r->refused != FAIL_NONE ? request_fail(r, r->refused) : STEP_NEXT;
}

/* ---- ROUTE_KEY ---- */

static enum step_result answer_here(struct request *r)
{
	own_answer_local(r);
	r->at = STEP_FINISH;
	return STEP_NEXT;
}

static enum step_result route_key(struct request *r)
{
	uint64_t began;
	enum fail why;

	if (r->verdict.action != PATH_FORWARD)
		return answer_here(r);
	began = clock_us();
	why = intake_route_key(r);
	if (why != FAIL_NONE)
		return request_fail(r, why);
	metric_observe(METRIC_ROUTE_SECONDS, clock_us() - began);
	return STEP_NEXT;
}

/* ---- PICK ---- */

static enum step_result give_up(struct request *r, enum fail why);

static enum step_result no_worker(struct request *r, int err)
{
	/* Those that were tried failed: that says more than "no worker". */
	enum fail none = r->last_failure != FAIL_NONE ? r->last_failure : FAIL_NO_WORKER;

	switch (err) {
	case ERR_AGAIN:
		return STEP_WAIT;
	case ERR_PARSE:
		return give_up(r, FAIL_BAD_WORKER);
	case ERR_LIMIT:
		return give_up(r, FAIL_QUEUE_FULL);
	case ERR_TIMEOUT:
		return give_up(r, FAIL_QUEUE_TIMEOUT);
	case ERR_NOMEM:
		return give_up(r, FAIL_OVERLOADED);
	default:
		return give_up(r, none);
	}
}

static enum step_result pick(struct request *r)
{
	int err;

	if (attempt_is_waiting(r))
		return STEP_WAIT;
	err = r->pd != NULL ? pd_pick(r) : pick_worker(r);
	if (err != 0)
		return no_worker(r, err);
	pick_note(r);
	return STEP_NEXT;
}

/* ---- FORWARD ---- */

static void note_tried(struct request *r, uint64_t id)
{
	if (r->n_tried < TRIED_MAX)
		r->tried[r->n_tried++] = id;
}

/* Another worker may do better, and the budget has a retry: the next pick is it. id: the
 * worker, or its host, whose other ranks are the same process. status: of its answer, or
 * 0. */
static bool goes_elsewhere(struct request *r, uint64_t id, int status, enum fail why)
{
	struct routing routing;
	struct pool_ask ask;

	if (!upload_is_repeatable(&r->upload, &r->body) || !attempt_has_one_left(r) ||
		r->n_tried == TRIED_MAX || !request_has_time(r))
		return false;
	note_tried(r, id);
	ask = pick_ask(r, &routing);
	if (attempt_take_leave(r, &ask, status, why))
		return true;
	r->n_tried--;
	return false;
}

/* Its worker was tried with it, and sent nothing in time. Where nobody else is, it goes
 * on waiting. */
static bool trial_goes_elsewhere(struct request *r)
{
	outcome_failed(r, FAIL_WORKER_TIMEOUT);
	log_at(LOG_LEVEL_DEBUG, r, "no answer to a trial");
	if (!goes_elsewhere(r, r->guard.worker->id, 0, FAIL_WORKER_TIMEOUT))
		return false;
	attempt_back_off(r);
	return true;
}

static enum step_result forward(struct request *r);
static enum step_result go_on_elsewhere(struct request *r, enum fail why);

/* It computes nothing that the client has seen: any fault is worth another worker, but
 * for a request that has killed two. */
static enum step_result prefill_failed(struct request *r, enum fail why, bool may_repeat)
{
	r->last_failure = why;
	if (may_repeat && goes_elsewhere(r, r->guard.worker->host_id, 0, why)) {
		attempt_back_off(r);
		return request_retry(r);
	}
	if (why != FAIL_WORKER_UNREACHABLE || !pd_can_skip(r))
		return give_up(r, why);
	exchange_cancel(&r->ex);
	withdraw(r);
	drop_guard(r);
	pd_skip_prefill(r);
	r->at = STEP_PICK;
	return STEP_NEXT;
}

/* No answer came. The safe repeats: never connected; a pooled connection that was given
 * up; a fresh one that died in silence, on one other worker. */
static enum step_result exchange_failed(struct request *r)
{
	enum fail why = exchange_failure(r->ex);
	bool may_repeat = exchange_never_connected(r->ex), is_death;

	if (why == FAIL_WORKER_RESET && exchange_was_reused(r->ex) && !r->died_reused &&
		upload_is_repeatable(&r->upload, &r->body)) {
		r->died_reused = true;
		exchange_cancel(&r->ex);
		return dispatch(r, true) ? forward(r) : request_fail(r, FAIL_INTERNAL);
	}
	outcome_failed(r, why);
	log_at(LOG_LEVEL_DEBUG, r, "no answer: %s", fail_code(why));
	is_death = why == FAIL_WORKER_RESET && exchange_was_silent(r->ex);
	may_repeat |= is_death ? !r->died_fresh : r->pick.is_trial;
	if (resume_is_on(r) && is_death && r->died_fresh)
		return give_up(r, r->last_failure);
	if (pd_is_prefill(r)) {
		may_repeat = !is_death || !r->died_fresh;
		r->died_fresh |= is_death;
		return prefill_failed(r, why, may_repeat);
	}
	r->died_fresh |= is_death;
	if (resume_is_on(r))
		return go_on_elsewhere(r, why);
	r->last_failure = why;
	if (may_repeat && goes_elsewhere(r, r->guard.worker->host_id, 0, why)) {
		attempt_back_off(r);
		return request_retry(r);
	}
	return give_up(r, why);
}

static enum http_framing framing_for(const struct request *r, const struct http_head *a)
{
	if (a->framing == HTTP_BODY_NONE || a->framing == HTTP_BODY_LENGTH)
		return a->framing;
	return r->head.minor == 1 ? HTTP_BODY_CHUNKED : HTTP_BODY_UNTIL_CLOSE;
}

static enum step_result answer_has_head(
	struct request *r, const struct http_head *a, const char *base)
{
	char extra[ANSWER_LINES_MAX];
	uint32_t matched, blocks;
	struct http_response_out out = {
		.base = base,
		.head = a,
		.framing = framing_for(r, a),
		.content_length = a->content_length,
		.keepalive_secs = (unsigned)(opts(r)->keepalive_timeout_ms / 1000),
		.request_id = request_id(r),
	};
	size_t n;

	r->relay = (struct relay){.to = &r->c->stream, .framing = out.framing};
	r->keep = request_may_go_on(r) && (r->head.minor == 1 || r->head.keep_alive_10);
	pd_matched(r, &matched, &blocks);
	if (opts(r)->expose_worker) /* the operator wants it seen */
		out.extra = span_make(extra, answer_worker_lines(span_str(r->worker_name),
						     matched, blocks, extra));
	out.close = !r->keep;
	out.keep_alive_10 = r->keep && r->head.minor == 0;
	n = http_write_response(&out, r->t->out, IO_OUT_BYTES);
	if (n == 0) {
		outcome_failed(r, FAIL_WORKER_PROTOCOL);
		return request_fail(r, FAIL_WORKER_PROTOCOL);
	}
	r->out_head = span_make(r->t->out, n);
	r->status = a->status;
	r->is_event_stream = answer_is_event_stream(a, base);
	r->first_byte_us = clock_turn_us();
	stored_answered(r, a->status);
	pd_answered(r, a->status);
	if (a->status >= 200 && a->status < 300)
		r->is_confirmed = true;
	else
		withdraw(r);
	if (!r->is_confirmed || !r->is_event_stream)
		guard_prefilled(&r->guard);
	else
		exchange_count_events(r->ex);
	if (r->is_confirmed && r->verdict.drops_caches)
		cache_drop_note(r->pool, http_head_path(r->c->buf, &r->head));
	resume_begin(r, a, base);
	return STEP_NEXT;
}

static enum step_result relay_kept(struct request *r);
static enum step_result cut_stream(struct request *r, enum fail why);

/* No worker answers. Where one did before, that is what the client gets. */
static enum step_result give_up(struct request *r, enum fail why)
{
	exchange_cancel(&r->ex);
	if (r->head_sent) {
		resume_found_nobody(r);
		return cut_stream(r, why);
	}
	return r->attempts.kept != NULL ? relay_kept(r) : request_fail(r, why);
}

/* It has not the response that is asked for, and another worker may. */
static bool asks_on(struct request *r, int status)
{
	struct routing routing;
	struct pool_ask ask;

	if (!r->stored.is_asked_for)
		return false;
	ask = pick_ask(r, &routing);
	return stored_asks_on(r, status, &ask);
}

/* Whoever was to go on with a stream answered. */
static enum step_result goes_on(
	struct request *r, const struct http_head *a, const char *base)
{
	if (resume_goes_on(r, a, base)) {
		r->is_confirmed = true;
		exchange_count_events(r->ex);
		return STEP_NEXT;
	}
	log_at(LOG_LEVEL_DEBUG, r, "does not go on with a stream: %d", a->status);
	/* What is wrong with the request is so everywhere. */
	return a->status >= 500 || attempt_is_worth(a->status)
		       ? go_on_elsewhere(r, r->last_failure)
		       : give_up(r, r->last_failure);
}

/* A prefill: its good answer is read in HAND_OFF; what it refuses, others would. */
static enum step_result prefill_answered(
	struct request *r, const struct http_head *a, const char *base)
{
	if (a->status >= 200 && a->status < 300) {
		r->is_confirmed = true;
		guard_streams(&r->guard, clock_now_ms()); /* it was all it had to do */
		return STEP_NEXT;
	}
	if (pd_is_worth(a->status) &&
		goes_elsewhere(r, r->guard.worker->id, a->status, FAIL_NONE)) {
		attempt_keep(r, a, base);
		attempt_back_off(r);
		return request_retry(r);
	}
	pd_relay(r);
	return answer_has_head(r, a, base);
}

static enum step_result answered(
	struct request *r, const struct http_head *a, const char *base)
{
	if (resume_is_on(r))
		return goes_on(r, a, base);
	if (pd_is_prefill(r))
		return prefill_answered(r, a, base);
	if (asks_on(r, a->status)) {
		note_tried(r, r->guard.worker->host_id);
		return request_retry(r);
	}
	if (attempt_is_worth(a->status) && !r->stored.is_asked_for &&
		goes_elsewhere(r, r->guard.worker->id, a->status, FAIL_NONE)) {
		attempt_keep(r, a, base);
		attempt_back_off(r);
		return request_retry(r);
	}
	return answer_has_head(r, a, base);
}

/* A body that nobody needs goes on as it comes. False: the request has failed. */
static bool hand_on(struct request *r)
{
	bool was_awaited = r->upload.awaits_client;
	uint64_t before = r->body.total;
	enum fail why = FAIL_CLIENT_GONE;
	int err;

	if (!r->upload.is_on || r->upload.is_ended)
		return true;
	err = send_continue(r);
	if (err == 0)
		err = upload_run(
			&r->upload, &r->body, r->c, r->ex, opts(r)->body_memory, &why);
	if (r->body.total != before || (r->upload.awaits_client && !was_awaited))
		r->progress_ms = clock_now_ms();
	if (err == 0)
		return true;
	r->was_cut |= r->head_sent;
	request_fail(r, err == ERR_PARSE ? why : FAIL_CLIENT_GONE);
	return false;
}

/* Prefill's leg beside decode's failed: it is the request's, and what it means for it is
 * done. False: it has not. */
static bool beside_ended(struct request *r)
{
	const struct http_head *a = NULL;
	const char *base = NULL;
	enum parallel end = pd_run_parallel(r, &a, &base);
	enum fail why;

	if (end == PARALLEL_GOES_ON)
		return false;
	pd_turn_back(r);
	r->at = STEP_HAND_OFF; /* unless it goes elsewhere */
	if (end == PARALLEL_REFUSES) {
		outcome_head(r, a, base);
		prefill_answered(r, a, base);
	} else if (end == PARALLEL_FAILED) {
		exchange_failed(r);
	} else {
		why = exchange_failure(r->ex);
		outcome_failed(r, why);
		prefill_failed(r, why, true);
	}
	return true;
}

static enum step_result forward(struct request *r)
{
	const struct http_head *a;
	const char *base;
	enum fail why;

	if (r->ex == NULL) {
		why = pd_prepare(r);
		if (why == FAIL_NONE && (!dispatch(r, false) || !pd_start_parallel(r)))
			why = FAIL_INTERNAL;
		if (why != FAIL_NONE)
			return request_fail(r, why);
	}
	if (!hand_on(r))
		return STEP_NEXT;
	if (pd_is_parallel(r) && beside_ended(r))
		return STEP_NEXT;
	if (exchange_trial_is_over(r->ex) && trial_goes_elsewhere(r))
		return request_retry(r);
	switch (exchange_head(r->ex, &a, &base)) {
	case EXCHANGE_OK:
		outcome_head(r, a, base);
		return answered(r, a, base);
	case EXCHANGE_AGAIN:
		return STEP_WAIT;
	default:
		return exchange_failed(r);
	}
}

/* ---- HAND_OFF ---- */

static void prefill_is_done(struct request *r)
{
	outcome_done(r);
	exchange_finish(&r->ex);
	pd_hand_over(r);
	drop_guard(r);
	r->at = STEP_PICK;
}

static enum step_result hand_off(struct request *r)
{
	enum fail why;
	int err;

	if (!pd_is_prefill(r))
		return STEP_NEXT;
	err = pd_read_answer(r, &why);
	if (err == ERR_AGAIN)
		return STEP_WAIT;
	if (err == 0) {
		prefill_is_done(r);
		return STEP_NEXT;
	}
	if (why == FAIL_OVERLOADED)
		return request_fail(r, why);
	outcome_failed(r, why);
	r->is_confirmed = false;
	return prefill_failed(r, why, true);
}

/* ---- RELAY ---- */

static int send_part(struct request *r, struct span data, bool last)
{
	struct span head = r->out_head;

	if (head.n == 0 && data.n == 0 && !last)
		return 0;
	r->out_head = span_make(NULL, 0);
	r->head_sent = true;
	r->sent_last = last;
	return relay_send(&r->relay, head, data, last);
}

/* The client is slow: the worker rests between the high and the low mark. True: wait. What
 * total_timeout has cut meanwhile waits for nobody. */
static bool is_held_back(struct request *r)
{
	if (exchange_failure(r->ex) != FAIL_NONE)
		return false;
	if (r->relay.is_full && stream_queued(&r->c->stream) <= STREAM_LOW_BYTES)
		r->relay.is_full = false;
	if (r->relay.is_full)
		exchange_pause(r->ex);
	else
		exchange_resume(r->ex);
	return r->relay.is_full;
}

/* The client must see a broken message. An event stream says why first. */
static enum step_result cut_stream(struct request *r, enum fail why)
{
	char text[1024];
	size_t n = fail_body(why, text, sizeof(text));
	struct span none = span_make(NULL, 0);

	r->was_cut = true;
	r->keep = false;
	if (r->is_event_stream && r->relay.framing != HTTP_BODY_LENGTH) {
		if (relay_send(&r->relay, none, SPAN_LIT("\n\ndata: "), false) != 0 ||
			relay_send(&r->relay, none, span_make(text, n), false) != 0 ||
			relay_send(&r->relay, none, SPAN_LIT("\n\n"), false) != 0)
			return request_fail(r, FAIL_CLIENT_GONE);
	}
	return request_fail(r, why);
}

static enum step_result end_here(struct request *r, struct span rest)
{
	exchange_cancel(&r->ex);
	drop_guard(r); /* before the last byte: see worker_is_done() */
	client_key_leave(r);
	if (send_part(r, rest, true) != 0)
		return request_fail(r, FAIL_CLIENT_GONE);
	r->at = STEP_FINISH;
	return STEP_NEXT;
}

static enum step_result relay_kept(struct request *r)
{
	struct http_head a;
	const char *base;
	struct span body;

	if (!attempt_kept(r, &a, &base, &body))
		return request_fail(r, FAIL_INTERNAL);
	answer_has_head(r, &a, base);
	return r->why == FAIL_NONE ? end_here(r, body) : STEP_NEXT;
}

/* A stream's worker broke, or the one that was to go on with it; the client is told of
 * the former. */
static enum step_result go_on_elsewhere(struct request *r, enum fail why)
{
	struct routing routing;
	struct pool_ask ask;
	struct span rest;

	if (r->is_confirmed) { /* it has streamed: those before it may be well again */
		r->n_tried = 0;
		r->died_fresh = false;
	}
	note_tried(r, r->guard.worker->host_id);
	ask = pick_ask(r, &routing);
	switch (resume_after(r, &ask, why, &rest)) {
	case RESUME_ENDS:
		return end_here(r, rest);
	case RESUME_ELSEWHERE:
		r->died_reused = false;
		attempt_back_off(r);
		return request_retry(r);
	default:
		return cut_stream(r, r->last_failure);
	}
}

/* The answer broke off half-way. */
static enum step_result answer_broke(struct request *r)
{
	enum fail why = exchange_failure(r->ex);

	outcome_failed(r, why);
	r->last_failure = why;
	if (!r->head_sent)
		return request_fail(r, why);
	return r->resume != NULL ? go_on_elsewhere(r, why) : cut_stream(r, why);
}

/* The worker is done. Before the last byte is sent: a client may act on it, on another
 * thread, before we go on here. */
static void worker_is_done(struct request *r)
{
	outcome_done(r);
	drop_guard(r);
	client_key_leave(r);
}

static enum step_result relay(struct request *r)
{
	struct span data;

	if (!hand_on(r)) /* the worker answers before it has the whole body */
		return STEP_NEXT;
	if (pd_is_parallel(r) && beside_ended(r))
		return STEP_NEXT;
	while (!is_held_back(r)) {
		enum exchange_result res = exchange_body(r->ex, &data);
		bool last = res == EXCHANGE_END ||
			    (res == EXCHANGE_OK && exchange_at_end(r->ex));

		if (res == EXCHANGE_FAILED)
			return send_part(r, data, false) == 0
				       ? answer_broke(r)
				       : request_fail(r, FAIL_CLIENT_GONE);
		if (data.n > 0 && !r->guard.is_stream) /* an event stream's first token */
			guard_streams(&r->guard, clock_now_ms());
		stored_see(r, data);
		if (r->resume != NULL && resume_see(r, &data, last) != 0)
			return cut_stream(r, FAIL_OVERLOADED);
		if (last && !r->sent_last)
			worker_is_done(r);
		if (!r->sent_last && send_part(r, data, last) != 0)
			return request_fail(r, FAIL_CLIENT_GONE);
		if (res == EXCHANGE_END)
			return STEP_NEXT;
		if (res == EXCHANGE_AGAIN)
			return STEP_WAIT;
	}
	return STEP_WAIT;
}

/* ---- FINISH ---- */

static void end_exchange(struct request *r)
{
	if (r->ex != NULL && r->why == FAIL_NONE)
		exchange_finish(&r->ex);
	exchange_cancel(&r->ex);
	if (r->why != FAIL_NONE)
		withdraw(r);
}

static enum step_result finish(struct request *r)
{
	uint64_t now_us;

	/* First: while it waits, guard and pick are the pool's. */
	admission_leave(r);
	end_exchange(r);
	drop_guard(r);
	pd_end(r);
	client_key_leave(r);
	if (r->why != FAIL_NONE && !r->head_sent && fail_status(r->why) != 0)
		own_answer_failure(r);
	if (r->why != FAIL_NONE && (r->was_cut || fail_status(r->why) == 0))
		r->keep = false;
	now_us = clock_us();
	if (request_is_worth_a_line(r)) {
		request_count(r, now_us);
		if (opts(r)->access_log)
			request_log_line(r, now_us);
	}
	return STEP_NEXT;
}

/* ---- the driver, and what conn asks ---- */

static const struct step {
	const char *name;
	enum step_result (*run)(struct request *r);
} steps[] = {
#define X(id, fn) [STEP_##id] = {#fn, fn},
	STEPS(X)
#undef X
};

bool request_run(struct request *r)
{
	assert(r->magic == REQUEST_MAGIC);
	while (r->at < STEP_MAX) {
		unsigned was = r->at;

		if (steps[was].run(r) == STEP_WAIT)
			return false;
		if (r->at == was)
			r->at++;
	}
	return true;
}

void request_abort(struct request *r, enum fail why)
{
	if (r->at == STEP_RELAY || (r->at < STEP_RELAY && r->head_sent))
		r->was_cut = true;
	if (r->at < STEP_FINISH)
		request_fail(r, why);
}

bool request_keeps_alive(const struct request *r)
{
	return r->keep;
}

bool request_was_cut(const struct request *r)
{
	return r->was_cut && r->relay.framing == HTTP_BODY_UNTIL_CLOSE;
}

bool request_is_unread(const struct request *r)
{
	return r->has_head && !r->body.is_complete && r->why != FAIL_BAD_CHUNK &&
	       r->why != FAIL_CLIENT_TIMEOUT;
}

size_t request_used(const struct request *r)
{
	return r->has_head ? body_used(&r->body) : 0;
}

bool request_is_reading(const struct request *r)
{
	if (admission_is_waiting(r))
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
	return admission_is_waiting(r) ? admission_deadline_ms(r)
				       : r->attempts.not_before_ms;
}

bool request_survives_eof(const struct request *r)
{
	if (request_is_reading(r))
		return false;
	switch (opts(r)->half_close) {
	case HALF_CLOSE_ABORT:
		return false;
	case HALF_CLOSE_ALLOW:
		return true;
	default:
		return r->head.wants_close;
	}
}

size_t request_log_prefix(const void *request, char *out, size_t n)
{
	const struct request *r = request;
	int len = snprintf(out, n, "c=%llu w=%s step=%s", (unsigned long long)r->c->id,
		r->worker_name[0] != '\0' ? r->worker_name : "-",
		r->at < STEP_MAX ? steps[r->at].name : "done");

	return len < 0 ? 0 : MIN((size_t)len, n);
}
