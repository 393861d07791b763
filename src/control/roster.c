/*
 * Workers come and go. See roster.h.
 *
 * Where a worker is remembered, and who forgets it: its pool, its slot of the prefix index
 * and its sticky sessions (pool.c, before this is called), probes, reports, models and
 * samples of progress (health.c), idle connections (each I/O thread) and stored responses
 * (here). A request that is under way keeps its worker until it ends.
 */
#include "control/roster.h"

#include "control/control.h"
#include "control/threads.h"
#include "fleet/health.h"
#include "pool/response_map.h"

static int make_room(void *arg, size_t n)
{
	struct control *c = arg;

	return health_pool_ops.make_room(c->health, n);
}

static void on_worker_add(void *arg, struct pool *p, struct worker *w)
{
	struct control *c = arg;

	health_pool_ops.on_worker_add(c->health, p, w);
}

/* Another rank of its process is still there, and has the process's stored responses. */
static bool has_sibling(const struct pool *p, const struct worker *w)
{
	const struct worker *other;
	size_t i;

	for (i = 0; (other = pool_worker_at(p, i)) != NULL; i++) {
		if (other->host_id == w->host_id)
			return true;
	}
	return false;
}

static void on_worker_remove(void *arg, struct pool *p, struct worker *w)
{
	struct control *c = arg;

	health_pool_ops.on_worker_remove(c->health, p, w);
	threads_tidy(c->threads);
	if (!has_sibling(p, w))
		response_map_forget(c->process.responses, w->host_id);
}

const struct pool_ops roster_ops = {make_room, on_worker_add, on_worker_remove};
