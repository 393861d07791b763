/*
 * Calls that leave an engine's prefix cache empty or stale. See cache_drop.h. Called by
 * request.c.
 */
#include "proxy/cache_drop.h"

#include "base/log.h"
#include "pool/pool.h"

void cache_drop_note(struct pool *p, struct span path)
{
	uint64_t generation = pool_bump_generation(p);

	log_notice("pool %s: generation %llu, after a call of " SPAN_FMT, pool_name(p),
		(unsigned long long)generation, SPAN_ARG(path));
}
