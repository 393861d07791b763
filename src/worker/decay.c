/*
 * A sum that fades. See decay.h.
 */
#include "worker/decay.h"

#include <math.h>

#define LEAST 0.01

double decay_read(const struct decay *d, uint64_t half_life_ms, uint64_t now_ms)
{
	uint64_t age_ms = now_ms > d->at_ms ? now_ms - d->at_ms : 0;
	double left;

	assert(half_life_ms > 0);
	if (d->sum < LEAST) /* most workers, most of the time: no exponential */
		return 0;
	left = d->sum * exp2(-(double)age_ms / (double)half_life_ms);
	return left < LEAST ? 0 : left;
}

void decay_add(struct decay *d, double amount, uint64_t half_life_ms, uint64_t now_ms)
{
	d->sum = decay_read(d, half_life_ms, now_ms) + amount;
	d->at_ms = MAX(d->at_ms, now_ms);
}
