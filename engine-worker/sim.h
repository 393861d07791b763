/*
 * The simulated engine: sequences, their KV blocks and the time that a real one would take; no arithmetic.
 *
 * What it generates is a function of the whole prefix, so that a mixed-up stream shows:
 *	s = 0
 *	s = mix(t ^ s) for each token t of the prompt and of what was generated so far, where, mod 2^64,
 *		z = x + 0x9e3779b97f4a7c15
 *		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
 *		z = (z ^ z >> 27) * 0x94d049bb133111eb
 *		mix(x) = z ^ z >> 31
 *	the next token is the text SIM_WORDS[(s + choice) mod 64] with a blank before it (always one token, token.h)
 * s is also what a KV block is checked with when it is reused.
 *
 * Time: prefills take the engine one after another, uncached tokens at prefill_rate; each running sequence decodes at decode_rate beside them.
 * All times are multiplied by `speed`; with 0 everything takes one turn of the loop.
 * The KV cache has n_blocks of SIM_BLOCK tokens. A sequence that finds no block for its next token takes those of the youngest one, which
 * waits at the head of the queue and is computed anew.
 */
#ifndef ENGINE_SIM_H
#define ENGINE_SIM_H

#include "base/base.h"

#define SIM_BLOCK 16
#define SIM_WORDS                                                                         \
	"the", "and", "for", "you", "was", "not", "are", "all", "but", "had", "her", "she", \
	"one", "our", "out", "day", "get", "has", "him", "his", "how", "man", "new", "now", \
	"old", "see", "two", "way", "who", "boy", "did", "its", "let", "put", "say", "too", \
	"use", "big", "end", "far", "few", "got", "own", "run", "set", "sun", "try", "why", \
	"air", "any", "arm", "art", "bad", "bed", "box", "car", "cup", "dog", "ear", "eat", \
	"eye", "fly", "sky", "sea"

struct loop;
struct sim;
struct sim_seq; /* one choice being generated */

struct sim_opts {
	double prefill_rate, decode_rate; /* tokens a second */
	double speed;			  /* factor on all times; 0: none */
	uint32_t n_blocks;
	unsigned max_seqs; /* running at once */
};

enum sim_end { SIM_END_LENGTH, SIM_END_STOP, SIM_END_ABORT, SIM_END_MAX };

struct sim_ops {
	/* The next token. Not from inside sim_submit(). May call sim_park() and sim_stop(). */
	void (*on_token)(void *arg, struct sim_seq *seq, uint32_t id);
	/* All tokens were given; seq is freed when this returns. May call sim_drop() for others of the same request. */
	void (*on_end)(void *arg, struct sim_seq *seq, enum sim_end end);
};

struct sim_request {
	const uint32_t *prompt; /* copied */
	size_t n_prompt;	/* > 0 */
	uint32_t max_new;	/* > 0; n_prompt + max_new <= sim_max_tokens() */
	uint64_t salt;		/* of the KV blocks' names: equal prefixes of other salts do not meet */
	uint64_t choice; /* 0 for the first choice of a request */
	const struct sim_ops *ops;
	void *arg;
};

struct sim_counts {
	uint64_t prompt_tokens, cached_tokens, generated_tokens, preemptions, corrupted;
	uint64_t queries, hits; /* prefix cache, in tokens */
	uint64_t ended[SIM_END_MAX];
};

struct sim *sim_new(struct loop *l, const struct sim_opts *opts); /* NULL: no memory or descriptors */
void sim_free(struct sim *s);					  /* drops all without calling anybody; NULL is fine */

/* NULL: out of memory. */
struct sim_seq *sim_submit(struct sim *s, const struct sim_request *r);
/* Takes a sequence out at once (counted as aborted) and frees it and its blocks. */
void sim_drop(struct sim_seq *seq);
/* While parked a sequence keeps its blocks and generates nothing (its client is slow). */
void sim_park(struct sim_seq *seq, bool on);
/* The token just given was the last one: on_end(SIM_END_STOP) follows. From on_token only. */
void sim_stop(struct sim_seq *seq);
/* Prompt tokens that were found in the cache when the prompt was first computed. */
size_t sim_cached(const struct sim_seq *seq);

void sim_flush(struct sim *s);
size_t sim_max_tokens(const struct sim *s);
unsigned sim_waiting(const struct sim *s);
unsigned sim_running(const struct sim *s);
double sim_usage(const struct sim *s); /* used blocks, 0 to 1 */
const struct sim_counts *sim_counts(const struct sim *s);
/* s after the prompt, for tests and for lengths that depend on it. */
uint64_t sim_state(const uint32_t *ids, size_t n);

#endif
