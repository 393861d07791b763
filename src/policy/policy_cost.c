/*
 * The costs that give every candidate one number, the sum of its terms: the highest wins.
 * At the same cost the one that holds more spares the fleet work; then load, then turn.
 * Costs that weigh fractions count only fractions above cache_threshold. Otherwise the
 * few words with which all prompts begin would send them all to one worker while nothing
 * is in flight. prefill_cost needs no threshold: it counts blocks, and remembers recent
 * work.
 */
#include "policy/policy_cost.h"

#include <limits.h>
#include <math.h>

/* Slots of a worker without max_requests: what vLLM admits by default. */
#define DEFAULT_SLOTS 256

/* To a millionth, so that what is equal on paper is a tie, however it was rounded. */
#define SCORE_STEPS 1048576.0

static double sum_terms(const struct candidate *c)
{
	double sum = 0;
	int t;

	for (t = 0; t < TERM_MAX; t++)
		sum += c->terms[t];
	return nearbyint(sum * SCORE_STEPS) / SCORE_STEPS;
}

enum pick_reason cost_reason_without_holder(const struct pick_input *in)
{
	if (in->opts->signal == SIGNAL_NONE)
		return PICK_POLICY_ORDER;
	return in->hashes_sent && in->blocks == 0 ? PICK_HASHES_SENT : PICK_NO_MATCH;
}

static enum pick_reason reason_of(
	const struct pick_input *in, double deepest, double chosen)
{
	if (deepest == 0)
		return cost_reason_without_holder(in);
	if (chosen == deepest)
		return PICK_PREFIX_HIT;
	return chosen > 0 ? PICK_PREFIX_NEXT : PICK_OVERLOAD_SHED;
}

/* A term that lowers the score; never a negative zero. */
static void against(struct candidate *c, enum pick_term t, double value)
{
	candidate_term(c, t, 0.0 - value);
}

/* All terms are there: sums them and takes the highest. */
static void take_highest(const struct pick_input *in, struct pick_decision *out)
{
	double deepest = 0, chosen;
	unsigned i;

	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

		c->score = sum_terms(c);
		deepest = MAX(deepest, c->followed);
	}
	out->index = policy_best_score(in, deepest == 0);
	chosen = in->candidates[out->index].followed;
	out->reason = reason_of(in, deepest, chosen);
	out->is_cold = chosen == 0;
}

static void follow_holders(const struct pick_input *in)
{
	unsigned i;

	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

		c->followed = c->fraction > in->opts->cache_threshold ? c->fraction : 0;
	}
}

static double mean_load(const struct pick_input *in)
{
	double sum = 0;
	unsigned i;

	for (i = 0; i < in->n; i++)
		sum += in->candidates[i].load;
	return sum / in->n;
}

/* fraction - beta x (load - mean) / max(1, mean) (Megatron-LM pull request 6668). */
void cost_relative_load(const struct pick_input *in, struct pick_decision *out)
{
	double mean = mean_load(in);
	unsigned i;

	follow_holders(in);
	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

		candidate_term(c, TERM_FRACTION, c->followed);
		against(c, TERM_LOAD, in->opts->beta * (c->load - mean) / MAX(1, mean));
	}
	take_highest(in, out);
}

static double free_share(const struct candidate *c)
{
	unsigned slots = c->max_requests > 0 ? c->max_requests : DEFAULT_SLOTS;

	return c->load >= slots ? 0 : (double)(slots - c->load) / slots;
}

/* alpha x fraction + (1 - alpha) x free_slots / max_requests (the same). The prefix of
 * a worker without a free slot is worth nothing. Otherwise a worker without max_requests
 * would keep everything that it holds, however long its queue. */
void cost_free_capacity(const struct pick_input *in, struct pick_decision *out)
{
	double alpha = in->opts->alpha;
	unsigned i;

	follow_holders(in);
	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

		double share = free_share(c);

		candidate_term(c, TERM_FRACTION, share > 0 ? alpha * c->followed : 0);
		candidate_term(c, TERM_FREE, (1 - alpha) * share);
	}
	take_highest(in, out);
}

/* ---- prefill_cost ---- */

/*
 * The weight of a block of this very request, compared to a block that waits before it.
 * It costs this request its own time, and the requests behind it theirs. With a fleet two
 * thirds busy a block of work delays others by 2/3 / (1 - 2/3) = 2, and if requests wait
 * at every worker already, by one more for each of them: the longer the queues, the more
 * a fleet gains by computing nothing twice. The least counts, not the mean: while one
 * worker is idle, what waits at another is no reason to send more there, or a popular
 * prompt would never leave the first worker that has it.
 */
#define OWN_WEIGHT 3

static double own_weight(const struct pick_input *in)
{
	unsigned i, least = UINT_MAX;

	for (i = 0; i < in->n; i++) {
		const struct candidate *c = &in->candidates[i];

		least = MIN(least, c->load > c->streams ? c->load - c->streams : 0);
	}
	return OWN_WEIGHT + least;
}

/*
 * The weight of recent work, half of OWN_WEIGHT: a worker that computed twice the mean
 * costs a prompt half as much as computing it does. Less than that, so
 * that a conversation that is all the traffic there is keeps its worker; enough that of
 * two workers both come to hold what all requests share.
 */
#define RECENT_WEIGHT 1.5

/* Blocks computed recently. A block that still waits counts as queued only. */
static double computed(const struct candidate *c)
{
	return MAX(0, c->recent - (double)c->queued);
}

static double mean_computed(const struct pick_input *in)
{
	double sum = 0;
	unsigned i;

	for (i = 0; i < in->n; i++)
		sum += computed(&in->candidates[i]);
	return sum / in->n;
}

/*
 * The time to this request's first token, and to those of others, in units of one block's
 * prefill, negated: what must be computed for it, and before it; what running streams
 * take of each step; and a push from workers that computed much recently to those that
 * did not, which is measured against the mean and the prompt, so that neither a busy
 * fleet nor a worker that has just come makes it large.
 */
void cost_prefill(const struct pick_input *in, struct pick_decision *out)
{
	double own = own_weight(in), mean = mean_computed(in);
	double size = in->size_blocks, scale = MAX(mean, size);
	double push = scale > 0 ? RECENT_WEIGHT * size / scale : 0;
	unsigned i;

	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

		c->followed = c->fraction;
		/* Whole blocks, as they are queued: equal sums are ties. */
		against(c, TERM_UNCACHED, own * nearbyint((1 - c->fraction) * size));
		against(c, TERM_QUEUED, (double)c->queued);
		against(c, TERM_DECODE, in->opts->decode_weight * c->streams);
		against(c, TERM_RECENT, push * (computed(c) - mean));
	}
	take_highest(in, out);
}
