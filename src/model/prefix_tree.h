/*
 * The parts that a prefix index is made of, shared by prefix_lru.c, prefix_tree.c,
 * prefix_index.c, prefix_shrink.c and prefix_check.c. Everybody else includes
 * prefix_index.h.
 *
 * A node is a run of keys as long as no prompt branches inside it. Residency does not
 * split it: a worker's part of a node is one or more entries, each [end of the one
 * before, end) with one time of last use and one stamp; they stand together in the node's
 * list, shallow before deep.
 *
 * Always true between calls:
 *  - a node other than the root has keys, a holder that reaches each of them, and no
 * children or at least two;
 *  - a worker in a node holds the whole of every ancestor;
 *  - a worker's entries stand in its list by last use, the latest first; of one use,
 * shallow first. So an entry is never older than what hangs below it, and the list's tail
 * is always a leaf of that worker: eviction from the tail is leaf-first without looking;
 *  - the heap holds the workers that hold anything, the one with the oldest tail on top:
 * the top's tail is the oldest leaf of all.
 */
#ifndef MODEL_PREFIX_TREE_H
#define MODEL_PREFIX_TREE_H

#include "model/prefix_index.h"
#include "model/prefix_keys.h"

#define PREFIX_ROOT 1u /* the first cell after "none" */
#define PREFIX_NIL 0u
#define PREFIX_MAX_SLOTS 65535u
#define PREFIX_NO_HEAP UINT32_MAX

/* One cell. */
struct prefix_node {
	union prefix_run run;
	uint32_t len; /* keys; 0 for the root */
	uint32_t parent;
	uint32_t entries;   /* the holders' list */
	uint32_t hash_next; /* of its bucket */
	uint32_t n_children;
	uint32_t child_xor; /* of the children's numbers: the number of an only child */
};

/* One cell. */
struct prefix_entry {
	uint16_t slot;
	uint16_t used_high; /* last use, ms: 48 bits */
	uint32_t used_low;
	uint32_t stamp;
	uint32_t node;
	uint32_t end;          /* within the node, never 0 */
	uint32_t next;         /* in the node's list */
	uint32_t newer, older; /* in the worker's list */
};
_Static_assert(sizeof(struct prefix_node) == ARENA_CELL_BYTES, "a node is one cell");
_Static_assert(sizeof(struct prefix_entry) == ARENA_CELL_BYTES, "an entry is one cell");

struct prefix_worker {
	uint64_t blocks;
	uint64_t capacity;  /* 0: unbounded */
	uint64_t oldest_ms; /* of the list's tail, for the heap */
	uint32_t oldest_stamp;
	uint32_t newest, oldest; /* ends of its list */
	uint32_t mark;           /* scratch of a merge; the next free slot while unused */
	uint32_t heap_at; /* its place in the heap, PREFIX_NO_HEAP if it holds nothing */
	uint32_t heap_slot; /* heap[i] is workers[i].heap_slot: storage only */
	bool is_used;
};

struct prefix_index {
	struct prefix_arena arena;
	struct prefix_index_opts opts;
	uint64_t now_ms; /* the latest told */
	uint64_t blocks, distinct_blocks, n_nodes;
	uint64_t evicted[PREFIX_EVICT_MAX];
	uint32_t last_stamp;

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

static inline uint64_t entry_used_ms(const struct prefix_entry *e)
{
	return (uint64_t)e->used_high << 32 | e->used_low;
}

static inline void entry_set_used(struct prefix_entry *e, uint64_t used_ms)
{
	e->used_high = (uint16_t)(used_ms >> 32);
	e->used_low = (uint32_t)used_ms;
}

static inline bool is_expired(
	const struct prefix_index *ix, uint64_t used_ms, uint64_t now_ms)
{
	return ix->opts.ttl_ms > 0 && now_ms > used_ms &&
	       now_ms - used_ms > ix->opts.ttl_ms;
}

/* prefix_lru.c: the workers' lists and the heap over their tails. */

/* Links entry `cell` behind `newer` of the same worker; PREFIX_NIL: at the front. */
void lru_link(struct prefix_index *ix, uint32_t cell, uint32_t newer);
void lru_unlink(struct prefix_index *ix, uint32_t cell);
/* The worker's tail may have changed: puts it where it belongs in the heap. */
void lru_settle(struct prefix_index *ix, uint32_t slot);
/* The worker with the oldest entry of all; PREFIX_NO_SLOT if the index is empty. */
uint32_t lru_oldest_slot(const struct prefix_index *ix);
void lru_check_heap(const struct prefix_index *ix);

/* prefix_tree.c: nodes, and taking blocks away. */

/* The child of `parent` that begins with `key`; PREFIX_NIL if none. */
uint32_t tree_child(const struct prefix_index *ix, uint32_t parent, uint64_t key);
/* The worker's first entry in a node (*prev: the one before it in the list); PREFIX_NIL
 * if none. */
uint32_t tree_find_entry(
	const struct prefix_index *ix, uint32_t node, uint32_t slot, uint32_t *prev);
/* The root, in an empty arena. */
void tree_plant(struct prefix_index *ix);
/* An empty node below `parent`, in no bucket yet; PREFIX_NIL without a cell. */
uint32_t tree_new_node(struct prefix_index *ix, uint32_t parent);
/* The node has its keys and parent: it is found from now on. */
void tree_publish(struct prefix_index *ix, uint32_t node);
/* Cells that tree_split() may take. */
uint32_t tree_split_cells(const struct prefix_index *ix, uint32_t node, uint32_t at);
/* Makes the first `at` keys a node of their own, the parent of the rest. Returns it. */
uint32_t tree_split(struct prefix_index *ix, uint32_t node, uint32_t at);
/*
 * Takes the last `count` blocks of a worker's entry below which it holds nothing. Counted
 * under the reason; PREFIX_EVICT_MAX: under none.
 */
void tree_take(struct prefix_index *ix, uint32_t entry, uint32_t count,
	enum prefix_evict reason);
/* Blocks of an entry, all of the worker's in that node from the entry before it on. */
uint32_t tree_entry_blocks(const struct prefix_index *ix, uint32_t entry);
void tree_set_buckets(struct prefix_index *ix, uint32_t max_buckets);
size_t tree_table_bytes(const struct prefix_index *ix);

/* prefix_shrink.c: moves all that lies beyond the arena's first `blocks` blocks into
 * them. They must have 3 free cells for each 2 of it. */
void shrink_to(struct prefix_index *ix, uint32_t blocks);

#endif
