/*
 * A request asks its pool for a worker, and notes the one it gets. Called by the
 * PICK step of request.c, and where a decision looks for another worker.
 */
#ifndef PROXY_PICK_H
#define PROXY_PICK_H

#include "pool/pool.h"
#include "proxy/decision.h"

struct request;
struct routing;

/* routing must live as long as the result. */
struct pool_ask pick_ask(struct request *r, struct routing *routing);
/* The key of the request's current leg; NULL: nothing is known of the prompt. */
struct route_key *pick_key(struct request *r);
/*
 * PICK: asks, or asks whether the queue has a worker by now; where a stored response may
 * be of another pool, that one, too. NEXT_STEP: r->place has it. Else attempt, resume or
 * prefill_decode decides how to go on without.
 */
struct decision pick_worker(struct request *r);

#endif
