/*
 * Retries: leave, back-off, and the answer that is kept. See attempt.h.
 */
#include "proxy/attempt.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "http/http_parse.h"
#include "pool/retry.h"
#include "proxy/request_state.h"
#include "proxy/upstream.h"

#include <stdlib.h>

bool attempt_has_one_left(const struct request *r)
{
	return r->pick.is_trial ||
	       r->attempts.n - r->attempts.n_free < r->pick.max_retries;
}

static const struct {
	int status;
	enum metric_id metric;
} worth[] = {
	{408, METRIC_RETRIES_408},
	{429, METRIC_RETRIES_429},
	{502, METRIC_RETRIES_502},
	{503, METRIC_RETRIES_503},
	{504, METRIC_RETRIES_504},
};

bool attempt_is_worth(int status)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(worth); i++) {
		if (worth[i].status == status)
			return true;
	}
	return false;
}

static void count(int status, enum fail why)
{
	size_t i;

	if (status == 0)
		metric_inc(why == FAIL_WORKER_UNREACHABLE ? METRIC_RETRIES_UNREACHABLE
			   : why == FAIL_WORKER_TIMEOUT   ? METRIC_RETRIES_TIMEOUT
							  : METRIC_RETRIES_RESET);
	for (i = 0; i < ARRAY_LEN(worth); i++) {
		if (worth[i].status == status)
			metric_inc(worth[i].metric);
	}
}

bool attempt_take_leave(
	struct request *r, const struct pool_ask *asked, int status, enum fail why)
{
	struct pool_ask ask = *asked;

	ask.is_free = r->pick.is_trial;
	/* With an answer at hand nobody queues for a better one. */
	switch (pool_may_retry(r->pool, &ask, status == 0)) {
	case RETRY_NOBODY:
		return false;
	case RETRY_SPENT:
		metric_inc(METRIC_RETRIES_REFUSED);
		log_at(LOG_LEVEL_DEBUG, r, "no retry: the budget is spent");
		return false;
	default:
		count(status, why);
		return true;
	}
}

void attempt_back_off(struct request *r)
{
	uint64_t wait_ms;

	r->attempts.n++;
	r->attempts.n_free += r->pick.is_trial;
	wait_ms = retry_backoff_ms(r->attempts.n - r->attempts.n_free, &r->t->rng);
	r->attempts.not_before_ms = wait_ms > 0 ? clock_now_ms() + wait_ms : 0;
	/* What the client sends meanwhile is for later; that it leaves is noticed. */
	if (r->upload.is_on) {
		r->upload.awaits_client = false;
		stream_pause(&r->c->stream);
	}
}

bool attempt_is_waiting(struct request *r)
{
	if (r->attempts.not_before_ms > clock_now_ms())
		return true;
	r->attempts.not_before_ms = 0;
	return false;
}

/* All of the body that is there by now, to out. False: more is to come, or it is long. */
static bool read_body(struct exchange *ex, char *out, size_t *n)
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
		default:
			return false;
		}
	}
}

void attempt_keep(struct request *r, const struct http_head *a, const char *base)
{
	size_t head = a->head_len, body;
	char *kept = malloc(head + ATTEMPT_KEPT_BYTES);

	if (kept == NULL)
		return;
	memcpy(kept, base, head);
	if (!read_body(r->ex, kept + head, &body)) {
		free(kept);
		return;
	}
	exchange_finish(&r->ex);
	free(r->attempts.kept);
	r->attempts.kept = kept;
	r->attempts.kept_head = head;
	r->attempts.kept_body = body;
	memcpy(r->attempts.kept_worker, r->worker_name, sizeof(r->worker_name));
}

bool attempt_kept(
	struct request *r, struct http_head *a, const char **base, struct span *body)
{
	enum fail why;

	if (r->attempts.kept == NULL ||
		http_parse_response(r->attempts.kept, (uint32_t)r->attempts.kept_head,
			r->head.method, a, &why) != 0)
		return false;
	*base = r->attempts.kept;
	*body = span_make(
		r->attempts.kept + r->attempts.kept_head, r->attempts.kept_body);
	memcpy(r->worker_name, r->attempts.kept_worker, sizeof(r->worker_name));
	return true;
}

void attempt_free(struct request *r)
{
	free(r->attempts.kept);
	r->attempts.kept = NULL;
}
