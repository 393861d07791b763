/*
 * Inside the scheduler: what its files share about sequences; nobody else includes this.
 * Always true: a sequence holds blocks exactly while it runs or loads, which counts as
 * running; the first n_computed of its tokens are in them; it is in one list, by its
 * state; `waiting` and `prefills` are in order of rank, `loads` in that of their turns,
 * `by_age` in order of arrival, `decodes` in order of their last step.
 */
#ifndef ENGINE_CORE_SCHED_SEQ_H
#define ENGINE_CORE_SCHED_SEQ_H

#include "base/list.h"
#include "core/kv_cache.h"
#include "core/sched.h"

enum seq_state { SEQ_WAITING, SEQ_HELD, SEQ_LOAD, SEQ_PREFILL, SEQ_DECODE };
enum { NO_ROW = -1 };

TAILQ_HEAD(seq_list, sched_seq);

struct sched_seq {
	struct sched *sched;
	enum seq_state state;
	TAILQ_ENTRY(sched_seq) link;     /* of its state; for SEQ_HELD of the leader */
	TAILQ_ENTRY(sched_seq) age_link; /* by_age, while waiting */
	struct sched_seq *leader;        /* SEQ_HELD: who computes the prompt */
	struct seq_list held;            /* who waits for this one to compute it */
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
	struct sample_opts sampling;
	uint64_t seed, *names;
	size_t n_names; /* known names */
	uint32_t *blocks;
	size_t n_blocks, n_named; /* held; leading ones that were offered their names */
	size_t cached;
	uint32_t chunk; /* of the prompt being computed, due at due_us; 0: none */
	uint64_t round; /* in which it had its chunk */
	int row;        /* in the step being planned or done */
	bool wants_load, keeps_prompt;
	struct sched_pin *pin; /* while on_end() is called */
	bool was_admitted, has_prompt, is_parked, was_parked, is_stopped, is_calling;
	uint64_t due_us; /* its next row, as the backend's pace says; 0: at once */
};

struct sched {
	struct sched_opts opts;
	const struct backend_ops *ops;
	struct backend *backend;
	struct backend_shape shape;
	struct kv_cache *cache;
	struct seq_list waiting, loads, prefills, decodes, by_age;
	TAILQ_HEAD(, sched_pin) pins;
	unsigned n_waiting; /* with those that are held */
	unsigned n_running; /* with those that load */
	unsigned n_loading;
	uint64_t arrivals, admissions;
	uint64_t round;        /* of prompts that take turns, from 1 */
	uint32_t round_tokens; /* left of it */
	/* the first one waiting did not fit, and nothing was freed since */
	bool is_blocked;
	struct backend_row *rows;
	struct sample_out *outs;    /* of each row */
	struct sched_seq **planned; /* of each row; NULL: it left meanwhile */
	size_t n_planned;
	bool is_planning; /* blocks may be allocated */
	bool is_stepping; /* between sched_begin() and sched_finish() */
	uint32_t *refs;   /* for audits */
	struct sched_counts counts;
};

static inline size_t sched_full_blocks(const struct sched *s, size_t tokens)
{
	return tokens / s->shape.block_tokens;
}

static inline size_t sched_blocks_for(const struct sched *s, size_t tokens)
{
	return sched_full_blocks(s, tokens + s->shape.block_tokens - 1);
}

/* When a chunk of a prompt may begin. */
static inline uint64_t sched_free_us(const struct sched *s)
{
	return s->ops->pace != NULL ? s->ops->pace->free_us(s->backend) : 0;
}

bool seq_goes_before(const struct sched_seq *a, const struct sched_seq *b); /* by rank */
bool seq_is_running(const struct sched_seq *seq);
/* The one place where a sequence's state begins. */
void seq_enter(struct sched_seq *seq, enum seq_state state);
/* The one place where it ends; also takes the sequence out of the step. */
void seq_leave(struct sched_seq *seq);
/* The chunk that was begun takes no time. */
void seq_stop_chunk(struct sched_seq *seq);
void seq_tell_begin(const struct sched_seq *seq);

/* Extends the chain of names over the full blocks of the first n tokens. */
void seq_name_chain(struct sched_seq *seq, size_t n);
/* Offers the blocks that are full and computed to the cache. */
void seq_name_blocks(struct sched_seq *seq);
/* Whether the next token has a block of the sequence's own to go to; ERR_LIMIT: none is
 * free. */
int seq_take_block(struct sched_seq *seq) MUST_CHECK;
/* Blocks for all tokens there are, as many as may be from the cache. ERR_LIMIT: too few
 * are free; nothing is changed. */
int seq_take_all_blocks(struct sched_seq *seq) MUST_CHECK;

/* A running sequence gives up its blocks and waits again. */
void seq_preempt(struct sched_seq *seq);
/* The running sequence that has to give way first; NULL: none runs. */
struct sched_seq *sched_last_by_rank(struct sched *s);
/* Takes it out of everything but memory. */
void seq_detach(struct sched_seq *seq, enum sched_end end);
void seq_free(struct sched_seq *seq);

#endif
