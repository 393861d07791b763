/*
 * The response that the client gets of a worker. See response.h.
 */
#include "proxy/response.h"

#include "base/clock.h"
#include "base/err.h"
#include "http/http_write.h"
#include "proxy/cors.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"
#include "proxy/resume.h"
#include "proxy/upstream.h"

static enum http_framing framing_for(const struct request *r, const struct http_head *a)
{
	if (a->framing == HTTP_BODY_NONE || a->framing == HTTP_BODY_LENGTH)
		return a->framing;
	return r->head.minor == 1 ? HTTP_BODY_CHUNKED : HTTP_BODY_UNTIL_CLOSE;
}

/* The worker's name and its cached blocks, where the operator wants them seen. */
static struct span worker_lines(const struct request *r, char *out)
{
	struct answer_cached c = {.is_told = false};

	if (!opts(r)->expose_worker)
		return span_make(NULL, 0);
	pd_matched(r->pd, &r->place.pick, &c.matched, &c.blocks);
	c.is_told = pd_cached(r->pd, &c.cached, &c.prompt);
	return span_make(out, answer_worker_lines(span_str(r->worker_name), &c, out));
}

static struct span added_lines(const struct request *r, char *out)
{
	struct span worker = worker_lines(r, out);

	return span_make(
		out, worker.n + cors_lines(opts(r), r->c->buf, &r->head, out + worker.n));
}

/* Engines tell with their answers where KV lies; a client never asked for it where its
 * own fields were taken out. */
static void begin_veil(struct request *r, const struct http_head *a)
{
	r->is_veiled = (route_generates(r->verdict.endpoint) || r->stored.is_by_path) &&
		       !http_head_has(a, FIELD_CONTENT_ENCODING) &&
		       !pool_passes_transfers(r->pool);
	if (r->is_veiled)
		kv_veil_begin(&r->veil);
}

bool response_make_header(struct request *r, const struct http_head *a, const char *base)
{
	char extra[ANSWER_LINES_MAX + CORS_LINES_MAX];
	struct http_response_out out = {
		.base = base,
		.head = a,
		.framing = framing_for(r, a),
		.content_length = a->content_length,
		.keepalive_secs = (unsigned)(opts(r)->keepalive_timeout_ms / 1000),
		.edit = &r->site->response_edit,
		.request_id = request_id(r),
		.drop_cors = cors_is_on(opts(r)),
		.extra = added_lines(r, extra),
	};
	size_t n;

	r->relay = (struct relay){.to = &r->c->stream, .framing = out.framing};
	r->keep = request_may_go_on(r) && (r->head.minor == 1 || r->head.keep_alive_10);
	out.close = !r->keep;
	out.keep_alive_10 = r->keep && r->head.minor == 0;
	n = http_write_response(&out, io_out(r->t), IO_OUT_BYTES);
	if (n == 0)
		return false;
	r->out_head = span_make(io_out(r->t), n);
	begin_veil(r, a);
	r->status = a->status;
	r->is_event_stream = answer_is_event_stream(a, base);
	if (!exchange_awaits_content(r->place.ex))
		r->first_byte_us = clock_turn_us();
	return true;
}

static enum fail failure_of(struct request *r, int err)
{
	if (err != ERR_NOMEM)
		return FAIL_CLIENT_GONE;
	r->was_cut = true;
	return FAIL_OVERLOADED;
}

static inline enum fail send_on(struct request *r, struct span data, bool last)
{
	struct span head = r->out_head;
	int err;

	if (head.n == 0 && data.n == 0 && !last)
		return FAIL_NONE;
	r->out_head = span_make(NULL, 0);
	r->head_sent = true;
	r->sent_last = last;
	err = relay_send(&r->relay, head, data, last);
	return err == 0 ? FAIL_NONE : failure_of(r, err);
}

static __attribute__((noinline)) enum fail send_veiled(
	struct request *r, struct span data, bool last)
{
	struct text veiled = {0};
	enum fail why;

	why = kv_veil_pass(&r->veil, &data, last, &veiled) == 0
		      ? send_on(r, data, last)
		      : failure_of(r, ERR_NOMEM);
	text_free(&veiled);
	return why;
}

enum fail response_send(struct request *r, struct span data, bool last)
{
	bool is_idle = !r->is_veiled || (r->is_alike && kv_veil_rests(&r->veil)) ||
		       kv_veil_is_idle(&r->veil, data, last);

	return LIKELY(is_idle) ? send_on(r, data, last) : send_veiled(r, data, last);
}

bool response_is_held_back(struct request *r)
{
	if (exchange_failure(r->place.ex) != FAIL_NONE)
		return false;
	if (r->relay.is_full && stream_queued(&r->c->stream) <= STREAM_LOW_BYTES)
		r->relay.is_full = false;
	if (r->relay.is_full)
		exchange_pause(r->place.ex);
	else
		exchange_resume(r->place.ex);
	r->worker_rests = r->relay.is_full;
	return r->relay.is_full;
}

/* The client has whole events, and nothing that says so already. */
static bool may_say(const struct request *r)
{
	const struct exchange *ex = r->place.ex;

	if (resume_is_whole(r->resume))
		return true;
	return exchange_is_between_events(ex) && !exchange_said_error(ex);
}

enum fail response_cut(struct request *r, enum fail why)
{
	char text[ANSWER_EVENT_MAX];
	size_t n;
	int err;

	r->was_cut = true;
	r->keep = false;
	if (r->is_veiled) /* the client gets all that came */
		(void)!relay_send(
			&r->relay, span_make(NULL, 0), kv_veil_held(&r->veil), false);
	if (!r->is_event_stream || r->relay.framing == HTTP_BODY_LENGTH || !may_say(r))
		return why;
	n = answer_error_event(r->verdict.endpoint, why, text);
	err = relay_send(&r->relay, span_make(NULL, 0), span_make(text, n), false);
	return err == 0 ? why : failure_of(r, err);
}
