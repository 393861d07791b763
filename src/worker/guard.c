/*
 * Takes and drops one in-flight slot; the only writer of load, queued_blocks and streams
 * in a worker's guard part. See guard.h.
 */
#include "worker/guard.h"

#include "base/metric.h"
#include "worker/breaker.h"
#include "worker/worker.h"

void guard_take(struct guard *g, struct worker *w)
{
	assert(g->worker == NULL);
	worker_ref(w);
	atomic_fetch_add_explicit(&w->guard.load, 1, memory_order_relaxed);
	metric_inc(METRIC_GUARDS_TAKEN);
	*g = (struct guard){.worker = w};
}

void guard_try(struct guard *g, uint32_t tenant, uint64_t now_ms)
{
	g->ticket = breaker_begin(&g->worker->breaker, tenant, now_ms);
}

void guard_hold(struct guard *g, struct slots *s)
{
	assert(g->worker != NULL && g->slots == NULL);
	g->slots = s;
}

void guard_queue(struct guard *g, uint32_t blocks)
{
	assert(g->worker != NULL && g->queued == 0 && !g->is_stream);
	if (blocks == 0)
		return;
	g->queued = blocks;
	atomic_fetch_add_explicit(
		&g->worker->guard.queued_blocks, blocks, memory_order_relaxed);
}

static void leave_queue(struct guard *g)
{
	uint64_t before;

	if (g->queued == 0)
		return;
	before = atomic_fetch_sub_explicit(
		&g->worker->guard.queued_blocks, g->queued, memory_order_relaxed);
	assert(before >= g->queued);
	(void)before;
	g->queued = 0;
}

void guard_prefilled(struct guard *g)
{
	if (g->worker == NULL || g->is_stream)
		return;
	leave_queue(g);
	atomic_fetch_add_explicit(&g->worker->guard.streams, 1, memory_order_relaxed);
	g->is_stream = true;
}

void guard_streams(struct guard *g, uint64_t now_ms)
{
	if (g->worker == NULL || g->is_stream)
		return;
	pace_end(&g->worker->guard.pace, g->queued, now_ms);
	guard_prefilled(g);
}

static void leave_streams(struct guard *g)
{
	unsigned before;

	if (!g->is_stream)
		return;
	before = atomic_fetch_sub_explicit(
		&g->worker->guard.streams, 1, memory_order_relaxed);
	assert(before > 0);
	(void)before;
	g->is_stream = false;
}

enum breaker_change guard_report(struct guard *g, enum outcome o, uint64_t now_ms)
{
	if (g->worker == NULL || g->is_reported)
		return BREAKER_SAME;
	g->is_reported = true;
	return breaker_report(&g->worker->breaker, o, &g->ticket, now_ms);
}

static void count_time(
	struct worker *w, enum latency_kind kind, uint64_t from_us, uint64_t to_us)
{
	latency_add(&w->latency, kind, to_us > from_us ? to_us - from_us : 0);
}

void guard_time(struct guard *g, uint64_t now_us)
{
	if (g->worker == NULL || g->began_us == 0)
		return;
	if (g->content_us != 0)
		count_time(g->worker, LATENCY_TTFT, g->began_us, g->content_us);
	count_time(g->worker, LATENCY_WHOLE, g->began_us, now_us);
	g->began_us = 0;
}

bool slots_are_taken(const struct slots *s, unsigned max)
{
	return s != NULL && atomic_load(&s->taken) >= max;
}

bool slots_take(struct slots *s, unsigned max)
{
	if (atomic_fetch_add(&s->taken, 1) < max)
		return true;
	atomic_fetch_sub(&s->taken, 1);
	return false;
}

void slots_give(struct slots *s)
{
	unsigned before = atomic_fetch_sub(&s->taken, 1);

	assert(before > 0);
	(void)before;
}

struct slots *guard_let_go(struct guard *g)
{
	struct slots *s = g->slots;

	g->slots = NULL;
	return s;
}

static void give_slot_back(struct guard *g)
{
	if (g->slots != NULL)
		slots_give(guard_let_go(g));
}

/* Sequentially consistent: who waits for this has either seen it, or is seen by the look
 * for waiters that follows (pool_wait.c). */
void guard_drop(struct guard *g)
{
	struct worker *w = g->worker;
	unsigned before;

	if (w == NULL)
		return;
	guard_report(g, OUTCOME_NEUTRAL, 0);
	leave_queue(g);
	leave_streams(g);
	g->worker = NULL;
	before = atomic_fetch_sub(&w->guard.load, 1);
	assert(before > 0);
	give_slot_back(g);
	metric_inc(METRIC_GUARDS_DROPPED);
	worker_unref(w);
}
