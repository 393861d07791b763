/*
 * The worker that a client insists on. See pin.h.
 */
#include "proxy/pin.h"

#include "base/base.h"
#include "http/http_head.h"
#include "pool/pool.h"

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

void pin_read_head(const char *base, const struct http_head *head, struct pool_ask *ask)
{
	pin_read(http_head_value(base, head, SPAN_LIT("x-kvsteer-worker")),
		http_head_value(base, head, SPAN_LIT("x-data-parallel-rank")), ask);
}
