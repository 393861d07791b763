/*
 * One attempt's request, sent. See dispatch.h.
 */
#include "proxy/dispatch.h"

#include "base/clock.h"
#include "http/http_write.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"
#include "proxy/resume.h"
#include "proxy/upstream.h"
#include "worker/worker.h"

/* A worker's own key is a fallback: where the router does not authenticate, the client's
 * credentials go through as they came. */
static struct span authorization(const struct request *r, const struct worker *w)
{
	const char *own = atomic_load_explicit(&w->authorization, memory_order_acquire);
	bool has_own =
		r->caller.tenant == NULL &&
		(field(r, FIELD_AUTHORIZATION).n > 0 || field(r, FIELD_X_API_KEY).n > 0);

	return has_own || own == NULL ? span_make(NULL, 0) : span_str(own);
}

struct span dispatch_authorization(const struct request *r, const struct worker *w)
{
	struct span value = authorization(r, w);

	if (value.n == 0 && r->caller.tenant == NULL)
		value = field(r, FIELD_AUTHORIZATION);
	return value;
}

/* A body that came in chunks and is whole by now goes on by its length. */
static enum http_framing framing_upstream(const struct request *r)
{
	if (r->head.framing == HTTP_BODY_NONE || r->upload.is_on)
		return r->head.framing;
	return HTTP_BODY_LENGTH;
}

static struct span body_of_attempt(const struct request *r)
{
	return r->pd != NULL ? pd_body(r->pd, request_body(r))
			     : resume_body(r->resume, request_body(r));
}

/* The first exchange of a request starts the time that all of them share; 0: no limit. */
static uint64_t total_due_ms(struct request *r, const struct pool_pick *pick)
{
	if (r->sent_ms == 0)
		r->sent_ms = clock_now_ms();
	return pick->total_timeout_ms > 0 ? r->sent_ms + pick->total_timeout_ms : 0;
}

/* To this worker, as it was picked. */
static struct exchange *send_to(struct request *r, const struct placement *p,
	struct span body, bool fresh_only, bool is_prefill)
{
	const struct pool_pick *pick = &p->pick;
	struct worker *w = p->guard.worker;
	struct http_request_out out = {
		.base = r->c->buf,
		.head = &r->head,
		.url_base = w->url_base,
		.host_line = w->host_line,
		.rank_line = worker_rank_line(w),
		.peer_ip = http_who_hop(&r->c->peer),
		.is_forwarded = r->is_forwarded,
		.proto = r->is_forwarded ? http_forwarded_proto(r->c->buf, &r->head)
					 : SPAN_LIT("http"),
		.edit = &r->site->request_edit,
		.request_id = pd_request_id(r->pd, request_id(r)),
		.authorization = authorization(r, w),
		.drop_credentials = r->caller.tenant != NULL,
		.accepts_plain = is_prefill,
		.framing = framing_upstream(r),
		.content_length = r->upload.is_on ? r->body.expected : body.n,
	};
	struct exchange_opts o = {
		.body = body,
		.in_pieces = r->upload.is_on,
		.method = r->head.method,
		.fresh_only = fresh_only,
		.endpoint = r->verdict.endpoint,
		.holds = pick->holds_headers && !is_prefill,
		.reads_objects = !is_prefill && route_generates(r->verdict.endpoint),
		.connect_timeout_ms = pick->connect_timeout_ms,
		.trial_timeout_ms = pick->trial_timeout_ms,
		.reach_seen = pick->reach_seen,
		.first_byte_timeout_ms = pick->first_byte_timeout_ms,
		.stream_idle_timeout_ms = pick->stream_idle_timeout_ms,
		.total_due_ms = total_due_ms(r, pick),
		.idle_ms = pick->upstream_idle_ms,
	};
	size_t n = http_write_request(&out, io_out(r->t), IO_OUT_BYTES);

	if (n == 0)
		return NULL;
	o.head = span_make(io_out(r->t), n);
	return exchange_start(r->t, w, &o, r->c->run, r->c);
}

bool dispatch(struct request *r, bool fresh_only)
{
	struct span body = r->upload.is_on ? span_make(NULL, 0) : body_of_attempt(r);

	upload_rewind(&r->upload);
	r->place.ex = send_to(r, &r->place, body, fresh_only, pd_is_prefill(r->pd));
	return r->place.ex != NULL;
}

static bool dispatch_prefill(struct request *r, struct placement *prefill)
{
	/* The request's own exchange says whether it is tried elsewhere. */
	prefill->pick.trial_timeout_ms = 0;
	prefill->ex = send_to(r, prefill, pd_parallel_body(r->pd), true, true);
	return prefill->ex != NULL;
}

enum fail dispatch_attempt(struct request *r)
{
	struct placement *prefill = pd_parallel(r->pd);
	enum fail why = FAIL_NONE;

	if (r->pd != NULL)
		why = pd_prepare(r->pd, request_body(r));
	if (why != FAIL_NONE)
		return why;
	if (!dispatch(r, false) || (prefill != NULL && !dispatch_prefill(r, prefill)))
		return FAIL_INTERNAL;
	return FAIL_NONE;
}
