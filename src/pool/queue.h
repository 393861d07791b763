/*
 * The order in which waiting requests are served: first come, first served within a
 * priority, strict between priorities. A request rises by one priority for each
 * QUEUE_PROMOTE_MS that it has waited, so that none starves. Pure and unlocked: the
 * pool's lock protects it. Waiters are embedded in their owners; every operation but a
 * walk is O(1).
 */
#ifndef POOL_QUEUE_H
#define POOL_QUEUE_H

#include "base/base.h"
#include "base/list.h"

#define QUEUE_PROMOTE_MS 10000

/* BEGUN: a worker has done a part of it already and keeps the result. No request rises to
 * that priority. */
enum priority {
	PRIORITY_BEGUN,
	PRIORITY_HIGH,
	PRIORITY_NORMAL,
	PRIORITY_LOW,
	PRIORITY_MAX
};

struct waiter {
	TAILQ_ENTRY(waiter) link;
	enum priority priority;
	uint64_t since_ms; /* of its queueing */
	uint64_t number;   /* of its arrival */
	bool is_queued;
};

TAILQ_HEAD(waiter_list, waiter);

struct queue {
	struct waiter_list lists[PRIORITY_MAX];
	unsigned n;
	uint64_t arrivals;
};

void queue_init(struct queue *q);
/* To the end of its priority's line. */
void queue_push(struct queue *q, struct waiter *w, enum priority p, uint64_t now_ms);
/* From wherever it is; nothing when it is not queued. */
void queue_remove(struct queue *q, struct waiter *w);

/* In order of service; the waiter that was returned may be removed before the next. */
struct queue_walk {
	struct waiter *at[PRIORITY_MAX];
	uint64_t now_ms;
};
void queue_walk_start(struct queue_walk *walk, struct queue *q, uint64_t now_ms);
struct waiter *queue_walk_next(struct queue_walk *walk); /* NULL: no more */

#endif
