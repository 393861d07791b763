/*
 * Retries: leave, back-off, and the response that is kept. See attempt.h.
 */
#include "proxy/attempt.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "http/http_parse.h"
#include "pool/retry.h"
#include "proxy/placement.h"
#include "proxy/upstream.h"
#include "worker/worker.h"

#include <stdlib.h>

/* ---- the workers that were asked ---- */

static void tell_ask(struct retry_case *c)
{
	c->ask.tried = c->attempts->tried;
	c->ask.n_tried = c->attempts->n_tried;
}

static int reserve(struct attempts *a)
{
	unsigned cap = a->tried_cap == 0 ? 16 : 2 * a->tried_cap;
	uint64_t *grown;

	if (a->n_tried < a->tried_cap)
		return 0;
	grown = realloc(a->tried, cap * sizeof(*grown));
	if (grown == NULL)
		return ERR_NOMEM;
	a->tried = grown;
	a->tried_cap = cap;
	return 0;
}

int attempt_note_tried(struct retry_case *c, uint64_t id)
{
	struct attempts *a = c->attempts;
	unsigned i;

	if (reserve(a) != 0)
		return ERR_NOMEM;
	for (i = a->n_tried; i > 0 && a->tried[i - 1] > id; i--)
		a->tried[i] = a->tried[i - 1];
	a->tried[i] = id;
	a->n_tried++;
	tell_ask(c);
	return 0;
}

static void unnote_tried(struct retry_case *c, uint64_t id)
{
	struct attempts *a = c->attempts;
	unsigned i = 0;

	while (i < a->n_tried && a->tried[i] != id)
		i++;
	if (i == a->n_tried) /* all were forgotten */
		return;
	a->n_tried--;
	memmove(a->tried + i, a->tried + i + 1, (a->n_tried - i) * sizeof(*a->tried));
	tell_ask(c);
}

void attempt_forget_tried(struct retry_case *c)
{
	c->attempts->n_tried = 0;
	tell_ask(c);
}

/* ---- leave ---- */

bool attempt_is_worth_a_retry(const struct retry_case *c, int status)
{
	return status_set_has(&c->at->pick.retry_on, status);
}

static void count(int status, enum fail why)
{
	if (status != 0)
		metric_retry(status);
	else
		metric_inc(why == FAIL_WORKER_UNREACHABLE ? METRIC_RETRIES_UNREACHABLE
			   : why == FAIL_WORKER_TIMEOUT   ? METRIC_RETRIES_TIMEOUT
			   : why == FAIL_WORKER_RESET     ? METRIC_RETRIES_RESET
			   : why == FAIL_WORKER_ERROR     ? METRIC_RETRIES_ERROR
							  : METRIC_RETRIES_BROKE);
}

/* A trial that failed is no doing of the client's; and what waited for the connects of
 * others has cost nobody anything. */
static bool is_free(const struct retry_case *c)
{
	return c->at->pick.is_trial || exchange_never_dialed(c->at->ex);
}

/* As far as retry_max_retries goes. */
static bool has_one_left(const struct retry_case *c)
{
	const struct attempts *a = c->attempts;

	return is_free(c) || a->n - a->n_free < c->at->pick.max_retries;
}

/* Whether another worker may have it, and the budget says yes. */
static bool take_leave(struct retry_case *c, int status, enum fail why)
{
	enum retry_leave leave;

	c->ask.is_free = is_free(c);
	/* With a response at hand the request does not queue for a better one. */
	leave = pool_may_retry(c->pool, &c->ask, status == 0);
	if (leave == RETRY_NOBODY && c->at->pick.retries_same) {
		attempt_forget_tried(c);
		leave = pool_may_retry(c->pool, &c->ask, status == 0);
	}
	switch (leave) {
	case RETRY_NOBODY:
		return false;
	case RETRY_SPENT:
		metric_inc(METRIC_RETRIES_REFUSED);
		log_at(LOG_LEVEL_DEBUG, c->request, "no retry: the budget is spent");
		return false;
	default:
		count(status, why);
		return true;
	}
}

void attempt_back_off(struct retry_case *c)
{
	struct attempts *a = c->attempts;
	uint64_t wait_ms;

	a->n++;
	a->n_free += is_free(c);
	wait_ms = retry_backoff_ms(a->n - a->n_free, c->rng);
	a->not_before_ms = wait_ms > 0 ? clock_now_ms() + wait_ms : 0;
}

/* A second worker that says 429 or 500, too, speaks of the request. */
static bool is_settled(const struct retry_case *c, int status)
{
	const struct attempts *a = c->attempts;

	return !c->at->pick.retries_same &&
	       ((status == 429 && a->was_busy) || (status == 500 && a->had_500));
}

/* The worker knows no such model, as its list may say only later; another one does. */
static bool is_known_elsewhere(const struct retry_case *c, int status)
{
	if (status != 404)
		return false;
	pool_doubt_models(c->pool, c->ask.now_ms);
	return c->ask.model.n > 0 && !c->attempts->had_404 &&
	       !pool_ask_is_pinned(&c->ask) &&
	       pool_has_lister(c->pool, &c->ask, c->at->guard.worker);
}

bool attempt_retry(struct retry_case *c, uint64_t id, int status, enum fail why)
{
	if (!c->may_repeat || !c->has_time || is_settled(c, status) || !has_one_left(c) ||
		attempt_note_tried(c, id) != 0)
		return false;
	if (take_leave(c, status, why)) {
		c->attempts->was_busy |= status == 429;
		c->attempts->had_500 |= status == 500;
		c->attempts->had_404 |= status == 404;
		attempt_back_off(c);
		return true;
	}
	unnote_tried(c, id);
	return false;
}

bool attempt_is_waiting(struct attempts *a)
{
	if (a->not_before_ms > clock_now_ms())
		return true;
	a->not_before_ms = 0;
	return false;
}

/* ---- the response that is kept ---- */

/* All of the body that is there by now, to out. False: more is to come, or it is long.
 * may_be_part: what is there will do. */
static bool read_body(struct exchange *ex, bool may_be_part, char *out, size_t *n)
{
	struct span data;

	for (*n = 0;;) {
		switch (exchange_body(ex, &data)) {
		case EXCHANGE_OK:
			if (*n + data.n > ATTEMPT_KEPT_BYTES)
				return false;
			memcpy(out + *n, data.p, data.n);
			*n += data.n;
			break;
		case EXCHANGE_END:
			return true;
		case EXCHANGE_AGAIN:
			return may_be_part;
		default:
			return false;
		}
	}
}

void attempt_keep(struct retry_case *c, const struct http_head *a, const char *base)
{
	struct attempts *all = c->attempts;
	size_t head = a->head_len, body;
	char *kept = malloc(head + ATTEMPT_KEPT_BYTES);
	bool is_error;

	if (kept == NULL)
		return;
	memcpy(kept, base, head);
	/* A stream that has told its error has told what it has to tell. */
	is_error = exchange_said_error(c->at->ex) && a->framing != HTTP_BODY_LENGTH;
	if (!read_body(c->at->ex, is_error, kept + head, &body)) {
		free(kept);
		all->has_unkept = true;
		return;
	}
	if (is_error)
		exchange_cancel(&c->at->ex);
	else
		exchange_finish(&c->at->ex);
	free(all->kept);
	all->kept = realloc(kept, head + body);
	if (all->kept == NULL) /* it does not move where it shrinks, but may fail */
		all->kept = kept;
	all->kept_head = head;
	all->kept_body = body;
	memcpy(all->kept_worker, c->worker_name, sizeof(all->kept_worker));
}

bool attempt_kept(const struct attempts *a, enum http_method method, struct http_head *h,
	const char **base, struct span *body)
{
	enum fail why;

	if (a->kept == NULL || http_parse_response(a->kept, (uint32_t)a->kept_head,
				       method, h, &why) != 0)
		return false;
	*base = a->kept;
	*body = span_make(a->kept + a->kept_head, a->kept_body);
	return true;
}

void attempt_free(struct attempts *a)
{
	free(a->kept);
	free(a->tried);
	a->kept = NULL;
	a->tried = NULL;
	a->n_tried = a->tried_cap = 0;
}

/* ---- decisions ---- */

bool attempt_sends_again(struct attempts *a, const struct exchange *ex, bool may_repeat)
{
	if (exchange_failure(ex) != FAIL_WORKER_RESET || !exchange_was_reused(ex) ||
		a->died_reused || !may_repeat)
		return false;
	a->died_reused = true;
	return true;
}

/* The safe repeats: the worker was never connected, or it died in silence, or with a
 * stream held back that has no content, and is the first to do so, or it was on trial. */
struct no_response attempt_no_response(
	const struct attempts *a, const struct placement *p)
{
	struct no_response end = {.why = exchange_failure(p->ex)};

	end.is_death = (end.why == FAIL_WORKER_RESET && exchange_was_silent(p->ex)) ||
		       exchange_was_held(p->ex);
	end.may_repeat = exchange_never_connected(p->ex) ||
			 (end.is_death ? !a->died_fresh : p->pick.is_trial);
	return end;
}

struct decision attempt_gives_up(const struct attempts *a, enum fail why)
{
	return a->kept != NULL ? next_is(NEXT_KEPT) : next_fail(why);
}

struct decision attempt_failed(struct retry_case *c, const struct no_response *end)
{
	struct attempts *a = c->attempts;

	a->died_fresh |= end->is_death;
	a->last_failure = end->why;
	if (end->may_repeat &&
		attempt_retry(c, c->at->guard.worker->host_id, 0, end->why))
		return next_is(NEXT_ELSEWHERE);
	return attempt_gives_up(a, a->has_unkept ? FAIL_WORKER_NOT_KEPT : end->why);
}

struct decision attempt_trial_is_over(struct retry_case *c)
{
	log_at(LOG_LEVEL_DEBUG, c->request, "no answer to a trial");
	return attempt_retry(c, c->at->guard.worker->id, 0, FAIL_WORKER_TIMEOUT)
		       ? next_is(NEXT_ELSEWHERE)
		       : next_is(NEXT_STEP);
}

struct decision attempt_dial_is_late(struct retry_case *c)
{
	log_at(LOG_LEVEL_DEBUG, c->request, "connects are late");
	return attempt_retry(c, c->at->guard.worker->host_id, 0, FAIL_WORKER_UNREACHABLE)
		       ? next_is(NEXT_ELSEWHERE)
		       : next_is(NEXT_STEP);
}

struct decision attempt_answered(
	struct retry_case *c, const struct http_head *a, const char *base)
{
	if ((!attempt_is_worth_a_retry(c, a->status) &&
		    !is_known_elsewhere(c, a->status)) ||
		!attempt_retry(c, c->at->guard.worker->id, a->status, FAIL_NONE))
		return next_is(NEXT_STEP);
	attempt_keep(c, a, base);
	return next_is(NEXT_ELSEWHERE);
}

/* As a death without a byte: it may be the request's doing, so one other worker is asked.
 */
struct decision attempt_said_error(
	struct retry_case *c, const struct http_head *a, const char *base)
{
	struct attempts *all = c->attempts;

	all->last_failure = FAIL_WORKER_ERROR;
	if (all->died_fresh ||
		!attempt_retry(c, c->at->guard.worker->host_id, 0, FAIL_WORKER_ERROR))
		return next_is(NEXT_STEP);
	all->died_fresh = true;
	attempt_keep(c, a, base);
	return next_is(NEXT_ELSEWHERE);
}
