/*
 * The end of an exchange as evidence about its worker: told to the worker's breaker through
 * its guard, once, and logged where the breaker changes. Called by request.c, which knows
 * how an exchange ended, and by cleanup.c. Without a call the guard's drop is neutral
 * (the client left, memory was short).
 *
 *   failure  no connection, a reset, a broken or invalid answer, none within
 *            first_byte_timeout, 5xx
 *   success  2xx and 3xx, to the end
 *   neutral  4xx and 429; an answer that total_timeout cut; silence inside an answer, or
 *            while the engine's counters grow (watch.h finds those that hang)
 */
#ifndef PROXY_OUTCOME_H
#define PROXY_OUTCOME_H

#include "base/base.h"
#include "base/fail.h"
#include "http/http_head.h"

struct exchange;
struct guard;

/* Retry-After: seconds, or a date; longer rests are cut to this. The answer may concern
 * its request (a client's quota) and not the worker: new evidence has to say so again. */
#define OUTCOME_PAUSE_MAX_MS (10 * 1000)

/*
 * The final header came: a; of an error the beginning of its body is at hand. 429 and 503
 * with Retry-After: the worker rests for that long, unless *has_paused says that another
 * one rests for this request already. 429, 529 and a 503 that speaks of load are a busy
 * worker's, and no failure. request: the log line's subject.
 */
void outcome_header(struct guard *g, const struct exchange *ex, const struct http_head *a,
	const char *base, bool *has_paused, const void *request);
/* The exchange is over. FAIL_NONE: the response is whole, and counts in the worker's
 * completions. Else there was none, or it broke off: one of the worker's failures. */
void outcome_end(struct guard *g, const struct exchange *ex, enum fail why);

#endif
