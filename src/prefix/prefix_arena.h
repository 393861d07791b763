/*
 * The memory of one prefix index: 32-byte cells named by 32-bit numbers, handed out alone
 * or as aligned groups of 2, 4 or 8 (a buddy allocator over blocks of 256 bytes).
 *
 * Always true:
 *  - one kind of cell serves nodes, holder entries and keys, so that cells which an
 *    eviction frees can become any kind: no kind starves because another keeps its pages;
 *  - never more than max_blocks blocks exist; nothing is allocated behind the caller's
 *    back;
 *  - cell 0 is never given out: it is "none".
 * Address space is reserved once, pages come as blocks are first used. Not locked.
 * Called by prefix_keys.c, prefix_tree.c, prefix_index.c and their kin; by no other file.
 */
#ifndef PREFIX_PREFIX_ARENA_H
#define PREFIX_PREFIX_ARENA_H

#include "base/base.h"

#define ARENA_CELL_BYTES 32
#define ARENA_BLOCK_CELLS 8
#define ARENA_BLOCK_BYTES (ARENA_CELL_BYTES * ARENA_BLOCK_CELLS)
#define ARENA_ORDERS 4             /* groups of 1, 2, 4, 8 cells */
#define ARENA_MAX_CELLS (1u << 28) /* prefix_keys.c links with 28 bits: 8 GiB */
#define ARENA_PAGE 4096

struct prefix_arena {
	unsigned char *cells;
	uint8_t *busy; /* a bit for each cell of a block */
	size_t reserved_blocks;
	uint32_t n_blocks;
	uint32_t max_blocks;
	uint32_t free_cells; /* in the lists below */
	uint32_t free_head[ARENA_ORDERS];
};

/* Address space for `bytes`, which reads as zero; NULL without. Counted once it is used.
 */
void *arena_reserve(size_t bytes);
/* Gives up, or moves to a larger one. Contents stay; NULL (old one untouched) without. */
void arena_unreserve(void *p, size_t bytes);
void *arena_rereserve(void *p, size_t old_bytes, size_t new_bytes);
/* The pages wholly inside [from, to) of a reservation go back and read as zero again. */
void arena_release(void *p, size_t from, size_t to);
size_t arena_pages(size_t bytes); /* rounded up to whole pages */

/* 0 or ERR_NOMEM. max_bytes bounds arena_bytes(). */
int arena_init(struct prefix_arena *a, size_t max_bytes) MUST_CHECK;
void arena_fini(struct prefix_arena *a);
/* A bound that is larger, or no smaller than what is in use. 0 or ERR_NOMEM (as before).
 */
int arena_limit(struct prefix_arena *a, size_t max_bytes) MUST_CHECK;
uint32_t arena_blocks_within(size_t max_bytes);

/* The first of 1 << order neighbouring cells, contents undefined; 0 without room. */
uint32_t arena_alloc(struct prefix_arena *a, unsigned order);
void arena_free(struct prefix_arena *a, uint32_t cell, unsigned order);
/* Everything was freed: all pages go back. */
void arena_reset(struct prefix_arena *a);

/* Blocks from `blocks` on leave the free lists for good (their busy cells are to be
 * moved). */
void arena_cut(struct prefix_arena *a, uint32_t blocks);
/* The moving is done: the blocks beyond max_blocks go back. */
void arena_cut_done(struct prefix_arena *a);
uint32_t arena_busy_cells(
	const struct prefix_arena *a, uint32_t from_block, uint32_t to_block);

size_t arena_bytes(const struct prefix_arena *a);
/* Asserts that lists and bits agree; returns the busy cells. */
uint32_t arena_check(const struct prefix_arena *a);

static inline void *arena_cell(const struct prefix_arena *a, uint32_t cell)
{
	return a->cells + (size_t)cell * ARENA_CELL_BYTES;
}

/* Cells that can still be had without freeing any. */
static inline uint32_t arena_room(const struct prefix_arena *a)
{
	uint32_t fresh = a->max_blocks > a->n_blocks ? a->max_blocks - a->n_blocks : 0;

	return a->free_cells + fresh * ARENA_BLOCK_CELLS;
}

#endif
