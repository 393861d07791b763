/*
 * The worker that a client insists on. See pin.h.
 */
#include "proxy/pin.h"

#include "base/base.h"
#include "model/pool.h"

void pin_read(struct span worker, struct span rank, struct pool_ask *ask)
{
	uint64_t n;

	ask->pinned = worker;
	if (rank.n == 0)
		return;
	ask->is_rank_pinned = true;
	if (span_to_u64(rank, &n) != 0 || n > UINT32_MAX)
		n = UINT32_MAX;
	ask->pinned_rank = (uint32_t)n;
}
