/*
 * A request's share of body_memory. See budget.h.
 */
#include "proxy/budget.h"

#include "base/metric.h"

bool budget_hold(struct budget *b, size_t n)
{
	uint64_t before = atomic_fetch_add_explicit(b->total, n, memory_order_relaxed);

	metric_add(METRIC_BODY_MEMORY, (int64_t)n);
	b->held += n;
	return before + n <= b->limit;
}

void budget_let_go(struct budget *b, size_t n)
{
	assert(b->held >= n);
	if (n == 0)
		return;
	b->held -= n;
	atomic_fetch_sub_explicit(b->total, n, memory_order_relaxed);
	metric_add(METRIC_BODY_MEMORY, -(int64_t)n);
}
