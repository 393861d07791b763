/*
 * What the policies of one role of a pool remember (a ring, sessions): made, swapped and
 * freed here, read and changed by the policies' own hooks. The pool holds it under its
 * lock; what takes long (making, freeing) is done outside it, by the control thread.
 */
#ifndef POLICY_POLICY_STATE_H
#define POLICY_POLICY_STATE_H

#include "base/base.h"
#include "policy/policy.h"

struct policy_state {
	void *of[POLICY_KIND_MAX]; /* owned; NULL: that policy has none */
};

/*
 * Makes, for policies with these options, what `now` has not, and what follows the fleet,
 * which has changed. False: memory was short for some of it; the rest is there. Not yet
 * seen by anybody: policy_state_swap().
 */
bool policy_state_make(const struct policy_opts *o, const struct policy_state *now,
	const struct policy_fleet *fleet, struct policy_state *made) MUST_CHECK;
/* Under the lock: takes over what was made; *made then holds what is no longer needed by
 * these options, for policy_state_free(). */
void policy_state_swap(
	const struct policy_opts *o, struct policy_state *now, struct policy_state *made);
void policy_state_free(struct policy_state *s);

/* Under the lock, each second. */
void policy_state_sweep(struct policy_state *s, const struct policy_opts *o,
	uint64_t now_ms, unsigned max);
/* Under the lock: the worker with that id_hash has left. */
void policy_state_forget(struct policy_state *s, uint64_t id_hash);
/* False: no policy knew the session. */
bool policy_state_finish(struct policy_state *s, uint64_t session);

#endif
