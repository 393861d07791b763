/*
 * Takes and drops one in-flight slot; the only writer of worker->load, ->queued_blocks
 * and ->streams. See guard.h.
 */
#include "model/guard.h"

#include "base/metric.h"
#include "model/worker.h"

void guard_take(struct guard *g, struct worker *w)
{
	assert(g->worker == NULL);
	worker_ref(w);
	atomic_fetch_add_explicit(&w->load, 1, memory_order_relaxed);
	metric_inc(METRIC_GUARDS_TAKEN);
	*g = (struct guard){.worker = w};
}

void guard_queue(struct guard *g, uint32_t blocks)
{
	assert(g->worker != NULL && g->queued == 0 && !g->is_stream);
	if (blocks == 0)
		return;
	g->queued = blocks;
	atomic_fetch_add_explicit(
		&g->worker->queued_blocks, blocks, memory_order_relaxed);
}

static void leave_queue(struct guard *g)
{
	uint64_t before;

	if (g->queued == 0)
		return;
	before = atomic_fetch_sub_explicit(
		&g->worker->queued_blocks, g->queued, memory_order_relaxed);
	assert(before >= g->queued);
	(void)before;
	g->queued = 0;
}

void guard_prefilled(struct guard *g)
{
	if (g->worker == NULL || g->is_stream)
		return;
	leave_queue(g);
	atomic_fetch_add_explicit(&g->worker->streams, 1, memory_order_relaxed);
	g->is_stream = true;
}

void guard_streams(struct guard *g, uint64_t now_ms)
{
	if (g->worker == NULL || g->is_stream)
		return;
	pace_end(&g->worker->pace, g->queued, now_ms);
	guard_prefilled(g);
}

static void leave_streams(struct guard *g)
{
	unsigned before;

	if (!g->is_stream)
		return;
	before = atomic_fetch_sub_explicit(&g->worker->streams, 1, memory_order_relaxed);
	assert(before > 0);
	(void)before;
	g->is_stream = false;
}

void guard_drop(struct guard *g)
{
	struct worker *w = g->worker;
	unsigned before;

	if (w == NULL)
		return;
	leave_queue(g);
	leave_streams(g);
	g->worker = NULL;
	before = atomic_fetch_sub_explicit(&w->load, 1, memory_order_relaxed);
	assert(before > 0);
	metric_inc(METRIC_GUARDS_DROPPED);
	worker_unref(w);
}
