/*
 * Caps, queue and last resort. See admission.h.
 *
 * A ticket waits in place of its request: the letter that tells of a grant may still be
 * under way when the request has gone. Its owner frees it, or the letter does where one
 * was posted and has not come yet; both on the owner's thread.
 */
#include "proxy/admission.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/metric.h"
#include "io/mailbox.h"
#include "policy/routing_key.h"
#include "pool/pool.h"
#include "proxy/io_thread.h"

#include <stdlib.h>

#define RETRY_AFTER_MAX_SECS 60

struct ticket {
	struct admission_wait who;
	struct mail mail;
	struct pool_waiter waiter;
	struct routing routing;
	bool is_left;        /* by its request */
	uint64_t due_ms;     /* 0: never */
	bool is_for_a_state; /* all were out, rather than full */
	bool is_counted;     /* in process->queued */
	bool is_posted;      /* the mail; under the pool's lock */
	bool has_come;       /* it was read */
};

static void on_letter(void *arg)
{
	struct ticket *k = arg;

	k->has_come = true;
	if (k->is_left)
		free(k);
	else
		k->who.wake(k->who.arg);
}

/* Under the pool's lock. */
static void wake(struct pool_waiter *w)
{
	struct ticket *k = container_of(w, struct ticket, waiter);

	k->is_posted = true;
	mailbox_send(k->who.t->mailbox, &k->mail, on_letter, k);
}

static void drop_ticket(struct ticket **ticket)
{
	struct ticket *k = *ticket;

	*ticket = NULL;
	k->is_left = true;
	if (!k->is_posted || k->has_come)
		free(k);
}

/* ---- who may wait ---- */

static uint64_t no_worker_wait_ms(const struct ticket *k)
{
	return pool_no_worker_wait_ms(k->who.pool, k->waiter.ask.role);
}

/* Any worker will do. Not so for a request whose worker has its stored response, and is
 * out; nor for one that others failed: their answer is at hand. */
static bool wants_any(const struct ticket *k)
{
	return !k->who.was_tried && !pool_ask_is_pinned(&k->waiter.ask) &&
	       k->waiter.ask.home == 0;
}

/* Asked under the pool's lock, by the thread of the request. */
static bool may_wait(void *arg, int err)
{
	struct ticket *k = arg;
	_Atomic unsigned *queued = &k->who.t->process->queued;

	k->is_for_a_state = err == ERR_STATE;
	/* A pinned worker is there or not. */
	if (pool_ask_is_pinned(&k->waiter.ask))
		return false;
	if (k->is_for_a_state &&
		(!wants_any(k) || no_worker_wait_ms(k) == 0 || k->who.skips_at_once))
		return false;
	/* Before the last look for a free worker: see pool_wait.c. */
	k->is_counted =
		atomic_fetch_add(queued, 1) < k->who.opts->queue_size || k->who.is_begun;
	if (!k->is_counted)
		atomic_fetch_sub(queued, 1);
	return k->is_counted;
}

static void uncount(struct ticket *k)
{
	if (k->is_counted)
		atomic_fetch_sub(&k->who.t->process->queued, 1);
	k->is_counted = false;
}

static void begin_wait(struct ticket *k)
{
	uint64_t wait_ms =
		k->is_for_a_state ? no_worker_wait_ms(k) : k->who.opts->queue_timeout_ms;

	k->due_ms = wait_ms == 0 ? 0 : clock_now_ms() + wait_ms;
	metric_add(METRIC_QUEUE_DEPTH, 1);
}

/* What pool_wait_end() returns. */
static int end_wait(struct ticket *k)
{
	int outcome = pool_wait_end(k->who.pool, &k->waiter);

	uncount(k);
	metric_add(METRIC_QUEUE_DEPTH, -1);
	return outcome;
}

/* ---- asking ---- */

static struct ticket *new_ticket(
	const struct admission_wait *who, const struct pool_ask *ask)
{
	struct ticket *k = calloc(1, sizeof(*k));

	if (k == NULL)
		return NULL;
	k->who = *who;
	k->waiter.ask = *ask;
	if (ask->routing != NULL) {
		k->routing = *ask->routing;
		k->waiter.ask.routing = &k->routing;
	}
	k->waiter.guard = who->guard;
	k->waiter.pick = who->pick;
	k->waiter.wake = wake;
	return k;
}

static int last_resort(struct ticket *k)
{
	struct pool_ask ask = k->waiter.ask;

	if (k->who.may_skip || !pool_has_last_resort(k->who.pool, ask.role))
		return ERR_STATE;
	ask.is_last_resort = true;
	ask.now_ms = clock_now_ms();
	return pool_pick(k->who.pool, &ask, k->who.guard, k->who.pick);
}

/* Asks with the ticket; drops it unless it waits. */
static int ask_or_wait(struct ticket **ticket)
{
	struct ticket *k = *ticket;
	int err =
		pool_pick_or_wait(k->who.pool, &k->waiter, k->who.priority, may_wait, k);

	if (err == ERR_AGAIN) {
		begin_wait(k);
		return ERR_AGAIN;
	}
	uncount(k);
	if (err == ERR_STATE && wants_any(k))
		err = last_resort(k);
	else if (pool_ask_is_pinned(&k->waiter.ask) && err == ERR_LIMIT)
		err = ERR_STATE;
	drop_ticket(ticket);
	return err;
}

int admission_pick(struct pool *pool, const struct pool_ask *ask, struct guard *guard,
	struct pool_pick *pick)
{
	/* The usual case: the queue is empty, and a worker is there. */
	return pool_waiting(pool) == 0 ? pool_pick(pool, ask, guard, pick) : ERR_LIMIT;
}

int admission_wait(struct ticket **ticket, const struct admission_wait *wait,
	const struct pool_ask *ask)
{
	*ticket = new_ticket(wait, ask);
	return *ticket != NULL ? ask_or_wait(ticket) : ERR_NOMEM;
}

/* All were out for the whole wait: the least bad one, and behind others if it is full. */
static int after_no_worker_wait(struct ticket **ticket)
{
	struct ticket *k = *ticket;
	int err = last_resort(k);

	if (err == ERR_LIMIT) {
		k->waiter.ask.is_last_resort = true;
		k->waiter.ask.now_ms = clock_now_ms();
		return ask_or_wait(ticket);
	}
	drop_ticket(ticket);
	return err;
}

int admission_resume(struct ticket **ticket)
{
	struct ticket *k = *ticket;
	bool is_due = k->due_ms != 0 && clock_now_ms() >= k->due_ms;
	int outcome;

	/* The request runs for other reasons, too. */
	if (!is_due && !k->has_come)
		return ERR_AGAIN;
	outcome = end_wait(k);
	if (outcome != ERR_AGAIN) {
		drop_ticket(ticket);
		return outcome;
	}
	assert(is_due);
	if (k->is_for_a_state)
		return after_no_worker_wait(ticket);
	drop_ticket(ticket);
	return ERR_TIMEOUT;
}

uint64_t admission_deadline_ms(const struct ticket *k)
{
	return k != NULL ? k->due_ms : 0;
}

void admission_leave(struct ticket **ticket)
{
	if (*ticket == NULL)
		return;
	(void)!end_wait(*ticket); /* the request drops a guard that came with a grant */
	drop_ticket(ticket);
}

/* ---- those that wait ---- */

void admission_freed(struct io_thread *t, struct pool *pool)
{
	uint64_t now_ms;
	size_t i;

	if (atomic_load(&t->process->queued) == 0)
		return;
	now_ms = clock_now_ms();
	pool_serve(pool, now_ms);
	/* Requests of other pools may wait for a slot of the process. */
	for (i = 0; i < t->site->n_pools; i++)
		pool_serve(t->site->pools[i], now_ms);
}

unsigned admission_retry_after_secs(const struct pool *pool)
{
	double rate = pool != NULL ? pool_finish_rate(pool) : 0;
	double secs;

	if (rate <= 0)
		return 1;
	secs = (pool_waiting(pool) + 1) / rate;
	return secs <= 1 ? 1 : (unsigned)MIN(secs + 0.999, RETRY_AFTER_MAX_SECS);
}
