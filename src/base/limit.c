/*
 * Requests at a time, and requests in a period. See limit.h.
 */
#include "base/limit.h"

#include "base/err.h"

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define SLACK_NS (1000 * NS_PER_MS)

int limit_enter(struct limit *l, unsigned max)
{
	unsigned have = atomic_load_explicit(&l->active, memory_order_relaxed);

	do {
		if (max != 0 && have >= max)
			return ERR_LIMIT;
	} while (!atomic_compare_exchange_weak_explicit(
		&l->active, &have, have + 1, memory_order_acq_rel, memory_order_relaxed));
	return 0;
}

void limit_leave(struct limit *l)
{
	unsigned had = atomic_fetch_sub_explicit(&l->active, 1, memory_order_acq_rel);

	assert(had > 0);
	(void)had;
}

/* Rounded up: of what is refused, to the first microsecond at which it is not. */
static uint64_t ns_to_us(uint64_t ns)
{
	return (ns + NS_PER_US - 1) / NS_PER_US;
}

/* Never far emptier than empty: the rate that it was filled at may have been a slower
 * one. (A little, since threads read the clock one after the other.) */
static void settle(struct limit *l, uint64_t most_ns)
{
	uint64_t full_ns = atomic_load_explicit(&l->full_ns, memory_order_relaxed);

	while (full_ns > most_ns + SLACK_NS &&
		!atomic_compare_exchange_weak_explicit(&l->full_ns, &full_ns, most_ns,
			memory_order_relaxed, memory_order_relaxed))
		;
}

int limit_spend(struct limit *l, const struct limit_rate *rate, uint64_t now_us,
	uint64_t *wait_us)
{
	uint64_t now_ns = now_us * NS_PER_US, one_ns, most_ns, full_ns, next_ns;

	if (rate->n == 0)
		return 0;
	one_ns = rate->period_ms * NS_PER_MS / rate->n;
	most_ns = now_ns + one_ns * rate->n;
	settle(l, most_ns);
	full_ns = atomic_load_explicit(&l->full_ns, memory_order_relaxed);
	do {
		next_ns = MAX(full_ns, now_ns) + one_ns;
		if (next_ns > most_ns) {
			*wait_us = ns_to_us(next_ns - most_ns);
			return ERR_LIMIT;
		}
	} while (!atomic_compare_exchange_weak_explicit(&l->full_ns, &full_ns, next_ns,
		memory_order_relaxed, memory_order_relaxed));
	return 0;
}
