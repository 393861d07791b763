/*
 * The parts of a request. Each feature has its own part, and gets that part alone; the
 * whole is known to the spine (request.c) and to the files that stand beside it: intake,
 * pick, dispatch, response, own_answer, request_leave, request_life and request_log. A
 * field is written by the step that it belongs to.
 */
#ifndef PROXY_REQUEST_STATE_H
#define PROXY_REQUEST_STATE_H

#include "base/base.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "http/http_head.h"
#include "http/http_query.h"
#include "http/http_scan.h"
#include "pool/pool.h"
#include "pool/site.h"
#include "proxy/answer.h"
#include "proxy/attempt.h"
#include "proxy/body.h"
#include "proxy/budget.h"
#include "proxy/caller.h"
#include "proxy/client.h"
#include "proxy/io_thread.h"
#include "proxy/placement.h"
#include "proxy/relay.h"
#include "proxy/stored_response.h"
#include "proxy/upload.h"
#include "rewrite/kv_veil.h"
#include "route/path_table.h"

#define REQUEST_MAGIC 0x52455131u

struct fan_out;
struct pd;
struct resume;
struct route_scan;
struct ticket;

struct request {
	uint32_t magic;
	unsigned at; /* the step, of the table in request.c */
	struct request *next_free;
	struct io_thread *t;
	struct client *c;
	struct site *site; /* a reference */

	/* how it ended */
	enum fail why;
	int status; /* sent to the client; 0: none */
	bool head_sent, was_cut, keep;

	/* what the client asked */
	struct http_scan scan;
	struct path_verdict verdict;
	enum fail refused; /* known from the head; said once the body was skipped */
	bool has_head, sent_continue;
	/* The client, for limits and logs: the peer's own, or forwarded. */
	const struct http_who *who;
	bool is_forwarded; /* by a trusted proxy */
	struct caller caller;
	struct body body;
	struct upload upload;
	struct budget budget; /* bytes of all its bodies */
	size_t id_len;

	/* where it goes */
	bool reads_body; /* its pool or policy must know what is in it */
	bool is_scanning;
	size_t scanned;
	bool is_keyed;
	struct pool *pool;       /* the site's */
	struct placement place;  /* the worker that it has now */
	struct ticket *ticket;   /* while it waits in the queue */
	struct fan_out *fan_out; /* all workers of its pool are asked */
	struct attempts attempts;
	struct stored stored;
	struct pd *pd; /* owned; NULL: one worker serves it */

	/* the answer */
	struct relay relay;
	struct span out_head; /* in t->out, within the turn */
	bool is_event_stream, sent_last;
	bool worker_rests;     /* while the client is slow */
	bool is_veiled;        /* what it says of KV transfers is taken out */
	bool is_alike;         /* the bytes at hand say nothing of them */
	struct resume *resume; /* owned; NULL: it ends with its worker */

	/* clocks */
	uint64_t began_ms, progress_ms, began_us, picked_us, first_byte_us;
	uint64_t sent_ms; /* to the first worker; 0: to none yet */

	/* From here on nothing is cleared for the next request: it is kept for its
	 * memory, or written before it is read. */
	struct route_scan *json;
	struct route_key key;
	struct http_head head;   /* has no fields until it is parsed */
	char worker_name[64];    /* for the log line, after the guard is gone */
	char id[REQUEST_ID_MAX]; /* id_len of it */
	struct http_who forwarded;
	struct kv_veil veil; /* of an answer that is_veiled */
};

static inline const struct router_opts *opts(const struct request *r)
{
	return &r->site->conf->router;
}

static inline struct span field(const struct request *r, enum http_field_id id)
{
	const struct http_field *f = http_head_find(&r->head, id);

	return f != NULL ? http_field_value(r->c->buf, f) : span_make(NULL, 0);
}

static inline struct span request_id(const struct request *r)
{
	return span_make(r->id, r->id_len);
}

/* The client's body, as far as it is held. */
static inline struct span request_body(const struct request *r)
{
	return body_bytes(&r->body, r->c);
}

/* total_timeout has not passed since its first byte went to a worker. */
static inline bool request_has_time(const struct request *r)
{
	uint64_t limit_ms = r->place.pick.total_timeout_ms;

	return limit_ms == 0 || r->sent_ms == 0 || clock_now_ms() < r->sent_ms + limit_ms;
}

/* Its connection may serve the next request. */
static inline bool request_may_go_on(const struct request *r)
{
	if (r->head.wants_close || r->t->is_draining || r->c->saw_eof ||
		!r->body.is_complete)
		return false;
	return r->relay.framing != HTTP_BODY_UNTIL_CLOSE;
}

/* The model that the path names, decoded. False: it names none, or none so long. */
#define MODEL_NAME_MAX 1024
static inline bool request_path_model(const struct request *r, char out[MODEL_NAME_MAX])
{
	return r->verdict.names_model &&
	       http_path_decode(path_id(&r->verdict, http_head_path(r->c->buf, &r->head)),
		       out, MODEL_NAME_MAX);
}

#endif
