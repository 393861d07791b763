/*
 * The nodes of a prefix index: found by (parent, first key), split where prompts part,
 * joined again when they no longer do, gone with their last holder.
 *
 * Always true: every node but the root is in the bucket of its parent and first key; the
 * number of buckets follows the number of nodes one by one, up to its bound. No removal
 * needs memory: a join may use the cells that it and the end of a child
 * just freed. Called by prefix_index.c; see prefix_tree.h for the invariants.
 */
#include "prefix/prefix_tree.h"

#include <string.h>

#define MIN_BUCKETS (ARENA_PAGE / (uint32_t)sizeof(uint32_t))

/* The low half of the first key serves: keys are mixed with a secret already. */
static uint32_t hash_of(uint32_t parent, uint32_t key_low)
{
	uint64_t h = ((uint64_t)parent << 32 | key_low) * 0x9e3779b97f4a7c15ULL;

	return (uint32_t)(h >> 32) ^ key_low;
}

static uint32_t *bucket_of(const struct prefix_index *ix, uint32_t hash)
{
	uint32_t mask = UINT32_MAX >> __builtin_clz(ix->n_buckets);
	uint32_t at = hash & mask;

	return &ix->buckets[at < ix->n_buckets ? at : hash & (mask >> 1)];
}

static uint32_t *bucket_of_node(const struct prefix_index *ix, uint32_t node)
{
	const struct prefix_place *at = place_at(ix, node);

	return bucket_of(ix, hash_of(at->parent, keys_tag(&at->run, run_len(ix, node))));
}

static void bucket_push(struct prefix_index *ix, uint32_t node)
{
	uint32_t *bucket = bucket_of_node(ix, node);

	place_at(ix, node)->hash_next = *bucket;
	*bucket = node;
}

static void push_all(struct prefix_index *ix, uint32_t chain)
{
	while (chain != PREFIX_NIL) {
		uint32_t next = place_at(ix, chain)->hash_next;

		bucket_push(ix, chain);
		chain = next;
	}
}

static void table_grow(struct prefix_index *ix)
{
	uint32_t added = ix->n_buckets;
	/* The bucket that shared its hashes until now: without the top bit. */
	uint32_t from = added & ~(1u << (31 - __builtin_clz(added)));
	uint32_t chain = ix->buckets[from];

	ix->buckets[from] = PREFIX_NIL;
	ix->buckets[added] = PREFIX_NIL;
	ix->n_buckets++;
	push_all(ix, chain);
}

static void table_shrink(struct prefix_index *ix)
{
	uint32_t chain = ix->buckets[ix->n_buckets - 1];
	size_t bytes = ix->n_buckets * sizeof(*ix->buckets);

	ix->n_buckets--;
	push_all(ix, chain);
	if (bytes % ARENA_PAGE == sizeof(*ix->buckets))
		arena_release(ix->buckets, bytes - sizeof(*ix->buckets), bytes);
}

void tree_set_buckets(struct prefix_index *ix, uint32_t max_buckets)
{
	ix->max_buckets = MAX(max_buckets, MIN_BUCKETS);
	while (ix->n_buckets > ix->max_buckets)
		table_shrink(ix);
}

size_t tree_table_bytes(const struct prefix_index *ix)
{
	return arena_pages(ix->n_buckets * sizeof(*ix->buckets));
}

uint32_t tree_child(const struct prefix_index *ix, uint32_t parent, uint64_t key)
{
	uint32_t cell = *bucket_of(ix, hash_of(parent, (uint32_t)key));

	while (cell != PREFIX_NIL) {
		const struct prefix_place *at = place_at(ix, cell);
		uint32_t len = run_len(ix, cell);

		if (at->parent == parent && keys_tag(&at->run, len) == (uint32_t)key &&
			keys_first(&ix->arena, &at->run, len) == key)
			break;
		cell = at->hash_next;
	}
	return cell;
}

uint32_t tree_find_entry(
	const struct prefix_index *ix, uint32_t node, uint32_t slot, uint32_t *prev)
{
	uint32_t cell = node_at(ix, node)->entries;

	*prev = PREFIX_NIL;
	while (cell != PREFIX_NIL && use_slot(use_at(ix, cell)) != slot) {
		*prev = cell;
		cell = entry_at(ix, cell)->next;
	}
	return cell;
}

void tree_plant(struct prefix_index *ix)
{
	uint32_t root;

	assert(ix->n_nodes == 0);
	arena_release(ix->buckets, MIN_BUCKETS * sizeof(*ix->buckets),
		ix->n_buckets * sizeof(*ix->buckets));
	ix->n_buckets = MIN_BUCKETS;
	arena_reset(&ix->arena);
	root = arena_alloc(&ix->arena, 0);
	assert(root == PREFIX_ROOT);
	memset(node_at(ix, root), 0, sizeof(struct prefix_node));
}

static void worker_forget(struct prefix_index *ix, struct prefix_worker *w)
{
	ix->evicted[PREFIX_EVICT_TTL] += w->blocks;
	w->blocks = 0;
	w->newest = PREFIX_NIL;
	w->oldest = PREFIX_NIL;
	w->heap_at = PREFIX_NO_HEAP;
}

void tree_forget(struct prefix_index *ix)
{
	for (uint32_t slot = 0; slot < ix->n_slots; slot++) {
		if (ix->workers[slot].is_used)
			worker_forget(ix, &ix->workers[slot]);
	}
	ix->heap_n = 0;
	ix->blocks = 0;
	ix->distinct_blocks = 0;
	ix->n_nodes = 0;
	ix->n_twigs = 0;
	memset(ix->buckets, 0, MIN_BUCKETS * sizeof(*ix->buckets));
	tree_plant(ix);
}

uint32_t tree_new_node(struct prefix_index *ix, uint32_t parent)
{
	uint32_t cell = arena_alloc(&ix->arena, 0);

	if (cell != PREFIX_NIL) {
		memset(node_at(ix, cell), 0, sizeof(struct prefix_node));
		node_at(ix, cell)->at.parent = parent;
	}
	return cell;
}

static void child_add(struct prefix_index *ix, uint32_t parent, uint32_t child)
{
	node_at(ix, parent)->n_children++;
	node_at(ix, parent)->child_xor ^= child;
}

static void child_remove(struct prefix_index *ix, uint32_t parent, uint32_t child)
{
	node_at(ix, parent)->n_children--;
	node_at(ix, parent)->child_xor ^= child;
}

void tree_publish(struct prefix_index *ix, uint32_t node)
{
	child_add(ix, place_at(ix, node)->parent, node);
	bucket_push(ix, node);
	ix->n_nodes++;
	if (ix->n_nodes > ix->n_buckets && ix->n_buckets < ix->max_buckets)
		table_grow(ix);
}

/* The other way round. The node keeps its keys and is no longer found. */
static void tree_withdraw(struct prefix_index *ix, uint32_t node)
{
	uint32_t *link = bucket_of_node(ix, node);

	while (*link != node)
		link = &place_at(ix, *link)->hash_next;
	*link = place_at(ix, node)->hash_next;
	child_remove(ix, place_at(ix, node)->parent, node);
	ix->n_nodes--;
	/* Two at most, so that a node's end costs what it costs; two keep up with any. */
	for (unsigned n = 0; n < 2; n++) {
		if (ix->n_buckets > MIN_BUCKETS && ix->n_nodes < ix->n_buckets / 2)
			table_shrink(ix);
	}
}

uint32_t tree_split_cells(const struct prefix_index *ix, uint32_t node, uint32_t at)
{
	uint32_t cells = 1 + KEYS_SPLIT_CELLS;
	uint32_t start = 0, slot = PREFIX_NO_SLOT, cell = node_at(ix, node)->entries;

	while (cell != PREFIX_NIL) {
		const struct prefix_entry *e = entry_at(ix, cell);

		if (use_slot(&e->use) != slot)
			start = 0;
		cells += start < at && e->end > at;
		start = e->end;
		slot = use_slot(&e->use);
		cell = e->next;
	}
	return cells;
}

/* The part of an entry before `at`, as one of its own. */
static uint32_t entry_split(
	struct prefix_index *ix, uint32_t cell, uint32_t upper, uint32_t at)
{
	uint32_t fresh = arena_alloc(&ix->arena, 0);

	assert(fresh != PREFIX_NIL);
	*entry_at(ix, fresh) = *entry_at(ix, cell);
	entry_at(ix, fresh)->node = upper;
	entry_at(ix, fresh)->end = at;
	lru_link(ix, fresh, entry_at(ix, cell)->use.newer);
	return fresh;
}

static void entries_split(
	struct prefix_index *ix, uint32_t upper, uint32_t lower, uint32_t at)
{
	uint32_t *upper_link = &node_at(ix, upper)->entries;
	uint32_t *lower_link = &node_at(ix, lower)->entries;
	uint32_t start = 0, slot = PREFIX_NO_SLOT, cell = *lower_link;

	while (cell != PREFIX_NIL) {
		struct prefix_entry *e = entry_at(ix, cell);
		uint32_t next = e->next, end = e->end;

		if (use_slot(&e->use) != slot)
			start = 0;
		slot = use_slot(&e->use);
		if (start < at) {
			uint32_t above =
				end <= at ? cell : entry_split(ix, cell, upper, at);

			entry_at(ix, above)->node = upper;
			*upper_link = above;
			upper_link = &entry_at(ix, above)->next;
		}
		if (end > at) {
			e->end = end - at;
			*lower_link = cell;
			lower_link = &e->next;
		}
		start = end;
		cell = next;
	}
	*upper_link = PREFIX_NIL;
	*lower_link = PREFIX_NIL;
}

static void node_split_keys(struct prefix_index *ix, struct prefix_node *upper,
	struct prefix_node *lower, uint32_t at)
{
	upper->len = at;
	if (is_pair(lower)) {
		upper->at.run.only = lower->at.run.only;
		lower->at.run.only = pair_unset(lower);
		return;
	}
	keys_split(&ix->arena, &upper->at.run, &lower->at.run, lower->len, at);
	lower->len -= at;
}

uint32_t tree_split(struct prefix_index *ix, uint32_t node, uint32_t at)
{
	struct prefix_node *lower = node_at(ix, node);
	uint32_t cell = tree_new_node(ix, lower->at.parent);
	struct prefix_node *upper = node_at(ix, cell);

	assert(cell != PREFIX_NIL && at > 0 && at < node_len(lower));
	tree_withdraw(ix, node);
	node_split_keys(ix, upper, lower, at);
	lower->at.parent = cell;
	tree_publish(ix, cell);
	tree_publish(ix, node);
	entries_split(ix, cell, node, at);
	node_fold(ix, node);
	return cell;
}

/* Lets each worker's `mark` point to its first entry in the node; ends count from
 * `offset`. */
static void mark_entries(struct prefix_index *ix, uint32_t node, uint32_t offset)
{
	uint32_t slot = PREFIX_NO_SLOT;

	for (uint32_t cell = node_at(ix, node)->entries; cell != PREFIX_NIL;) {
		struct prefix_entry *e = entry_at(ix, cell);

		e->end += offset;
		if (use_slot(&e->use) != slot)
			ix->workers[use_slot(&e->use)].mark = cell;
		slot = use_slot(&e->use);
		cell = e->next;
	}
}

static uint32_t last_of_slot(const struct prefix_index *ix, uint32_t cell)
{
	for (;;) {
		uint32_t next = entry_at(ix, cell)->next;

		if (next == PREFIX_NIL ||
			use_slot(use_at(ix, next)) != use_slot(use_at(ix, cell)))
			return cell;
		cell = next;
	}
}

/*
 * The upper list with each worker's lower entries behind its upper ones. Where the last
 * above and the first below are of one use they become one.
 */
static void entries_join(
	struct prefix_index *ix, uint32_t upper, uint32_t lower, uint32_t offset)
{
	uint32_t *link;
	uint32_t cell = node_at(ix, upper)->entries;

	mark_entries(ix, lower, offset);
	link = &node_at(ix, lower)->entries;
	while (cell != PREFIX_NIL) {
		struct prefix_entry *e = entry_at(ix, cell);
		uint32_t next = e->next;
		bool is_last = next == PREFIX_NIL ||
			       use_slot(use_at(ix, next)) != use_slot(&e->use);
		uint32_t below =
			is_last ? ix->workers[use_slot(&e->use)].mark : PREFIX_NIL;

		e->node = lower;
		if (below != PREFIX_NIL &&
			use_clock(use_at(ix, below)) == use_clock(&e->use)) {
			lru_unlink(ix, cell);
			arena_free(&ix->arena, cell, 0);
		} else {
			*link = cell;
			link = &e->next;
		}
		if (below != PREFIX_NIL) {
			ix->workers[use_slot(use_at(ix, below))].mark = PREFIX_NIL;
			*link = below;
			link = &entry_at(ix, last_of_slot(ix, below))->next;
		}
		cell = next;
	}
	*link = PREFIX_NIL;
}

/* A node and its only child become one; the child's number stays. Takes two cells at
 * most: that of the node, and one for a child that is a twig or a pair. */
static void node_join(struct prefix_index *ix, uint32_t node)
{
	struct prefix_node upper = *node_at(ix, node);
	uint32_t child = upper.child_xor;
	struct prefix_node *lower = node_at(ix, child);

	assert(upper.n_children == 1 && place_at(ix, child)->parent == node);
	if (is_twig(ix, child))
		twig_unfold(ix, child);
	else if (is_pair(lower))
		pair_unfold(ix, lower);
	tree_withdraw(ix, child);
	tree_withdraw(ix, node);
	entries_join(ix, node, child, upper.len);
	/* The cell may be needed at once for a key. */
	arena_free(&ix->arena, node, 0);
	keys_join(&ix->arena, &upper.at.run, upper.len, &lower->at.run, lower->len);
	lower->len += upper.len;
	lower->at.parent = upper.at.parent;
	tree_publish(ix, child);
	node_fold(ix, child);
}

/* Its holders are gone, and all keys but the first. */
static void node_remove(struct prefix_index *ix, uint32_t node)
{
	uint32_t parent = place_at(ix, node)->parent;

	tree_withdraw(ix, node);
	if (is_twig(ix, node))
		twig_free(ix, node);
	else
		arena_free(&ix->arena, node, 0);
	if (parent != PREFIX_ROOT && node_at(ix, parent)->n_children == 1)
		node_join(ix, parent);
}

static void leaf_trim(struct prefix_index *ix, struct prefix_node *leaf, uint32_t len)
{
	if (len == node_len(leaf))
		return;
	if (is_pair(leaf))
		pair_unset(leaf);
	else
		keys_trim(&ix->arena, &leaf->at.run, leaf->len, len);
	leaf->len = len;
}

/* A holder of the node's end is gone: keys that nobody holds go. */
static void node_settle(struct prefix_index *ix, uint32_t node)
{
	struct prefix_node *n = node_at(ix, node);
	uint32_t held = 0;

	if (!is_leaf(n))
		return;
	for (uint32_t cell = n->entries; cell != PREFIX_NIL;
		cell = entry_at(ix, cell)->next)
		held = MAX(held, entry_at(ix, cell)->end);
	ix->distinct_blocks -= node_len(n) - held;
	/* In the table until it is removed, and found there by the first key. */
	leaf_trim(ix, n, MAX(held, 1u));
	if (held > 0)
		node_fold(ix, node);
	else
		node_remove(ix, node);
}

/* An entry's predecessor in its node's list, and where its blocks begin. */
static uint32_t entry_start(const struct prefix_index *ix, uint32_t cell, uint32_t *prev)
{
	const struct prefix_entry *e = entry_at(ix, cell);
	uint32_t start = 0;
	uint32_t at = tree_find_entry(ix, e->node, use_slot(&e->use), prev);

	while (at != cell) {
		start = entry_at(ix, at)->end;
		*prev = at;
		at = entry_at(ix, at)->next;
	}
	return start;
}

uint32_t tree_use_blocks(const struct prefix_index *ix, uint32_t use)
{
	uint32_t prev;

	if (is_twig(ix, use))
		return 1;
	return entry_at(ix, use)->end - entry_start(ix, use, &prev);
}

static void take_twig(struct prefix_index *ix, uint32_t twig)
{
	lru_unlink(ix, twig);
	ix->distinct_blocks--;
	node_remove(ix, twig);
}

static void take_of_entry(struct prefix_index *ix, uint32_t entry, uint32_t count)
{
	struct prefix_entry *e = entry_at(ix, entry);
	uint32_t node = e->node;
	bool reached_end = e->end == node_len(node_at(ix, node));
	uint32_t prev, start = entry_start(ix, entry, &prev);

	assert(count <= e->end - start && last_of_slot(ix, entry) == entry);
	e->end -= count;
	if (e->end == start) {
		if (prev != PREFIX_NIL)
			entry_at(ix, prev)->next = e->next;
		else
			node_at(ix, node)->entries = e->next;
		lru_unlink(ix, entry);
		arena_free(&ix->arena, entry, 0);
	}
	if (reached_end)
		node_settle(ix, node);
}

void tree_take(
	struct prefix_index *ix, uint32_t use, uint32_t count, enum prefix_evict reason)
{
	uint32_t slot = use_slot(use_at(ix, use));

	assert(count > 0);
	ix->blocks -= count;
	ix->workers[slot].blocks -= count;
	if (reason < PREFIX_EVICT_MAX)
		ix->evicted[reason] += count;
	if (is_twig(ix, use))
		take_twig(ix, use);
	else
		take_of_entry(ix, use, count);
	lru_settle(ix, slot);
	if (ix->heap_n == 0)
		tree_plant(ix);
}
