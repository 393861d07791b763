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

struct request;

/* The exchange ended without a response. */
struct decision decide_no_response(struct request *r);
/* The worker was tried with the request, and sent nothing in time. NEXT_STEP: the request
 * goes on waiting for it. */
struct decision decide_trial_is_over(struct request *r);
/* A response whose header is at hand may not be the client's: one to a stream that is
 * resumed, or one that another worker may better. NEXT_STEP: the client gets it. */
struct decision decide_response(
	struct request *r, const struct http_head *a, const char *base);
/* A prefill's response broke off, or says nothing that decode can use. */
struct decision decide_prefill_broke(struct request *r, enum fail why);
/* The client's response broke off half-way. */
struct decision decide_broke(struct request *r);

#endif
