/*
 * Adds and removes workers. See worker_change.h. Called by admin_workers.c and
 * router_calls.c.
 */
#include "control/worker_change.h"

#include "base/err.h"
#include "base/log.h"
#include "pool/site.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

/* Another worker with its name, or with its URL in its role. */
static bool is_taken(
	const struct site *site, const struct worker_conf *wc, char *why, size_t n)
{
	const struct worker *w;
	size_t i, j;

	for (i = 0; i < site->n_pools; i++) {
		for (j = 0; (w = pool_worker_at(site->pools[i], j)) != NULL; j++) {
			bool same_name = worker_has_name(w, span_str(wc->name));
			bool same_url = w->role == wc->role &&
					strcmp(w->url.text, wc->url.text) == 0;

			if (!same_name && !same_url)
				continue;
			snprintf(why, n,
				same_name ? "there is a worker %s already"
					  : "worker %s has this URL and role already",
				w->name);
			return true;
		}
	}
	return false;
}

enum worker_added worker_change_add(
	const struct site *site, const struct worker_conf *wc, char *why, size_t n)
{
	struct pool *pool = site_pool(site, span_str(wc->pool));
	int err;

	if (is_taken(site, wc, why, n))
		return WORKER_IS_TAKEN;
	if (pool == NULL) {
		snprintf(why, n, "there is no pool %s", wc->pool);
		return WORKER_HAS_NO_POOL;
	}
	err = pool_add_worker(pool, wc);
	if (err == ERR_EXISTS) {
		snprintf(why, n, "a worker is called like one of its ranks");
		return WORKER_IS_TAKEN;
	}
	if (err != 0) {
		snprintf(why, n, "out of memory");
		return WORKER_NO_MEMORY;
	}
	log_notice("worker %s added: %s, pool %s", wc->name, wc->url.text, wc->pool);
	return WORKER_ADDED;
}

void worker_change_remove(struct pool *pool, struct worker *w)
{
	worker_ref(w); /* its name is read while the pool lets it go */
	log_notice("worker %s removed, %u requests in flight", w->name, worker_load(w));
	if (pool_remove_worker(pool, span_str(w->name)) != 0)
		log_error("worker %s could not be removed", w->name);
	worker_unref(w);
}
