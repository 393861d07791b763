/*
 * When requests arrive in an open loop: microseconds after the start, never falling. At a
 * constant rate, or as a Poisson process (exponential gaps) that a seed fixes. Pure.
 */
#ifndef BENCH_ARRIVAL_H
#define BENCH_ARRIVAL_H

#include "base/rng.h"

enum arrival_kind { ARRIVAL_POISSON, ARRIVAL_CONSTANT };

struct arrival {
	enum arrival_kind kind;
	double rate; /* a second; above 0 */
	uint64_t n;  /* so far */
	double at_us;
	struct rng rng;
};

void arrival_start(struct arrival *a, enum arrival_kind kind, double rate, uint64_t seed);
/* The next one. The first of a constant rate is at 0. */
uint64_t arrival_next(struct arrival *a);

#endif
