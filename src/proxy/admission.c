/*
 * Caps, queue and last resort. See admission.h.
 *
 * What waits is a ticket, apart from its request: the letter that tells of a grant may
 * still be under way when the request has gone. A ticket is freed by its owner, or by the
 * letter where one was posted and has not come yet; both on the owner's thread.
 */
#include "proxy/admission.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/metric.h"
#include "io/mailbox.h"
#include "policy/routing_key.h"
#include "pool/priority.h"
#include "proxy/client_key.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"

#include <stdlib.h>

#define RETRY_AFTER_MAX_SECS 60

struct ticket {
	struct pool_waiter waiter;
	struct routing routing;
	struct request *owner; /* NULL: it has gone */
	struct io_thread *t;
	uint64_t due_ms;     /* 0: never */
	bool is_for_a_state; /* all were out, rather than full */
	bool is_counted;     /* in process->queued */
	bool is_posted;      /* a letter; under the pool's lock */
	bool has_come;       /* it was read */
};

static void on_letter(void *arg)
{
	struct ticket *k = arg;

	k->has_come = true;
	if (k->owner == NULL)
		free(k);
	else
		k->owner->c->run(k->owner->c);
}

/* Under the pool's lock. Without memory the deadline will find the grant. */
static void wake(struct pool_waiter *w)
{
	struct ticket *k = container_of(w, struct ticket, waiter);

	k->is_posted = mailbox_post(k->t->mailbox, on_letter, k) == 0;
}

static void drop_ticket(struct request *r)
{
	struct ticket *k = r->ticket;

	r->ticket = NULL;
	k->owner = NULL;
	if (!k->is_posted || k->has_come)
		free(k);
}

/* ---- who may wait ---- */

static uint64_t no_worker_wait_ms(const struct request *r)
{
	return pool_no_worker_wait_ms(r->pool, pd_role(r));
}

/* Not one that wants the worker that has its response, which is out; nor one that was
 * failed by others: their answer is at hand. */
static bool wants_any(const struct request *r, const struct pool_ask *ask)
{
	return pd_n_failed(r) == 0 && !pool_ask_is_pinned(ask) && ask->home == 0;
}

/* Asked under the pool's lock, by the thread of the request. */
static bool may_wait(void *arg, int err)
{
	struct ticket *k = arg;
	struct process *process = k->t->process;
	const struct request *r = k->owner;

	k->is_for_a_state = err == ERR_STATE;
	/* A pinned worker is there or not. */
	if (pool_ask_is_pinned(&k->waiter.ask))
		return false;
	if (k->is_for_a_state &&
		(!wants_any(r, &k->waiter.ask) || no_worker_wait_ms(r) == 0 ||
			pd_skips_at_once(r)))
		return false;
	/* Before the last look for a free worker: see pool_wait.c. One that has begun is
	 * not sent away. */
	k->is_counted = atomic_fetch_add(&process->queued, 1) < opts(r)->queue_size ||
			pd_is_begun(r);
	if (!k->is_counted)
		atomic_fetch_sub(&process->queued, 1);
	return k->is_counted;
}

static void uncount(struct ticket *k)
{
	if (k->is_counted)
		atomic_fetch_sub(&k->t->process->queued, 1);
	k->is_counted = false;
}

static void begin_wait(struct request *r)
{
	struct ticket *k = r->ticket;
	uint64_t wait_ms =
		k->is_for_a_state ? no_worker_wait_ms(r) : opts(r)->queue_timeout_ms;

	k->due_ms = wait_ms == 0 ? 0 : clock_now_ms() + wait_ms;
	/* What it sends meanwhile of a body that goes on as it comes is read after the
	 * wait, and so is a FIN in its middle; that it has broken off is noticed at once.
	 */
	if (r->upload.is_on) {
		r->upload.awaits_client = false;
		stream_pause(&r->c->stream);
	}
	metric_add(METRIC_QUEUE_DEPTH, 1);
}

/* True: it was granted. */
static bool end_wait(struct request *r)
{
	bool is_granted = pool_wait_end(r->pool, &r->ticket->waiter);

	uncount(r->ticket);
	metric_add(METRIC_QUEUE_DEPTH, -1);
	return is_granted;
}

static enum priority priority_of(const struct request *r)
{
	enum priority p;

	if (pd_is_begun(r))
		return PRIORITY_BEGUN;
	if (client_key_priority(r, &p))
		return p;
	return priority_read(&opts(r)->priority_headers, r->c->buf, &r->head);
}

/* ---- asking ---- */

static struct ticket *new_ticket(
	struct request *r, const struct pool_ask *ask, const struct routing *routing)
{
	struct ticket *k = calloc(1, sizeof(*k));

	if (k == NULL)
		return NULL;
	k->owner = r;
	k->t = r->t;
	k->waiter.ask = *ask;
	if (ask->routing != NULL) {
		k->routing = *routing;
		k->waiter.ask.routing = &k->routing;
	}
	k->waiter.guard = &r->guard;
	k->waiter.pick = &r->pick;
	k->waiter.wake = wake;
	return k;
}

static int last_resort(struct request *r)
{
	struct pool_ask ask = r->ticket->waiter.ask;

	if (pd_can_skip(r))
		return ERR_STATE;
	ask.is_last_resort = true;
	ask.now_ms = clock_now_ms();
	return pool_pick(r->pool, &ask, &r->guard, &r->pick);
}

/* Asks with the ticket; drops it unless it waits. */
static int ask_or_wait(struct request *r)
{
	struct ticket *k = r->ticket;
	int err = pool_pick_or_wait(r->pool, &k->waiter, priority_of(r), may_wait, k);

	if (err == ERR_AGAIN) {
		begin_wait(r);
		return ERR_AGAIN;
	}
	uncount(k);
	if (err == ERR_STATE && wants_any(r, &k->waiter.ask))
		err = last_resort(r);
	else if (pool_ask_is_pinned(&k->waiter.ask) && err == ERR_LIMIT)
		err = ERR_STATE;
	drop_ticket(r);
	return err;
}

int admission_ask(
	struct request *r, const struct pool_ask *asked, const struct routing *routing)
{
	struct pool_ask ask = *asked;
	int err = ERR_LIMIT;

	ask.slots = pd_has_slot(r) ? NULL : &r->t->process->slots;
	ask.max_slots = opts(r)->max_concurrent_requests;
	/* The usual case: nobody waits, and a worker is there. */
	if (pool_waiting(r->pool) == 0)
		err = pool_pick(r->pool, &ask, &r->guard, &r->pick);
	if (err != ERR_LIMIT && err != ERR_STATE)
		return err;
	r->ticket = new_ticket(r, &ask, routing);
	return r->ticket != NULL ? ask_or_wait(r) : ERR_NOMEM;
}

bool admission_is_waiting(const struct request *r)
{
	return r->ticket != NULL;
}

/* All were out for the whole wait: the least bad one, and behind others if it is full. */
static int after_no_worker_wait(struct request *r)
{
	int err = last_resort(r);

	if (err == ERR_LIMIT) {
		r->ticket->waiter.ask.is_last_resort = true;
		r->ticket->waiter.ask.now_ms = clock_now_ms();
		return ask_or_wait(r);
	}
	drop_ticket(r);
	return err;
}

int admission_resume(struct request *r)
{
	struct ticket *k = r->ticket;
	bool is_due = k->due_ms != 0 && clock_now_ms() >= k->due_ms;

	/* It is run for other reasons, too. */
	if (!is_due && !k->has_come)
		return ERR_AGAIN;
	if (end_wait(r)) {
		drop_ticket(r);
		return 0;
	}
	assert(is_due);
	if (k->is_for_a_state)
		return after_no_worker_wait(r);
	drop_ticket(r);
	return ERR_TIMEOUT;
}

uint64_t admission_deadline_ms(const struct request *r)
{
	return r->ticket != NULL ? r->ticket->due_ms : 0;
}

void admission_leave(struct request *r)
{
	if (r->ticket == NULL)
		return;
	end_wait(r); /* a guard that came with a grant is dropped with r */
	drop_ticket(r);
}

void admission_freed(struct request *r)
{
	uint64_t now_ms;
	size_t i;

	if (atomic_load(&r->t->process->queued) == 0)
		return;
	now_ms = clock_now_ms();
	pool_serve(r->pool, now_ms);
	/* A slot of the process may be what others wait for. */
	for (i = 0; i < r->site->n_pools; i++)
		pool_serve(r->site->pools[i], now_ms);
}

unsigned admission_retry_after_secs(const struct request *r)
{
	double rate = r->pool != NULL ? pool_finish_rate(r->pool) : 0;
	double secs;

	if (rate <= 0)
		return 1;
	secs = (pool_waiting(r->pool) + 1) / rate;
	return secs <= 1 ? 1 : (unsigned)MIN(secs + 0.999, RETRY_AFTER_MAX_SECS);
}
