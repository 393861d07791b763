/*
 * Requests that wait for a worker. See pool.h.
 *
 * A thread that frees a slot serves the queue: it picks for the waiting requests, in
 * their order, as they would themselves. So none overtakes, and a request that cannot be
 * served now (it wants another model, a pinned worker) holds up none behind it. A pick's
 * cost is paid under the lock for each that can be served, and a look at the workers for
 * each that cannot (at the process's slots alone, while all are taken); SERVE_MAX bounds
 * the latter.
 *
 * No wake-up is lost: who is about to wait first counts itself in `waiting` and then
 * looks once more; who frees first takes its load away and then reads `waiting`; all of
 * these are sequentially consistent, so one of the two sees the other.
 */
#include "pool/pool.h"

#include "base/err.h"
#include "pool/pool_state.h"
#include "worker/worker.h"

#define SERVE_MAX 64

static struct pool_waiter *owner_of(struct waiter *w)
{
	return container_of(w, struct pool_waiter, waiter);
}

static void leave(struct pool *p, struct pool_waiter *w)
{
	queue_remove(&p->queue, &w->waiter);
	atomic_fetch_sub(&p->waiting, 1);
}

static bool is_worth_waiting(int err)
{
	return err == ERR_LIMIT || err == ERR_STATE;
}

/* True: it waits no more, since it was granted or nothing is left to wait for. */
static bool serve_one(struct pool *p, struct pool_waiter *w, uint64_t now_ms)
{
	int err;

	w->ask.now_ms = now_ms;
	/* Most often that is all: no worker needs to be looked at. */
	if (slots_are_taken(w->ask.slots, w->ask.max_slots))
		return false;
	err = pool_pick_locked(p, &w->ask, w->guard, w->pick);
	if (is_worth_waiting(err))
		return false;
	leave(p, w);
	w->outcome = err;
	w->wake(w);
	return true;
}

static void serve_locked(struct pool *p, uint64_t now_ms)
{
	struct queue_walk walk;
	struct waiter *w;
	unsigned in_vain = 0;

	queue_walk_start(&walk, &p->queue, now_ms);
	while (in_vain < SERVE_MAX && (w = queue_walk_next(&walk)) != NULL)
		in_vain += !serve_one(p, owner_of(w), now_ms);
}

void pool_serve(struct pool *p, uint64_t now_ms)
{
	if (atomic_load(&p->waiting) == 0)
		return;
	pool_lock(p);
	serve_locked(p, now_ms);
	pool_unlock(p);
}

unsigned pool_waiting(const struct pool *p)
{
	return atomic_load_explicit(&p->waiting, memory_order_relaxed);
}

bool pool_has_last_resort(const struct pool *p, enum role role)
{
	return atomic_load_explicit(&p->roles[role].last_resort, memory_order_relaxed);
}

uint64_t pool_no_worker_wait_ms(const struct pool *p, enum role role)
{
	return atomic_load_explicit(
		&p->roles[role].no_worker_wait_ms, memory_order_relaxed);
}

double pool_finish_rate(const struct pool *p)
{
	return (double)atomic_load_explicit(&p->finish_rate, memory_order_relaxed) / 1000;
}

/* What the worker has completed since this was asked last. */
static uint64_t take_finished(struct worker *w)
{
	uint64_t all = atomic_load_explicit(&w->guard.completions, memory_order_relaxed);
	uint64_t since = all - w->pool.measured;

	w->pool.measured = all;
	return since;
}

/* Half of it is what the last second brought. */
void pool_measure(struct pool *p, uint64_t now_ms)
{
	uint64_t finished = 0, ms = now_ms - p->measured_ms;
	size_t i;

	/* By worker, so that one that leaves takes nothing of the others' with it. */
	for (i = 0; i < p->registry.n; i++) {
		finished += take_finished(p->registry.items[i]);
		breaker_sweep(&p->registry.items[i]->breaker, now_ms);
	}
	if (p->measured_ms != 0 && ms > 0)
		atomic_store(&p->finish_rate,
			(finished * 1000000 / ms + atomic_load(&p->finish_rate)) / 2);
	p->measured_ms = now_ms;
}

int pool_pick_or_wait(struct pool *p, struct pool_waiter *w, enum priority priority,
	bool (*may_wait)(void *arg, int err), void *arg)
{
	int err;

	pool_lock(p);
	/* Earlier requests have the first pick of free slots. */
	if (p->queue.n > 0)
		serve_locked(p, w->ask.now_ms);
	err = pool_pick_locked(p, &w->ask, w->guard, w->pick);
	if (err == ERR_STATE && pool_wait_is_vain(p, &w->ask))
		goto out; /* the least bad one is tried at once */
	if (is_worth_waiting(err) && may_wait(arg, err)) {
		atomic_fetch_add(&p->waiting, 1);
		err = pool_pick_locked(p, &w->ask, w->guard, w->pick);
		if (is_worth_waiting(err)) {
			w->outcome = ERR_AGAIN;
			queue_push(&p->queue, &w->waiter, priority, w->ask.now_ms);
			err = ERR_AGAIN;
		} else {
			atomic_fetch_sub(&p->waiting, 1);
		}
	}
out:
	pool_unlock(p);
	return err;
}

int pool_wait_end(struct pool *p, struct pool_waiter *w)
{
	int outcome;

	pool_lock(p);
	if (w->waiter.is_queued)
		leave(p, w);
	outcome = w->outcome;
	pool_unlock(p);
	return outcome;
}
