/*
 * A worker that serves a request. See placement.h.
 */
#include "proxy/placement.h"

#include "proxy/admission.h"
#include "proxy/upstream.h"

void placement_withdraw(
	struct placement *p, struct pool *pool, const struct route_key *key)
{
	if (!p->is_confirmed && key != NULL)
		pool_withdraw(pool, key, &p->pick.insertion);
	p->pick.insertion.stamp = 0;
}

void placement_drop(struct placement *p, struct io_thread *t, struct pool *pool)
{
	if (p->guard.worker == NULL)
		return;
	guard_drop(&p->guard);
	admission_freed(t, pool);
}

void placement_leave(struct placement *p, struct io_thread *t, struct pool *pool,
	const struct route_key *key)
{
	exchange_cancel(&p->ex);
	if (pool != NULL)
		placement_withdraw(p, pool, key);
	placement_drop(p, t, pool);
}
