/*
 * Twigs and pairs: a leaf of one key and one holder in one cell, and one of two keys
 * without a chunk; and the conversion from and to larger nodes.
 *
 * Always true: folding and unfolding keep the node's number, so neither its bucket nor
 * its parent notices; the use keeps its place in the worker's list under another number.
 * Called by prefix_tree.c and prefix_index.c; see prefix_tree.h for the invariants.
 */
#include "prefix/prefix_tree.h"

uint32_t twig_new(struct prefix_index *ix, uint32_t parent, uint64_t key, uint32_t slot,
	uint64_t clock)
{
	uint32_t cell = arena_alloc(&ix->arena, 0);
	struct prefix_twig *twig;

	if (cell == PREFIX_NIL)
		return PREFIX_NIL;
	twig = twig_at(ix, cell);
	twig->at.run.only = key;
	twig->at.parent = parent;
	twig->use.who = PREFIX_TWIG;
	use_set(&twig->use, slot, clock);
	ix->n_twigs++;
	return cell;
}

void twig_free(struct prefix_index *ix, uint32_t twig)
{
	arena_free(&ix->arena, twig, 0);
	ix->n_twigs--;
}

uint32_t twig_unfold(struct prefix_index *ix, uint32_t twig)
{
	struct prefix_use use = twig_at(ix, twig)->use;
	struct prefix_node *n = node_at(ix, twig);
	uint32_t cell = arena_alloc(&ix->arena, 0);
	struct prefix_entry *e = entry_at(ix, cell);

	assert(cell != PREFIX_NIL && (use.who & PREFIX_TWIG));
	use.who &= ~PREFIX_TWIG;
	*e = (struct prefix_entry){
		.node = twig, .next = PREFIX_NIL, .end = 1, .use = use};
	lru_replace(ix, cell);
	n->len = 1;
	n->entries = cell;
	n->n_children = 0;
	n->child_xor = 0;
	ix->n_twigs--;
	return cell;
}

static void twig_fold(struct prefix_index *ix, uint32_t node)
{
	uint32_t cell = node_at(ix, node)->entries;
	struct prefix_twig *twig = twig_at(ix, node);

	twig->use = entry_at(ix, cell)->use;
	twig->use.who |= PREFIX_TWIG;
	lru_replace(ix, node);
	arena_free(&ix->arena, cell, 0);
	ix->n_twigs++;
}

void pair_set(struct prefix_node *leaf, uint64_t second)
{
	assert(leaf->len == 1 && leaf->n_children == 0);
	leaf->len = PREFIX_PAIR;
	leaf->second = second;
}

uint64_t pair_unset(struct prefix_node *pair)
{
	uint64_t second = pair->second;

	assert(is_pair(pair));
	pair->len = 1;
	pair->n_children = 0;
	pair->child_xor = 0;
	return second;
}

void pair_unfold(struct prefix_index *ix, struct prefix_node *pair)
{
	uint64_t second = pair_unset(pair);
	size_t added = keys_append(&ix->arena, &pair->at.run, 1, &second, 1);

	assert(added == 1);
	pair->len = 2;
}

static void pair_fold(struct prefix_index *ix, struct prefix_node *leaf)
{
	uint64_t second = keys_last(&ix->arena, &leaf->at.run, 2);

	keys_trim(&ix->arena, &leaf->at.run, 2, 1);
	leaf->len = 1;
	pair_set(leaf, second);
}

void node_fold(struct prefix_index *ix, uint32_t node)
{
	struct prefix_node *n = node_at(ix, node);

	if (!is_leaf(n))
		return;
	if (n->len == 1 && entry_at(ix, n->entries)->next == PREFIX_NIL)
		twig_fold(ix, node);
	else if (n->len == 2)
		pair_fold(ix, n);
}
