/*
 * What loading an adapter counts as. See adapter_cost.h.
 */
#include "pool/adapter_cost.h"

#include "policy/policy.h"
#include "route/route_key.h"
#include "worker/worker.h"

#include <limits.h>

/* It counts as so many requests that come before this one; so many more may an adapter's
 * worker have until another one loads it, too. Twice as many where one must go for it,
 * whose own requests then wait. */
static const unsigned counts[ADAPTER_STATE_MAX] = {
	[ADAPTER_READY] = 0,
	[ADAPTER_FREE] = 2,
	[ADAPTER_WAITS] = 3,
	[ADAPTER_CROWDED] = 4,
};
/* Each of them as a prompt of so many tokens: some tenths of a second, as loading takes. */
#define LOADING_TOKENS 1024

void adapter_cost(struct pick_input *in, uint64_t adapter, unsigned block)
{
	unsigned i;

	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];
		unsigned n = counts[adapters_state(&c->worker->pool.adapters, adapter)];

		c->load = MIN(c->load, UINT_MAX - n) + n;
		c->queued += (uint64_t)n * LOADING_TOKENS * TOKEN_BYTES / MAX(block, 1u);
	}
}
