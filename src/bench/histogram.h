/*
 * Counts of values in buckets whose width grows with the value (as HdrHistogram's): exact
 * below 256, and within 1/128 of the value above. For microseconds up to twelve days;
 * larger values count as that. Pure.
 */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include "base/base.h"

#define HISTOGRAM_BITS 40 /* values are below 2^40 */
#define HISTOGRAM_BUCKETS (256 + (HISTOGRAM_BITS - 8) * 128)

struct histogram {
	uint64_t counts[HISTOGRAM_BUCKETS];
	uint64_t n, min, max; /* min and max are exact; 0 while n is 0 */
	double sum;
};

/* All zero is an empty one. */
void histogram_add(struct histogram *h, uint64_t value);
/*
 * The smallest bucket's upper end that at least `part` (0 to 1) of the values do not
 * exceed, but never more than the maximum; 0 for an empty histogram.
 */
uint64_t histogram_at(const struct histogram *h, double part);
double histogram_mean(const struct histogram *h); /* 0 for an empty one */

#endif
