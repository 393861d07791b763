/*
 * Values to buckets and back. See histogram.h. Called by tally.c and report.c.
 */
#include "bench/histogram.h"

#include <math.h>

#define EXACT 256u /* values below have a bucket each */
#define HALF 128u  /* buckets for each power of two above */

static size_t bucket_of(uint64_t value)
{
	unsigned shift;

	if (value < EXACT)
		return (size_t)value;
	shift = 63 - (unsigned)__builtin_clzll(value) - 7;
	return EXACT + (shift - 1) * HALF + (size_t)((value >> shift) - HALF);
}

static uint64_t bucket_end(size_t bucket)
{
	unsigned shift;
	uint64_t top;

	if (bucket < EXACT)
		return bucket;
	shift = (unsigned)((bucket - EXACT) / HALF) + 1;
	top = (bucket - EXACT) % HALF + HALF;
	return ((top + 1) << shift) - 1;
}

void histogram_add(struct histogram *h, uint64_t value)
{
	value = MIN(value, (UINT64_C(1) << HISTOGRAM_BITS) - 1);
	h->counts[bucket_of(value)]++;
	h->min = h->n == 0 ? value : MIN(h->min, value);
	h->max = MAX(h->max, value);
	h->sum += (double)value;
	h->n++;
}

uint64_t histogram_at(const struct histogram *h, double part)
{
	uint64_t rank = (uint64_t)ceil(part * (double)h->n), seen = 0;

	rank = MAX(rank, 1u);
	for (size_t i = 0; i < ARRAY_LEN(h->counts) && h->n > 0; i++) {
		seen += h->counts[i];
		if (seen >= rank)
			return MIN(bucket_end(i), h->max);
	}
	return h->max;
}

double histogram_mean(const struct histogram *h)
{
	return h->n > 0 ? h->sum / (double)h->n : 0;
}
