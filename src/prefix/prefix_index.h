/*
 * The radix tree over block-hash sequences, path-compressed: which workers hold which
 * prompt prefix, and when each last used it. Equivalently every worker has its own prefix
 * tree. Holds keys only (hash_mix64 of the public chain), never prompt text.
 *
 * Always true:
 *  - prefix-closed: a worker on a node is on all its ancestors, so a deep block whose
 *    prefix is gone earns nothing;
 *  - a worker's resident blocks never exceed its capacity; total memory never exceeds
 *    memory_bytes (nodes, holders, keys, tables, free lists counted); entries older than
 *    ttl_ms go at the next sweep, and never count in a match;
 *  - eviction is leaf-first and least recently used (per worker for capacity, over all
 *    for memory); every bound costs O(work done).
 *
 * memory_bytes is dealt out in fixed shares: at most 1/32 for the table of workers, 1/24
 * for the table of nodes, and the rest for everything else. A block and holder takes 8 to
 * 25 bytes in runs of eight blocks and more, 36 where every prompt is one block that one
 * worker holds, and never more than 64 on the average of an index that has thousands.
 *
 * Not locked: the pool's one lock is held around every call. Pure: now_ms is an argument
 * and never goes back. Called by pool.c and by policies.
 */
#ifndef PREFIX_PREFIX_INDEX_H
#define PREFIX_PREFIX_INDEX_H

#include "base/base.h"

struct prefix_index;

struct prefix_index_opts {
	size_t memory_bytes; /* at least 64 KiB */
	/* The age at which a worker without a capacity forgets a block that it was not
	 * asked for again. Where the capacity is known, it decides alone. 0: no age
	 * bound. */
	uint64_t ttl_ms;
};

#define PREFIX_NO_SLOT UINT32_MAX

enum prefix_evict {
	PREFIX_EVICT_CAPACITY,
	PREFIX_EVICT_MEMORY,
	PREFIX_EVICT_TTL,
	PREFIX_EVICT_DROPPED,
	PREFIX_EVICT_MAX
};

struct prefix_index_stats {
	uint64_t blocks;          /* sum over workers of resident blocks */
	uint64_t distinct_blocks; /* blocks in the tree */
	uint64_t nodes;
	uint64_t twigs;    /* nodes in one cell: a last block that one worker holds */
	size_t bytes;      /* what memory_bytes bounds */
	size_t used_bytes; /* the same without free lists */
	/* (worker, block) pairs since the start; withdrawn ones are in none of them */
	uint64_t evicted[PREFIX_EVICT_MAX];
};

/* NULL: out of memory. */
struct prefix_index *prefix_index_new(const struct prefix_index_opts *opts);
void prefix_index_free(struct prefix_index *ix);
/*
 * New bounds (reload); if they are smaller it evicts at once, the oldest first, and moves
 * the rest, at the cost of the whole index. Never below the size of the workers' table.
 * Without address space for a larger bound the old one stays.
 */
void prefix_index_configure(
	struct prefix_index *ix, const struct prefix_index_opts *opts, uint64_t now_ms);

/*
 * A worker takes a slot (small dense numbers, reused after drop). capacity_blocks 0:
 * unbounded. ERR_LIMIT: 65,535 slots are taken. ERR_NOMEM: the table's share is full,
 * which ends at 85 slots in 64 KiB and takes all of them from 96 MiB on.
 */
int prefix_index_worker_add(
	struct prefix_index *ix, uint64_t capacity_blocks, uint32_t *slot) MUST_CHECK;
void prefix_index_worker_capacity(
	struct prefix_index *ix, uint32_t slot, uint64_t capacity_blocks);
/* The worker's cache is gone (restart, flush): residency dropped, slot kept. Costs its
 * entries. */
void prefix_index_worker_clear(struct prefix_index *ix, uint32_t slot);
/* The worker is gone: clear, and the slot may be given to another. */
void prefix_index_worker_drop(struct prefix_index *ix, uint32_t slot);
uint64_t prefix_index_worker_blocks(const struct prefix_index *ix, uint32_t slot);
/* Highest slot ever used + 1: the size for depth[]. */
uint32_t prefix_index_slots(const struct prefix_index *ix);

/*
 * One walk: depth[slot] = blocks of keys[0..n) that the worker holds contiguously from
 * the first, for every slot below n_slots (zeroed first). Not a use: refreshes nothing.
 * Expired entries do not count. Reads no more than the matching path. Also returns the
 * deepest.
 */
size_t prefix_index_match(const struct prefix_index *ix, const uint64_t *keys, size_t n,
	uint64_t now_ms, uint32_t *depth, uint32_t n_slots);

/*
 * The worker will hold keys[0..n): inserts missing blocks, refreshes present ones,
 * evicts over the bounds. *stamp identifies this insertion (never 0; 0 when nothing was
 * new); *from is the depth the worker had before. A prompt longer than the capacity keeps
 * its first blocks. Never fails: without memory it keeps less.
 */
void prefix_index_insert(struct prefix_index *ix, uint32_t slot, const uint64_t *keys,
	size_t n, uint64_t now_ms, uint32_t *from, uint64_t *stamp);

/* The request failed: takes back only the blocks beyond `from` that still carry `stamp`
 * (a later use of them has its own stamp and keeps them). */
void prefix_index_withdraw(struct prefix_index *ix, uint32_t slot, const uint64_t *keys,
	size_t n, uint32_t from, uint64_t stamp);

/* Drops expired entries, of each worker the oldest first, at most max_work of them (an
 * entry is a run of blocks that a worker last used at once); stops at a worker's first
 * live one. Returns how many went. */
size_t prefix_index_sweep(struct prefix_index *ix, uint64_t now_ms, size_t max_work);

void prefix_index_stats(const struct prefix_index *ix, struct prefix_index_stats *out);
/* Asserts every invariant by brute force (tests, debug). */
void prefix_index_check(const struct prefix_index *ix);

#endif
