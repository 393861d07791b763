/*
 * sticky_least_loaded: a session stays with the worker that it was given first, until it
 * ends (finish_session), is not used for session_ttl, or its worker leaves or is no
 * candidate any more; it is then placed anew. A new one goes to the worker with the fewest sessions;
 * of those the least loaded, then in rendezvous order. Requests without a session go to
 * the least loaded and are not kept (vLLM router pull request 235, which sent them all to
 * one worker).
 */
#include "policy/policy.h"

#include "base/hash.h"
#include "policy/session_map.h"

/* 13 MiB when they are all in use. */
#define SESSIONS_MAX (1u << 18)
/* Ended with each pick, besides what the sweep ends. */
#define ENDED_AT_PICK 2

static struct session_map *sessions(const struct pick_input *in)
{
	return in->states[POLICY_STICKY_LEAST_LOADED];
}

static bool find_home(const struct pick_input *in, unsigned *index)
{
	uint64_t home;
	unsigned i;

	if (!session_map_find(sessions(in), in->routing->session_hash, in->now_ms,
		    in->opts->session_ttl_ms, &home))
		return false;
	for (i = 0; i < in->n; i++) {
		if (in->candidates[i].id_hash == home) {
			*index = i;
			return true;
		}
	}
	return false;
}

static bool is_better_home(
	const struct pick_input *in, const struct candidate *a, const struct candidate *b)
{
	uint64_t key = in->routing->session_hash;

	if (a->score != b->score)
		return a->score > b->score;
	if (a->load != b->load)
		return a->load < b->load;
	return hash_mix64(a->id_hash, key) > hash_mix64(b->id_hash, key);
}

static unsigned new_home(const struct pick_input *in)
{
	unsigned i, best = 0;

	for (i = 0; i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

		c->score = -(double)session_map_of(sessions(in), c->id_hash);
		if (i > 0 && is_better_home(in, c, &in->candidates[best]))
			best = i;
	}
	return best;
}

static bool has_session(const struct pick_input *in)
{
	return sessions(in) != NULL && in->routing != NULL &&
	       in->routing->session.from != ROUTING_NONE;
}

static void pick(const struct pick_input *in, struct pick_decision *out)
{
	unsigned index;

	if (!has_session(in)) {
		policy_by_load(in, out);
	} else if (find_home(in, &index)) {
		in->candidates[index].score = 1;
		*out = (struct pick_decision){index, PICK_AFFINITY_KEY, false};
	} else {
		*out = (struct pick_decision){new_home(in), PICK_POLICY_ORDER, true};
	}
}

static void on_pick(const struct pick_input *in, const struct pick_decision *d)
{
	if (!has_session(in))
		return;
	session_map_put(sessions(in), in->routing->session_hash,
		in->candidates[d->index].id_hash, in->now_ms);
	session_map_sweep(
		sessions(in), in->now_ms, in->opts->session_ttl_ms, ENDED_AT_PICK);
}

static void *state_new(const struct policy_fleet *fleet)
{
	return session_map_new(SESSIONS_MAX, fleet->seed);
}

static void state_free(void *state)
{
	session_map_free(state);
}

static void sweep(void *state, const struct policy_opts *o, uint64_t now_ms, unsigned max)
{
	session_map_sweep(state, now_ms, o->session_ttl_ms, max);
}

static bool finish_session(void *state, uint64_t session)
{
	return session_map_end(state, session);
}

static void forget(void *state, uint64_t id_hash)
{
	session_map_forget(state, id_hash);
}

const struct policy_ops policy_sticky_least_loaded = {
	.wants = POLICY_WANTS_SESSION,
	.pick = pick,
	.on_pick = on_pick,
	.state_new = state_new,
	.state_free = state_free,
	.sweep = sweep,
	.finish_session = finish_session,
	.forget = forget,
};
