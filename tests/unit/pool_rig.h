/*
 * One pool for a test, made by the test and closed by tear_down(), and the words its
 * tests are written in. For the check_pool files that are about one pool.
 */
#ifndef UNIT_POOL_RIG_H
#define UNIT_POOL_RIG_H

#include "tests/unit/unit_model.h"

#define NOW 1000

static struct pool *pool;

static inline void set_up(void)
{
	pool = NULL;
}

static inline void tear_down(void)
{
	if (pool != NULL)
		unit_close(pool);
}

static inline struct pool_ask ask_for(struct route_key *key)
{
	return (struct pool_ask){.role = ROLE_UNIFIED, .key = key, .now_ms = NOW};
}

/* A pick that must succeed; the guard is the caller's to drop. */
static inline struct pool_pick pick_with(const struct pool_ask *ask, struct guard *g)
{
	struct pool_pick out;

	g->worker = NULL;
	ck_assert_int_eq(pool_pick(pool, ask, g, &out), 0);
	return out;
}

/* Where it went, its guard dropped at once. */
static inline unsigned pick_number(const struct pool_ask *ask, struct pool_pick *out)
{
	struct guard g;
	unsigned number;

	*out = pick_with(ask, &g);
	ck_assert_int_eq(g.worker->name[0], 'w');
	number = (unsigned)atoi(g.worker->name + 1);
	guard_drop(&g);
	return number;
}

static inline unsigned send_to(struct route_key *key, struct pool_pick *out)
{
	struct pool_ask ask = ask_for(key);

	return pick_number(&ask, out);
}

/* Makes w<n> hold the first `blocks` blocks of family. */
static inline void warm(const char *worker, uint64_t family, size_t blocks)
{
	struct route_key key = unit_sealed(pool, family, blocks, 0, blocks);
	struct pool_ask ask = ask_for(&key);
	struct pool_pick out;
	struct guard g;

	ask.pinned = span_str(worker);
	out = pick_with(&ask, &g);
	ck_assert_int_eq(out.reason, PICK_PINNED);
	guard_drop(&g);
	route_key_free(&key);
}

static inline uint64_t blocks_of(const char *worker)
{
	return pool_worker_blocks(pool, unit_worker(pool, worker));
}

#endif
