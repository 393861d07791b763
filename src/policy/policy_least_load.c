/*
 * least_requests: fewest requests in flight; ties rotate.
 */
#include "policy/policy.h"

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	unsigned i;

	for (i = 0; i < in->n; i++)
		in->candidates[i].score = -(double)in->candidates[i].load;
	*out = (struct pick_decision){
		policy_least_loaded(in, false), PICK_POLICY_ORDER, true};
}

const struct policy_ops policy_least_requests = {.pick = pick};
