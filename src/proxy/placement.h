/*
 * A worker that serves a request, or one of its legs: the slot that is held (guard.h),
 * the pool's notes on the choice, and the exchange with it. Embedded by value; all zero
 * is no worker. placement_drop() is the one place of the data path that drops a guard,
 * so that the queue learns of each freed slot.
 */
#ifndef PROXY_PLACEMENT_H
#define PROXY_PLACEMENT_H

#include "pool/pool.h"
#include "worker/guard.h"

struct exchange;
struct io_thread;

struct placement {
	struct guard guard;
	struct pool_pick pick;
	struct exchange *ex; /* NULL: not begun, or over */
	/* A 2xx header came: what the pick noted in the prefix index stays. */
	bool is_confirmed;
};

/*
 * Takes back what the pick noted in the prefix index, unless it was confirmed. key: of
 * the pick; NULL: nothing was noted.
 */
void placement_withdraw(
	struct placement *p, struct pool *pool, const struct route_key *key);
/* Drops the guard, and serves requests that wait for the slot. The exchange may go on
 * to its end. A guard without a report is neutral for its worker. Harmless without a
 * worker. */
void placement_drop(struct placement *p, struct io_thread *t, struct pool *pool);
/*
 * Ends it: closes the exchange if there is one, withdraws, and drops the guard. Harmless
 * without a worker.
 */
void placement_leave(struct placement *p, struct io_thread *t, struct pool *pool,
	const struct route_key *key);

#endif
