/*
 * The pace at which a worker computes prompts, learned from the first tokens of its
 * responses. It tells how many of the queued blocks are computed by now. Without it a
 * prompt of a minute counts in full until its last second.
 *
 * A worker that is late is not assumed to be nearly done: blocks that should have taken
 * half as long count in full again. So do the blocks of a worker of which nothing is
 * known. Any thread may write and read; a reader may see a time and a pace that do not
 * belong together, which is a small error once. Pure: the time is an argument, in ms; a
 * step back counts as none. Zeroed knows nothing.
 */
#ifndef WORKER_PACE_H
#define WORKER_PACE_H

#include "base/base.h"

struct pace {
	_Atomic uint64_t since_ms; /* what is computed now began, about */
	_Atomic uint64_t seen;     /* blocks and ms of late, two floats */
};

/* The first request after none was queued. */
void pace_begin(struct pace *p, uint64_t now_ms);
/* A prompt has been computed, of which `blocks` were not held: its first token came. */
void pace_end(struct pace *p, uint64_t blocks, uint64_t now_ms);
/* How many of the queued blocks are computed by now; at most all of them. */
uint64_t pace_done(const struct pace *p, uint64_t queued, uint64_t now_ms);

#endif
