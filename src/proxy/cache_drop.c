/*
 * Calls that leave an engine's prefix cache empty or stale. See cache_drop.h. Called by
 * request.c.
 */
#include "proxy/cache_drop.h"

#include "base/log.h"
#include "pool/pool.h"
#include "worker/worker.h"

void cache_drop_note(struct pool *p, const struct worker *w, struct span path)
{
	uint64_t generation;

	if (pool_has_hosts(p)) {
		pool_clear_host(p, w);
		log_notice(
			"worker %s: its cache counts as empty, after a call of " SPAN_FMT,
			w->group, SPAN_ARG(path));
		return;
	}
	generation = pool_bump_generation(p);
	log_notice("pool %s: generation %llu, after a call of " SPAN_FMT, pool_name(p),
		(unsigned long long)generation, SPAN_ARG(path));
}
