/*
 * The table of functions behind which a model is computed: `sim` fills it in
 * backend_sim.c; cpu and cuda will. The seam is the C ABI: plain structs of plain arrays,
 * no allocation crosses it.
 *
 * The scheduler owns sequences and decides which block holds what (block
 * numbers, 0 to n_blocks - 1); the backend owns the bytes of the blocks, and knows
 * nothing of sequences. A block holds the keys and values of up to block_tokens
 * consecutive tokens of one prefix, all layers side by side, so that it can be read and
 * written as one piece of block_bytes.
 *
 * All calls but open() come from the engine's thread, one at a time. A step is begun by
 * step() and ends with collect(); the backend computes in between, on threads or queues
 * of its own. At most one step runs. copy, drop, read, write and holds are complete when
 * they return. They may be called while a step runs, on blocks that none of its rows
 * writes.
 */
#ifndef ENGINE_CORE_BACKEND_H
#define ENGINE_CORE_BACKEND_H

#include "base/base.h"

struct backend; /* one open model with its blocks; each backend has its own */
struct vocab;

struct backend_opts {
	const char *model;     /* a name or a file */
	uint32_t n_blocks;     /* 0: as many as the backend likes */
	uint32_t block_tokens; /* 0: as the backend likes */
	unsigned max_rows;     /* of one step, > 0 */
	uint32_t max_new;      /* tokens of all rows of one step, > 0 */
	const void *own;       /* the backend's own options; may be NULL */
	/* The step that runs is done. Called once for each step that was begun, from any
	 * thread, also from inside step(). It has returned before collect() returns. May
	 * be NULL. */
	void (*on_done)(void *arg);
	/* Whether nobody waits for open() any more, which asks this now and then. */
	bool (*gives_up)(void *arg);
	void *arg;
};

struct backend_shape {
	uint32_t n_blocks, block_tokens;
	size_t block_bytes;     /* of one block, all layers */
	uint32_t vocab;         /* token ids are below it */
	uint32_t max_positions; /* tokens of a sequence; 0: no limit of the model's */
};

/*
 * How a request wants its tokens to be chosen. A backend that does not sample, as sim,
 * looks at `choice` only.
 */
struct sample_opts {
	double temperature; /* 0: the likeliest token, always */
	double top_p;       /* of the likeliest tokens, so much probability; 1: all */
	double min_p;   /* tokens at least so likely, as part of the likeliest; 0: all */
	uint32_t top_k; /* so many of the likeliest tokens; 0: all */
	double presence_penalty, frequency_penalty; /* of generated tokens; 0: none */
	double repetition_penalty;                  /* of all tokens; 1: none */
	uint64_t seed;                              /* if has_seed; else any */
	uint64_t choice; /* which one of the n answers to a prompt: 0 to n - 1 */
	/* Ids that end an answer beside those of the vocabulary. The caller's memory,
	 * until the sequence has ended. */
	const uint32_t *stop_ids;
	uint32_t n_stop_ids;
	uint32_t min_new; /* tokens of the answer before which nothing may end it */
	uint32_t n_top;   /* likeliest tokens to tell of, up to SAMPLE_TOP_MAX */
	bool has_seed;
	bool ignores_ends;   /* the vocabulary's end ids are never chosen */
	bool wants_logprobs; /* of the token, and of n_top */
};

enum { SAMPLE_TOP_MAX = 20 };

struct sample_top {
	uint32_t token;
	float logprob;
};

/* The token that was chosen. */
struct sample_out {
	uint32_t token;
	float logprob; /* if wants_logprobs, as are the others */
	uint32_t n_top;
	struct sample_top top[SAMPLE_TOP_MAX]; /* the likeliest first */
};

/*
 * One sequence in one step. The tokens at positions n_past to n_past + n_new - 1 are
 * computed, and their KV stored: position p lies in block blocks[p / block_tokens], slot
 * p % block_tokens. All positions before n_past are there already. Rows of one step share
 * blocks only before their n_past.
 */
struct backend_row {
	const uint32_t *ids;    /* [n_new], the new tokens */
	uint32_t n_new, n_past; /* n_new > 0 */
	/* [n_past], the tokens before them; n_prompt of all are the prompt's */
	const uint32_t *past_ids;
	uint32_t n_prompt;
	/* [n_blocks], n_blocks = ceil((n_past + n_new) / block_tokens) */
	const uint32_t *blocks;
	uint32_t n_blocks;
	bool wants_token; /* the new ones are the last ones there are: give the next */
	const struct sample_opts *sampling; /* if wants_token */
	/* Out */
	struct sample_out *out; /* filled if wants_token; the caller's room */
	/* the blocks did not hold this prefix: nothing of this row may be used */
	bool is_broken;
};

/*
 * The pace of a backend whose steps take no time of their own, as sim's: it says when a
 * row may be planned. Times are those of sched_begin(). Prompts are computed in chunks,
 * one chunk after another; each sequence decodes beside them.
 */
struct backend_pace {
	/* When the next chunk may begin. */
	uint64_t (*free_us)(const struct backend *b);
	/* A chunk of so many tokens begins at now_us, free_us() or later. Returns when it
	 * is done. last_us: when the chunk before of the same prompt was done; 0: it is
	 * the first one. */
	uint64_t (*chunk)(
		struct backend *b, uint32_t tokens, uint64_t last_us, uint64_t now_us);
	/* The chunk that was begun last will not be computed. */
	void (*drop_chunk)(struct backend *b);
	/* When the token after the one of last_us is due. */
	uint64_t (*token)(const struct backend *b, uint64_t last_us);
};

struct backend_ops {
	const char *name;
	const struct backend_pace *pace; /* NULL: a row may be planned at once */
	/* May take minutes, and is called on a thread of its own, before all others.
	 * ERR_NOMEM, ERR_NOENT (no such model), ERR_UNSUPPORTED (no such sizes),
	 * ERR_CLOSED (gives_up() said so). */
	int (*open)(const struct backend_opts *opts, struct backend **out) MUST_CHECK;
	void (*close)(struct backend *b); /* NULL is fine */
	void (*shape)(const struct backend *b, struct backend_shape *out);
	/* Its tokenizer, of as many ids as its shape says; lives as long as it does. */
	const struct vocab *(*vocab)(const struct backend *b);
	/* Begins to compute a batch, of no rows for a sign of life. Rows, ids and tables
	 * are the caller's: what is needed of them is copied before this returns. ERR_*:
	 * no step was begun. */
	int (*step)(
		struct backend *b, const struct backend_row *rows, size_t n) MUST_CHECK;
	/* Ends the step: fills what is out of its rows, in the order in which step() got
	 * them. Waits where the step is not done. ERR_*: nothing of it may be used. */
	int (*collect)(struct backend *b, struct backend_row *rows, size_t n) MUST_CHECK;
	/* Copies whole blocks, in order: pairs[i] = { from, to }. */
	void (*copy)(struct backend *b, const uint32_t (*pairs)[2], size_t n);
	/* The content of these blocks is not needed any more. */
	void (*drop)(struct backend *b, const uint32_t *blocks, size_t n);
	/* The bytes of n blocks to and from [n][block_bytes], for the hand-off to another
	 * worker. write: ERR_PARSE (unusable bytes). */
	int (*read)(const struct backend *b, const uint32_t *blocks, size_t n,
		void *dst) MUST_CHECK;
	int (*write)(struct backend *b, const uint32_t *blocks, size_t n,
		const void *src) MUST_CHECK;
	/* Whether these blocks, which were written, hold the prefix of n tokens, as far
	 * as that can be seen. */
	bool (*holds)(const struct backend *b, const uint32_t *blocks,
		const uint32_t *ids, uint32_t n);
};

extern const struct backend_ops backend_sim;

/* By name; NULL: there is none. */
const struct backend_ops *backend_find(const char *name);

#endif
