/*
 * Sequences: the list that each is in by its state, its rank, and the blocks that it
 * holds. sched_seq.h says what is always true of them. Called by sched.c and
 * sched_plan.c.
 */
#include "core/sched_seq.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>

/* Rank */

bool seq_goes_before(const struct sched_seq *a, const struct sched_seq *b)
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

	while (at != NULL && seq_goes_before(seq, at))
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
	case SEQ_LOAD:
		return &seq->sched->loads;
	case SEQ_PREFILL:
		return &seq->sched->prefills;
	default:
		return &seq->sched->decodes;
	}
}

bool seq_is_running(const struct sched_seq *seq)
{
	return seq->state == SEQ_LOAD || seq->state == SEQ_PREFILL ||
	       seq->state == SEQ_DECODE;
}

/* The one place where a sequence's state begins. */
void seq_enter(struct sched_seq *seq, enum seq_state state)
{
	struct sched *s = seq->sched;

	seq->state = state;
	if (seq_is_running(seq))
		s->n_running++;
	else
		s->n_waiting++;
	s->n_loading += state == SEQ_LOAD;
	if (state == SEQ_WAITING)
		insert_by_age(&s->by_age, seq);
	if (state == SEQ_WAITING || state == SEQ_PREFILL)
		insert_by_rank(list_of(seq), seq);
	else
		TAILQ_INSERT_TAIL(list_of(seq), seq, link);
}

/* The chunk that was begun takes no time. */
void seq_stop_chunk(struct sched_seq *seq)
{
	const struct sched *s = seq->sched;

	if (seq->chunk > 0 && s->ops->pace != NULL)
		s->ops->pace->drop_chunk(s->backend);
	seq->chunk = 0;
}

/* The one place where it ends; also takes the sequence out of the step. */
void seq_leave(struct sched_seq *seq)
{
	struct sched *s = seq->sched;

	TAILQ_REMOVE(list_of(seq), seq, link);
	if (seq->state == SEQ_WAITING)
		TAILQ_REMOVE(&s->by_age, seq, age_link);
	if (seq_is_running(seq))
		s->n_running--;
	else
		s->n_waiting--;
	s->n_loading -= seq->state == SEQ_LOAD;
	if (seq->row != NO_ROW)
		s->planned[seq->row] = NULL;
	seq->row = NO_ROW;
	seq_stop_chunk(seq);
}

/* Blocks */

static struct kv_chain chain_of(const struct sched_seq *seq)
{
	return (struct kv_chain){seq->ids, seq->names, seq->seed};
}

/* Extends the chain of names over the full blocks of the first n tokens. */
void seq_name_chain(struct sched_seq *seq, size_t n)
{
	uint32_t tokens = seq->sched->shape.block_tokens;

	for (size_t i = seq->n_names; i < sched_full_blocks(seq->sched, n); i++) {
		seq->names[i] = kv_name(i > 0 ? seq->names[i - 1] : seq->seed,
			seq->ids + i * tokens, tokens);
		seq->n_names = i + 1;
	}
}

/* Offers the blocks that are full and computed to the cache. */
void seq_name_blocks(struct sched_seq *seq)
{
	struct kv_chain chain = chain_of(seq);
	size_t full = sched_full_blocks(seq->sched, seq->n_computed);

	seq_name_chain(seq, seq->n_computed);
	for (; seq->n_named < full; seq->n_named++)
		kv_cache_name(seq->sched->cache, seq->blocks[seq->n_named], &chain,
			seq->n_named);
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
	int err;

	assert(s->is_planning && !s->is_stepping);
	err = kv_cache_alloc(s->cache, n, at);

	if (err != 0)
		return err;
	s->ops->drop(s->backend, at, n);
	seq->n_blocks += n;
	return 0;
}

/* Makes the block that the next token goes to the sequence's own, by copying it if others
 * have it. */
static int own_block(struct sched_seq *seq)
{
	struct sched *s = seq->sched;
	uint32_t pair[1][2];
	uint32_t *block = &seq->blocks[sched_full_blocks(s, seq->n_computed)];
	int err;

	assert(s->is_planning && !s->is_stepping);
	err = kv_cache_own(s->cache, block, &pair[0][0]);

	if (err != 0 || pair[0][0] == KV_NONE)
		return err;
	pair[0][1] = *block;
	s->ops->copy(s->backend, (const uint32_t(*)[2])pair, 1);
	s->counts.copies++;
	return 0;
}

/* Whether the next token has a block to go to. */
int seq_take_block(struct sched_seq *seq)
{
	if (seq->n_blocks == sched_full_blocks(seq->sched, seq->n_computed))
		return add_blocks(seq, 1);
	return own_block(seq);
}

/* Blocks for all tokens there are, as many as may be from the cache. ERR_LIMIT: too few
 * are free; nothing is changed. */
int seq_take_all_blocks(struct sched_seq *seq)
{
	struct sched *s = seq->sched;
	struct kv_chain chain;
	size_t need = sched_blocks_for(s, seq->n_ids), found, found_free, spare = 0;
	uint32_t free_blocks = kv_cache_blocks(s->cache) - kv_cache_used(s->cache);
	int err;

	/* The last token is always computed: it gives the next one. */
	seq_name_chain(seq, seq->n_ids - 1);
	chain = chain_of(seq);
	found = kv_cache_match(
		s->cache, &chain, sched_full_blocks(s, seq->n_ids - 1), &found_free);
	if (s->n_running > 0)
		spare = s->opts.n_blocks / 100;
	if (need - found + found_free + spare > free_blocks)
		return ERR_LIMIT;
	seq->n_blocks = kv_cache_find(s->cache, &chain, found, seq->blocks);
	seq->n_named = found;
	seq->n_computed = found * s->shape.block_tokens;
	err = add_blocks(seq, need - found);
	assert(err == 0);
	return 0;
}

/* The end */

void seq_free(struct sched_seq *seq)
{
	free(seq->ids);
	free(seq->names);
	free(seq->blocks);
	free(seq);
}

/* The next of the sequences that waited for this one computes the prompt. */
static void pass_lead(struct sched_seq *seq)
{
	struct sched_seq *next = TAILQ_FIRST(&seq->held), *other;

	if (next == NULL)
		return;
	seq_leave(next);
	next->leader = NULL;
	seq_enter(next, SEQ_WAITING);
	while ((other = TAILQ_FIRST(&seq->held)) != NULL) {
		seq_leave(other);
		other->leader = next;
		seq_enter(other, SEQ_HELD);
	}
}

/* Out of everything but memory. */
void seq_detach(struct sched_seq *seq, enum sched_end end)
{
	seq->sched->counts.ended[end]++;
	seq_leave(seq);
	drop_blocks(seq);
	pass_lead(seq);
	seq->sched->is_blocked = false;
}

void seq_preempt(struct sched_seq *seq)
{
	struct sched *s = seq->sched;

	assert(seq_is_running(seq));
	s->counts.preemptions++;
	seq_leave(seq);
	drop_blocks(seq);
	seq_enter(seq, SEQ_WAITING);
	s->is_blocked = false;
}

/* The one that has to give way first. A sequence that loads never does. */
struct sched_seq *sched_last_by_rank(struct sched *s)
{
	struct sched_seq *seq, *last = TAILQ_LAST(&s->prefills, seq_list);

	TAILQ_FOREACH (seq, &s->decodes, link) {
		if (last == NULL || seq_goes_before(last, seq))
			last = seq;
	}
	return last;
}

void seq_tell_begin(const struct sched_seq *seq)
{
	if (seq->ops->on_begin != NULL)
		seq->ops->on_begin(seq->arg);
}
