/*
 * Priorities, promotion, order. See queue.h.
 */
#include "pool/queue.h"

void queue_init(struct queue *q)
{
	unsigned p;

	for (p = 0; p < PRIORITY_MAX; p++)
		TAILQ_INIT(&q->lists[p]);
	q->n = 0;
	q->arrivals = 0;
}

void queue_push(struct queue *q, struct waiter *w, enum priority p, uint64_t now_ms)
{
	assert(!w->is_queued && p < PRIORITY_MAX);
	w->priority = p;
	w->since_ms = now_ms;
	w->number = q->arrivals++;
	w->is_queued = true;
	TAILQ_INSERT_TAIL(&q->lists[p], w, link);
	q->n++;
}

void queue_remove(struct queue *q, struct waiter *w)
{
	if (!w->is_queued)
		return;
	TAILQ_REMOVE(&q->lists[w->priority], w, link);
	w->is_queued = false;
	q->n--;
}

/* Its priority with what it waited. Within a list the earlier is never behind. */
static unsigned risen(const struct waiter *w, uint64_t now_ms)
{
	uint64_t waited_ms = now_ms > w->since_ms ? now_ms - w->since_ms : 0;
	uint64_t steps = waited_ms / QUEUE_PROMOTE_MS;
	unsigned top = MIN(w->priority, (unsigned)PRIORITY_HIGH);

	return steps >= w->priority - top ? top : w->priority - (unsigned)steps;
}

void queue_walk_start(struct queue_walk *walk, struct queue *q, uint64_t now_ms)
{
	unsigned p;

	for (p = 0; p < PRIORITY_MAX; p++)
		walk->at[p] = TAILQ_FIRST(&q->lists[p]);
	walk->now_ms = now_ms;
}

struct waiter *queue_walk_next(struct queue_walk *walk)
{
	struct waiter *best = NULL;
	unsigned p, rank = PRIORITY_MAX;

	for (p = 0; p < PRIORITY_MAX; p++) {
		struct waiter *w = walk->at[p];

		if (w == NULL)
			continue;
		if (best == NULL || risen(w, walk->now_ms) < rank ||
			(risen(w, walk->now_ms) == rank && w->number < best->number)) {
			best = w;
			rank = risen(w, walk->now_ms);
		}
	}
	if (best != NULL)
		walk->at[best->priority] = TAILQ_NEXT(best, link);
	return best;
}
