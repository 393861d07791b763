/*
 * The keys of one tree node: a run of 64-bit block keys in chunks of 3, 7, 15 or 31.
 *
 * Always true:
 *  - a run of one key is held in the run itself and takes no cell; a longer one is a ring
 *    of chunks, none empty, with the low half of its first key beside the link;
 *  - the owner keeps the length and passes it in; a run of length 0 owns nothing.
 * Functions that shorten, join, or split with enough room never fail. Called by
 * prefix_tree.c, prefix_index.c and prefix_shrink.c.
 */
#ifndef PREFIX_PREFIX_KEYS_H
#define PREFIX_PREFIX_KEYS_H

#include "prefix/prefix_arena.h"

union prefix_run {
	uint64_t only; /* length 1 */
	struct {       /* length 2 and more */
		uint32_t tag;
		uint32_t head;
	};
};

/* Free cells that keys_split() may take; keys_join() takes at most one. */
#define KEYS_SPLIT_CELLS 12
/* Cells that `count` keys take in chunks of full size: what an eviction should aim at. */
#define KEYS_CELLS(count) (((uint32_t)(count) / 31 + 1) * 8)

uint64_t keys_first(
	const struct prefix_arena *a, const union prefix_run *run, uint32_t len);
static inline uint32_t keys_tag(const union prefix_run *run, uint32_t len)
{
	return len == 1 ? (uint32_t)run->only : run->tag;
}

uint64_t keys_last(
	const struct prefix_arena *a, const union prefix_run *run, uint32_t len);
/* How many of keys[0..n) the run begins with. */
size_t keys_match(const struct prefix_arena *a, const union prefix_run *run, uint32_t len,
	const uint64_t *keys, size_t n);
/* Appends as many of keys[0..n) as there is room for, and returns how many. */
size_t keys_append(struct prefix_arena *a, union prefix_run *run, uint32_t len,
	const uint64_t *keys, size_t n);
/* Keeps the first new_len keys. */
void keys_trim(
	struct prefix_arena *a, union prefix_run *run, uint32_t len, uint32_t new_len);
/* *lower becomes its keys from `at` on, *upper those before. Needs KEYS_SPLIT_CELLS of
 * room. */
void keys_split(struct prefix_arena *a, union prefix_run *upper, union prefix_run *lower,
	uint32_t len, uint32_t at);
/* *lower becomes *upper followed by *lower. Needs a cell of room. */
void keys_join(struct prefix_arena *a, const union prefix_run *upper, uint32_t upper_len,
	union prefix_run *lower, uint32_t lower_len);
/* Moves the chunks at or beyond cell `limit` elsewhere; needs 3 cells for each 2 of
 * theirs. */
void keys_move(
	struct prefix_arena *a, union prefix_run *run, uint32_t len, uint32_t limit);
/* Asserts that the run is well-formed; returns the cells it owns. */
uint32_t keys_check(
	const struct prefix_arena *a, const union prefix_run *run, uint32_t len);

#endif
