/*
 * Streams that go on elsewhere. See resume.h.
 */
#include "proxy/resume.h"

#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "proxy/request_state.h"
#include "rewrite/resume_body.h"
#include "rewrite/resume_stream.h"

#include <stdlib.h>

struct resume {
	struct resume_body plan;
	struct resume_stream stream;
	char *body; /* of the request that goes on; NULL: the client's own */
	size_t body_len;
};

static bool is_plain_event_stream(
	const struct request *r, const struct http_head *a, const char *base)
{
	return a->status == 200 && a->framing == HTTP_BODY_CHUNKED &&
	       answer_is_event_stream(a, base) &&
	       http_head_find(a, FIELD_CONTENT_ENCODING) == NULL &&
	       r->relay.framing != HTTP_BODY_LENGTH;
}

static bool is_its_kind(const struct request *r)
{
	return r->verdict.endpoint == ENDPOINT_CHAT ||
	       r->verdict.endpoint == ENDPOINT_COMPLETIONS;
}

void resume_begin(struct request *r, const struct http_head *a, const char *base)
{
	bool is_chat = r->verdict.endpoint == ENDPOINT_CHAT;
	struct resume_body plan;

	assert(r->resume == NULL);
	/* A body that went on as it came is not there any more. */
	if (!r->pick.resumes_streams || !is_its_kind(r) || r->upload.is_on ||
		r->pd != NULL || !is_plain_event_stream(r, a, base) ||
		!resume_body_read(body_bytes(&r->body, r->c), is_chat, &plan))
		return;
	r->resume = calloc(1, sizeof(*r->resume));
	if (r->resume == NULL)
		return;
	r->resume->plan = plan;
	resume_stream_init(&r->resume->stream, is_chat);
}

int resume_see(struct request *r, struct span *data, bool last)
{
	return resume_stream_feed(&r->resume->stream, *data, last, data);
}

bool resume_is_on(const struct request *r)
{
	return r->resume != NULL && r->resume->stream.is_continued;
}

static uint64_t tokens_left(const struct resume *m)
{
	return resume_body_left(&m->plan, m->stream.tokens);
}

static void drop_body(struct request *r)
{
	struct resume *m = r->resume;

	if (m->body == NULL)
		return;
	atomic_fetch_sub_explicit(
		&r->t->process->body_memory, m->body_len, memory_order_relaxed);
	metric_add(METRIC_BODY_MEMORY, -(int64_t)m->body_len);
	free(m->body);
	m->body = NULL;
}

/* The request that goes on after the text so far. Its memory counts as the client's body
 * does. */
static int make_body(struct request *r)
{
	struct resume *m = r->resume;
	uint64_t held;

	drop_body(r);
	if (m->stream.text.n == 0)
		return 0;
	if (resume_body_make(&m->plan, body_bytes(&r->body, r->c),
		    span_make(m->stream.text.p, m->stream.text.n), m->stream.tokens,
		    &m->body, &m->body_len) != 0)
		return ERR_NOMEM;
	held = atomic_fetch_add_explicit(
		&r->t->process->body_memory, m->body_len, memory_order_relaxed);
	metric_add(METRIC_BODY_MEMORY, (int64_t)m->body_len);
	if (held + m->body_len <= opts(r)->body_memory)
		return 0;
	drop_body(r);
	return ERR_LIMIT;
}

static enum resume_way fails(enum metric_id reason)
{
	metric_inc(reason);
	return RESUME_NOT;
}

static enum resume_way goes_elsewhere(struct request *r, const struct pool_ask *ask)
{
	if (r->attempts.n >= r->pick.max_retries || !request_has_time(r))
		return fails(METRIC_RESUMES_FAILED);
	switch (pool_may_retry(r->pool, ask, true)) {
	case RETRY_SPENT:
		metric_inc(METRIC_RETRIES_REFUSED);
		return fails(METRIC_RESUMES_FAILED);
	case RETRY_NOBODY:
		return fails(METRIC_RESUMES_FAILED);
	default:
		break;
	}
	if (make_body(r) != 0)
		return fails(METRIC_RESUMES_FAILED);
	resume_stream_continue(&r->resume->stream);
	return RESUME_ELSEWHERE;
}

enum resume_way resume_after(
	struct request *r, const struct pool_ask *ask, enum fail why, struct span *data)
{
	struct resume_stream *s = &r->resume->stream;

	if (s->is_done || s->is_finished ||
		(!s->is_lost && tokens_left(r->resume) == 0)) {
		if (resume_stream_end(s, data) != 0)
			return fails(METRIC_RESUMES_FAILED);
		log_at(LOG_LEVEL_INFO, r, "%s at the end of a stream, which is ended",
			fail_code(why));
		metric_inc(METRIC_RESUMES_ENDED);
		return RESUME_ENDS;
	}
	if (s->is_lost)
		return fails(METRIC_RESUMES_UNFIT);
	log_at(LOG_LEVEL_INFO, r, "%s after %llu tokens of a stream", fail_code(why),
		(unsigned long long)s->tokens);
	return goes_elsewhere(r, ask);
}

void resume_found_nobody(const struct request *r)
{
	assert(resume_is_on(r));
	metric_inc(METRIC_RESUMES_FAILED);
}

bool resume_goes_on(struct request *r, const struct http_head *a, const char *base)
{
	if (!is_plain_event_stream(r, a, base))
		return false;
	metric_inc(METRIC_RESUMES_RESUMED);
	return true;
}

struct span resume_request_body(const struct request *r)
{
	if (r->resume == NULL || r->resume->body == NULL)
		return body_bytes(&r->body, r->c);
	return span_make(r->resume->body, r->resume->body_len);
}

void resume_free(struct request *r)
{
	if (r->resume == NULL)
		return;
	resume_stream_free(&r->resume->stream);
	drop_body(r);
	free(r->resume);
	r->resume = NULL;
}
