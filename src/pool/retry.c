/*
 * The retry budget and the back-off. See retry.h.
 */
#include "pool/retry.h"

#include <string.h>

static void advance(struct retry_budget *b, uint64_t now_ms)
{
	uint64_t now = now_ms / (RETRY_WINDOW_MS / RETRY_BUCKETS);

	if (now <= b->bucket)
		return;
	if (now - b->bucket >= RETRY_BUCKETS) {
		memset(b->counts, 0, sizeof(b->counts));
		b->bucket = now;
	}
	while (b->bucket < now) {
		b->bucket++;
		memset(&b->counts[b->bucket % RETRY_BUCKETS], 0, sizeof(b->counts[0]));
	}
}

void retry_count_request(struct retry_budget *b, uint64_t now_ms)
{
	advance(b, now_ms);
	b->counts[b->bucket % RETRY_BUCKETS].requests++;
}

bool retry_take(struct retry_budget *b, double percent, uint64_t now_ms)
{
	uint64_t requests = 0, retries = 0;
	double allowed;
	unsigned i;

	advance(b, now_ms);
	for (i = 0; i < RETRY_BUCKETS; i++) {
		requests += b->counts[i].requests;
		retries += b->counts[i].retries;
	}
	allowed = percent <= 0 ? 0 : (double)requests * percent / 100 + RETRY_MIN;
	if ((double)retries + 1 > allowed)
		return false;
	b->counts[b->bucket % RETRY_BUCKETS].retries++;
	return true;
}

uint64_t retry_backoff_ms(unsigned n, struct rng *rng)
{
	uint64_t most = RETRY_BACKOFF_MS;

	if (n <= 1)
		return 0;
	while (--n > 1 && most < RETRY_BACKOFF_MAX_MS)
		most *= 2;
	most = MIN(most, (uint64_t)RETRY_BACKOFF_MAX_MS);
	return (uint64_t)((double)most * (0.5 + 0.5 * rng_unit(rng)));
}
