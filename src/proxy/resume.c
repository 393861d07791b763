/*
 * Streams that go on elsewhere. See resume.h.
 */
#include "proxy/resume.h"

#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "proxy/answer.h"
#include "proxy/attempt.h"
#include "proxy/budget.h"
#include "proxy/placement.h"
#include "rewrite/resume_body.h"
#include "rewrite/resume_stream.h"
#include "worker/worker.h"

#include <stdlib.h>

struct resume {
	struct resume_body plan;
	struct resume_stream stream;
	struct budget *budget;
	char *body; /* of the request that resumes the stream; NULL: the client's own */
	size_t body_len;
	struct span rest;
};

static bool is_plain_event_stream(const struct http_head *a, const char *base)
{
	return a->status == 200 && a->framing == HTTP_BODY_CHUNKED &&
	       answer_is_event_stream(a, base) &&
	       http_head_find(a, FIELD_CONTENT_ENCODING) == NULL;
}

struct resume *resume_new(const struct http_head *a, const char *base, bool is_chat,
	struct span body, struct budget *budget)
{
	struct resume_body plan;
	struct resume *m;

	if (!is_plain_event_stream(a, base) || !resume_body_read(body, is_chat, &plan))
		return NULL;
	m = calloc(1, sizeof(*m));
	if (m == NULL)
		return NULL;
	m->plan = plan;
	m->budget = budget;
	resume_stream_init(&m->stream, is_chat);
	return m;
}

int resume_relay(struct resume *m, struct span *data, bool last, bool abort_was_asked)
{
	m->stream.abort_was_asked = abort_was_asked;
	return resume_stream_feed(&m->stream, *data, last, data);
}

bool resume_has_error(const struct resume *m)
{
	return m != NULL && m->stream.has_error;
}

bool resume_is_whole(const struct resume *m)
{
	return m != NULL && !m->stream.is_raw;
}

bool resume_is_on(const struct resume *m)
{
	return m != NULL && m->stream.is_continued;
}

static uint64_t tokens_left(const struct resume *m)
{
	return resume_body_left(&m->plan, m->stream.tokens);
}

static void drop_body(struct resume *m)
{
	if (m->body == NULL)
		return;
	budget_let_go(m->budget, m->body_len);
	free(m->body);
	m->body = NULL;
}

/* The request that goes on after the text so far. */
static int make_body(struct resume *m, struct span clients)
{
	drop_body(m);
	if (m->stream.text.n == 0)
		return 0;
	if (resume_body_make(&m->plan, clients,
		    span_make(m->stream.text.p, m->stream.text.n), m->stream.tokens,
		    &m->body, &m->body_len) != 0)
		return ERR_NOMEM;
	if (budget_hold(m->budget, m->body_len))
		return 0;
	drop_body(m);
	return ERR_LIMIT;
}

/* The client is told what broke the stream, not what was wrong with the attempts to
 * resume it: in the worker's words, if it had any. */
static struct decision cut(
	struct resume *m, const struct retry_case *c, enum metric_id reason)
{
	metric_inc(reason);
	m->rest = text_span(&m->stream.error);
	if (c->attempts->last_failure == FAIL_WORKER_ERROR && m->rest.n > 0)
		return (struct decision){NEXT_REST, FAIL_WORKER_ERROR};
	return next_cut(c->attempts->last_failure);
}

static bool may_retry(struct retry_case *c)
{
	if (c->attempts->n >= c->at->pick.max_retries || !c->has_time)
		return false;
	switch (pool_may_retry(c->pool, &c->ask, true)) {
	case RETRY_SPENT:
		metric_inc(METRIC_RETRIES_REFUSED);
		return false;
	case RETRY_NOBODY:
		return false;
	default:
		return true;
	}
}

static struct decision ask_another(struct resume *m, struct retry_case *c)
{
	if (c->at->is_confirmed) { /* it has streamed: others may be well again */
		attempt_forget_tried(c);
		c->attempts->died_fresh = false;
	}
	if (attempt_note_tried(c, c->at->guard.worker->host_id) != 0 || !may_retry(c) ||
		make_body(m, c->body) != 0)
		return cut(m, c, METRIC_RESUMES_FAILED);
	resume_stream_continue(&m->stream);
	c->attempts->died_reused = false;
	attempt_back_off(c);
	return next_is(NEXT_ELSEWHERE);
}

struct decision resume_failed(struct resume *m, struct retry_case *c, enum fail why)
{
	struct resume_stream *s = &m->stream;

	/* What passes unread may end inside an event: nothing can be added to that. */
	if (!s->is_raw &&
		(s->is_done || s->is_finished || (!s->is_lost && tokens_left(m) == 0))) {
		if (resume_stream_end(s, &m->rest) != 0)
			return cut(m, c, METRIC_RESUMES_FAILED);
		log_at(LOG_LEVEL_INFO, c->request,
			"%s at the end of a stream, which is ended", fail_code(why));
		metric_inc(METRIC_RESUMES_ENDED);
		return next_is(NEXT_REST);
	}
	if (s->is_lost)
		return cut(m, c, METRIC_RESUMES_UNFIT);
	log_at(LOG_LEVEL_INFO, c->request, "%s after %llu tokens of a stream",
		fail_code(why), (unsigned long long)s->tokens);
	return ask_another(m, c);
}

struct decision resume_gives_up(enum fail why)
{
	metric_inc(METRIC_RESUMES_FAILED);
	return next_cut(why);
}

struct decision resume_no_response(
	struct resume *m, struct retry_case *c, const struct no_response *end)
{
	struct attempts *a = c->attempts;

	/* A request that has killed two workers is not given to a third. */
	if (end->is_death && a->died_fresh)
		return resume_gives_up(a->last_failure);
	a->died_fresh |= end->is_death;
	return resume_failed(m, c, end->why);
}

struct decision resume_answered(struct resume *m, struct retry_case *c,
	const struct http_head *a, const char *base)
{
	enum fail broke = c->attempts->last_failure;

	if (is_plain_event_stream(a, base)) {
		metric_inc(METRIC_RESUMES_RESUMED);
		return next_is(NEXT_STEP);
	}
	log_at(LOG_LEVEL_DEBUG, c->request, "does not resume a stream: %d", a->status);
	/* Another worker would find the same fault in the request. */
	return a->status >= 500 || attempt_is_worth_a_retry(c, a->status)
		       ? resume_failed(m, c, broke)
		       : resume_gives_up(broke);
}

struct span resume_rest(const struct resume *m)
{
	return m->rest;
}

struct span resume_body(const struct resume *m, struct span clients)
{
	if (m == NULL || m->body == NULL)
		return clients;
	return span_make(m->body, m->body_len);
}

void resume_free(struct resume *m)
{
	if (m == NULL)
		return;
	resume_stream_free(&m->stream);
	drop_body(m);
	free(m);
}
