/*
 * What the end of an exchange says of its worker: told to the worker's breaker through
 * its guard, once, and logged where the breaker changes. Called by request.c alone, where
 * it knows; what it does not say is neutral when the guard is dropped (the client left,
 * memory was short).
 *
 *   failure  no connection, a reset, a broken or invalid answer, silence for too long,
 *            5xx
 *   success  2xx and 3xx, to the end
 *   neutral  4xx and 429; an answer that total_timeout cut
 */
#ifndef PROXY_OUTCOME_H
#define PROXY_OUTCOME_H

#include "base/base.h"
#include "base/fail.h"
#include "http/http_head.h"

struct exchange;
struct guard;
struct request;

/* Retry-After: seconds, or a date; longer rests are cut to this. */
#define OUTCOME_PAUSE_MAX_MS (300 * 1000)

/* The final head came. 429 and 503 with Retry-After: the worker rests for that long. */
void outcome_head(struct request *r, const struct http_head *a, const char *base);
/* No answer, or it broke off; counted in the worker's failures. */
void outcome_failed(struct request *r, enum fail why);
/* The answer is whole: counted in the worker's completions. */
void outcome_done(struct request *r);
/* Of an exchange that is not the request's own: no answer, or it broke off; FAIL_NONE: it
 * is whole. */
void outcome_of(struct guard *g, const struct exchange *ex, enum fail why);

/* What the field says, in ms from wall_ms on; 0: nothing that can be read, or the past.
 */
uint64_t outcome_retry_after_ms(struct span value, uint64_t wall_ms);

#endif
