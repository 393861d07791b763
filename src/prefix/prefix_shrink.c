/*
 * Moves the contents of a prefix index into the first part of its arena, when a reload
 * makes the memory bound smaller. Costs the whole index, and needs no other memory.
 * Called by prefix_index.c.
 */
#include "prefix/prefix_tree.h"

/* A cell's contents in a cell that stays. */
static uint32_t cell_copy(struct prefix_index *ix, uint32_t cell)
{
	uint32_t fresh = arena_alloc(&ix->arena, 0);

	assert(fresh != PREFIX_NIL);
	__builtin_memcpy(arena_cell(&ix->arena, fresh), arena_cell(&ix->arena, cell),
		ARENA_CELL_BYTES);
	return fresh;
}

/* The same of an entry or twig, in the worker's list as well. */
static uint32_t use_move(struct prefix_index *ix, uint32_t cell)
{
	uint32_t fresh = cell_copy(ix, cell);

	lru_replace(ix, fresh);
	arena_free(&ix->arena, cell, 0);
	return fresh;
}

static void move_parts(struct prefix_index *ix, uint32_t node, uint32_t limit)
{
	struct prefix_node *n = node_at(ix, node);

	keys_move(&ix->arena, &n->at.run, run_len(ix, node), limit);
	for (uint32_t *link = &n->entries; *link != PREFIX_NIL;
		link = &entry_at(ix, *link)->next) {
		if (*link >= limit)
			*link = use_move(ix, *link);
	}
}

/* Returns where it is now. A node left behind names that in `entries`, for its children,
 * and is chained in *left. */
static uint32_t node_move(
	struct prefix_index *ix, uint32_t cell, uint32_t limit, uint32_t *left)
{
	uint32_t fresh;

	if (is_twig(ix, cell))
		return cell >= limit ? use_move(ix, cell) : cell;
	move_parts(ix, cell, limit);
	if (cell < limit)
		return cell;
	fresh = cell_copy(ix, cell);
	node_at(ix, cell)->entries = fresh;
	node_at(ix, cell)->at.hash_next = *left;
	*left = cell;
	return fresh;
}

/* Takes every node out of its bucket into one chain, moved where need be. */
static uint32_t gather_nodes(struct prefix_index *ix, uint32_t limit, uint32_t *left)
{
	uint32_t all = PREFIX_NIL;

	for (uint32_t i = 0; i < ix->n_buckets; i++) {
		uint32_t cell = ix->buckets[i];

		ix->buckets[i] = PREFIX_NIL;
		while (cell != PREFIX_NIL) {
			uint32_t next = place_at(ix, cell)->hash_next;
			uint32_t kept = node_move(ix, cell, limit, left);

			place_at(ix, kept)->hash_next = all;
			all = kept;
			cell = next;
		}
	}
	return all;
}

static void set_links(struct prefix_index *ix, uint32_t node, uint32_t limit)
{
	struct prefix_place *at = place_at(ix, node);
	struct prefix_node *n = node_at(ix, node);

	if (at->parent >= limit)
		at->parent = node_at(ix, at->parent)->entries;
	if (is_twig(ix, node))
		return;
	if (!is_pair(n)) {
		n->n_children = 0;
		n->child_xor = 0;
	}
	for (uint32_t cell = n->entries; cell != PREFIX_NIL;
		cell = entry_at(ix, cell)->next)
		entry_at(ix, cell)->node = node;
}

static void publish_all(struct prefix_index *ix, uint32_t all)
{
	ix->n_nodes = 0;
	while (all != PREFIX_NIL) {
		uint32_t next = place_at(ix, all)->hash_next;

		tree_publish(ix, all);
		all = next;
	}
}

void shrink_to(struct prefix_index *ix, uint32_t blocks)
{
	uint32_t limit = blocks * ARENA_BLOCK_CELLS;
	uint32_t left = PREFIX_NIL, all;

	arena_cut(&ix->arena, blocks);
	all = gather_nodes(ix, limit, &left);
	node_at(ix, PREFIX_ROOT)->n_children = 0;
	node_at(ix, PREFIX_ROOT)->child_xor = 0;
	for (uint32_t cell = all; cell != PREFIX_NIL;
		cell = place_at(ix, cell)->hash_next)
		set_links(ix, cell, limit);
	publish_all(ix, all);
	while (left != PREFIX_NIL) {
		uint32_t next = place_at(ix, left)->hash_next;

		arena_free(&ix->arena, left, 0);
		left = next;
	}
	arena_cut_done(&ix->arena);
}
