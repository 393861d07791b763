/*
 * xoshiro256** 1.0 (D. Blackman and S. Vigna), seeded by splitmix64, and the kernel's
 * bytes for secrets.
 * A generator's state is never all zero once rng_seed() has run. Not locked: each user
 * has its own.
 */
#include "base/rng.h"
#include "base/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

static uint64_t rotate_left(uint64_t x, int k)
{
	return x << k | x >> (64 - k);
}

void rng_seed(struct rng *r, uint64_t seed)
{
	for (size_t i = 0; i < ARRAY_LEN(r->s); i++) {
		r->s[i] = hash_mix64(seed, 0); /* one step of splitmix64 */
		seed += 0x9e3779b97f4a7c15ULL;
	}
}

uint64_t rng_next(struct rng *r)
{
	uint64_t *s = r->s;
	uint64_t result = rotate_left(s[1] * 5, 7) * 9;
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate_left(s[3], 45);
	return result;
}

/* D. Lemire, "Fast Random Integer Generation in an Interval" (2019). */
uint64_t rng_below(struct rng *r, uint64_t n)
{
	unsigned __int128 product;

	assert(n > 0);
	product = (unsigned __int128)rng_next(r) * n;
	if ((uint64_t)product < n) {
		uint64_t floor = -n % n;

		while ((uint64_t)product < floor)
			product = (unsigned __int128)rng_next(r) * n;
	}
	return (uint64_t)(product >> 64);
}

double rng_unit(struct rng *r)
{
	return (double)(rng_next(r) >> 11) * 0x1.0p-53;
}

void rng_secret(void *out, size_t n)
{
	unsigned char *p = out;

	while (n > 0) {
		ssize_t got = getrandom(p, n, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			abort();
		p += got;
		n -= (size_t)got;
	}
}
