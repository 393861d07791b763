/*
 * Responses that live on the worker that made them: /v1/responses with a
 * previous_response_id, and all below /v1/responses/{id}, go there. The id of a new one is
 * read from the first bytes of the worker's answer as they pass. Where the worker is not
 * known, or is gone, all workers are asked in turn until one does not say 404. Part of its
 * request (by value).
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
	bool is_asked_for; /* the request is about a response that some worker has */
	bool is_by_path; /* its path names it: no body says a model, any pool may have it */
	bool is_reading; /* the answer's id may be among its next bytes */
	uint64_t home;   /* host_id of the worker that has it; 0: not known */
	size_t pool_at;  /* by path: the pool whose workers are asked */
	struct response_reader reader; /* by path: the id that is asked for */
};

/* ROUTE_KEY: which worker has it, as far as is known. id: the path's, or empty.
 * previous: the body's previous_response_id, or empty. May choose another pool. */
void stored_look_up(struct stored *s, struct span id, enum route_endpoint endpoint,
	struct span previous, struct pool **pool);
/* PICK found no worker. True: others may be asked, perhaps of another pool; pick again. */
bool stored_asks_others(struct stored *s, struct pool **pool);
/* FORWARD, a worker's header is at hand: elsewhere, where it does not know the response
 * and another worker may; NEXT_STEP: the client gets this answer. */
struct decision stored_answered(
	struct stored *s, struct retry_case *c, int status, struct pool **pool);
/* The client gets the answer that w gives to such a request: notes where the response is
 * now, or that its id is read as it passes. */
void stored_note_answer(struct stored *s, bool makes_one, enum http_method method,
	int status, const struct worker *w);
/* RELAY: before the client has these bytes of w, which may be NULL. */
void stored_read(struct stored *s, struct span bytes, const struct worker *w);

#endif
