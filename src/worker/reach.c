/*
 * Whether connects to a worker succeed. See reach.h.
 */
#include "worker/reach.h"

struct reach_seen reach_look(const struct reach *r)
{
	return (struct reach_seen){
		.made = atomic_load(&r->made), .failed = atomic_load(&r->failed)};
}

bool reach_dial(struct reach *r, const struct reach_seen *seen, uint64_t now_ms)
{
	bool is_free = atomic_load(&r->made) != seen->made;
	unsigned before = atomic_load(&r->dialing);

	do {
		if (before >= REACH_DIALS && !is_free)
			return false;
	} while (!atomic_compare_exchange_weak(&r->dialing, &before, before + 1));
	if (before == 0)
		atomic_store(&r->since_ms, now_ms);
	return true;
}

bool reach_has_failed(const struct reach *r, const struct reach_seen *seen)
{
	return atomic_load(&r->failed) != seen->failed && reach_is_doubted(r);
}

bool reach_end(struct reach *r, enum dial_end end, uint64_t now_ms)
{
	bool is_news = false;
	unsigned before;

	if (end == DIAL_OK) {
		atomic_store(&r->since_ms, now_ms);
		atomic_fetch_add(&r->made, 1);
		reach_prove(r);
	}
	if (end == DIAL_FAILED) {
		is_news = !atomic_exchange(&r->is_doubted, true);
		atomic_fetch_add(&r->failed, 1);
	}
	/* Last: whoever takes the place knows what has come. */
	before = atomic_fetch_sub(&r->dialing, 1);
	assert(before > 0);
	(void)before;
	return is_news;
}

bool reach_prove(struct reach *r)
{
	return reach_is_doubted(r) && atomic_exchange(&r->is_doubted, false);
}

void reach_doubt(struct reach *r)
{
	atomic_store(&r->is_doubted, true);
}
