/*
 * round_robin: the candidate whose last pick is longest ago; never a modulo over a
 * filtered list, so that one leaving does not shift the others.
 */
#include "policy/policy.h"

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	unsigned i, best = 0;

	for (i = 0; i < in->n; i++) {
		in->candidates[i].score = -(double)in->candidates[i].last_picked;
		if (in->candidates[i].last_picked < in->candidates[best].last_picked)
			best = i;
	}
	*out = (struct pick_decision){best, PICK_POLICY_ORDER, true};
}

const struct policy_ops policy_round_robin = {.pick = pick};
