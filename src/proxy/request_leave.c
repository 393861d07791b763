/*
 * A request leaves its workers: exchange, guard and what was noted of its prompt go; on two
 * workers, so do their KV blocks and bodies. See request_leave.h.
 */
#include "proxy/request_leave.h"

#include "proxy/admission.h"
#include "proxy/cleanup.h"
#include "proxy/dispatch.h"
#include "proxy/pick.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"

void request_leave_worker(struct request *r)
{
	placement_leave(&r->place, r->t, r->pool, pick_key(r));
}

void request_leave_prefill(struct request *r)
{
	struct placement *prefill = pd_parallel(r->pd);

	if (prefill != NULL)
		placement_leave(prefill, r->t, r->pool, r->is_keyed ? &r->key : NULL);
}

/* KV blocks that no decode worker took go back to their prefill. */
static void release_blocks(struct request *r)
{
	struct worker *w;
	size_t n;
	char *body = pd_release(r->pd, &w, &n);

	if (body != NULL)
		cleanup_release(r->t, w, dispatch_authorization(r, w), body, n);
}

void request_leave_legs(struct request *r, bool may_drain)
{
	struct placement *prefill = pd_parallel(r->pd);
	struct route_key *decode_key = pd_decode_key(r->pd);
	struct slots *slot = pd_take_slot(r->pd);

	release_blocks(r);
	if (may_drain && prefill != NULL && prefill->ex != NULL)
		cleanup_drain(r->t, r->pool, prefill, pd_take_parallel_body(r->pd));
	request_leave_prefill(r);
	pd_drop_bodies(r->pd);
	if (!decode_key->is_sealed)
		decode_key = &r->key;
	placement_leave(
		pd_reserved(r->pd), r->t, r->pool, r->is_keyed ? decode_key : NULL);
	if (slot != NULL) {
		slots_give(slot);
		admission_freed(r->t, r->pool);
	}
}
