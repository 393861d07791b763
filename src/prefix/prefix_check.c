/*
 * Every invariant of a prefix index, asserted by brute force. Reads all of it and
 * allocates a scratch table; for tests and debugging, never on a request's path.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "prefix/prefix_tree.h"

/* The counts of the walk over all nodes. */
struct census {
	uint64_t nodes, twigs, distinct, blocks, entries, cells;
	uint32_t *children; /* by node: how many name it as their parent */
	uint32_t *child_xor;
};

static uint32_t held_end(const struct prefix_index *ix, uint32_t node, uint32_t slot)
{
	uint32_t end = 0;

	for (uint32_t cell = node_at(ix, node)->entries; cell != PREFIX_NIL;) {
		const struct prefix_entry *e = entry_at(ix, cell);

		if (use_slot(&e->use) == slot)
			end = e->end;
		cell = e->next;
	}
	return end;
}

static void check_holder(const struct prefix_index *ix, uint32_t parent, uint32_t slot)
{
	assert(slot < ix->n_slots && ix->workers[slot].is_used);
	assert(ix->workers[slot].mark == PREFIX_NIL);
	if (parent != PREFIX_ROOT)
		assert(held_end(ix, parent, slot) == node_at(ix, parent)->len);
}

static void check_first_of_slot(
	const struct prefix_index *ix, uint32_t node, uint32_t first)
{
	uint32_t slot = use_slot(use_at(ix, first));
	uint32_t prev;

	/* Entries of a worker stand together: the first found is this one. */
	assert(tree_find_entry(ix, node, slot, &prev) == first);
	check_holder(ix, place_at(ix, node)->parent, slot);
}

static void check_entries(const struct prefix_index *ix, uint32_t node, struct census *c)
{
	const struct prefix_node *n = node_at(ix, node);
	uint64_t clock = 0;
	uint32_t start = 0, deepest = 0, slot = PREFIX_NO_SLOT;

	for (uint32_t cell = n->entries; cell != PREFIX_NIL;) {
		const struct prefix_entry *e = entry_at(ix, cell);

		assert(e->node == node && !is_twig(ix, cell));
		if (use_slot(&e->use) != slot) {
			check_first_of_slot(ix, node, cell);
			start = 0;
			clock = 0;
		}
		assert(e->end > start && e->end <= node_len(n));
		assert(use_clock(&e->use) != clock);
		c->entries++;
		c->blocks += e->end - start;
		deepest = MAX(deepest, e->end);
		slot = use_slot(&e->use);
		clock = use_clock(&e->use);
		start = e->end;
		cell = e->next;
	}
	assert(deepest == node_len(n));
}

static void check_twig(const struct prefix_index *ix, uint32_t twig, struct census *c)
{
	check_holder(ix, place_at(ix, twig)->parent, use_slot(use_at(ix, twig)));
	c->twigs++;
	c->blocks++;
}

static void check_true_node(
	const struct prefix_index *ix, uint32_t node, struct census *c)
{
	const struct prefix_node *n = node_at(ix, node);

	assert(n->len > 0 && (is_pair(n) || n->n_children != 1));
	c->cells += keys_check(&ix->arena, &n->at.run, run_len(ix, node));
	check_entries(ix, node, c);
	/* It could be no twig and, if it is none, no pair. */
	assert(!is_leaf(n) || n->len > 2 ||
		(n->len == 1 && entry_at(ix, n->entries)->next != PREFIX_NIL));
}

static void check_node(const struct prefix_index *ix, uint32_t node, struct census *c)
{
	const struct prefix_place *at = place_at(ix, node);

	c->nodes++;
	c->distinct += is_twig(ix, node) ? 1 : node_len(node_at(ix, node));
	c->children[at->parent]++;
	c->child_xor[at->parent] ^= node;
	/* Found where it would be looked for, and nothing else is. */
	assert(tree_child(ix, at->parent,
		       keys_first(&ix->arena, &at->run, run_len(ix, node))) == node);
	if (is_twig(ix, node))
		check_twig(ix, node, c);
	else
		check_true_node(ix, node, c);
}

static uint32_t node_of_use(const struct prefix_index *ix, uint32_t use)
{
	return is_twig(ix, use) ? use : entry_at(ix, use)->node;
}

/* Whether `below` is the next thing on a path after `above`. Not in one node: there the
 * two would be one. */
static bool is_next_on_path(const struct prefix_index *ix, uint32_t above, uint32_t below)
{
	const struct prefix_entry *e = entry_at(ix, above);

	return !is_twig(ix, above) &&
	       place_at(ix, node_of_use(ix, below))->parent == e->node &&
	       e->end == node_len(node_at(ix, e->node));
}

static uint64_t check_worker(const struct prefix_index *ix, uint32_t slot)
{
	const struct prefix_worker *w = &ix->workers[slot];
	uint64_t blocks = 0, uses = 0, clock = ix->last_clock;
	uint32_t newer = PREFIX_NIL;

	for (uint32_t cell = w->newest; cell != PREFIX_NIL;
		cell = use_at(ix, cell)->older) {
		const struct prefix_use *use = use_at(ix, cell);

		assert(use_slot(use) == slot && use->newer == newer);
		assert(use_clock(use) > 0 && use_clock(use) <= clock);
		if (newer != PREFIX_NIL && use_clock(use) == clock)
			assert(is_next_on_path(ix, newer, cell));
		clock = use_clock(use);
		blocks += tree_use_blocks(ix, cell);
		uses++;
		newer = cell;
	}
	assert(w->oldest == newer && w->blocks == blocks);
	assert(w->capacity == 0 || w->blocks <= w->capacity);
	assert(w->is_used || w->blocks == 0);
	return uses;
}

static void check_family(
	const struct prefix_index *ix, uint32_t node, const struct census *c)
{
	const struct prefix_node *n = node_at(ix, node);

	if (is_twig(ix, node) || is_pair(n)) {
		assert(c->children[node] == 0);
		return;
	}
	assert(n->n_children == c->children[node]);
	assert(n->child_xor == c->child_xor[node]);
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
			n = place_at(ix, n)->hash_next)
			check_node(ix, n, &c);
	}
	check_family(ix, PREFIX_ROOT, &c);
	for (uint32_t i = 0; i < ix->n_buckets; i++) {
		for (uint32_t n = ix->buckets[i]; n != PREFIX_NIL;
			n = place_at(ix, n)->hash_next)
			check_family(ix, n, &c);
	}
	for (uint32_t slot = 0; slot < ix->n_slots; slot++)
		listed += check_worker(ix, slot);
	lru_check_heap(ix);
	assert(listed == c.entries + c.twigs);
	assert(c.nodes == ix->n_nodes && c.twigs == ix->n_twigs);
	assert(c.blocks == ix->blocks && c.distinct == ix->distinct_blocks);
	/* Every busy cell is "none", the root, a node or twig, an entry, or of a chunk of
	 * keys. */
	assert(arena_check(&ix->arena) == 2 + c.nodes + c.entries + c.cells);
	check_bytes(ix);
	free(c.children);
	free(c.child_xor);
}
