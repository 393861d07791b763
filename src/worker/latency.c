/*
 * How long a worker takes. See latency.h. Written by guard.c; read by control.
 */
#include "worker/latency.h"

#define MINUTE_MS 60000

/* Renard's series R10: each about 1.26 times the one before, with 1, 2.5 and 5 in it. */
#define DECADE(unit)                                                           \
	10 * (unit), 125 * (unit) / 10, 16 * (unit), 20 * (unit), 25 * (unit), \
		315 * (unit) / 10, 40 * (unit), 50 * (unit), 63 * (unit), 80 * (unit)

static const uint64_t bounds_us[] = {
	DECADE(UINT64_C(10)),
	DECADE(UINT64_C(100)),
	DECADE(UINT64_C(1000)),
	DECADE(UINT64_C(10000)),
	DECADE(UINT64_C(100000)),
	DECADE(UINT64_C(1000000)),
	DECADE(UINT64_C(10000000)),
	UINT64_C(1000000000),
};
static_assert(ARRAY_LEN(bounds_us) == LATENCY_BOUNDS, "as the header says");

uint64_t latency_bound_us(unsigned bucket)
{
	assert(bucket < LATENCY_BOUNDS);
	return bounds_us[bucket];
}

unsigned latency_bucket(uint64_t us)
{
	unsigned from = 0, to = LATENCY_BOUNDS;

	while (from < to) {
		unsigned mid = (from + to) / 2;

		if (us > bounds_us[mid])
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

void latency_add(struct latency *l, enum latency_kind kind, uint64_t us)
{
	atomic_fetch_add_explicit(
		&l->buckets[kind][latency_bucket(us)], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&l->sum_us[kind], us, memory_order_relaxed);
}

void latency_roll(struct latency_window *w, const struct latency *l, uint64_t now_ms)
{
	unsigned kind, i;

	if (w->newer_ms != 0 && now_ms < w->newer_ms + MINUTE_MS)
		return;
	w->older = w->newer;
	w->newer_ms = now_ms;
	for (kind = 0; kind < LATENCY_KINDS; kind++)
		for (i = 0; i < LATENCY_BUCKETS; i++)
			w->newer.buckets[kind][i] = atomic_load_explicit(
				&l->buckets[kind][i], memory_order_relaxed);
}

/* Within its bucket it lies as if those in there were spread evenly. */
static uint64_t quantile_us(const uint64_t counts[LATENCY_BUCKETS], uint64_t n, double at)
{
	double rank = at * (double)n, seen = 0;
	unsigned i = 0;
	double from, part;

	while (i < LATENCY_BOUNDS && seen + (double)counts[i] < rank)
		seen += (double)counts[i++];
	if (i == LATENCY_BOUNDS)
		return bounds_us[LATENCY_BOUNDS - 1];
	from = i > 0 ? (double)bounds_us[i - 1] : 0;
	part = counts[i] > 0 ? (rank - seen) / (double)counts[i] : 1;
	return (uint64_t)(from + ((double)bounds_us[i] - from) * part);
}

struct latency_figures latency_recent(
	const struct latency *l, const struct latency_window *w, enum latency_kind kind)
{
	struct latency_figures f = {0};
	uint64_t counts[LATENCY_BUCKETS];
	unsigned i;

	for (i = 0; i < LATENCY_BUCKETS; i++) {
		counts[i] =
			atomic_load_explicit(&l->buckets[kind][i], memory_order_relaxed) -
			w->older.buckets[kind][i];
		f.n += counts[i];
	}
	if (f.n == 0)
		return f;
	f.p50_us = quantile_us(counts, f.n, 0.5);
	f.p99_us = quantile_us(counts, f.n, 0.99);
	return f;
}
