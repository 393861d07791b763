/*
 * Responses that live on the worker that made them: /v1/responses with a
 * previous_response_id, and all below /v1/responses/{id}, go there. Its id is read from
 * the answer's first bytes as they pass. Where the worker is not known, or is gone, the
 * workers are asked in turn until one does not say 404. Called by the steps of request.c;
 * part of its request.
 */
#ifndef PROXY_STORED_RESPONSE_H
#define PROXY_STORED_RESPONSE_H

#include "base/base.h"
#include "base/span.h"
#include "pool/response_map.h"

struct pool_ask;
struct request;

struct stored {
	bool is_asked_for; /* the request is about a response that some worker has */
	bool is_reading;   /* the answer's id may be among its next bytes */
	uint64_t home;     /* host_id of the worker that has it; 0: not known */
	size_t pool_at;    /* by id alone: the pool whose workers are asked */
	struct response_reader reader;
};

/* ROUTE_KEY: who has it, as far as is known. May choose another pool. */
void stored_look_up(struct request *r);
/* PICK found no worker: true when others may be asked, then pick again. */
bool stored_look_elsewhere(struct request *r);
/* FORWARD: a worker that does not know it answered; true when another one may. */
bool stored_asks_on(struct request *r, int status, struct pool_ask *ask);
/* FORWARD, with the head of the answer that the client gets. */
void stored_answered(struct request *r, int status);
/* RELAY: before the client has these bytes. */
void stored_see(struct request *r, struct span bytes);

#endif
