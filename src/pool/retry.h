/*
 * The retry budget of one pool: retries may be at most a share of the recent requests, so
 * that a fleet in trouble is not given its load twice. Pure, under the pool's lock.
 *
 * "Recent" is the last RETRY_WINDOW_MS, in RETRY_BUCKETS steps. Besides the share there
 * are RETRY_MIN in that time: where one of two workers dies, each of its requests is
 * worth a retry until the breaker opens, and those that were under way then: with the
 * default settings cb_failure_threshold (10), and what connect_timeout (2 s) keeps in
 * doubt, which is 110 within ten seconds at 50 requests a second that all prefer that
 * worker; the share of requests may be no help, since the first ones may meet it. Ten a
 * second are no storm for a fleet that fails as a whole (check_retry_fleet.c plays both).
 */
#ifndef POOL_RETRY_H
#define POOL_RETRY_H

#include "base/base.h"
#include "base/rng.h"

#define RETRY_WINDOW_MS 10000
#define RETRY_BUCKETS 10
#define RETRY_MIN 100
#define RETRY_BACKOFF_MS 20 /* before the second retry; the first goes at once */
#define RETRY_BACKOFF_MAX_MS 1000

struct retry_budget {
	uint64_t bucket; /* the number of the newest */
	struct {
		uint32_t requests, retries;
	} counts[RETRY_BUCKETS];
};

/* Counts a pick for a request that is no retry. */
void retry_count_request(struct retry_budget *b, uint64_t now_ms);
/* True, and counted, if one more retry is within `percent` of the recent requests and
 * RETRY_MIN. Always false with 0 percent. */
bool retry_take(struct retry_budget *b, double percent, uint64_t now_ms);
/*
 * The wait before retry number n (1: the first): none before the first, which
 * goes to another worker; then RETRY_BACKOFF_MS, doubled each time up to the maximum, of
 * which a random half to all is taken.
 */
uint64_t retry_backoff_ms(unsigned n, struct rng *rng);

#endif
