/*
 * One attempt: the client's request as its worker gets it (head rewritten, body as it is,
 * or going on as it comes), on a connection to that worker. Called by the FORWARD step of
 * request.c; part of its request.
 */
#ifndef PROXY_DISPATCH_H
#define PROXY_DISPATCH_H

#include "base/base.h"
#include "base/span.h"

struct exchange;
struct pool_pick;
struct request;
struct worker;

/* Starts r->ex with the worker of r->guard. fresh_only: on no pooled connection. False:
 * out of memory, or the head does not fit. */
bool dispatch(struct request *r, bool fresh_only);
/* The same request with this body to another worker, on a fresh connection: an exchange
 * beside r->ex, with the same wake. NULL as dispatch() says false. */
struct exchange *dispatch_parallel(struct request *r, struct worker *w,
	const struct pool_pick *pick, struct span body);
/* The Authorization of another call to w on the request's behalf; empty: none. */
struct span dispatch_authorization(const struct request *r, const struct worker *w);

#endif
