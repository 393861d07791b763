/*
 * A scheduler over the sim backend, watched from both sides: between them a spy checks
 * every batch, and the texts that come out are compared with what an independent
 * computation gives. For the tests of the scheduler.
 */
#ifndef UNIT_SCHED_RIG_H
#define UNIT_SCHED_RIG_H

#include "backend/backend_sim.h"
#include "backend/token.h"
#include "base/err.h"
#include "base/rng.h"
#include "core/kv_cache.h"
#include "core/sched.h"
#include "unit.h"

#include <string.h>

/* As ck_assert(), which costs too much to be asked millions of times. */
#define REQUIRE(what)                                   \
	do {                                            \
		if (!(what))                            \
			ck_abort_msg("not: %s", #what); \
	} while (0)

enum { RIG_BLOCKS_MAX = 1 << 19 };
enum { KV_BLOCK = SIM_BLOCK_TOKENS }; /* tokens of a block where a test does not say */

struct rig {
	struct sched *sched;
	const struct backend_ops *under; /* the spy */
	struct backend *backend;
	bool is_late;     /* rig_step() begins a step, or ends the one that runs */
	bool is_stepping; /* one runs */
	struct sched_opts opts;
	uint64_t now_us;
	/* What the spy saw */
	uint64_t rows, tokens, steps, reads;
};

static struct rig *spied;                /* the rig being stepped */
static uint32_t writers[RIG_BLOCKS_MAX]; /* 1 + row that writes the block in this step */
static int spy_fails;                    /* how many steps will fail */

/* The text, independently of the backend: backend_sim.h's words written anew. */
static inline uint64_t rig_mix(uint64_t x)
{
	uint64_t z = x + 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static inline uint64_t rig_state(const uint32_t *ids, size_t n)
{
	uint64_t s = 0;

	for (size_t i = 0; i < n; i++)
		s = rig_mix(ids[i] ^ s);
	return s;
}

static inline uint32_t rig_word(uint64_t s)
{
	static const char *const words[64] = {SIM_WORDS};
	const char *w = words[s % 64];

	return TOKEN_BASE_4 + ((uint32_t)' ' << 21 | (uint32_t)w[0] << 14 |
				      (uint32_t)w[1] << 7 | (uint32_t)w[2]);
}

/*
 * Batches as backend.h promises them: budget and rows within bounds, tables of the right
 * length, no block written by two rows, none written that another row reads from.
 */
static void spy_check(const struct backend_row *rows, size_t n)
{
	uint32_t tokens = 0;

	REQUIRE(n > 0 && n <= spied->opts.max_seqs);
	for (size_t i = 0; i < n; i++) {
		const struct backend_row *r = &rows[i];
		uint32_t size = spied->opts.block_tokens;
		uint32_t first = r->n_past / size, end = r->n_past + r->n_new;

		tokens += r->n_new;
		REQUIRE(r->n_new > 0 && r->n_blocks == (end + size - 1) / size);
		REQUIRE(r->past_ids + r->n_past == r->ids);
		for (uint32_t k = first; k < r->n_blocks; k++) {
			REQUIRE(r->blocks[k] < spied->opts.n_blocks);
			REQUIRE(writers[r->blocks[k]] == 0);
			writers[r->blocks[k]] = (uint32_t)i + 1;
		}
	}
	REQUIRE(tokens <= spied->opts.step_tokens);
	for (size_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < rows[i].n_past / spied->opts.block_tokens; k++)
			REQUIRE(writers[rows[i].blocks[k]] == 0);
	}
	for (size_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < rows[i].n_blocks; k++)
			writers[rows[i].blocks[k]] = 0;
	}
	spied->rows += n;
	spied->tokens += tokens;
	spied->steps++;
}

static int spy_step(struct backend *b, const struct backend_row *rows, size_t n)
{
	spy_check(rows, n);
	if (spy_fails > 0 && spy_fails-- > 0)
		return ERR_IO;
	return spied->under->step(b, rows, n);
}

/* A rig over any backend that computes as sim does, at this pace. */
static inline void rig_open_on(struct rig *r, const struct sched_opts *opts,
	const struct backend_ops *under, const struct sim_pace *pace)
{
	static struct backend_ops spy;
	struct backend_opts backend_opts = {
		.model = "sim",
		.n_blocks = opts->n_blocks,
		.block_tokens = opts->block_tokens,
		.max_rows = opts->max_seqs,
		.max_new = opts->step_tokens,
		.own = pace,
	};

	spy = *under;
	spy.step = spy_step;
	memset(r, 0, sizeof(*r));
	r->opts = *opts;
	if (r->opts.block_tokens == 0)
		r->opts.block_tokens = KV_BLOCK;
	r->under = under;
	REQUIRE(opts->n_blocks <= RIG_BLOCKS_MAX);
	ck_assert_int_eq(under->open(&backend_opts, &r->backend), 0);
	r->sched = sched_new(&r->opts, &spy, r->backend);
	REQUIRE(r->sched != NULL);
	spied = r;
}

static inline void rig_open(struct rig *r, const struct sched_opts *opts)
{
	rig_open_on(r, opts, &backend_sim, NULL);
}

static inline void rig_open_paced(
	struct rig *r, const struct sched_opts *opts, const struct sim_pace *pace)
{
	rig_open_on(r, opts, &backend_sim, pace);
}

static inline void rig_close(struct rig *r)
{
	sched_free(r->sched);
	r->under->close(r->backend);
}

/* A step from its begin to its end. */
static inline void sched_step(struct sched *s, uint64_t now_us)
{
	if (sched_begin(s, now_us))
		sched_finish(s);
}

/* The next step, at the time when it is due. False: nothing is due any more. */
static inline bool rig_step(struct rig *r)
{
	uint64_t wake_us = sched_wake_us(r->sched);

	if (r->is_stepping) {
		r->is_stepping = false;
		sched_finish(r->sched);
		return true;
	}
	if (wake_us == UINT64_MAX)
		return false;
	if (wake_us > r->now_us)
		r->now_us = wake_us;
	if (r->is_late)
		r->is_stepping = sched_begin(r->sched, r->now_us);
	else
		sched_step(r->sched, r->now_us);
	return true;
}

#endif
