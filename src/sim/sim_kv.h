/*
 * The KV cache of one simulated worker: the blocks of the trace that it really holds,
 * whatever the router expects. Room is counted in blocks of 16 tokens, as kvsteer-engine
 * does; a full one can be found again by its prefix until its room is needed. Unused
 * blocks go least recently released first, and the end of a prompt before its beginning.
 * Pure.
 *
 * Where it is simpler than the engine: a block of the trace has one age, and a prompt
 * that is held whole and ends with a full block keeps that one too while it is computed
 * anew.
 */
#ifndef SIM_SIM_KV_H
#define SIM_SIM_KV_H

#include "base/base.h"

#define SIM_KV_TOKENS 16 /* of a block of the cache */

struct sim_kv;

/* A prompt as blocks of the trace; the last one may be short. */
struct sim_prompt {
	const uint32_t *ids; /* numbers below the cache's n_ids */
	uint32_t n_ids, tokens;
	uint32_t id_tokens; /* of a whole one, a multiple of SIM_KV_TOKENS */
};

/* The blocks that a sequence uses. All zero: none. */
struct sim_hold {
	uint32_t own;  /* blocks besides the prompt's full blocks */
	uint32_t tail; /* its generated blocks, left in the cache by a preemption; 0: none
			*/
};

/* How much was found at a take. */
struct sim_found {
	uint32_t ids;    /* blocks of the trace, whole (the last one as long as it is) */
	uint64_t tokens; /* that need not be computed */
};

/* capacity: blocks of 16 tokens; 0: no bound. Dies without memory. */
struct sim_kv *sim_kv_new(uint32_t n_ids, uint64_t capacity);
void sim_kv_free(struct sim_kv *kv);

/*
 * Room for n_tokens of a sequence, of which the first are the prompt's and the others its
 * own, generated earlier; `spare` blocks must stay free besides. False: it does not fit
 * now, nothing is changed. The last token is never found, since it gives the next one.
 */
bool sim_kv_take(struct sim_kv *kv, const struct sim_prompt *p, uint64_t n_tokens,
	uint64_t spare, struct sim_hold *hold, struct sim_found *found);
/* One block more for what it generates; false: none is free. */
bool sim_kv_grow(struct sim_kv *kv, struct sim_hold *hold);
/*
 * Lets go; n_computed tokens are in its blocks. keeps: the sequence comes back, and may
 * find what it generated.
 */
void sim_kv_release(struct sim_kv *kv, const struct sim_prompt *p, uint64_t n_computed,
	bool keeps, struct sim_hold *hold);

uint64_t sim_kv_used(const struct sim_kv *kv);   /* blocks that somebody uses */
uint64_t sim_kv_cached(const struct sim_kv *kv); /* that nobody uses, but may be found */
/* Asserts what must always be true, by brute force: tests. */
void sim_kv_check(const struct sim_kv *kv);

#endif
