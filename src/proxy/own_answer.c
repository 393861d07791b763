/*
 * The answers that the router makes itself. See own_answer.h.
 */
#include "proxy/own_answer.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "http/http_write.h"
#include "proxy/admission.h"
#include "proxy/answer.h"
#include "proxy/cors.h"
#include "proxy/fan_out.h"
#include "proxy/pick.h"
#include "proxy/request_state.h"

#include <stdio.h>
#include <stdlib.h>

static local_answer_fn *local_fn;
static void *local_arg;

void own_answer_set_local(local_answer_fn *fn, void *arg)
{
	local_fn = fn;
	local_arg = arg;
}

#define EXTRA_MAX (ANSWER_LINES_MAX + CORS_PREFLIGHT_MAX)

/* As response_header changes the router's own lines. */
static struct span edited(
	const struct request *r, struct span extra, char room[EXTRA_MAX + HTTP_EDIT_MAX])
{
	const struct http_edit *e = &r->site->response_edit;

	if (http_edit_is_empty(e))
		return extra;
	assert(extra.n <= EXTRA_MAX);
	if (extra.n > 0)
		memcpy(room, extra.p, extra.n);
	return span_make(room, http_edit_apply(e, room, extra.n));
}

/* A whole answer of our own. It says nothing of keeping alive, which 1.1 clients take for
 * a yes and 1.0 clients for a no. */
static void send_own(struct request *r, int status, struct span type, struct span body,
	struct span extra)
{
	bool with_body = !r->has_head || r->head.method != HTTP_HEAD;
	char room[EXTRA_MAX + HTTP_EDIT_MAX];
	size_t n;
	struct iovec iov[2];
	int err;

	n = http_write_own(status, type, body.n, !r->keep, edited(r, extra, room),
		io_out(r->t), IO_OUT_BYTES);
	iov[0] = (struct iovec){io_out(r->t), n};
	iov[1] = (struct iovec){(void *)body.p, with_body ? body.n : 0};
	err = stream_write(&r->c->stream, iov, iov[1].iov_len > 0 ? 2 : 1);
	r->status = status;
	r->head_sent = true;
	r->first_byte_us = clock_us();
	r->relay.bytes = iov[1].iov_len;
	if (err != 0 && err != ERR_LIMIT) {
		r->keep = false;
		r->why = err == ERR_NOMEM ? FAIL_OVERLOADED : FAIL_CLIENT_GONE;
	}
}

/* Anthropic's clients ask for models, too, where OpenAI's do. */
static enum path_shape shape_of(const struct request *r)
{
	static const struct span version = {"anthropic-version", 17};

	if (r->verdict.shape == SHAPE_OPENAI && r->has_head &&
		(r->verdict.action != PATH_FORWARD || r->verdict.names_model) &&
		http_head_named(r->c->buf, &r->head, version) != NULL)
		return SHAPE_ANTHROPIC;
	return r->verdict.shape;
}

static enum local_answer what_of(const struct request *r)
{
	switch (r->verdict.action) {
	case PATH_MODELS:
		return LOCAL_MODELS;
	case PATH_MODEL:
		return LOCAL_MODEL;
	case PATH_FINISH_SESSION:
		return LOCAL_FINISH_SESSION;
	default:
		return LOCAL_READINESS;
	}
}

static int ask_local(struct request *r, enum local_answer what, char **body, size_t *n)
{
	char model[MODEL_NAME_MAX];
	struct local_asked asked = {
		.what = what,
		.shape = shape_of(r),
		.site = r->site,
		.base = r->c->buf,
		.head = &r->head,
		.client_ip = http_who_text(r->who),
	};

	if (what == LOCAL_MODEL && request_path_model(r, model))
		asked.model = span_str(model);
	assert(local_fn != NULL);
	return local_fn(local_arg, r->t, &asked, body, n);
}

/* Who has no key to give need not know that there is such a path. */
enum fail own_answer_gate(struct request *r)
{
	char *body = NULL;
	size_t n = 0;
	int status = ask_local(r, LOCAL_GATE, &body, &n);

	if (status == fail_status(FAIL_NONE))
		return FAIL_NONE;
	return status == fail_status(FAIL_UNAUTHORIZED) ? FAIL_UNAUTHORIZED
							: FAIL_PATH_NOT_FOUND;
}

bool own_answer_has_model(struct request *r)
{
	char *body = NULL;
	size_t n = 0;
	int status;

	if (!r->verdict.names_model)
		return false;
	status = ask_local(r, LOCAL_MODEL, &body, &n);
	free(body);
	return status == fail_status(FAIL_NONE);
}

static bool may_keep(const struct request *r)
{
	return request_may_go_on(r) && r->head.minor == 1;
}

/* What may be asked of a path, for everybody, without a key. */
static void answer_options(struct request *r)
{
	char extra[ANSWER_LINES_MAX + CORS_PREFLIGHT_MAX];
	size_t n = answer_id_line(request_id(r), extra);
	const char *base = r->c->buf;

	n += answer_allow_line(r->verdict.allowed, extra + n);
	n += cors_is_preflight(base, &r->head)
		     ? cors_preflight_lines(
			       opts(r), base, &r->head, r->verdict.allowed, extra + n)
		     : cors_lines(opts(r), base, &r->head, extra + n);
	r->keep = may_keep(r);
	send_own(r, 204, span_make(NULL, 0), span_make(NULL, 0), span_make(extra, n));
}

void own_answer_local(struct request *r)
{
	static const char up[] = "{\"status\":\"ok\"}";
	char *body = NULL;
	char extra[ANSWER_LINES_MAX + CORS_LINES_MAX];
	size_t n = 0, n_extra;
	int status = 200;

	if (r->verdict.action == PATH_OPTIONS) {
		answer_options(r);
		return;
	}
	if (r->verdict.action != PATH_HEALTH)
		status = ask_local(r, what_of(r), &body, &n);
	n_extra = answer_id_line(request_id(r), extra);
	n_extra += cors_lines(opts(r), r->c->buf, &r->head, extra + n_extra);
	r->keep = may_keep(r);
	send_own(r, status, SPAN_LIT("application/json"),
		body != NULL ? span_make(body, n) : SPAN_LIT(up),
		span_make(extra, n_extra));
	free(body);
}

void own_answer_of_all(struct request *r)
{
	const struct fan_out *f = r->fan_out;
	char extra[ANSWER_LINES_MAX + CORS_LINES_MAX];
	size_t n = answer_id_line(request_id(r), extra);

	n += cors_lines(opts(r), r->c->buf, &r->head, extra + n);
	r->keep = may_keep(r);
	send_own(r,
		f->status != 0 ? f->status
			       : fail_status(f->is_good ? FAIL_NONE : FAIL_NOT_BY_ALL),
		f->is_text ? SPAN_LIT("text/plain; charset=utf-8")
			   : SPAN_LIT("application/json"),
		span_make(f->answer, f->answer_n), span_make(extra, n));
}

static unsigned secs_until(uint64_t at_ms, uint64_t now_ms)
{
	return at_ms > now_ms
		       ? (unsigned)MIN((at_ms - now_ms + 999) / 1000, UINT64_C(3600))
		       : 0;
}

#define MESSAGE_MAX 768

/* Says of which pool no worker is there and why, where to look, and when one may be. */
static void outage_message(
	struct request *r, char message[MESSAGE_MAX], unsigned *retry_secs)
{
	struct routing routing;
	struct pool_ask ask = pick_ask(r, &routing);
	struct text text = {0};
	uint64_t back_ms;

	text_printf(&text, "%s ", fail_text(r->why));
	pool_tell_outage(r->pool, &ask, &text, &back_ms);
	text_printf(&text, " kvsteerctl status says why.");
	*retry_secs = secs_until(back_ms, ask.now_ms);
	snprintf(message, MESSAGE_MAX, "%s", text.failed ? fail_text(r->why) : text.p);
	text_free(&text);
}

/* The header lines of a failure. */
static size_t failure_lines(const struct request *r, unsigned retry_secs, char *out)
{
	int status = fail_status(r->why);
	size_t n = answer_id_line(request_id(r), out);

	if (status == 429 || status == 503)
		n += answer_retry_line(
			retry_secs > 0 ? retry_secs : admission_retry_after_secs(r->pool),
			out + n);
	if (status == 401)
		n += answer_challenge_line(out + n);
	if (r->why == FAIL_METHOD_NOT_ALLOWED && r->verdict.allowed != 0)
		n += answer_allow_line(r->verdict.allowed, out + n);
	if (r->has_head)
		n += cors_lines(opts(r), r->c->buf, &r->head, out + n);
	return n;
}

void own_answer_failure(struct request *r)
{
	char message[MESSAGE_MAX], body[ANSWER_ERROR_MAX];
	char extra[ANSWER_LINES_MAX + CORS_LINES_MAX];
	unsigned retry_secs = r->caller.retry_after_secs;
	size_t n;

	if (r->id_len == 0)
		own_answer_make_id(r);
	if ((r->why == FAIL_NO_WORKER || r->why == FAIL_WORKER_UNREACHABLE) &&
		r->pool != NULL)
		outage_message(r, message, &retry_secs);
	else
		snprintf(message, sizeof(message), "%s", fail_text(r->why));
	n = answer_error_body(shape_of(r), r->why, message, request_id(r), body);
	r->relay.framing = HTTP_BODY_LENGTH;
	r->keep = r->has_head && fail_keeps_connection(r->why) && request_may_go_on(r) &&
		  r->head.minor == 1;
	send_own(r, fail_status(r->why), SPAN_LIT("application/json"), span_make(body, n),
		span_make(extra, failure_lines(r, retry_secs, extra)));
}

void own_answer_new_id(struct request *r)
{
	r->id_len = answer_request_id(span_make(NULL, 0), &r->t->rng, r->id);
}

void own_answer_make_id(struct request *r)
{
	struct span none = span_make(NULL, 0);

	r->id_len = answer_request_id(
		r->has_head ? field(r, FIELD_X_REQUEST_ID) : none, &r->t->rng, r->id);
}
