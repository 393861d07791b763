/*
 * Calls that pass through to an engine and leave its prefix cache empty or stale: a
 * flush, new weights. The pool then forgets what it believed of its workers' caches.
 */
#ifndef PROXY_CACHE_DROP_H
#define PROXY_CACHE_DROP_H

#include "base/span.h"

struct pool;

/* The call of path (its verdict: drops_caches) was answered with 2xx by a worker of p. */
void cache_drop_note(struct pool *p, struct span path);

#endif
