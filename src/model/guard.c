/*
 * Takes and drops one in-flight slot; the only writer of worker->load. See guard.h.
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
	g->worker = w;
}

void guard_drop(struct guard *g)
{
	struct worker *w = g->worker;
	unsigned before;

	if (w == NULL)
		return;
	g->worker = NULL;
	before = atomic_fetch_sub_explicit(&w->load, 1, memory_order_relaxed);
	assert(before > 0);
	metric_inc(METRIC_GUARDS_DROPPED);
	worker_unref(w);
}
