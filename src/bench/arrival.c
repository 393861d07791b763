/*
 * Arrival processes. See arrival.h. Called by run.c.
 */
#include "bench/arrival.h"

#include <math.h>

void arrival_start(struct arrival *a, enum arrival_kind kind, double rate, uint64_t seed)
{
	assert(rate > 0);
	*a = (struct arrival){.kind = kind, .rate = rate};
	rng_seed(&a->rng, seed);
}

uint64_t arrival_next(struct arrival *a)
{
	if (a->kind == ARRIVAL_CONSTANT)
		a->at_us = (double)a->n * 1e6 / a->rate; /* no error adds up */
	else
		a->at_us -= log(1 - rng_unit(&a->rng)) * 1e6 / a->rate;
	a->n++;
	return (uint64_t)a->at_us;
}
