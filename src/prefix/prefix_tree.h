/*
 * The parts of a prefix index, shared by prefix_lru.c, prefix_fold.c,
 * prefix_tree.c, prefix_index.c, prefix_shrink.c and prefix_check.c. Everybody else
 * includes prefix_index.h.
 *
 * A node is a run of keys as long as no prompt branches inside it. Residency does not
 * split it: a worker's part of a node is one or more entries, each [end of the one
 * before, end) with one use; they stand together in the node's list, shallow before deep.
 * A use is named by its clock, which is unique to an insertion and tells when that was.
 *
 * A leaf of one key that one worker holds is a twig: one cell in which node and entry are
 * one. It has a node's place, so the buckets do not know the difference, and an entry's
 * use, so the workers' lists do not know it either. A leaf of two keys is a pair: it has
 * its second key where others count their children.
 *
 * Always true between calls:
 *  - a node other than the root has keys, a holder that reaches each of them, and no
 *    children or at least two;
 *  - a leaf that can be a twig or a pair is one, whatever it was before. That bounds the
 *    memory by 64 bytes a block and holder, each node with 8 of the table: a twig takes
 *    40, a leaf of 2, 3, 4 or 5 blocks each of a use of its own 52, 56, 59 or 53 a block,
 *    longer ones less; for each node with children (72 if it is a block with one holder)
 *    there is more than one leaf, and a further holder of a block costs 32 at most;
 *  - a worker in a node holds the whole of every ancestor;
 *  - a worker's uses stand in its list by clock, the latest first; those of one clock are
 *    one path, shallow first. So a use is never older than what hangs below it, and the
 *    list's tail is always a leaf of that worker: eviction from the tail is leaf-first
 *    without looking;
 *  - the heap holds the workers that hold anything, the one with the oldest tail on top:
 * the top's tail is the oldest leaf of all.
 */
#ifndef PREFIX_PREFIX_TREE_H
#define PREFIX_PREFIX_TREE_H

#include <string.h>

#include "prefix/prefix_index.h"
#include "prefix/prefix_keys.h"

#define PREFIX_ROOT 1u /* the first cell after "none" */
#define PREFIX_NIL 0u
#define PREFIX_MAX_SLOTS 65535u
#define PREFIX_NO_HEAP UINT32_MAX

/*
 * A clock is milliseconds since the first insertion above a count of those within one.
 * The count may run over into the milliseconds: it is an insertion's place first, and its
 * age only to within one millisecond for each 2,048 insertions that were told the same.
 */
#define PREFIX_CLOCK_BITS 47
#define PREFIX_COUNT_BITS 11
#define PREFIX_MAX_CLOCK ((UINT64_C(1) << PREFIX_CLOCK_BITS) - 1) /* 2.18 years */

/* Where a node or twig hangs, and how it is found. */
struct prefix_place {
	union prefix_run run; /* a twig's is one key */
	uint32_t parent;
	uint32_t hash_next; /* of its bucket */
};

/* The holder, the time of its use, and the place in the worker's list. */
struct prefix_use {
	uint32_t who; /* PREFIX_TWIG, 15 bits of the clock, 16 of the slot */
	uint32_t clock_low;
	uint32_t newer, older; /* entries or twigs */
};

#define PREFIX_TWIG 0x80000000u /* where a node has its length, and an entry nothing */

/* One cell. */
struct prefix_node {
	struct prefix_place at;
	uint32_t len;     /* keys; 0 for the root; PREFIX_PAIR for a pair */
	uint32_t entries; /* the holders' list */
	union {
		struct {
			uint32_t n_children;
			uint32_t child_xor; /* of their numbers: that of an only child */
		};
		uint64_t second; /* a pair's; its run is the first */
	};
};

#define PREFIX_PAIR 0x40000002u

/* One cell. */
struct prefix_entry {
	uint32_t node;
	uint32_t next; /* in the node's list */
	uint32_t end;  /* within the node, never 0 */
	uint32_t unused;
	struct prefix_use use;
};

/* One cell. */
struct prefix_twig {
	struct prefix_place at;
	struct prefix_use use;
};

#define PREFIX_USE_AT offsetof(struct prefix_twig, use)
_Static_assert(sizeof(struct prefix_node) == ARENA_CELL_BYTES, "a node is one cell");
_Static_assert(sizeof(struct prefix_entry) == ARENA_CELL_BYTES, "an entry is one cell");
_Static_assert(sizeof(struct prefix_twig) == ARENA_CELL_BYTES, "a twig is one cell");
_Static_assert(offsetof(struct prefix_node, len) == PREFIX_USE_AT, "the flag's place");
_Static_assert(offsetof(struct prefix_entry, use) == PREFIX_USE_AT, "a twig's place");

struct prefix_worker {
	uint64_t blocks;
	uint64_t capacity;       /* 0: unbounded */
	uint64_t oldest_clock;   /* of the list's tail, for the heap */
	uint32_t newest, oldest; /* ends of its list */
	uint32_t mark;           /* scratch of a merge; the next free slot while unused */
	uint32_t heap_at; /* its place in the heap, PREFIX_NO_HEAP if it holds nothing */
	uint32_t heap_slot; /* heap[i] is workers[i].heap_slot: storage only */
	bool is_used;
};

struct prefix_index {
	struct prefix_arena arena;
	struct prefix_index_opts opts;
	uint64_t now_ms;     /* the latest told */
	uint64_t base_ms;    /* when clocks began */
	uint64_t last_clock; /* 0: none yet */
	uint64_t blocks, distinct_blocks;
	uint64_t n_nodes, n_twigs; /* twigs are nodes, too */
	uint64_t evicted[PREFIX_EVICT_MAX];

	struct prefix_worker *workers; /* reserved for PREFIX_MAX_SLOTS */
	uint32_t n_slots, max_slots;
	uint32_t free_slot; /* 1 + the first, 0: none */
	uint32_t heap_n;

	uint32_t *buckets; /* linear hashing: one bucket more or less at a time */
	uint32_t n_buckets, max_buckets, reserved_buckets;
};

static inline struct prefix_node *node_at(const struct prefix_index *ix, uint32_t cell)
{
	return arena_cell(&ix->arena, cell);
}

static inline struct prefix_entry *entry_at(const struct prefix_index *ix, uint32_t cell)
{
	return arena_cell(&ix->arena, cell);
}

static inline struct prefix_twig *twig_at(const struct prefix_index *ix, uint32_t cell)
{
	return arena_cell(&ix->arena, cell);
}

/* The place of a node or twig. */
static inline struct prefix_place *place_at(const struct prefix_index *ix, uint32_t cell)
{
	return arena_cell(&ix->arena, cell);
}

/* The use of an entry or twig. */
static inline struct prefix_use *use_at(const struct prefix_index *ix, uint32_t cell)
{
	return (struct prefix_use *)((unsigned char *)arena_cell(&ix->arena, cell) +
				     PREFIX_USE_AT);
}

/* The word that tells a twig, an entry and a node of any form apart; read as bytes,
 * because it is a part of each of them. */
static inline uint32_t form_at(const struct prefix_index *ix, uint32_t cell)
{
	uint32_t word;

	memcpy(&word, use_at(ix, cell), sizeof(word));
	return word;
}

/* True for a twig. Anything else in a bucket is a node, and in a worker's list an
 * entry. */
static inline bool is_twig(const struct prefix_index *ix, uint32_t cell)
{
	return (form_at(ix, cell) & PREFIX_TWIG) != 0;
}

/* Keys in the run of a node or twig. */
static inline uint32_t run_len(const struct prefix_index *ix, uint32_t cell)
{
	uint32_t form = form_at(ix, cell);

	return form >= PREFIX_PAIR ? 1 : form;
}

static inline bool is_pair(const struct prefix_node *n)
{
	return n->len == PREFIX_PAIR;
}

static inline uint32_t node_len(const struct prefix_node *n)
{
	return is_pair(n) ? 2 : n->len;
}

static inline bool is_leaf(const struct prefix_node *n)
{
	return is_pair(n) || n->n_children == 0;
}

/* How many of keys[0..n) a node that was found by the first of them begins with. */
static inline uint32_t node_match(const struct prefix_index *ix,
	const struct prefix_node *node, const uint64_t *keys, size_t n)
{
	if (is_pair(node))
		return 1 + (n > 1 && node->second == keys[1]);
	return (uint32_t)keys_match(&ix->arena, &node->at.run, node->len, keys, n);
}

static inline uint32_t use_slot(const struct prefix_use *use)
{
	return use->who & 0xffff;
}

static inline uint64_t use_clock(const struct prefix_use *use)
{
	return (uint64_t)(use->who >> 16 & 0x7fff) << 32 | use->clock_low;
}

static inline void use_set(struct prefix_use *use, uint32_t slot, uint64_t clock)
{
	use->who = (use->who & PREFIX_TWIG) | (uint32_t)(clock >> 32) << 16 | slot;
	use->clock_low = (uint32_t)clock;
}

/* A worker whose capacity is known evicts by it, and not by age. */
static inline bool is_expired(
	const struct prefix_index *ix, uint32_t slot, uint64_t clock, uint64_t now_ms)
{
	uint64_t used_ms = ix->base_ms + (clock >> PREFIX_COUNT_BITS);

	return ix->opts.ttl_ms > 0 && now_ms > used_ms &&
	       now_ms - used_ms > ix->opts.ttl_ms && ix->workers[slot].capacity == 0;
}

/* prefix_lru.c: the workers' lists and the heap over their tails. */

/* Links use `cell`, which has its slot, behind `newer` of the same worker; PREFIX_NIL: at
 * the front. */
void lru_link(struct prefix_index *ix, uint32_t cell, uint32_t newer);
void lru_unlink(struct prefix_index *ix, uint32_t cell);
/* The use of `cell`, a copy of one in the list, stands there in its place from now on. */
void lru_replace(struct prefix_index *ix, uint32_t cell);
/* The worker's tail may have changed: puts it where it belongs in the heap. */
void lru_settle(struct prefix_index *ix, uint32_t slot);
/* The worker with the oldest use of all; PREFIX_NO_SLOT if the index is empty. */
uint32_t lru_oldest_slot(const struct prefix_index *ix);
void lru_check_heap(const struct prefix_index *ix);

/* prefix_fold.c: twigs and pairs. */

/* The use of one key by one worker, below `parent`, in no bucket and no list yet;
 * PREFIX_NIL without a cell. */
uint32_t twig_new(struct prefix_index *ix, uint32_t parent, uint64_t key, uint32_t slot,
	uint64_t clock);
/* It has left bucket and list. */
void twig_free(struct prefix_index *ix, uint32_t twig);
/* The twig is a node with an entry, which is returned; the number is the node's now.
 * Takes a cell, which must be there, and is for what makes it more than a twig at once.
 */
uint32_t twig_unfold(struct prefix_index *ix, uint32_t twig);
/* A leaf of one key becomes a pair by this one. */
void pair_set(struct prefix_node *leaf, uint64_t second);
/* The pair is a leaf of one key again. Returns the second. */
uint64_t pair_unset(struct prefix_node *pair);
/* The pair's keys go into a chunk. Takes a cell, which must be there. */
void pair_unfold(struct prefix_index *ix, struct prefix_node *pair);
/* The node becomes twig or pair if it can. */
void node_fold(struct prefix_index *ix, uint32_t node);

/* prefix_tree.c: nodes, and taking blocks away. */

/* The child of `parent` that begins with `key`; PREFIX_NIL if none. */
uint32_t tree_child(const struct prefix_index *ix, uint32_t parent, uint64_t key);
/* The worker's first entry in a node that is no twig (*prev: the one before it in the
 * list); PREFIX_NIL if none. */
uint32_t tree_find_entry(
	const struct prefix_index *ix, uint32_t node, uint32_t slot, uint32_t *prev);
/* The root, in an empty arena. */
void tree_plant(struct prefix_index *ix);
/* All is gone at once, at the cost of the workers and not of what they hold; counted as
 * aged out. */
void tree_forget(struct prefix_index *ix);
/* An empty node below `parent`, in no bucket yet; PREFIX_NIL without a cell. */
uint32_t tree_new_node(struct prefix_index *ix, uint32_t parent);
/* The node or twig has its keys and parent: it is found from now on. */
void tree_publish(struct prefix_index *ix, uint32_t node);
/* Cells that tree_split() may take. The rest of the node may be a twig. */
uint32_t tree_split_cells(const struct prefix_index *ix, uint32_t node, uint32_t at);
/* Makes the first `at` keys a node of their own, the parent of the rest. Returns it. */
uint32_t tree_split(struct prefix_index *ix, uint32_t node, uint32_t at);
/*
 * Takes the last `count` blocks of a worker's use below which it holds nothing. Counted
 * under the reason; PREFIX_EVICT_MAX: under none. The rest may fold: only nodes that
 * have children keep their numbers, and their entries do.
 */
void tree_take(
	struct prefix_index *ix, uint32_t use, uint32_t count, enum prefix_evict reason);
/* Blocks of an entry, all of the worker's in that node from the entry before it on; 1 of
 * a twig. */
uint32_t tree_use_blocks(const struct prefix_index *ix, uint32_t use);
void tree_set_buckets(struct prefix_index *ix, uint32_t max_buckets);
size_t tree_table_bytes(const struct prefix_index *ix);

/* prefix_shrink.c: moves all that lies beyond the arena's first `blocks` blocks into
 * them. They must have 3 free cells for each 2 of it. */
void shrink_to(struct prefix_index *ix, uint32_t blocks);

#endif
