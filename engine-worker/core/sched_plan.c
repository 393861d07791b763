/*
 * The plan of a step: which sequences get a row, and how many tokens of it; sched.h says
 * in which order. Always true: a planned sequence's row is its place in `planned`; the
 * rows' tokens are within the budget. Called by sched.c, once a step.
 */
#include "core/sched_plan.h"
#include "core/sched_seq.h"

enum { PROMPT_SHARE = 4 };

static void plan_row(struct sched_seq *seq, uint32_t n_new)
{
	struct sched *s = seq->sched;

	assert(seq->row == NO_ROW && s->n_planned < s->opts.max_seqs);
	seq->row = (int)s->n_planned;
	s->rows[s->n_planned].n_new = n_new;
	s->planned[s->n_planned++] = seq;
}

static bool is_due(struct sched_seq *seq, uint64_t now_us)
{
	if (seq->is_parked)
		return false;
	if (seq->was_parked)
		seq->due_us = MAX(seq->due_us, now_us);
	seq->was_parked = false;
	return seq->due_us <= now_us;
}

/* A block for the next token, from whoever is last by rank, which may be the sequence
 * itself. */
static void force_block(struct sched_seq *seq)
{
	while (seq_is_running(seq) && seq_take_block(seq) != 0)
		seq_preempt(sched_last_by_rank(seq->sched));
}

/* Removes sequences that were preempted while the plan was made. */
static void squeeze_plan(struct sched *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->n_planned; i++) {
		struct sched_seq *seq = s->planned[i];

		if (seq == NULL)
			continue;
		s->rows[n].n_new = s->rows[i].n_new;
		s->planned[n] = seq;
		seq->row = (int)n++;
	}
	s->n_planned = n;
}

/* Returns what is left of the budget. */
static uint32_t plan_decodes(struct sched *s, uint64_t now_us)
{
	bool has_prompts = !TAILQ_EMPTY(&s->prefills) || !TAILQ_EMPTY(&s->waiting);
	uint32_t share = has_prompts ? s->opts.step_tokens / PROMPT_SHARE : 0, n = 0;
	struct sched_seq *seq;

	TAILQ_FOREACH (seq, &s->decodes, link) {
		if (n == s->opts.step_tokens - share)
			break;
		if (is_due(seq, now_us)) {
			plan_row(seq, 1);
			n++;
		}
	}
	for (size_t i = 0; i < s->n_planned; i++) {
		if (s->planned[i] != NULL)
			force_block(s->planned[i]);
	}
	squeeze_plan(s);
	return s->opts.step_tokens - n;
}

/* A sequence that was passed by too many becomes the first. Only the oldest one is
 * looked at; the others follow it. */
static void promote_oldest(struct sched *s)
{
	struct sched_seq *oldest = TAILQ_FIRST(&s->by_age);

	if (oldest == NULL || oldest->is_senior || s->admissions < oldest->pass_limit)
		return;
	seq_leave(oldest);
	oldest->is_senior = true;
	seq_enter(oldest, SEQ_WAITING);
}

static void count_admission(struct sched_seq *seq)
{
	struct sched *s = seq->sched;

	s->admissions++;
	if (seq->was_admitted)
		return;
	seq->was_admitted = true;
	seq->cached = seq->n_computed;
	s->counts.prompt_tokens += seq->n_prompt;
	s->counts.cached_tokens += seq->cached;
	seq_tell_begin(seq);
}

/* Whether the blocks that it got leave something to load; tells its owner in both cases.
 */
static bool begin_load(struct sched_seq *seq)
{
	size_t n = sched_blocks_for(seq->sched, seq->n_prompt);
	size_t found = sched_full_blocks(seq->sched, seq->n_computed);
	bool is_whole = seq->n_computed + 1 >= seq->n_prompt;

	seq->wants_load = false;
	seq->sched->counts.load_tokens += seq->n_prompt - seq->n_computed;
	seq->ops->on_load(seq->arg, seq, is_whole ? n : found, n);
	return !is_whole;
}

/* The first one waiting begins to be computed or loaded; NULL: there is none, or no room.
 */
static struct sched_seq *admit_one(struct sched *s)
{
	bool loads;
	struct sched_seq *seq;

	promote_oldest(s);
	seq = TAILQ_FIRST(&s->waiting);
	if (seq == NULL || s->is_blocked || s->n_running == s->opts.max_seqs)
		return NULL;
	if (seq_take_all_blocks(seq) != 0) {
		assert(s->n_running > 0 || !TAILQ_EMPTY(&s->pins));
		s->is_blocked = true;
		return NULL;
	}
	count_admission(seq);
	seq_leave(seq);
	seq->due_us = 0;
	loads = seq->wants_load && begin_load(seq);
	seq_enter(seq, loads ? SEQ_LOAD : SEQ_PREFILL);
	return seq;
}

/* The first one that begins to be computed; those before it that are loaded take no turn.
 */
static struct sched_seq *admit(struct sched *s)
{
	struct sched_seq *seq;

	do
		seq = admit_one(s);
	while (seq != NULL && seq->state == SEQ_LOAD);
	return seq;
}

/* Loads begin whatever is being computed, unless a prompt that is computed waits before
 * them. */
static void admit_loads(struct sched *s)
{
	struct sched_seq *seq;

	while ((seq = TAILQ_FIRST(&s->waiting)) != NULL && seq->wants_load)
		if (admit_one(s) == NULL)
			return;
}

/* Begins the sequence's next chunk, if nobody else's is being computed. */
static bool begin_chunk(struct sched_seq *seq, uint32_t budget, uint64_t now_us)
{
	struct sched *s = seq->sched;
	size_t left = seq->n_ids - seq->n_computed;

	if (sched_free_us(s) > now_us)
		return false;
	seq->chunk = (uint32_t)MIN(left, (size_t)budget);
	if (s->ops->pace != NULL)
		seq->due_us =
			s->ops->pace->chunk(s->backend, seq->chunk, seq->due_us, now_us);
	return true;
}

/* The sequence that gets the next chunk of this round. */
static struct sched_seq *next_of_round(struct sched *s)
{
	struct sched_seq *seq;

	if (s->round_tokens == 0)
		return NULL;
	TAILQ_FOREACH (seq, &s->prefills, link) {
		if (!seq->is_parked && seq->row == NO_ROW && seq->round != s->round)
			return seq;
	}
	do
		seq = admit(s);
	while (seq != NULL && seq->is_parked);
	return seq;
}

/* The sequence that is being computed, or whose turn it is; NULL: none. */
static struct sched_seq *next_turn(struct sched *s, uint64_t now_us)
{
	struct sched_seq *seq;

	TAILQ_FOREACH (seq, &s->prefills, link) {
		if (seq->chunk > 0 && seq->row == NO_ROW)
			return seq;
	}
	if (sched_free_us(s) > now_us)
		return NULL;
	seq = next_of_round(s);
	if (seq != NULL)
		return seq;
	s->round++;
	s->round_tokens = s->opts.step_tokens;
	return next_of_round(s);
}

/* Prompts that take turns: none has more than its share of a round, in which the first by
 * rank come first. */
static void plan_turns(struct sched *s, uint64_t now_us, uint32_t budget)
{
	struct sched_seq *seq;

	while (budget > 0 && (seq = next_turn(s, now_us)) != NULL) {
		uint32_t most = MIN(s->round_tokens, s->opts.long_prefill_tokens);

		if (seq->chunk == 0 && !begin_chunk(seq, MIN(most, budget), now_us))
			return;
		if (seq->due_us > now_us)
			return;
		seq->chunk = MIN(seq->chunk, budget);
		plan_row(seq, seq->chunk);
		budget -= seq->chunk;
		seq->round = s->round;
		s->round_tokens -= MIN(s->round_tokens, seq->chunk);
	}
}

static void plan_prefills(struct sched *s, uint64_t now_us, uint32_t budget)
{
	struct sched_seq *seq = TAILQ_FIRST(&s->prefills);

	while (budget > 0) {
		if (seq == NULL &&
			(sched_free_us(s) > now_us || (seq = admit(s)) == NULL))
			return;
		if (seq->is_parked ||
			seq->row !=
				NO_ROW) { /* one that was just admitted may come first */
			seq = TAILQ_NEXT(seq, link);
			continue;
		}
		if (seq->chunk == 0 && !begin_chunk(seq, budget, now_us))
			return;
		if (seq->due_us > now_us)
			return;
		seq->chunk = MIN(seq->chunk, budget);
		plan_row(seq, seq->chunk);
		if (seq->n_computed + seq->chunk < seq->n_ids)
			return; /* nobody begins before this one is done */
		budget -= seq->chunk;
		seq = TAILQ_NEXT(seq, link);
	}
}

static void fill_row(struct sched *s, size_t i)
{
	const struct sched_seq *seq = s->planned[i];
	struct backend_row *row = &s->rows[i];
	uint32_t n_new = row->n_new;
	size_t first = sched_full_blocks(s, seq->n_computed);

	*row = (struct backend_row){
		.ids = seq->ids + seq->n_computed,
		.n_new = n_new,
		.n_past = (uint32_t)seq->n_computed,
		.past_ids = seq->ids,
		.n_prompt = (uint32_t)seq->n_prompt,
		.blocks = seq->blocks,
		.n_blocks = (uint32_t)sched_blocks_for(s, seq->n_computed + n_new),
		.wants_token = seq->n_computed + n_new == seq->n_ids,
		.sampling = &seq->sampling,
		.out = &s->outs[i],
	};
	for (size_t k = first; k < row->n_blocks; k++) /* nobody may find what changes */
		assert(!kv_cache_has_name(s->cache, row->blocks[k]));
}

static void fill_rows(struct sched *s)
{
	for (size_t i = 0; i < s->n_planned; i++)
		fill_row(s, i);
}

void sched_plan(struct sched *s, uint64_t now_us)
{
	uint32_t budget;

	s->n_planned = 0;
	s->is_planning = true;
	admit_loads(s);
	budget = plan_decodes(s, now_us);
	if (s->opts.long_prefill_tokens > 0)
		plan_turns(s, now_us, budget);
	else
		plan_prefills(s, now_us, budget);
	s->is_planning = false;
	fill_rows(s);
}
