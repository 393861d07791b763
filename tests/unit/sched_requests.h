/*
 * Requests that know which text they must get, for the tests of the scheduler.
 */
#ifndef UNIT_SCHED_REQUESTS_H
#define UNIT_SCHED_REQUESTS_H

#include "sched_rig.h"

enum { PROMPT_MAX = 128, NEW_MAX = 64, REQUESTS_MAX = 16 };

struct request {
	struct sched_seq *seq; /* NULL: not there, or ended */
	uint32_t prompt[PROMPT_MAX];
	size_t n_prompt, n_got,
		n_want; /* n_want: stops itself after so many; 0: does not */
	uint32_t max_new;
	uint64_t state, choice;
	int64_t priority;
	bool is_parked, was_dropped;
	bool gets_one_more; /* parked while its token was computed */
	enum sched_end end;
	uint64_t ended_at; /* which end it was; 0: none */
};

static uint64_t ends, tokens_seen;

static inline void on_token(
	void *arg, struct sched_seq *seq, const struct sample_out *out)
{
	struct request *r = arg;
	uint32_t id = out->token;

	REQUIRE(r->seq == seq && r->n_got < r->max_new);
	REQUIRE(!r->is_parked || r->gets_one_more);
	r->gets_one_more = false;
	if (id != rig_word(r->state + r->choice))
		ck_abort_msg(
			"token %zu of a prompt of %zu is wrong", r->n_got, r->n_prompt);
	r->state = rig_mix(id ^ r->state);
	r->n_got++;
	tokens_seen++;
	if (r->n_got == r->n_want)
		sched_stop(seq);
}

static inline void on_end(void *arg, struct sched_seq *seq, enum sched_end end)
{
	struct request *r = arg;

	REQUIRE(r->seq == seq);
	r->seq = NULL;
	r->end = end;
	r->ended_at = ++ends;
}

static const struct sched_ops ops = {.on_token = on_token, .on_end = on_end};

/* `family` prompts share all but their last ids. */
static inline void make_request(struct request *r, unsigned family, size_t n_prompt,
	uint32_t max_new, unsigned tail)
{
	memset(r, 0, sizeof(*r));
	for (size_t i = 0; i < n_prompt; i++)
		r->prompt[i] = 1000 * family + (uint32_t)i;
	if (tail > 0)
		r->prompt[n_prompt - 1] = 100000 + tail;
	r->n_prompt = n_prompt;
	r->max_new = max_new;
	r->state = rig_state(r->prompt, n_prompt);
}

static inline void submit(struct rig *rig, struct request *r, struct request *fork_of)
{
	struct sched_request q = {
		.prompt = r->prompt,
		.n_prompt = r->n_prompt,
		.max_new = r->max_new,
		.priority = r->priority,
		.sampling = {.choice = r->choice},
		.fork_of = fork_of != NULL ? fork_of->seq : NULL,
		.ops = &ops,
		.arg = r,
	};

	r->seq = sched_submit(rig->sched, &q);
	REQUIRE(r->seq != NULL);
}

static inline void drop(struct request *r)
{
	if (r->seq == NULL)
		return;
	sched_drop(r->seq);
	r->seq = NULL;
	r->was_dropped = true;
}

static inline void park(struct request *r, bool on)
{
	if (r->seq == NULL)
		return;
	r->is_parked = on;
	r->gets_one_more = on && spied->is_stepping;
	sched_park(r->seq, on);
}

/* All that is left must end, within a bound: a token or a chunk a step for each, and
 * recomputation. */
static inline void finish(struct rig *rig, struct request *requests, size_t n)
{
	unsigned steps = 0;

	for (size_t i = 0; i < n; i++)
		park(&requests[i], false);
	while (rig_step(rig))
		REQUIRE(++steps < 20000);
	for (size_t i = 0; i < n; i++) {
		const struct request *r = &requests[i];

		REQUIRE(r->seq == NULL);
		REQUIRE(r->was_dropped ||
			r->n_got == (r->end == SCHED_END_STOP ? r->n_want : r->max_new));
	}
	REQUIRE(sched_running(rig->sched) == 0 && sched_waiting(rig->sched) == 0);
	REQUIRE(sched_used_blocks(rig->sched) == 0);
	sched_audit(rig->sched);
}

#endif
