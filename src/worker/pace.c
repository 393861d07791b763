/*
 * The pace of a worker. See pace.h. Called by guard.c and pool_pick.c.
 *
 * Prompts that end together are counted together: blocks are summed, and the time between
 * ends, so that the pace is right however many a worker computes at once.
 */
#include "worker/pace.h"

#include <stdatomic.h>

#define KEEP 0.9f /* of what was seen, with each prompt: about the last ten count */
#define LATE 2    /* times as long as it should take */

union seen {
	uint64_t word;
	struct {
		float blocks, ms;
	};
};

static uint64_t since(const struct pace *p, uint64_t now_ms)
{
	uint64_t from = atomic_load_explicit(&p->since_ms, memory_order_relaxed);

	return now_ms > from ? now_ms - from : 0;
}

void pace_begin(struct pace *p, uint64_t now_ms)
{
	atomic_store_explicit(&p->since_ms, now_ms, memory_order_relaxed);
}

void pace_end(struct pace *p, uint64_t blocks, uint64_t now_ms)
{
	uint64_t took_ms = since(p, now_ms);
	union seen was, is;

	was.word = atomic_load_explicit(&p->seen, memory_order_relaxed);
	do {
		is.blocks = was.blocks * KEEP + (float)blocks;
		is.ms = was.ms * KEEP + (float)took_ms;
	} while (!atomic_compare_exchange_weak_explicit(&p->seen, &was.word, is.word,
		memory_order_relaxed, memory_order_relaxed));
	pace_begin(p, now_ms);
}

uint64_t pace_done(const struct pace *p, uint64_t queued, uint64_t now_ms)
{
	union seen seen = {.word = atomic_load_explicit(&p->seen, memory_order_relaxed)};
	double done;

	if (queued == 0 || seen.ms < 1)
		return 0;
	done = (double)seen.blocks / (double)seen.ms * (double)since(p, now_ms);
	if (done > LATE * (double)queued)
		return 0;
	return MIN((uint64_t)done, queued);
}
