/*
 * Whether a request gets a worker now, waits for one, or is refused: the caps of workers
 * and of the process, the queue before them, and what happens when every worker is out
 * (DESIGN 10). Called by pick.c. Other requests free what it waits for, on any thread,
 * and then call admission_freed().
 *
 * Waiting is bounded: in number by queue_size for the whole process, in time by
 * queue_timeout where workers are full, and by no_worker_wait where all are out; after
 * the latter the least bad worker is tried. A request that waits holds no slot and is no
 * load.
 */
#ifndef PROXY_ADMISSION_H
#define PROXY_ADMISSION_H

#include "base/base.h"
#include "pool/queue.h"

struct guard;
struct io_thread;
struct pool;
struct pool_ask;
struct pool_pick;
struct router_opts;
struct ticket;

/* A request that no worker has room for, and what decides whether and how long it may
 * wait. Pointers live as long as it waits. */
struct admission_wait {
	struct io_thread *t;
	struct pool *pool;
	const struct router_opts *opts;
	struct guard *guard; /* filled when it is granted a worker */
	struct pool_pick *pick;
	void (*wake)(void *arg); /* may be granted, or its time is up: ask again */
	void *arg;
	enum priority priority;
	bool is_begun; /* a worker has done a part: a full queue does not refuse it */
	bool was_tried; /* workers of this role failed it: no wait for a worker to return */
	bool may_skip;      /* it can do without this worker: no last resort */
	bool skips_at_once; /* and does not wait for one that is out */
};

/*
 * Picks at once. 0: guard and pick are filled; ERR_PARSE, ERR_NOENT: as pool_pick();
 * ERR_LIMIT, ERR_STATE: admission_wait() is next.
 */
int admission_pick(struct pool *pool, const struct pool_ask *ask, struct guard *guard,
	struct pool_pick *pick) MUST_CHECK;
/*
 * Picks, behind those that wait already, or lets it wait. ask is copied. 0;
 * ERR_AGAIN: it waits, *ticket is set, and wake() will be called; ERR_PARSE, ERR_NOENT:
 * as pool_pick(); ERR_LIMIT: the queue is full; ERR_STATE: no worker is there, not even
 * as a last resort; ERR_NOMEM.
 */
int admission_wait(struct ticket **ticket, const struct admission_wait *wait,
	const struct pool_ask *ask) MUST_CHECK;
/* After wake(), and whenever the request runs: as admission_wait(), and ERR_TIMEOUT: it
 * waited for queue_timeout. */
int admission_resume(struct ticket **ticket) MUST_CHECK;
/* When admission_resume() is to be called at the latest; 0: never. NULL is fine. */
uint64_t admission_deadline_ms(const struct ticket *k);
/* The request ends. If it was granted a worker meanwhile, its guard is held. */
void admission_leave(struct ticket **ticket);
/* A slot of the pool or of the process was given back: serves those that wait. */
void admission_freed(struct io_thread *t, struct pool *pool);
/* Seconds after which a refused client may find room: those that wait before it over the
 * rate at which the pool finishes requests. pool: NULL: none. */
unsigned admission_retry_after_secs(const struct pool *pool);

#endif
