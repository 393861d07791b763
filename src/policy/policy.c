/*
 * The table of policies, and what they share. See policy.h.
 */
#include "policy/policy.h"

static const struct policy_ops *const table[] = {
#define X(id, name) [POLICY_##id] = &policy_##name,
	POLICY_TABLE(X, X)
#undef X
};

static const char *const policy_names[] = {
#define X(id, name) [POLICY_##id] = #name,
	POLICY_TABLE(X, X)
#undef X
};

const char *policy_name(enum policy_kind kind)
{
	return policy_names[kind];
}

static const char *const reason_names[] = {
#define X(id, name) [PICK_##id] = name,
	PICK_REASON_TABLE(X)
#undef X
};

const char *pick_reason_name(enum pick_reason r)
{
	return reason_names[r];
}

static const char *const term_names[] = {
#define X(id, name) [TERM_##id] = name,
	PICK_TERM_TABLE(X)
#undef X
};

const char *pick_term_name(enum pick_term t)
{
	return term_names[t];
}

const struct policy_ops *policy_ops(enum policy_kind kind)
{
	return table[kind];
}

bool policy_needs_index(const struct policy_opts *o)
{
	const struct policy_ops *ops = table[o->policy];

	return ops->needs_index != NULL && ops->needs_index(o);
}

/* The options as the fallback sees them; false: there is none. */
static bool fallback_of(const struct policy_opts *o, struct policy_opts *out)
{
	if (o->policy != POLICY_PREFIX_AFFINITY)
		return false;
	*out = *o;
	out->policy = o->affinity_fallback;
	return true;
}

bool policy_is_used(const struct policy_opts *o, enum policy_kind kind)
{
	struct policy_opts fallback;

	return o->policy == kind ||
	       (fallback_of(o, &fallback) && fallback.policy == kind);
}

static unsigned wants_alone(const struct policy_opts *o)
{
	return table[o->policy]->wants |
	       (policy_needs_index(o) ? POLICY_WANTS_PROMPT : 0);
}

unsigned policy_wants(const struct policy_opts *o)
{
	unsigned wants = wants_alone(o);
	struct policy_opts fallback;

	if (fallback_of(o, &fallback))
		wants |= wants_alone(&fallback);
	if (o->affinity_hash_tokens == 0)
		wants &= ~(unsigned)POLICY_WANTS_PREFIX;
	return wants;
}

bool policy_reads_fields(unsigned wants, bool hashes_sent)
{
	return !hashes_sent || (wants & POLICY_WANTS_SESSION) == 0 ||
	       (wants & (POLICY_WANTS_PROMPT | POLICY_WANTS_PREFIX)) == 0;
}

bool policy_needs_body(unsigned wants, const struct policy_head *head)
{
	if ((wants & POLICY_WANTS_PROMPT) != 0 && !head->hashes_sent)
		return true;
	if (!policy_reads_fields(wants, head->hashes_sent))
		return false;
	if ((wants & POLICY_WANTS_SESSION) != 0)
		return !head->has_session;
	return (wants & POLICY_WANTS_KEY) != 0 && !head->has_key;
}

void policy_on_pick(const struct pick_input *in, const struct pick_decision *d)
{
	const struct policy_ops *ops = table[in->opts->policy];

	if (ops->on_pick != NULL)
		ops->on_pick(in, d);
}

void policy_pick(const struct pick_input *in, struct pick_decision *out)
{
	assert(in->n > 0);
	table[in->opts->policy]->pick(in, out);
	if (in->n == 1)
		out->reason = PICK_ONLY_CANDIDATE;
}

/* a comes after b in file order. */
static bool is_less_loaded(
	const struct candidate *a, const struct candidate *b, bool cold)
{
	uint64_t turn_a = cold ? a->last_cold : a->last_picked;
	uint64_t turn_b = cold ? b->last_cold : b->last_picked;

	return a->load < b->load || (a->load == b->load && turn_a < turn_b);
}

unsigned policy_least_loaded(const struct pick_input *in, bool cold)
{
	unsigned i, best = 0;

	for (i = 1; i < in->n; i++) {
		if (is_less_loaded(&in->candidates[i], &in->candidates[best], cold))
			best = i;
	}
	return best;
}

unsigned policy_best_score(const struct pick_input *in, bool cold)
{
	unsigned i, best = 0;

	for (i = 1; i < in->n; i++) {
		const struct candidate *a = &in->candidates[i],
				       *b = &in->candidates[best];

		if (a->score != b->score             ? a->score > b->score
			: a->followed != b->followed ? a->followed > b->followed
						     : is_less_loaded(a, b, cold))
			best = i;
	}
	return best;
}

void policy_by_load(const struct pick_input *in, struct pick_decision *out)
{
	policy_least_requests.pick(in, out);
}
