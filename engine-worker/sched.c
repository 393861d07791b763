/*
 * Sequences on their way through waiting, prefill and decode; sched.h says in which order.
 * Always true: a sequence holds blocks exactly while it runs; the first n_computed of its tokens are in them; it is in one list, by its state;
 * `waiting` and `prefills` are in order of rank, `by_age` in order of arrival, `decodes` in order of their last step.
 * Called by engine.c (steps), completion.c (sequences).
 */
#include "sched.h"
#include "base/err.h"
#include "base/list.h"
#include "kv_cache.h"

#include <stdlib.h>
#include <string.h>

enum seq_state { SEQ_WAITING, SEQ_HELD, SEQ_PREFILL, SEQ_DECODE };
enum { NO_ROW = -1, PROMPT_SHARE = 4 };

TAILQ_HEAD(seq_list, sched_seq);

struct sched_seq {
	struct sched *sched;
	enum seq_state state;
	TAILQ_ENTRY(sched_seq) link;	 /* the list of its state; the leader's `held` for SEQ_HELD */
	TAILQ_ENTRY(sched_seq) age_link; /* by_age, while waiting */
	struct sched_seq *leader;	 /* SEQ_HELD: who computes the prompt */
	struct seq_list held;		 /* who waits for this one to compute it */
	const struct sched_ops *ops;
	void *arg;
	/* Rank */
	bool is_senior;
	int64_t priority;
	uint64_t arrival;
	uint64_t pass_limit; /* admissions after which it is senior */
	/* Tokens and blocks */
	uint32_t *ids; /* prompt and generated; room for n_end */
	size_t n_ids, n_prompt, n_end, n_computed;
	struct backend_sampling sampling;
	uint64_t seed, *names;
	size_t n_names; /* known names */
	uint32_t *blocks;
	size_t n_blocks, n_named; /* held; leading ones that were offered their names */
	size_t cached;
	uint32_t chunk; /* of the prompt being computed, due at ready_us; 0: none */
	uint64_t round; /* in which it had its chunk */
	int row;	/* in the step being planned or done */
	bool was_admitted, has_prompt, is_parked, was_parked, is_stopped, is_calling;
	uint64_t ready_us;
};

struct sched {
	struct sched_opts opts;
	const struct backend_ops *ops;
	struct backend *backend;
	struct kv_cache *cache;
	struct seq_list waiting, prefills, decodes, by_age;
	unsigned n_waiting, n_running; /* n_waiting: those held, too */
	uint64_t arrivals, admissions;
	uint64_t prefill_free_us; /* when the chunk before is done */
	uint64_t round;		  /* of prompts that take turns, from 1 */
	uint32_t round_tokens;	  /* left of it */
	bool is_blocked;	  /* the first one waiting did not fit, and nothing was freed since */
	struct backend_row *rows;
	struct sched_seq **planned; /* of each row; NULL: it left meanwhile */
	size_t n_planned;
	uint32_t *refs; /* for audits */
	struct sched_counts counts;
};

/* Rank */

static bool goes_before(const struct sched_seq *a, const struct sched_seq *b)
{
	if (a->is_senior != b->is_senior)
		return a->is_senior;
	if (!a->is_senior && a->priority != b->priority)
		return a->priority < b->priority;
	return a->arrival < b->arrival;
}

/* From the end: most come last. */
static void insert_by_rank(struct seq_list *list, struct sched_seq *seq)
{
	struct sched_seq *at = TAILQ_LAST(list, seq_list);

	while (at != NULL && goes_before(seq, at))
		at = TAILQ_PREV(at, seq_list, link);
	if (at != NULL)
		TAILQ_INSERT_AFTER(list, at, seq, link);
	else
		TAILQ_INSERT_HEAD(list, seq, link);
}

static void insert_by_age(struct seq_list *list, struct sched_seq *seq)
{
	struct sched_seq *at = TAILQ_LAST(list, seq_list);

	while (at != NULL && seq->arrival < at->arrival)
		at = TAILQ_PREV(at, seq_list, age_link);
	if (at != NULL)
		TAILQ_INSERT_AFTER(list, at, seq, age_link);
	else
		TAILQ_INSERT_HEAD(list, seq, age_link);
}

/* The list that a state's sequences are in. */
static struct seq_list *list_of(struct sched_seq *seq)
{
	switch (seq->state) {
	case SEQ_WAITING:
		return &seq->sched->waiting;
	case SEQ_HELD:
		return &seq->leader->held;
	case SEQ_PREFILL:
		return &seq->sched->prefills;
	default:
		return &seq->sched->decodes;
	}
}

static bool is_running(const struct sched_seq *seq)
{
	return seq->state == SEQ_PREFILL || seq->state == SEQ_DECODE;
}

/* The one place where a sequence's state begins. */
static void enter(struct sched_seq *seq, enum seq_state state)
{
	struct sched *s = seq->sched;

	seq->state = state;
	if (is_running(seq))
		s->n_running++;
	else
		s->n_waiting++;
	if (state == SEQ_WAITING)
		insert_by_age(&s->by_age, seq);
	if (state == SEQ_WAITING || state == SEQ_PREFILL)
		insert_by_rank(list_of(seq), seq);
	else
		TAILQ_INSERT_TAIL(list_of(seq), seq, link);
}

/* The time of a chunk that was begun is not taken. */
static void stop_chunk(struct sched_seq *seq)
{
	if (seq->chunk > 0)
		seq->sched->prefill_free_us = 0;
	seq->chunk = 0;
}

/* The one place where it ends; also takes the sequence out of the step. */
static void leave(struct sched_seq *seq)
{
	struct sched *s = seq->sched;

	TAILQ_REMOVE(list_of(seq), seq, link);
	if (seq->state == SEQ_WAITING)
		TAILQ_REMOVE(&s->by_age, seq, age_link);
	if (is_running(seq))
		s->n_running--;
	else
		s->n_waiting--;
	if (seq->row != NO_ROW)
		s->planned[seq->row] = NULL;
	seq->row = NO_ROW;
	stop_chunk(seq);
}

static void tell_work(struct sched *s)
{
	if (s->opts.on_work != NULL)
		s->opts.on_work(s->opts.arg);
}

/* Blocks */

static size_t blocks_for(size_t tokens)
{
	return (tokens + KV_BLOCK - 1) / KV_BLOCK;
}

static struct kv_chain chain_of(const struct sched_seq *seq)
{
	return (struct kv_chain){ seq->ids, seq->names, seq->seed };
}

/* Extends the chain of names over the full blocks of the first n tokens. */
static void name_chain(struct sched_seq *seq, size_t n)
{
	for (size_t i = seq->n_names; i < n / KV_BLOCK; i++) {
		seq->names[i] =
			kv_name(i > 0 ? seq->names[i - 1] : seq->seed, seq->ids + i * KV_BLOCK);
		seq->n_names = i + 1;
	}
}

/* Offers the blocks that are full and computed to the cache. */
static void name_blocks(struct sched_seq *seq)
{
	struct kv_chain chain = chain_of(seq);

	name_chain(seq, seq->n_computed);
	for (; seq->n_named < seq->n_computed / KV_BLOCK; seq->n_named++)
		kv_cache_name(
			seq->sched->cache, seq->blocks[seq->n_named], &chain, seq->n_named);
}

static void drop_blocks(struct sched_seq *seq)
{
	kv_cache_drop(seq->sched->cache, seq->blocks, seq->n_blocks);
	seq->n_blocks = 0;
	seq->n_named = 0;
	seq->n_computed = 0;
}

/* Fresh blocks at the end of the sequence's table. */
static int add_blocks(struct sched_seq *seq, size_t n)
{
	struct sched *s = seq->sched;
	uint32_t *at = seq->blocks + seq->n_blocks;
	int err = kv_cache_alloc(s->cache, n, at);

	if (err != 0)
		return err;
	s->ops->drop(s->backend, at, n);
	seq->n_blocks += n;
	return 0;
}

/* Makes the block that the next token goes to the sequence's own, by copying it if others have it. */
static int own_block(struct sched_seq *seq)
{
	struct sched *s = seq->sched;
	uint32_t pair[1][2];
	uint32_t *block = &seq->blocks[seq->n_computed / KV_BLOCK];
	int err = kv_cache_own(s->cache, block, &pair[0][0]);

	if (err != 0 || pair[0][0] == KV_NONE)
		return err;
	pair[0][1] = *block;
	s->ops->copy(s->backend, (const uint32_t(*)[2])pair, 1);
	s->counts.copies++;
	return 0;
}

/* Whether the next token has a block to go to. */
static int take_block(struct sched_seq *seq)
{
	return seq->n_blocks == seq->n_computed / KV_BLOCK ? add_blocks(seq, 1) : own_block(seq);
}

/* Blocks for all tokens there are, as many as may be from the cache. ERR_LIMIT: too few are free; nothing is changed. */
static int take_all_blocks(struct sched_seq *seq)
{
	struct sched *s = seq->sched;
	struct kv_chain chain;
	size_t need = blocks_for(seq->n_ids), found, found_free, spare = 0;
	uint32_t free_blocks = kv_cache_blocks(s->cache) - kv_cache_used(s->cache);
	int err;

	/* The last token is always computed: it gives the next one. */
	name_chain(seq, seq->n_ids - 1);
	chain = chain_of(seq);
	found = kv_cache_match(s->cache, &chain, (seq->n_ids - 1) / KV_BLOCK, &found_free);
	if (s->n_running > 0)
		spare = s->opts.n_blocks / 100;
	if (need - found + found_free + spare > free_blocks)
		return ERR_LIMIT;
	seq->n_blocks = kv_cache_find(s->cache, &chain, found, seq->blocks);
	seq->n_named = found;
	seq->n_computed = found * KV_BLOCK;
	err = add_blocks(seq, need - found);
	assert(err == 0);
	return 0;
}

/* The end of sequences */

static void seq_free(struct sched_seq *seq)
{
	free(seq->ids);
	free(seq->names);
	free(seq->blocks);
	free(seq);
}

/* Who waited for this one to compute the prompt: the next of them does. */
static void pass_lead(struct sched_seq *seq)
{
	struct sched_seq *next = TAILQ_FIRST(&seq->held), *other;

	if (next == NULL)
		return;
	leave(next);
	next->leader = NULL;
	enter(next, SEQ_WAITING);
	while ((other = TAILQ_FIRST(&seq->held)) != NULL) {
		leave(other);
		other->leader = next;
		enter(other, SEQ_HELD);
	}
}

/* Out of everything but memory. */
static void detach(struct sched_seq *seq, enum sched_end end)
{
	seq->sched->counts.ended[end]++;
	leave(seq);
	drop_blocks(seq);
	pass_lead(seq);
	seq->sched->is_blocked = false;
}

static void end_seq(struct sched_seq *seq, enum sched_end end)
{
	detach(seq, end);
	seq->is_calling = true;
	seq->ops->on_end(seq->arg, seq, end);
	seq_free(seq);
}

static void preempt(struct sched_seq *seq)
{
	struct sched *s = seq->sched;

	assert(is_running(seq));
	s->counts.preemptions++;
	leave(seq);
	drop_blocks(seq);
	enter(seq, SEQ_WAITING);
	s->is_blocked = false;
}

/* Who has to give way first. */
static struct sched_seq *last_by_rank(struct sched *s)
{
	struct sched_seq *seq, *last = TAILQ_LAST(&s->prefills, seq_list);

	TAILQ_FOREACH(seq, &s->decodes, link) {
		if (last == NULL || goes_before(last, seq))
			last = seq;
	}
	return last;
}

/* The plan of a step */

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
		seq->ready_us = MAX(seq->ready_us, now_us);
	seq->was_parked = false;
	return seq->ready_us <= now_us;
}

/* A block for the next token, from whoever is last by rank, which may be the sequence itself. */
static void force_block(struct sched_seq *seq)
{
	while (is_running(seq) && take_block(seq) != 0)
		preempt(last_by_rank(seq->sched));
}

/* Takes those out of the plan who were preempted while it was made. */
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

	TAILQ_FOREACH(seq, &s->decodes, link) {
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

/* Who was passed by too many becomes the first; only the oldest one is asked, the others follow it. */
static void promote_oldest(struct sched *s)
{
	struct sched_seq *oldest = TAILQ_FIRST(&s->by_age);

	if (oldest == NULL || oldest->is_senior || s->admissions < oldest->pass_limit)
		return;
	leave(oldest);
	oldest->is_senior = true;
	enter(oldest, SEQ_WAITING);
}

static void tell_begin(const struct sched_seq *seq)
{
	if (seq->ops->on_begin != NULL)
		seq->ops->on_begin(seq->arg);
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
	tell_begin(seq);
}

/* The first one waiting begins to be computed; NULL: there is none, or no room. */
static struct sched_seq *admit(struct sched *s)
{
	struct sched_seq *seq;

	promote_oldest(s);
	seq = TAILQ_FIRST(&s->waiting);
	if (seq == NULL || s->is_blocked || s->n_running == s->opts.max_seqs)
		return NULL;
	if (take_all_blocks(seq) != 0) {
		assert(s->n_running > 0);
		s->is_blocked = true;
		return NULL;
	}
	count_admission(seq);
	leave(seq);
	seq->ready_us = 0;
	enter(seq, SEQ_PREFILL);
	return seq;
}

/* Gives the sequence its next chunk of time, if nobody else is being computed. */
static bool start_chunk(struct sched_seq *seq, uint32_t budget, uint64_t now_us)
{
	struct sched *s = seq->sched;
	size_t left = seq->n_ids - seq->n_computed;
	double took_us;

	if (s->prefill_free_us > now_us)
		return false;
	seq->chunk = (uint32_t)MIN(left, (size_t)budget);
	took_us = s->opts.step_us + seq->chunk * s->opts.prefill_us;
	if (seq->ready_us == 0 || seq->ready_us != s->prefill_free_us)
		seq->ready_us = now_us; /* else it goes on where its last chunk ended */
	seq->ready_us += (uint64_t)took_us;
	s->prefill_free_us = seq->ready_us;
	return true;
}

/* Who is to have the next chunk of this round. */
static struct sched_seq *next_of_round(struct sched *s)
{
	struct sched_seq *seq;

	if (s->round_tokens == 0)
		return NULL;
	TAILQ_FOREACH(seq, &s->prefills, link) {
		if (!seq->is_parked && seq->row == NO_ROW && seq->round != s->round)
			return seq;
	}
	do
		seq = admit(s);
	while (seq != NULL && seq->is_parked);
	return seq;
}

/* Who is being computed, or whose turn it is; NULL: nobody's. */
static struct sched_seq *next_turn(struct sched *s, uint64_t now_us)
{
	struct sched_seq *seq;

	TAILQ_FOREACH(seq, &s->prefills, link) {
		if (seq->chunk > 0 && seq->row == NO_ROW)
			return seq;
	}
	if (s->prefill_free_us > now_us)
		return NULL;
	seq = next_of_round(s);
	if (seq != NULL)
		return seq;
	s->round++;
	s->round_tokens = s->opts.step_tokens;
	return next_of_round(s);
}

/* Prompts that take turns: none has more than its share of a round, in which the first by rank come first. */
static void plan_turns(struct sched *s, uint64_t now_us, uint32_t budget)
{
	struct sched_seq *seq;

	while (budget > 0 && (seq = next_turn(s, now_us)) != NULL) {
		uint32_t most = MIN(s->round_tokens, s->opts.long_prefill_tokens);

		if (seq->chunk == 0 && !start_chunk(seq, MIN(most, budget), now_us))
			return;
		if (seq->ready_us > now_us)
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
		if (seq == NULL && (s->prefill_free_us > now_us || (seq = admit(s)) == NULL))
			return;
		if (seq->is_parked || seq->row != NO_ROW) { /* admitted just now, one may stand before others */
			seq = TAILQ_NEXT(seq, link);
			continue;
		}
		if (seq->chunk == 0 && !start_chunk(seq, budget, now_us))
			return;
		if (seq->ready_us > now_us)
			return;
		seq->chunk = MIN(seq->chunk, budget);
		plan_row(seq, seq->chunk);
		if (seq->n_computed + seq->chunk < seq->n_ids)
			return; /* nobody begins before this one is done */
		budget -= seq->chunk;
		seq = TAILQ_NEXT(seq, link);
	}
}

static void fill_rows(struct sched *s)
{
	for (size_t i = 0; i < s->n_planned; i++) {
		const struct sched_seq *seq = s->planned[i];
		uint32_t n_new = s->rows[i].n_new;

		s->rows[i] = (struct backend_row){
			.ids = seq->ids + seq->n_computed,
			.n_new = n_new,
			.n_past = (uint32_t)seq->n_computed,
			.blocks = seq->blocks,
			.n_blocks = (uint32_t)blocks_for(seq->n_computed + n_new),
			.wants_token = seq->n_computed + n_new == seq->n_ids,
			.sampling = seq->sampling,
		};
	}
}

/* What a step gave */

/* A choice goes on from the leader's prompt: all of its blocks but what the last token, which it computes itself, needs. */
static void fork_seq(struct sched_seq *seq, const struct sched_seq *leader)
{
	struct sched *s = seq->sched;

	leave(seq);
	seq->leader = NULL;
	seq->was_admitted = true; /* its prompt is counted with the leader's */
	seq->cached = leader->cached;
	tell_begin(seq);
	if (s->n_running >= s->opts.max_seqs) {
		enter(seq, SEQ_WAITING); /* it will find them in the cache */
		return;
	}
	seq->n_computed = seq->n_prompt - 1;
	seq->n_blocks = blocks_for(seq->n_computed);
	memcpy(seq->blocks, leader->blocks, seq->n_blocks * sizeof(*seq->blocks));
	kv_cache_share(s->cache, seq->blocks, seq->n_blocks);
	seq->n_named = seq->n_computed / KV_BLOCK;
	name_chain(seq, seq->n_computed);
	seq->ready_us = leader->ready_us;
	enter(seq, SEQ_DECODE);
}

/* The prompt of this one is in its blocks. */
static void fork_held(struct sched_seq *leader)
{
	struct sched_seq *seq;

	leader->has_prompt = true;
	while ((seq = TAILQ_FIRST(&leader->held)) != NULL)
		fork_seq(seq, leader);
}

/* One more token; the sequence goes to the end of those that decode. */
static void take_token(struct sched_seq *seq, uint32_t id)
{
	struct sched *s = seq->sched;

	if (!seq->has_prompt)
		fork_held(seq);
	seq->ids[seq->n_ids++] = id;
	seq->ready_us += (uint64_t)(s->opts.step_us + s->opts.decode_us);
	leave(seq);
	enter(seq, SEQ_DECODE);
	s->counts.generated_tokens++;
	seq->is_calling = true;
	seq->ops->on_token(seq->arg, seq, id);
	seq->is_calling = false;
	if (seq->is_stopped || seq->n_ids == seq->n_end)
		end_seq(seq, seq->is_stopped ? SCHED_END_STOP : SCHED_END_LENGTH);
}

/* Nobody may find what these blocks hold. */
static void end_broken(struct sched_seq *seq)
{
	seq->sched->counts.broken++;
	kv_cache_forget(seq->sched->cache, seq->blocks, seq->n_blocks);
	end_seq(seq, SCHED_END_ERROR);
}

static void take_row(struct sched_seq *seq, const struct backend_row *row)
{
	seq->row = NO_ROW;
	seq->chunk = 0;
	if (row->is_broken) {
		end_broken(seq);
		return;
	}
	seq->sched->counts.computed_tokens += row->n_new;
	seq->n_computed += row->n_new;
	name_blocks(seq);
	if (row->wants_token)
		take_token(seq, row->token);
}

static void count_step(struct sched *s)
{
	uint32_t tokens = 0, bound = 8;
	unsigned i = 1;

	for (size_t k = 0; k < s->n_planned; k++)
		tokens += s->rows[k].n_new;
	for (; i < SCHED_STEP_BUCKETS - 1 && tokens > bound; i++)
		bound *= 2;
	s->counts.step_buckets[tokens <= 1 ? 0 : i]++;
	s->counts.step_tokens += tokens;
	s->counts.steps++;
}

void sched_step(struct sched *s, uint64_t now_us)
{
	uint32_t budget;
	bool is_broken;

	s->n_planned = 0;
	budget = plan_decodes(s, now_us);
	if (s->opts.long_prefill_tokens > 0)
		plan_turns(s, now_us, budget);
	else
		plan_prefills(s, now_us, budget);
	fill_rows(s);
	if (s->n_planned > 0) {
		count_step(s);
		is_broken = s->ops->step(s->backend, s->rows, s->n_planned) != 0;
		for (size_t i = 0; i < s->n_planned; i++) {
			s->rows[i].is_broken |= is_broken;
			if (s->planned[i] != NULL) /* a callback may have dropped it */
				take_row(s->planned[i], &s->rows[i]);
		}
		s->n_planned = 0;
	}
	if (s->opts.audit_every > 0 && s->counts.steps % s->opts.audit_every == 0)
		sched_audit(s);
}

uint64_t sched_wake_us(const struct sched *s)
{
	const struct sched_seq *seq = TAILQ_FIRST(&s->prefills);
	uint64_t wake_us = UINT64_MAX;

	while (seq != NULL && seq->is_parked)
		seq = TAILQ_NEXT(seq, link);
	if (seq != NULL)
		wake_us = seq->chunk > 0 ? seq->ready_us : s->prefill_free_us;
	else if (!TAILQ_EMPTY(&s->waiting) && !s->is_blocked &&
		s->n_running < s->opts.max_seqs)
		wake_us = s->prefill_free_us;
	TAILQ_FOREACH(seq, &s->decodes, link) {
		if (!seq->is_parked)
			wake_us = MIN(wake_us, seq->was_parked ? 0 : seq->ready_us);
	}
	return wake_us;
}

/* The outside */

struct sched *sched_new(
	const struct sched_opts *opts, const struct backend_ops *ops, struct backend *backend)
{
	struct sched *s = calloc(1, sizeof(*s));

	assert(opts->max_seqs > 0 && opts->step_tokens >= SCHED_STEP_MIN);
	if (s == NULL)
		return NULL;
	s->opts = *opts;
	s->ops = ops;
	s->backend = backend;
	TAILQ_INIT(&s->waiting);
	TAILQ_INIT(&s->prefills);
	TAILQ_INIT(&s->decodes);
	TAILQ_INIT(&s->by_age);
	s->cache = kv_cache_new(opts->n_blocks);
	s->rows = calloc(opts->max_seqs, sizeof(*s->rows));
	s->planned = calloc(opts->max_seqs, sizeof(*s->planned));
	s->refs = calloc(opts->n_blocks, sizeof(*s->refs));
	if (s->cache == NULL || s->rows == NULL || s->planned == NULL || s->refs == NULL) {
		sched_free(s);
		return NULL;
	}
	return s;
}

static void free_list(struct seq_list *list)
{
	struct sched_seq *seq;

	while ((seq = TAILQ_FIRST(list)) != NULL) {
		free_list(&seq->held);
		TAILQ_REMOVE(list, seq, link);
		seq_free(seq);
	}
}

void sched_free(struct sched *s)
{
	if (s == NULL)
		return;
	free_list(&s->waiting);
	free_list(&s->prefills);
	free_list(&s->decodes);
	kv_cache_free(s->cache);
	free(s->rows);
	free(s->planned);
	free(s->refs);
	free(s);
}

static bool seq_alloc(struct sched_seq *seq, const struct sched_request *r)
{
	size_t blocks = blocks_for(seq->n_end);

	seq->ids = malloc(seq->n_end * sizeof(*seq->ids));
	seq->names = malloc(blocks * sizeof(*seq->names));
	seq->blocks = malloc(blocks * sizeof(*seq->blocks));
	if (seq->ids == NULL || seq->names == NULL || seq->blocks == NULL)
		return false;
	memcpy(seq->ids, r->prompt, r->n_prompt * sizeof(*r->prompt));
	seq->n_ids = r->n_prompt;
	return true;
}

bool sched_refuse(struct sched *s, size_t n)
{
	size_t room = (size_t)s->opts.max_waiting + s->opts.max_seqs - s->n_running;

	if (s->n_waiting + s->n_running == 0 || s->n_waiting + n <= room)
		return false;
	s->counts.refused++;
	return true;
}

static struct sched_seq *seq_new(struct sched *s, const struct sched_request *r)
{
	struct sched_seq *seq = calloc(1, sizeof(*seq));

	if (seq == NULL)
		return NULL;
	seq->sched = s;
	seq->n_prompt = r->n_prompt;
	seq->n_end = r->n_prompt + r->max_new;
	if (!seq_alloc(seq, r)) {
		seq_free(seq);
		return NULL;
	}
	TAILQ_INIT(&seq->held);
	seq->ops = r->ops;
	seq->arg = r->arg;
	seq->seed = r->seed;
	seq->priority = r->priority;
	seq->sampling = r->sampling;
	seq->row = NO_ROW;
	seq->arrival = s->arrivals++;
	seq->pass_limit = s->admissions + s->n_waiting + SCHED_PASS_MAX;
	return seq;
}

struct sched_seq *sched_submit(struct sched *s, const struct sched_request *r)
{
	struct sched_seq *seq;

	assert(r->n_prompt > 0 && r->max_new > 0 &&
		r->n_prompt + r->max_new <= sched_max_tokens(s));
	assert(r->fork_of == NULL ||
		(r->fork_of->state == SEQ_WAITING && !r->fork_of->was_admitted &&
			r->fork_of->n_prompt == r->n_prompt && r->fork_of->seed == r->seed));
	seq = seq_new(s, r);
	if (seq == NULL)
		return NULL;
	seq->leader = r->fork_of;
	enter(seq, seq->leader != NULL ? SEQ_HELD : SEQ_WAITING);
	if (TAILQ_FIRST(&s->waiting) == seq)
		s->is_blocked = false; /* it may need less */
	tell_work(s);
	return seq;
}

void sched_drop(struct sched_seq *seq)
{
	struct sched *s = seq->sched;

	assert(!seq->is_calling);
	detach(seq, SCHED_END_ABORT);
	seq_free(seq);
	tell_work(s);
}

void sched_park(struct sched_seq *seq, bool on)
{
	if (seq->is_parked == on)
		return;
	seq->is_parked = on;
	seq->was_parked = true;
	if (on && seq->row == NO_ROW)
		stop_chunk(seq);
	tell_work(seq->sched);
}

void sched_stop(struct sched_seq *seq)
{
	assert(seq->is_calling);
	seq->is_stopped = true;
}

size_t sched_cached(const struct sched_seq *seq)
{
	return seq->cached;
}

void sched_flush(struct sched *s)
{
	kv_cache_flush(s->cache);
}

/* Audits */

static void audit_seq(struct sched *s, const struct sched_seq *seq, enum seq_state state)
{
	const struct sched_seq *held;

	assert(seq->sched == s && seq->state == state && seq->row == NO_ROW);
	assert(seq->n_prompt <= seq->n_ids && seq->n_ids < seq->n_end);
	assert(is_running(seq) ? seq->n_computed < seq->n_ids : seq->n_blocks == 0);
	assert(blocks_for(seq->n_computed) <= seq->n_blocks || seq->n_blocks == 0);
	assert(state != SEQ_DECODE || (seq->n_computed == seq->n_ids - 1 && seq->chunk == 0));
	assert(TAILQ_EMPTY(&seq->held) || !seq->has_prompt);
	for (size_t i = 0; i < seq->n_blocks; i++)
		s->refs[seq->blocks[i]]++;
	TAILQ_FOREACH(held, &seq->held, link) {
		assert(held->leader == seq);
		audit_seq(s, held, SEQ_HELD);
	}
}

static unsigned count_held(const struct sched_seq *seq)
{
	const struct sched_seq *held;
	unsigned n = 0;

	TAILQ_FOREACH(held, &seq->held, link)
		n++;
	return n;
}

/* Returns how many are in the list; *held: how many wait for them. */
static unsigned audit_list(
	struct sched *s, const struct seq_list *list, enum seq_state state, unsigned *held)
{
	const struct sched_seq *seq, *before = NULL;
	unsigned n = 0;

	TAILQ_FOREACH(seq, list, link) {
		audit_seq(s, seq, state);
		assert(state == SEQ_DECODE || before == NULL || goes_before(before, seq));
		before = seq;
		*held += count_held(seq);
		n++;
	}
	return n;
}

void sched_audit(struct sched *s)
{
	const struct sched_seq *seq, *before = NULL;
	unsigned waiting, running, held = 0, aged = 0;

	memset(s->refs, 0, s->opts.n_blocks * sizeof(*s->refs));
	waiting = audit_list(s, &s->waiting, SEQ_WAITING, &held);
	running = audit_list(s, &s->prefills, SEQ_PREFILL, &held);
	running += audit_list(s, &s->decodes, SEQ_DECODE, &held);
	TAILQ_FOREACH(seq, &s->by_age, age_link) {
		assert(seq->state == SEQ_WAITING);
		assert(before == NULL || before->arrival < seq->arrival);
		before = seq;
		aged++;
	}
	assert(aged == waiting && s->n_waiting == waiting + held && s->n_running == running);
	assert(running <= s->opts.max_seqs);
	kv_cache_audit(s->cache, s->refs);
}

size_t sched_max_tokens(const struct sched *s)
{
	return (size_t)s->opts.n_blocks * KV_BLOCK;
}

unsigned sched_waiting(const struct sched *s)
{
	return s->n_waiting;
}

unsigned sched_running(const struct sched *s)
{
	return s->n_running;
}

double sched_usage(const struct sched *s)
{
	return (double)kv_cache_used(s->cache) / kv_cache_blocks(s->cache);
}

uint32_t sched_used_blocks(const struct sched *s)
{
	return kv_cache_used(s->cache);
}

const struct sched_counts *sched_counts(const struct sched *s)
{
	return &s->counts;
}

const struct sched_opts *sched_opts(const struct sched *s)
{
	return &s->opts;
}
