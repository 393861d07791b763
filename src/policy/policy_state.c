/*
 * The states of a role's policies. See policy_state.h.
 */
#include "policy/policy_state.h"

static bool has_state(const struct policy_opts *o, int kind)
{
	return policy_ops((enum policy_kind)kind)->state_new != NULL &&
	       policy_is_used(o, (enum policy_kind)kind);
}

bool policy_state_make(const struct policy_opts *o, const struct policy_state *now,
	const struct policy_fleet *fleet, struct policy_state *made)
{
	bool is_good = true;
	int k;

	*made = (struct policy_state){0};
	for (k = 0; k < POLICY_KIND_MAX; k++) {
		const struct policy_ops *ops = policy_ops((enum policy_kind)k);

		if (!has_state(o, k) || (now->of[k] != NULL && !ops->is_of_fleet))
			continue;
		made->of[k] = ops->state_new(fleet);
		is_good = is_good && made->of[k] != NULL;
	}
	return is_good;
}

void policy_state_swap(
	const struct policy_opts *o, struct policy_state *now, struct policy_state *made)
{
	int k;

	for (k = 0; k < POLICY_KIND_MAX; k++) {
		void *old = now->of[k];

		/* An old ring serves better than none. */
		if (made->of[k] == NULL && has_state(o, k))
			continue;
		now->of[k] = made->of[k];
		made->of[k] = old;
	}
}

void policy_state_free(struct policy_state *s)
{
	int k;

	for (k = 0; k < POLICY_KIND_MAX; k++) {
		if (s->of[k] != NULL)
			policy_ops((enum policy_kind)k)->state_free(s->of[k]);
		s->of[k] = NULL;
	}
}

void policy_state_sweep(struct policy_state *s, const struct policy_opts *o,
	uint64_t now_ms, unsigned max)
{
	int k;

	for (k = 0; k < POLICY_KIND_MAX; k++) {
		const struct policy_ops *ops = policy_ops((enum policy_kind)k);

		if (s->of[k] != NULL && ops->sweep != NULL)
			ops->sweep(s->of[k], o, now_ms, max);
	}
}

void policy_state_forget(struct policy_state *s, uint64_t id_hash)
{
	int k;

	for (k = 0; k < POLICY_KIND_MAX; k++) {
		const struct policy_ops *ops = policy_ops((enum policy_kind)k);

		if (s->of[k] != NULL && ops->forget != NULL)
			ops->forget(s->of[k], id_hash);
	}
}

bool policy_state_finish(struct policy_state *s, uint64_t session)
{
	bool was_known = false;
	int k;

	for (k = 0; k < POLICY_KIND_MAX; k++) {
		const struct policy_ops *ops = policy_ops((enum policy_kind)k);

		if (s->of[k] != NULL && ops->finish_session != NULL)
			was_known |= ops->finish_session(s->of[k], session);
	}
	return was_known;
}
