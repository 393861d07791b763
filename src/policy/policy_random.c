/*
 * random: uniform over the candidates.
 */
#include "policy/policy.h"

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	unsigned i;

	for (i = 0; i < in->n; i++)
		in->candidates[i].score = 1.0 / in->n;
	*out = (struct pick_decision){
		(unsigned)rng_below(in->rng, in->n), PICK_POLICY_ORDER, true};
}

const struct policy_ops policy_random = {.pick = pick};
