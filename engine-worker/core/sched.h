/*
 * The scheduler: which sequence runs, in which blocks, and when. Continuous batching
 * without phases: every step hands out a budget of tokens, one to each sequence that
 * decodes and chunks of prompts for what is left, and is one call of the backend. Pure:
 * time is an argument, and nothing happens between calls.
 *
 * A step is begun and finished. While it runs, sequences may be submitted, dropped,
 * parked and loaded, pins may come and go, and none of that waits. Blocks are allocated
 * only while a step is planned, and no step runs then. So the blocks that a dropped
 * sequence gave back are not used again before the step that may still write them ends.
 *
 * Order. The rank of a sequence is its priority (lower goes first), then its arrival.
 *
 * - Decodes come first. The decode that has waited longest for a step goes before the
 *   others. While prompts wait, a quarter of the budget is theirs.
 * - Prompts are computed in order of rank, one after another. Several prompts share a
 *   step if they fit into it.
 * - A prompt is admitted when its turn comes, fewer than max_seqs run, and the blocks for
 *   all of its tokens are free (and 1 % more while others run). No other prompt overtakes
 *   it because it needs more.
 * - With long_prefill_tokens a prompt gets no more than that many tokens of a round of
 *   step_tokens. Prompts of lower rank get the rest. So a short prompt does not wait for
 *   the end of a long one.
 * - A sequence that finds no block for its next token takes the blocks of the last by
 *   rank, which may be itself. That one waits again and is computed anew. Its named
 *   blocks stay in the cache until they are needed, so that this is mostly a prefix hit.
 *   The first by rank is never preempted.
 * - No sequence starves. One that has seen as many admitted as waited before it, and
 *   SCHED_PASS_MAX more, becomes the first of all ranks, in order of arrival.
 *
 * A prompt that another worker has computed is loaded. When its turn comes it gets its
 * blocks as any other does. The caller fills those that were not cached, while all else
 * goes on. Then the sequence decodes. If the load fails, the prompt is computed.
 *
 * A prompt that was computed for another worker stays pinned after the end of its
 * sequence, until sched_unpin(). With several answers to one prompt the first one
 * computes it. The others wait for that, share its blocks, and copy the last block before
 * they write.
 *
 * A backend may have a pace (backend.h): then a row is planned when the backend says that
 * it is due. Without one a row is due at once.
 */
#ifndef ENGINE_CORE_SCHED_H
#define ENGINE_CORE_SCHED_H

#include "base/list.h"
#include "core/backend.h"

enum { SCHED_PASS_MAX = 64 };

struct sched;
struct sched_seq; /* one choice being generated */

struct sched_opts {
	uint32_t n_blocks, block_tokens; /* as the backend's shape says */
	unsigned max_seqs;               /* running at once */
	unsigned max_waiting;            /* beyond what could run at once */
	uint32_t step_tokens;            /* budget of a step, at least SCHED_STEP_MIN */
	uint32_t long_prefill_tokens;    /* of one prompt in a round; 0: no bound */
	/* After so many steps all invariants are asserted, in time linear in blocks; 0:
	 * never. */
	uint32_t audit_every;
	/* sched_wake_us() may have become earlier; may be NULL. */
	void (*on_work)(void *arg);
	void *arg;
};

enum { SCHED_STEP_MIN = 16 };

/* ERROR: the backend failed, or found something else in the sequence's blocks. */
enum sched_end {
	SCHED_END_LENGTH,
	SCHED_END_STOP,
	SCHED_END_ABORT,
	SCHED_END_ERROR,
	SCHED_END_MAX
};

struct sched_ops {
	/* Its prompt begins to be computed, loaded, or shared, for the first time, in
	 * sched_begin() or sched_finish(). Must call nothing here. May be NULL. */
	void (*on_begin)(void *arg);
	/*
	 * It has blocks for its prompt, n of them, of which the first `found` hold what
	 * they should; the others are to be loaded, beginning now. found is n: there is
	 * nothing to load, it is computed as others are. Once, for wants_load; in
	 * sched_begin(). Must call nothing here.
	 */
	void (*on_load)(void *arg, struct sched_seq *seq, size_t found, size_t n);
	/* The next token, from inside sched_finish(). May call sched_park(),
	 * sched_stop(), and sched_drop() for others. */
	void (*on_token)(void *arg, struct sched_seq *seq, const struct sample_out *out);
	/* All tokens were given; seq is freed when this returns. May call sched_drop()
	 * for others. */
	void (*on_end)(void *arg, struct sched_seq *seq, enum sched_end end);
};

struct sched_request {
	const uint32_t *prompt; /* copied */
	size_t n_prompt;        /* > 0 */
	uint32_t max_new;       /* > 0; n_prompt + max_new <= sched_max_tokens() */
	uint64_t seed;          /* kv_seed() */
	int64_t priority;       /* lower goes first */
	struct sample_opts sampling;
	/* the first choice of the same prompt, not stepped since its submission; or NULL
	 */
	struct sched_seq *fork_of;
	bool wants_load;   /* on_load() is told, and not a fork */
	bool keeps_prompt; /* sched_take_pin() */
	const struct sched_ops *ops;
	void *arg;
};

/* Blocks that hold the n_tokens of a prompt, and stay while this does. The scheduler's
 * memory. */
struct sched_pin {
	TAILQ_ENTRY(sched_pin) link;
	struct sched *sched;
	uint32_t n_tokens, n_blocks;
	uint32_t blocks[];
};

/* Steps by the tokens they computed: up to 1, 8, 16, 32 and so on to 16384, and above. */
enum { SCHED_STEP_BUCKETS = 14 };

struct sched_counts {
	uint64_t steps, preemptions, copies, broken;
	uint64_t step_buckets[SCHED_STEP_BUCKETS], step_tokens;
	uint64_t generated_tokens;
	/* Of prompts as first admitted, once for all their choices. */
	uint64_t prompt_tokens, cached_tokens;
	uint64_t load_tokens, loaded_tokens; /* asked of other workers, and got */
	uint64_t computed_tokens; /* by the backend, what was computed again included */
	uint64_t refused;         /* by sched_refuse() */
	uint64_t ended[SCHED_END_MAX];
};

/* backend is open, of this shape and of max_seqs rows, and stays the caller's. NULL: out
 * of memory. */
struct sched *sched_new(const struct sched_opts *opts, const struct backend_ops *ops,
	struct backend *backend);
/* Drops all without calling anybody, after the step that runs. NULL is fine. */
void sched_free(struct sched *s);

/* Whether n more sequences are too many to wait (and counts that). An idle scheduler
 * takes any number. */
bool sched_refuse(struct sched *s, size_t n);
/* NULL: out of memory. */
struct sched_seq *sched_submit(struct sched *s, const struct sched_request *r);
/* Takes a sequence out at once (counted as aborted) and frees it and its blocks. Not for
 * the one being called back. */
void sched_drop(struct sched_seq *seq);
/* While parked a sequence keeps its blocks and generates nothing (its client is slow),
 * but for a token of the step that is being made. */
void sched_park(struct sched_seq *seq, bool on);
/* The token just given was the last one: on_end(SCHED_END_STOP) follows. From on_token
 * only. */
void sched_stop(struct sched_seq *seq);
/* Prompt tokens that were not computed: found in the cache when the prompt had its first
 * turn, or loaded. */
size_t sched_cached(const struct sched_seq *seq);

/* Loading, after on_load() */

/* The bytes of the i-th block of the prompt. ERR_PARSE: no such bytes. */
int sched_load_block(struct sched_seq *seq, size_t i, const void *bytes) MUST_CHECK;
/* All are written: it goes on with them. False: they do not hold this prompt; it still
 * loads. */
bool sched_load_done(struct sched_seq *seq) MUST_CHECK;
void sched_load_fail(struct sched_seq *seq); /* what is missing is computed */

/* Pins */

/* The blocks of its prompt; NULL: it keeps none, was not computed to its end, or memory
 * is out. In on_end() only; the caller's to unpin. */
struct sched_pin *sched_take_pin(struct sched_seq *seq);
void sched_unpin(struct sched_pin *pin);
/* The bytes of its i-th block. */
int sched_read_pin(const struct sched_pin *pin, size_t i, void *bytes) MUST_CHECK;
/*
 * Begins a step of what is due at now_us, which never goes back. None may run. True: one
 * runs, and sched_finish() is to be called when the backend says that it is done, or
 * earlier to wait for it. False: nothing was due, or the backend failed, and those of the
 * step have ended.
 */
bool sched_begin(struct sched *s, uint64_t now_us) MUST_CHECK;
/* Ends the step that runs: its tokens are given. */
void sched_finish(struct sched *s);
/* When the next step has something to do; 0: at once; UINT64_MAX: only after another
 * call, or when the step that runs has ended. */
uint64_t sched_wake_us(const struct sched *s);

void sched_flush(struct sched *s); /* forgets all cached prefixes */
/* Asserts every invariant: each block's references are those of the sequences, each
 * list's state, order and count. */
void sched_audit(struct sched *s);

const struct backend_shape *sched_shape(const struct sched *s); /* its backend's */
size_t sched_max_tokens(const struct sched *s);                 /* of one sequence */
unsigned sched_waiting(const struct sched *s);                  /* those that load, too */
unsigned sched_running(const struct sched *s);
unsigned sched_loading(const struct sched *s);
double sched_usage(const struct sched *s); /* used blocks, 0 to 1 */
uint32_t sched_used_blocks(const struct sched *s);
const struct sched_counts *sched_counts(const struct sched *s);
const struct sched_opts *sched_opts(const struct sched *s);

#endif
