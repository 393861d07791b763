/*
 * What the tests of the prefix index share: an index and its workers, unrelated keys, and
 * prompts written as letters. Included by check_prefix_*.c.
 */
#ifndef UNIT_PREFIX_RIG_H
#define UNIT_PREFIX_RIG_H

#include <check.h>
#include <string.h>

#include "base/rng.h"
#include "prefix/prefix_index.h"

/* ck_assert writes a file position each time; what is asked millions of times asks here.
 */
#define WANT(fact)                                         \
	do {                                               \
		if (!(fact))                               \
			ck_abort_msg("not so: %s", #fact); \
	} while (0)

/* Unrelated ones. */
static inline void random_keys(struct rng *rng, uint64_t *keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		keys[i] = rng_next(rng);
}

static inline struct prefix_index *new_index(size_t memory_bytes, uint64_t ttl_ms)
{
	struct prefix_index_opts opts = {.memory_bytes = memory_bytes, .ttl_ms = ttl_ms};
	struct prefix_index *ix = prefix_index_new(&opts);

	ck_assert_ptr_nonnull(ix);
	return ix;
}

static inline uint32_t add_worker(struct prefix_index *ix, uint64_t capacity)
{
	uint32_t slot;

	ck_assert_int_eq(prefix_index_worker_add(ix, capacity, &slot), 0);
	return slot;
}

static inline size_t spell(const char *prompt, uint64_t *keys)
{
	size_t n = strlen(prompt);

	ck_assert_uint_le(n, 64);
	for (size_t i = 0; i < n; i++)
		keys[i] = (uint64_t)(unsigned char)prompt[i] << 40;
	return n;
}

static inline uint64_t insert(struct prefix_index *ix, uint32_t slot, const char *prompt,
	uint64_t now_ms, uint32_t *from)
{
	uint64_t keys[64];
	size_t n = spell(prompt, keys);
	uint64_t stamp;

	prefix_index_insert(ix, slot, keys, n, now_ms, from, &stamp);
	prefix_index_check(ix);
	return stamp;
}

static inline void withdraw(struct prefix_index *ix, uint32_t slot, const char *prompt,
	uint32_t from, uint64_t stamp)
{
	uint64_t keys[64];
	size_t n = spell(prompt, keys);

	prefix_index_withdraw(ix, slot, keys, n, from, stamp);
	prefix_index_check(ix);
}

static inline uint32_t depth_at(
	struct prefix_index *ix, uint32_t slot, const char *prompt, uint64_t now_ms)
{
	uint64_t keys[64];
	size_t n = spell(prompt, keys);
	uint32_t depth[8];

	ck_assert_uint_le(prefix_index_slots(ix), ARRAY_LEN(depth));
	prefix_index_match(ix, keys, n, now_ms, depth, ARRAY_LEN(depth));
	return depth[slot];
}

static inline struct prefix_index_stats stats_of(const struct prefix_index *ix)
{
	struct prefix_index_stats stats;

	prefix_index_stats(ix, &stats);
	return stats;
}

#endif
