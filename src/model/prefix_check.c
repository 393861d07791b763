/*
 * Every invariant of a prefix index, asserted by brute force. Reads all of it and
 * allocates a scratch table; for tests and debugging, never on a request's path.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "model/prefix_tree.h"

/* What the walk over all nodes counts. */
struct census {
	uint64_t nodes, distinct, blocks, entries, cells;
	uint32_t *children; /* by node: how many name it as their parent */
	uint32_t *child_xor;
};

static uint32_t held_end(const struct prefix_index *ix, uint32_t node, uint32_t slot)
{
	uint32_t end = 0;

	for (uint32_t cell = node_at(ix, node)->entries; cell != PREFIX_NIL;) {
		const struct prefix_entry *e = entry_at(ix, cell);

		if (e->slot == slot)
			end = e->end;
		cell = e->next;
	}
	return end;
}

static void check_first_of_slot(
	const struct prefix_index *ix, uint32_t node, uint32_t first)
{
	const struct prefix_node *n = node_at(ix, node);
	uint32_t prev;

	/* Entries of a worker stand together: the first found is this one. */
	assert(tree_find_entry(ix, node, entry_at(ix, first)->slot, &prev) == first);
	assert(ix->workers[entry_at(ix, first)->slot].is_used);
	if (n->parent != PREFIX_ROOT)
		assert(held_end(ix, n->parent, entry_at(ix, first)->slot) ==
			node_at(ix, n->parent)->len);
}

static void check_entries(const struct prefix_index *ix, uint32_t node, struct census *c)
{
	const struct prefix_node *n = node_at(ix, node);
	uint32_t start = 0, deepest = 0, slot = PREFIX_NO_SLOT;

	for (uint32_t cell = n->entries; cell != PREFIX_NIL;) {
		const struct prefix_entry *e = entry_at(ix, cell);

		assert(e->node == node && e->slot < ix->n_slots);
		if (e->slot != slot) {
			check_first_of_slot(ix, node, cell);
			start = 0;
		}
		assert(e->end > start && e->end <= n->len);
		assert(ix->workers[e->slot].mark == PREFIX_NIL);
		c->entries++;
		c->blocks += e->end - start;
		deepest = MAX(deepest, e->end);
		slot = e->slot;
		start = e->end;
		cell = e->next;
	}
	assert(deepest == n->len);
}

static void check_node(const struct prefix_index *ix, uint32_t node, struct census *c)
{
	const struct prefix_node *n = node_at(ix, node);

	assert(n->len > 0 && n->n_children != 1);
	c->nodes++;
	c->distinct += n->len;
	c->cells += keys_check(&ix->arena, &n->run, n->len);
	c->children[n->parent]++;
	c->child_xor[n->parent] ^= node;
	/* Found where it would be looked for, and nothing else is. */
	assert(tree_child(ix, n->parent, keys_first(&ix->arena, &n->run, n->len)) ==
		node);
	check_entries(ix, node, c);
}

/* Whether `below` is the next thing on a path after `above`. */
static bool is_next_on_path(const struct prefix_index *ix,
	const struct prefix_entry *above, const struct prefix_entry *below)
{
	if (above->node == below->node)
		return above->end < below->end;
	return node_at(ix, below->node)->parent == above->node &&
	       above->end == node_at(ix, above->node)->len;
}

static void check_order(const struct prefix_index *ix, const struct prefix_entry *newer,
	const struct prefix_entry *e)
{
	assert(entry_used_ms(newer) >= entry_used_ms(e));
	if (newer->stamp == e->stamp) {
		assert(entry_used_ms(newer) == entry_used_ms(e));
		assert(is_next_on_path(ix, newer, e));
	} else if (entry_used_ms(newer) == entry_used_ms(e)) {
		assert((int32_t)(newer->stamp - e->stamp) > 0);
	}
}

static uint64_t check_worker(const struct prefix_index *ix, uint32_t slot)
{
	const struct prefix_worker *w = &ix->workers[slot];
	uint64_t blocks = 0, entries = 0;
	uint32_t newer = PREFIX_NIL;

	for (uint32_t cell = w->newest; cell != PREFIX_NIL;
		cell = entry_at(ix, cell)->older) {
		const struct prefix_entry *e = entry_at(ix, cell);

		assert(e->slot == slot && e->newer == newer &&
			entry_used_ms(e) <= ix->now_ms);
		if (newer != PREFIX_NIL)
			check_order(ix, entry_at(ix, newer), e);
		blocks += tree_entry_blocks(ix, cell);
		entries++;
		newer = cell;
	}
	assert(w->oldest == newer && w->blocks == blocks);
	assert(w->capacity == 0 || w->blocks <= w->capacity);
	assert(w->is_used || w->blocks == 0);
	return entries;
}

static void check_family(
	const struct prefix_index *ix, uint32_t node, const struct census *c)
{
	assert(node_at(ix, node)->n_children == c->children[node]);
	assert(node_at(ix, node)->child_xor == c->child_xor[node]);
}

static void check_bytes(const struct prefix_index *ix)
{
	struct prefix_index_stats stats;

	prefix_index_stats(ix, &stats);
	assert(stats.bytes <= MAX(ix->opts.memory_bytes, (size_t)65536));
}

void prefix_index_check(const struct prefix_index *ix)
{
	size_t n_cells = (size_t)ix->arena.n_blocks * ARENA_BLOCK_CELLS;
	struct census c = {0};
	uint64_t listed = 0;

	c.children = xcalloc(n_cells, sizeof(*c.children));
	c.child_xor = xcalloc(n_cells, sizeof(*c.child_xor));
	for (uint32_t i = 0; i < ix->n_buckets; i++) {
		for (uint32_t n = ix->buckets[i]; n != PREFIX_NIL;
			n = node_at(ix, n)->hash_next)
			check_node(ix, n, &c);
	}
	check_family(ix, PREFIX_ROOT, &c);
	for (uint32_t i = 0; i < ix->n_buckets; i++) {
		for (uint32_t n = ix->buckets[i]; n != PREFIX_NIL;
			n = node_at(ix, n)->hash_next)
			check_family(ix, n, &c);
	}
	for (uint32_t slot = 0; slot < ix->n_slots; slot++)
		listed += check_worker(ix, slot);
	lru_check_heap(ix);
	assert(listed == c.entries && c.nodes == ix->n_nodes);
	assert(c.blocks == ix->blocks && c.distinct == ix->distinct_blocks);
	/* Every busy cell is "none", the root, a node, an entry, or of a chunk of keys.
	 */
	assert(arena_check(&ix->arena) == 2 + c.nodes + c.entries + c.cells);
	check_bytes(ix);
	free(c.children);
	free(c.child_xor);
}
