/*
 * The ramp of workers that have just come. See slow_start.h.
 */
#include "pool/slow_start.h"

#include "policy/policy.h"
#include "worker/worker.h"

#include <limits.h>
#include <math.h>

static double largest_share(const struct pick_input *in)
{
	double largest = 0;
	unsigned i;

	for (i = 0; i < in->n; i++)
		largest =
			MAX(largest, worker_share(in->candidates[i].worker, in->now_ms));
	return largest;
}

static bool is_any_warming(const struct pick_input *in)
{
	unsigned i;

	for (i = 0; i < in->n; i++) {
		if (worker_share(in->candidates[i].worker, in->now_ms) < 1)
			return true;
	}
	return false;
}

static void enlarge(struct candidate *c, const struct pick_input *in, double share)
{
	double load = ceil((c->load + 1) / share) - 1;
	double size = in->size_blocks;

	c->load = (unsigned)MIN(load, (double)UINT_MAX);
	c->queued = (uint64_t)(((double)c->queued + size) / share - size);
	c->last_picked += (uint64_t)(in->n * (1 / share - 1));
}

void slow_start(struct pick_input *in)
{
	double largest;
	unsigned i;

	if (!is_any_warming(in))
		return;
	largest = largest_share(in);
	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];
		double share = worker_share(c->worker, in->now_ms) / largest;

		if (share < 1)
			enlarge(c, in, share);
	}
}
