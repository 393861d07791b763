/*
 * The state of the policies of one role of a pool (a ring, sessions): made, swapped and
 * freed here, read and changed by the policies' own hooks. The pool holds it under its
 * lock. The control thread makes and frees it outside the lock, since that takes long.
 */
#ifndef POLICY_POLICY_STATE_H
#define POLICY_POLICY_STATE_H

#include "base/base.h"
#include "policy/policy.h"

struct policy_state {
	void *of[POLICY_KIND_MAX]; /* owned; NULL: that policy has none */
};

/*
 * Makes the states that policies with these options need and `now` lacks, and those that
 * depend on the fleet, which has changed. False: memory was short for some of them; the
 * rest is there. policy_state_swap() puts them into use.
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
