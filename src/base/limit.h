/*
 * The limits of one tenant: requests at a time, and requests in a period. Atomics
 * without a lock, shared by all threads and by the configurations that follow each other;
 * the limits themselves come with each call, since a reload may change them.
 *
 * The rate is a bucket that holds one period's worth, and fills evenly: `60/m` lets 60
 * pass at once, and then one each second. It is kept as the time at which the bucket will
 * be full again (the "generic cell rate algorithm").
 */
#ifndef BASE_LIMIT_H
#define BASE_LIMIT_H

#include "base/base.h"

#include <stdatomic.h>

#define LIMIT_RATE_MAX 1000000

struct limit {
	_Atomic unsigned active;
	_Atomic uint64_t full_ns; /* when the bucket is full again */
};

/* n requests each period; n 0: any number. */
struct limit_rate {
	unsigned n;
	uint64_t period_ms;
};

/* Takes one of max places (0: unlimited). ERR_LIMIT if all are taken. */
int limit_enter(struct limit *l, unsigned max) MUST_CHECK;
void limit_leave(struct limit *l);
/* Spends one request of the rate. ERR_LIMIT: none is left; *wait_us says when the next
 * is. */
int limit_spend(struct limit *l, const struct limit_rate *rate, uint64_t now_us,
	uint64_t *wait_us) MUST_CHECK;

#endif
