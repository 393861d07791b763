/*
 * power_of_two: of two candidates drawn at random the less loaded, the first drawn where
 * they are alike. Load is counted here from the pick on, so that nobody herds to a worker
 * that looked idle when it was last asked; what others sent is added where load_source
 * says so.
 */
#include "policy/policy.h"

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	unsigned i, first = (unsigned)rng_below(in->rng, in->n), second = first;

	for (i = 0; i < in->n; i++)
		in->candidates[i].score = -(double)in->candidates[i].load;
	if (in->n > 1)
		second = (first + 1 + (unsigned)rng_below(in->rng, in->n - 1)) % in->n;
	if (in->candidates[second].load < in->candidates[first].load)
		first = second;
	*out = (struct pick_decision){first, PICK_POLICY_ORDER, true};
}

const struct policy_ops policy_power_of_two = {.pick = pick};
