/*
 * Calls that pass through to an engine and leave its prefix cache empty or stale: a
 * flush, new weights. The pool then forgets what it believed of its workers' caches.
 */
#ifndef PROXY_CACHE_DROP_H
#define PROXY_CACHE_DROP_H

#include "base/span.h"

struct pool;
struct worker;

/* The call of path (its verdict: drops_caches) was answered with 2xx by w, a worker of p.
 * If there are others, it alone is forgotten. */
void cache_drop_note(struct pool *p, const struct worker *w, struct span path);

#endif
