/*
 * A sum that fades: an amount that was added halves with each half-life. Pure: the time
 * is an argument, in ms, and may stand still; a step back counts as none. Zeroed is
 * empty. The pool's lock guards those of workers.
 */
#ifndef WORKER_DECAY_H
#define WORKER_DECAY_H

#include "base/base.h"

struct decay {
	double sum; /* as of at_ms */
	uint64_t at_ms;
};

/* The rest of the sum at now_ms; less than a hundredth reads as 0. half_life_ms > 0. */
double decay_read(const struct decay *d, uint64_t half_life_ms, uint64_t now_ms);
void decay_add(struct decay *d, double amount, uint64_t half_life_ms, uint64_t now_ms);

#endif
