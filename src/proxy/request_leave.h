/*
 * A request leaves its workers before its own end or at it. Called by the spine (request.c) alone:
 * what it says here is where guards are dropped.
 */
#ifndef PROXY_REQUEST_LEAVE_H
#define PROXY_REQUEST_LEAVE_H

#include "base/base.h"

struct request;

/* The request's own worker. Harmless where there is none. */
void request_leave_worker(struct request *r);
/* The prefill that runs in parallel with decode, if there is one. */
void request_leave_prefill(struct request *r);
/* A request on two workers holds more: all of it is given back. may_drain: decode has
 * answered in full, and a slower prefill is read to its end without the request. */
void request_leave_legs(struct request *r, bool may_drain);

#endif
