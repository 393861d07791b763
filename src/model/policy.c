/*
 * The table of policies, and what they share. See policy.h.
 */
#include "model/policy.h"

static const struct policy_ops *const table[] = {
	[POLICY_CACHE_AWARE] = &policy_cache_aware,
	[POLICY_LEAST_REQUESTS] = &policy_least_requests,
	[POLICY_ROUND_ROBIN] = &policy_round_robin,
	[POLICY_RANDOM] = &policy_random,
};
static_assert(ARRAY_LEN(table) == POLICY_KIND_MAX, "a row for each policy");

static const char *const reason_names[] = {
#define X(id, name) [PICK_##id] = name,
	PICK_REASON_TABLE(X)
#undef X
};

const char *pick_reason_name(enum pick_reason r)
{
	return reason_names[r];
}

const struct policy_ops *policy_ops(enum policy_kind kind)
{
	return table[kind];
}

unsigned policy_wants(const struct policy_opts *o)
{
	const struct policy_ops *ops = table[o->policy];

	return ops->wants | (ops->needs_index ? POLICY_WANTS_PROMPT : 0);
}

bool policy_needs_body(unsigned wants, const struct policy_head *head)
{
	bool reads_hashes = (wants & (POLICY_WANTS_PROMPT | POLICY_WANTS_PREFIX)) != 0;

	if ((wants & POLICY_WANTS_PROMPT) != 0 && !head->hashes_sent)
		return true;
	if ((wants & POLICY_WANTS_SESSION) != 0)
		return !head->has_session && !(reads_hashes && head->hashes_sent);
	return (wants & POLICY_WANTS_KEY) != 0 && !head->has_key;
}

void policy_pick(const struct pick_input *in, struct pick_decision *out)
{
	assert(in->n > 0);
	table[in->opts->policy]->pick(in, out);
	if (in->n == 1)
		out->reason = PICK_ONLY_CANDIDATE;
}

unsigned policy_least_loaded(const struct pick_input *in, bool cold)
{
	unsigned i, best = 0;

	for (i = 1; i < in->n; i++) {
		const struct candidate *a = &in->candidates[i],
				       *b = &in->candidates[best];
		uint64_t turn_a = cold ? a->last_cold : a->last_picked;
		uint64_t turn_b = cold ? b->last_cold : b->last_picked;

		if (a->load < b->load || (a->load == b->load && turn_a < turn_b))
			best = i;
	}
	return best;
}
