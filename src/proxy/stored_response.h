/*
 * Objects that live on the worker that made them: responses, conversations, files,
 * batches, images, videos, sessions, streams. A request that names one, in its path, its
 * query or its body, goes there. The id of a new one is read from the first bytes of the
 * worker's answer as they pass. Where the worker is not known, or is gone, all workers are
 * asked in turn until one does not say 404. Part of its request (by value).
 */
#ifndef PROXY_STORED_RESPONSE_H
#define PROXY_STORED_RESPONSE_H

#include "base/base.h"
#include "base/span.h"
#include "http/http_head.h"
#include "pool/response_map.h"
#include "proxy/decision.h"
#include "route/route_key.h"

struct pool;
struct retry_case;
struct site;
struct worker;

struct stored {
	struct response_map *map; /* the process's */
	const struct site *site;
	bool is_asked_for; /* the request is about an object that some worker has */
	bool is_by_path;   /* its path or query names it */
	bool is_anywhere;  /* nothing says a model: any pool may have it */
	bool is_reading;   /* the answer's id may be among its next bytes */
	uint64_t home;     /* host_id of the worker that has it; 0: not known */
	size_t pool_at;    /* by path: the pool whose workers are asked */
	struct response_reader reader; /* by path: the id that is asked for */
};

/* What names an object. */
struct stored_named {
	enum route_endpoint endpoint; /* OTHER: not the body */
	struct span id;               /* of the path or query, or empty */
	struct span object;           /* of the body, or empty */
	bool has_model;
};
/* ROUTE_KEY: which worker has it, as far as is known. May choose another pool. */
void stored_look_up(
	struct stored *s, const struct stored_named *named, struct pool **pool);
/* PICK found no worker. True: others may be asked, perhaps of another pool; pick again. */
bool stored_asks_others(struct stored *s, struct pool **pool);
/* FORWARD, a worker's header is at hand: elsewhere, where it does not know the response
 * and another worker may; NEXT_STEP: the client gets this answer. */
struct decision stored_answered(
	struct stored *s, struct retry_case *c, int status, struct pool **pool);
/* The client gets an answer with this status: notes where the object is now, or that the
 * id of a new one is read as it passes. */
struct stored_answer {
	bool makes_object, is_response;
	struct span stream; /* the client's name for it (X-Conversation-Id), or empty */
	enum http_method method;
	int status;
};
void stored_note_answer(
	struct stored *s, const struct stored_answer *a, const struct worker *w);
/* RELAY: before the client has these bytes of w, which may be NULL. */
void stored_read(struct stored *s, struct span bytes, const struct worker *w);

#endif
