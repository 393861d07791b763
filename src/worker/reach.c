/*
 * Whether connects to a worker succeed. See reach.h.
 */
#include "worker/reach.h"

void reach_dial(struct reach *r, uint64_t now_ms)
{
	if (atomic_fetch_add(&r->dialing, 1) == 0)
		atomic_store(&r->since_ms, now_ms);
}

bool reach_end(struct reach *r, enum dial_end end, uint64_t now_ms)
{
	unsigned before = atomic_fetch_sub(&r->dialing, 1);

	assert(before > 0);
	(void)before;
	if (end == DIAL_OK) {
		atomic_store(&r->since_ms, now_ms);
		reach_prove(r);
	}
	return end == DIAL_FAILED && !atomic_exchange(&r->is_doubted, true);
}

bool reach_prove(struct reach *r)
{
	return reach_is_doubted(r) && atomic_exchange(&r->is_doubted, false);
}

void reach_doubt(struct reach *r)
{
	atomic_store(&r->is_doubted, true);
}
