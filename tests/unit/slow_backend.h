/*
 * A backend that finishes late: sim behind a thread. It computes the rows of a step one by
 * one, in an order of its own, from copies, while the loop's thread does what it likes
 * with other blocks. TSan sees whether they really are others. For the tests of the seam.
 *
 * A step ends by itself, or, with slow_hold(), when slow_let() was called as often.
 */
#ifndef UNIT_SLOW_BACKEND_H
#define UNIT_SLOW_BACKEND_H

#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "core/backend.h"
#include "unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct slow_row {
	struct backend_row row;
	struct sample_opts sampling;
	struct sample_out out;
	uint32_t *ids, *blocks;
};

struct backend {
	struct backend *sim;
	struct backend_opts opts;
	struct rng rng;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct slow_row *rows;
	size_t n_rows;
	bool has_step, is_done, is_over;
};

/* Steps that may end; SLOW_FREE: any. */
enum { SLOW_FREE = -1 };
static int slow_left = SLOW_FREE;
static pthread_mutex_t slow_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t slow_let_go = PTHREAD_COND_INITIALIZER;

/* From now on no step ends but those that are let. */
static inline void slow_hold(bool on)
{
	pthread_mutex_lock(&slow_lock);
	slow_left = on ? 0 : SLOW_FREE;
	pthread_cond_broadcast(&slow_let_go);
	pthread_mutex_unlock(&slow_lock);
}

static inline void slow_let(int n)
{
	pthread_mutex_lock(&slow_lock);
	slow_left += n;
	pthread_cond_broadcast(&slow_let_go);
	pthread_mutex_unlock(&slow_lock);
}

static inline void slow_wait_to_end(void)
{
	pthread_mutex_lock(&slow_lock);
	while (slow_left == 0)
		pthread_cond_wait(&slow_let_go, &slow_lock);
	if (slow_left > 0)
		slow_left--;
	pthread_mutex_unlock(&slow_lock);
}

/* Each row by itself, beginning anywhere. */
static inline void slow_compute(struct backend *b)
{
	size_t first = b->n_rows > 0 ? rng_below(&b->rng, b->n_rows) : 0;

	for (size_t i = 0; i < b->n_rows; i++) {
		struct backend_row *row = &b->rows[(first + i) % b->n_rows].row;

		for (uint64_t k = rng_below(&b->rng, 3); k > 0; k--)
			sched_yield();
		if (backend_sim.step(b->sim, row, 1) != 0 ||
			backend_sim.collect(b->sim, row, 1) != 0)
			abort();
	}
}

static inline void *slow_main(void *arg)
{
	struct backend *b = arg;

	pthread_mutex_lock(&b->lock);
	while (!b->is_over) {
		if (!b->has_step) {
			pthread_cond_wait(&b->changed, &b->lock);
			continue;
		}
		pthread_mutex_unlock(&b->lock);
		slow_compute(b);
		slow_wait_to_end();
		if (b->opts.on_done != NULL)
			b->opts.on_done(b->opts.arg);
		pthread_mutex_lock(&b->lock);
		b->has_step = false;
		b->is_done = true;
		pthread_cond_broadcast(&b->changed);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static inline int slow_open(const struct backend_opts *opts, struct backend **out)
{
	struct backend *b = calloc(1, sizeof(*b));
	struct backend_opts sim_opts = *opts;

	ck_assert_ptr_nonnull(b);
	b->opts = *opts;
	sim_opts.on_done = NULL;
	rng_seed(&b->rng, 1);
	b->rows = calloc(opts->max_rows, sizeof(*b->rows));
	ck_assert_ptr_nonnull(b->rows);
	if (backend_sim.open(&sim_opts, &b->sim) != 0)
		abort();
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->changed, NULL);
	if (pthread_create(&b->thread, NULL, slow_main, b) != 0)
		abort();
	*out = b;
	return 0;
}

static inline void slow_forget_rows(struct backend *b)
{
	for (size_t i = 0; i < b->n_rows; i++) {
		free(b->rows[i].ids);
		free(b->rows[i].blocks);
	}
	b->n_rows = 0;
}

static inline void slow_close(struct backend *b)
{
	pthread_mutex_lock(&b->lock);
	b->is_over = true;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
	pthread_join(b->thread, NULL);
	slow_forget_rows(b);
	backend_sim.close(b->sim);
	pthread_mutex_destroy(&b->lock);
	pthread_cond_destroy(&b->changed);
	free(b->rows);
	free(b);
}

static inline void *slow_copy_of(const void *bytes, size_t n)
{
	void *copy = malloc(n);

	ck_assert_ptr_nonnull(copy);
	return memcpy(copy, bytes, n);
}

static inline int slow_step(struct backend *b, const struct backend_row *rows, size_t n)
{
	pthread_mutex_lock(&b->lock);
	ck_assert(!b->has_step && !b->is_done);
	for (size_t i = 0; i < n; i++) {
		struct slow_row *r = &b->rows[i];

		r->ids = slow_copy_of(rows[i].ids, rows[i].n_new * sizeof(*r->ids));
		r->blocks = slow_copy_of(
			rows[i].blocks, rows[i].n_blocks * sizeof(*r->blocks));
		r->row = rows[i];
		r->row.ids = r->ids;
		r->row.blocks = r->blocks;
		r->row.past_ids = NULL;
		r->sampling = *rows[i].sampling;
		r->row.sampling = &r->sampling;
		r->row.out = &r->out;
	}
	b->n_rows = n;
	b->has_step = true;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
	return 0;
}

static inline int slow_collect(struct backend *b, struct backend_row *rows, size_t n)
{
	pthread_mutex_lock(&b->lock);
	ck_assert((b->has_step || b->is_done) && n == b->n_rows);
	while (!b->is_done)
		pthread_cond_wait(&b->changed, &b->lock);
	for (size_t i = 0; i < n; i++) {
		*rows[i].out = b->rows[i].out;
		rows[i].is_broken = b->rows[i].row.is_broken;
	}
	slow_forget_rows(b);
	b->is_done = false;
	pthread_mutex_unlock(&b->lock);
	return 0;
}

/* While a step runs too: sim's own memory of a block is the only thing they touch. */

static inline void slow_shape(const struct backend *b, struct backend_shape *out)
{
	backend_sim.shape(b->sim, out);
}

static inline const struct vocab *slow_vocab(const struct backend *b)
{
	return backend_sim.vocab(b->sim);
}

static inline void slow_copy(struct backend *b, const uint32_t (*pairs)[2], size_t n)
{
	ck_assert(!b->has_step);
	backend_sim.copy(b->sim, pairs, n);
}

static inline void slow_drop(struct backend *b, const uint32_t *blocks, size_t n)
{
	backend_sim.drop(b->sim, blocks, n);
}

static inline int slow_read(
	const struct backend *b, const uint32_t *blocks, size_t n, void *dst)
{
	return backend_sim.read(b->sim, blocks, n, dst);
}

static inline int slow_write(
	struct backend *b, const uint32_t *blocks, size_t n, const void *src)
{
	return backend_sim.write(b->sim, blocks, n, src);
}

static inline bool slow_holds(
	const struct backend *b, const uint32_t *blocks, const uint32_t *ids, uint32_t n)
{
	return backend_sim.holds(b->sim, blocks, ids, n);
}

static const struct backend_ops backend_slow = {
	.name = "slow",
	.open = slow_open,
	.close = slow_close,
	.shape = slow_shape,
	.vocab = slow_vocab,
	.step = slow_step,
	.collect = slow_collect,
	.copy = slow_copy,
	.drop = slow_drop,
	.read = slow_read,
	.write = slow_write,
	.holds = slow_holds,
};

#endif
