/*
 * A small fast generator (xoshiro256**, D. Blackman and S. Vigna, public domain
 * algorithm) for ties, jitter and request ids.
 * Not for secrets: rng_secret() asks the kernel. Each user owns its state; not locked.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include "base/base.h"

struct rng {
	uint64_t s[4];
};

/* Deterministic for a seed (splitmix64 expansion). */
void rng_seed(struct rng *r, uint64_t seed);
uint64_t rng_next(struct rng *r);
/* Uniform in [0, n), n > 0, without modulo bias. */
uint64_t rng_below(struct rng *r, uint64_t n);
/* Uniform in [0, 1). */
double rng_unit(struct rng *r);
/* Fills from getrandom(2); aborts if the kernel has none. */
void rng_secret(void *out, size_t n);

#endif
