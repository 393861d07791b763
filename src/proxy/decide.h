/*
 * A worker has responded, or failed to: tells its breaker, then asks the feature that
 * decides for this request (one worker, two legs, a stored response, a resumed stream). Called by request.c,
 * which applies what is decided.
 */
#ifndef PROXY_DECIDE_H
#define PROXY_DECIDE_H

#include "base/fail.h"
#include "http/http_head.h"
#include "proxy/decision.h"
#include "proxy/upstream.h"

struct request;

/* The exchange ended without a response. */
struct decision decide_no_response(struct request *r);
/* The worker was tried with the request, and sent nothing in time; or it cannot be
 * connected to now. NEXT_STEP: the request goes on waiting for it. */
struct decision decide_late(struct request *r, enum exchange_late late);
/* A response whose header is at hand may not be the client's: one to a stream that is
 * resumed, or one that another worker may better. NEXT_STEP: the client gets it. */
struct decision decide_response(
	struct request *r, const struct http_head *a, const char *base);
/* A stream that is held back begins with an error of its engine. NEXT_STEP: the client
 * gets it. */
struct decision decide_said_error(
	struct request *r, const struct http_head *a, const char *base);
/* So does one that the client has a part of. NEXT_STEP: the client gets what follows; else
 * it has not got the error. */
struct decision decide_error_event(struct request *r);
/* A prefill's response broke off, or says nothing that decode can use. */
struct decision decide_prefill_broke(struct request *r, enum fail why);
/* The client's response broke off half-way. */
struct decision decide_broke(struct request *r);

#endif
