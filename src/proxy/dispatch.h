/*
 * One attempt: the client's request as its worker gets it (header rebuilt, body as it is,
 * or going on as it comes), on a connection to that worker. Called by request.c.
 */
#ifndef PROXY_DISPATCH_H
#define PROXY_DISPATCH_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"

struct request;
struct worker;

/* Starts the exchange with the worker of r->place, and with its prefill beside it where
 * both legs go at once. FAIL_NONE; or why not: memory, or a header that does not fit. */
enum fail dispatch_attempt(struct request *r) MUST_CHECK;
/* Starts the exchange of r->place again. fresh_only: on no pooled connection. False: as
 * dispatch_attempt() fails. */
bool dispatch(struct request *r, bool fresh_only) MUST_CHECK;
/* The Authorization of another call to w on the request's behalf; empty: none. */
struct span dispatch_authorization(const struct request *r, const struct worker *w);

#endif
