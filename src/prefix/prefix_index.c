/*
 * The operations of the index: workers and their slots, match, insert, withdraw, sweep,
 * and the three bounds. See prefix_index.h for the contract, prefix_tree.h for the
 * structure below.
 *
 * Always true: memory_bytes is dealt out once, in shares for the workers' table, the
 * buckets and the cells; each share is a bound of its own, so nothing has to be traded
 * under pressure. Called by pool.c and by policies, under the pool's lock.
 */
#include "prefix/prefix_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "prefix/prefix_tree.h"

#define MIN_MEMORY_BYTES ((size_t)64 * 1024)
#define MIN_ARENA_BYTES ((size_t)4 * ARENA_PAGE)

/* memory_bytes, dealt out. */
struct shares {
	uint32_t max_slots;
	uint32_t max_buckets;
	size_t arena_bytes;
};

static size_t workers_bytes(uint32_t slots)
{
	return arena_pages(slots * sizeof(struct prefix_worker));
}

/*
 * At most 1/32 for workers, and 1/24 for buckets: where every node is one block of one
 * holder, and so takes 32 bytes, that is still a bucket for each three nodes.
 */
static struct shares deal_out(size_t memory_bytes, uint32_t n_slots)
{
	struct shares s;
	size_t bytes = MAX(memory_bytes, MIN_MEMORY_BYTES);
	size_t slot_bytes = MAX(arena_pages(bytes / 32), workers_bytes(n_slots));
	size_t table_bytes = arena_pages(bytes / 24);
	size_t taken;

	slot_bytes = MIN(slot_bytes, workers_bytes(PREFIX_MAX_SLOTS));
	s.max_slots = (uint32_t)MIN(
		slot_bytes / sizeof(struct prefix_worker), (size_t)PREFIX_MAX_SLOTS);
	table_bytes = MIN(table_bytes, (size_t)ARENA_MAX_CELLS * sizeof(uint32_t) / 2);
	s.max_buckets = (uint32_t)(table_bytes / sizeof(uint32_t));
	taken = slot_bytes + table_bytes + arena_pages(sizeof(struct prefix_index));
	s.arena_bytes = bytes > taken + MIN_ARENA_BYTES ? bytes - taken : MIN_ARENA_BYTES;
	return s;
}

struct prefix_index *prefix_index_new(const struct prefix_index_opts *opts)
{
	struct shares s = deal_out(opts->memory_bytes, 0);
	struct prefix_index *ix = calloc(1, sizeof(*ix));

	if (ix == NULL)
		return NULL;
	ix->opts = *opts;
	ix->max_slots = s.max_slots;
	ix->reserved_buckets = s.max_buckets;
	ix->workers = arena_reserve(PREFIX_MAX_SLOTS * sizeof(*ix->workers));
	ix->buckets = arena_reserve(ix->reserved_buckets * sizeof(*ix->buckets));
	if (ix->workers == NULL || ix->buckets == NULL ||
		arena_init(&ix->arena, s.arena_bytes) < 0) {
		prefix_index_free(ix);
		return NULL;
	}
	tree_plant(ix);
	tree_set_buckets(ix, s.max_buckets);
	return ix;
}

void prefix_index_free(struct prefix_index *ix)
{
	if (ix == NULL)
		return;
	arena_fini(&ix->arena);
	if (ix->buckets != NULL)
		arena_unreserve(ix->buckets, ix->reserved_buckets * sizeof(*ix->buckets));
	if (ix->workers != NULL)
		arena_unreserve(ix->workers, PREFIX_MAX_SLOTS * sizeof(*ix->workers));
	free(ix);
}

static uint64_t tell_time(struct prefix_index *ix, uint64_t now_ms)
{
	ix->now_ms = MAX(ix->now_ms, now_ms);
	return ix->now_ms;
}

static struct prefix_worker *worker_at(const struct prefix_index *ix, uint32_t slot)
{
	assert(slot < ix->n_slots && ix->workers[slot].is_used);
	return &ix->workers[slot];
}

/* Takes the worker's oldest use whole. */
static void evict_use(struct prefix_index *ix, uint32_t slot, enum prefix_evict reason)
{
	uint32_t use = ix->workers[slot].oldest;

	tree_take(ix, use, tree_use_blocks(ix, use), reason);
}

/* Takes the worker's `count` oldest blocks, deepest first; all if it has fewer. */
static void evict_blocks(
	struct prefix_index *ix, uint32_t slot, uint64_t count, enum prefix_evict reason)
{
	while (count > 0 && ix->workers[slot].blocks > 0) {
		uint32_t use = ix->workers[slot].oldest;
		uint32_t part = (uint32_t)MIN(count, (uint64_t)tree_use_blocks(ix, use));

		tree_take(ix, use, part, reason);
		count -= part;
	}
}

/* Down to the capacity, less the blocks that are still to come. */
static void keep_capacity(struct prefix_index *ix, uint32_t slot, uint64_t coming)
{
	const struct prefix_worker *w = &ix->workers[slot];

	if (w->capacity > 0 && w->blocks + coming > w->capacity)
		evict_blocks(ix, slot, w->blocks + coming - w->capacity,
			PREFIX_EVICT_CAPACITY);
}

/* How many cells too many there are for all to be moved into the first `blocks` blocks.
 */
static uint64_t excess_cells(const struct prefix_index *ix, uint32_t blocks)
{
	uint64_t below = arena_busy_cells(&ix->arena, 0, blocks);
	uint64_t beyond = arena_busy_cells(&ix->arena, blocks, ix->arena.n_blocks);
	uint64_t wanted = below + beyond + beyond / 2 + 1;
	uint64_t have = (uint64_t)blocks * ARENA_BLOCK_CELLS;

	return wanted > have ? wanted - have : 0;
}

/* Down to a smaller arena: the oldest go until what is left can be moved below the new
 * end. */
static void shrink_arena(struct prefix_index *ix, uint32_t blocks)
{
	while (ix->arena.n_blocks > blocks) {
		uint64_t excess = excess_cells(ix, blocks);
		uint64_t before = arena_room(&ix->arena);

		if (excess == 0) {
			shrink_to(ix, blocks);
			return;
		}
		/* Counting is not free, and a cell counts for up to three halves. */
		while (ix->heap_n > 0 && arena_room(&ix->arena) < before + excess / 2 + 1)
			evict_use(ix, lru_oldest_slot(ix), PREFIX_EVICT_MEMORY);
	}
}

/* More buckets than were ever reserved: if there is no address space, the old number
 * does. */
static void limit_buckets(struct prefix_index *ix, uint32_t max_buckets)
{
	if (max_buckets > ix->reserved_buckets) {
		size_t old_bytes = ix->reserved_buckets * sizeof(*ix->buckets);
		void *moved = arena_rereserve(
			ix->buckets, old_bytes, max_buckets * sizeof(*ix->buckets));

		if (moved != NULL) {
			ix->buckets = moved;
			ix->reserved_buckets = max_buckets;
		}
	}
	tree_set_buckets(ix, MIN(max_buckets, ix->reserved_buckets));
}

void prefix_index_configure(
	struct prefix_index *ix, const struct prefix_index_opts *opts, uint64_t now_ms)
{
	struct shares s = deal_out(opts->memory_bytes, ix->n_slots);

	tell_time(ix, now_ms);
	ix->opts.ttl_ms = opts->ttl_ms;
	prefix_index_sweep(ix, ix->now_ms, SIZE_MAX);
	shrink_arena(ix, arena_blocks_within(s.arena_bytes));
	if (arena_limit(&ix->arena, s.arena_bytes) < 0)
		return; /* no address space for more: the smaller bound stays */
	limit_buckets(ix, s.max_buckets);
	ix->max_slots = s.max_slots;
	ix->opts = *opts;
}

int prefix_index_worker_add(
	struct prefix_index *ix, uint64_t capacity_blocks, uint32_t *slot)
{
	uint32_t at;
	struct prefix_worker *w;

	if (ix->free_slot != 0) {
		at = ix->free_slot - 1;
		ix->free_slot = ix->workers[at].mark;
	} else if (ix->n_slots < ix->max_slots) {
		at = ix->n_slots++;
	} else {
		return ix->n_slots == PREFIX_MAX_SLOTS ? ERR_LIMIT : ERR_NOMEM;
	}
	w = &ix->workers[at];
	w->is_used = true;
	w->capacity = capacity_blocks;
	w->blocks = 0;
	w->newest = PREFIX_NIL;
	w->oldest = PREFIX_NIL;
	w->mark = PREFIX_NIL;
	w->heap_at = PREFIX_NO_HEAP;
	*slot = at;
	return 0;
}

void prefix_index_worker_capacity(
	struct prefix_index *ix, uint32_t slot, uint64_t capacity_blocks)
{
	worker_at(ix, slot)->capacity = capacity_blocks;
	keep_capacity(ix, slot, 0);
}

void prefix_index_worker_clear(struct prefix_index *ix, uint32_t slot)
{
	evict_blocks(ix, slot, worker_at(ix, slot)->blocks, PREFIX_EVICT_DROPPED);
}

void prefix_index_worker_drop(struct prefix_index *ix, uint32_t slot)
{
	struct prefix_worker *w = worker_at(ix, slot);

	prefix_index_worker_clear(ix, slot);
	w->is_used = false;
	w->mark = ix->free_slot;
	ix->free_slot = slot + 1;
}

uint64_t prefix_index_worker_blocks(const struct prefix_index *ix, uint32_t slot)
{
	return worker_at(ix, slot)->blocks;
}

uint32_t prefix_index_slots(const struct prefix_index *ix)
{
	return ix->n_slots;
}

/* The same as match_node() for a twig, which ends the walk. */
static size_t match_twig(const struct prefix_index *ix, const struct prefix_use *use,
	size_t base, uint64_t now_ms, uint32_t *depth, uint32_t n_slots)
{
	uint32_t slot = use_slot(use);

	if (slot >= n_slots || depth[slot] != base ||
		is_expired(ix, slot, use_clock(use), now_ms))
		return 0;
	depth[slot] = (uint32_t)base + 1;
	return base + 1;
}

/* Counts one node into the depths of the workers that hold everything above it. */
static size_t match_node(const struct prefix_index *ix, const struct prefix_node *n,
	size_t base, size_t matched, uint64_t now_ms, uint32_t *depth, uint32_t n_slots)
{
	size_t deepest = 0;
	uint32_t start = 0, slot = PREFIX_NO_SLOT;

	for (uint32_t cell = n->entries; cell != PREFIX_NIL;) {
		const struct prefix_entry *e = entry_at(ix, cell);

		if (use_slot(&e->use) != slot)
			start = 0;
		slot = use_slot(&e->use);
		if (start < matched && slot < n_slots && depth[slot] == base + start &&
			!is_expired(ix, slot, use_clock(&e->use), now_ms)) {
			size_t reach = base + MIN(matched, (size_t)e->end);

			depth[slot] = (uint32_t)reach;
			deepest = MAX(deepest, reach);
		}
		start = e->end;
		cell = e->next;
	}
	return deepest;
}

size_t prefix_index_match(const struct prefix_index *ix, const uint64_t *keys, size_t n,
	uint64_t now_ms, uint32_t *depth, uint32_t n_slots)
{
	uint32_t node = PREFIX_ROOT;
	size_t base = 0, deepest = 0;

	now_ms = MAX(now_ms, ix->now_ms);
	n = MIN(n, (size_t)UINT32_MAX);
	if (n_slots > 0)
		memset(depth, 0, n_slots * sizeof(*depth));
	while (base < n) {
		const struct prefix_node *child;
		size_t matched, reach;

		node = tree_child(ix, node, keys[base]);
		if (node == PREFIX_NIL)
			break;
		if (is_twig(ix, node)) {
			reach = match_twig(
				ix, use_at(ix, node), base, now_ms, depth, n_slots);
			deepest = MAX(deepest, reach);
			break;
		}
		child = node_at(ix, node);
		matched = node_match(ix, child, keys + base, n - base);
		reach = match_node(ix, child, base, matched, now_ms, depth, n_slots);
		deepest = MAX(deepest, reach);
		base += matched;
		/* Nobody live came this far: nothing deeper can count. */
		if (reach < base || matched < node_len(child))
			break;
	}
	return deepest;
}

/* One worker's use of one path, as it is being entered top-down. */
struct visit {
	const uint64_t *keys;
	size_t n;
	uint32_t slot;
	uint64_t clock;
	uint32_t above; /* the last use given the clock: the next one follows it */
	size_t base;    /* blocks in the nodes above */
	size_t held;    /* blocks that the worker holds with this clock by now */
	size_t missing; /* cells that were not to be had; 0: none was missing */
};

/* A walk down a path: the nodes on it one after another, and the worker's uses in
 * each. */
struct descent {
	const struct prefix_index *ix;
	const uint64_t *keys;
	size_t n;
	uint32_t slot;
	uint32_t node, entry; /* entry: the worker's first in node; PREFIX_NIL: none */
	bool is_twig;         /* node is; entry is the twig itself then */
	bool is_partial;      /* the path ends within it, or leaves it */
	size_t base, matched; /* blocks above the node, and within it */
};

static struct descent descent_begin(
	const struct prefix_index *ix, uint32_t slot, const uint64_t *keys, size_t n)
{
	return (struct descent){
		.ix = ix, .keys = keys, .n = n, .slot = slot, .node = PREFIX_ROOT};
}

/* The next node on the path. False: there is none. Inlined: as a call it makes an insert
 * of one block that is there a fifth slower. */
static inline __attribute__((always_inline)) bool descend(struct descent *d)
{
	const struct prefix_index *ix = d->ix;
	const struct prefix_node *node;
	uint32_t prev;

	d->base += d->matched;
	if (d->base >= d->n || d->is_partial)
		return false;
	d->node = tree_child(ix, d->node, d->keys[d->base]);
	if (d->node == PREFIX_NIL)
		return false;
	d->is_twig = is_twig(ix, d->node);
	if (d->is_twig) {
		d->entry =
			use_slot(use_at(ix, d->node)) == d->slot ? d->node : PREFIX_NIL;
		d->matched = 1;
		d->is_partial = true;
		return true;
	}
	node = node_at(ix, d->node);
	d->matched = node_match(ix, node, d->keys + d->base, d->n - d->base);
	d->is_partial = d->matched < node_len(node);
	d->entry = tree_find_entry(ix, d->node, d->slot, &prev);
	return true;
}

/* Within the node; entries of other workers follow the worker's own. */
static bool is_of_worker(const struct descent *d, uint32_t entry)
{
	return entry != PREFIX_NIL && use_slot(use_at(d->ix, entry)) == d->slot;
}

/* How deep the worker's part of the path goes; *live: how deep it has not expired. */
static size_t find_depth(const struct prefix_index *ix, uint32_t slot,
	const uint64_t *keys, size_t n, size_t *live)
{
	struct descent d = descent_begin(ix, slot, keys, n);
	size_t held = 0;

	*live = 0;
	while (held == d.base + d.matched && descend(&d)) {
		uint32_t entry = d.entry;

		while (is_of_worker(&d, entry) && held < d.base + d.matched) {
			size_t before = held,
			       end = d.is_twig ? 1 : entry_at(ix, entry)->end;

			held = d.base + MIN(d.matched, end);
			if (*live == before &&
				!is_expired(ix, slot, use_clock(use_at(ix, entry)),
					ix->now_ms))
				*live = held;
			entry = d.is_twig ? PREFIX_NIL : entry_at(ix, entry)->next;
		}
	}
	return held;
}

/* Moves the entry or twig to where this use has come to. */
static void use_touch(struct prefix_index *ix, struct visit *v, uint32_t cell)
{
	struct prefix_use *use = use_at(ix, cell);

	if (use_clock(use) != v->clock) {
		lru_unlink(ix, cell);
		lru_link(ix, cell, v->above);
		use_set(use, v->slot, v->clock);
	}
	v->above = cell;
}

/* A new entry of the worker in a node, after `prev` in its list. False without a cell. */
static bool entry_new(struct prefix_index *ix, struct visit *v, uint32_t node,
	uint32_t prev, uint32_t end)
{
	uint32_t cell = arena_alloc(&ix->arena, 0);
	struct prefix_entry *e;
	uint32_t *link;

	if (cell == PREFIX_NIL) {
		v->missing = 1;
		return false;
	}
	e = entry_at(ix, cell);
	link = prev != PREFIX_NIL ? &entry_at(ix, prev)->next
				  : &node_at(ix, node)->entries;
	e->node = node;
	e->end = end;
	e->next = *link;
	*link = cell;
	e->use.who = 0;
	use_set(&e->use, v->slot, v->clock);
	lru_link(ix, cell, v->above);
	v->above = cell;
	return true;
}

static void add_blocks(struct prefix_index *ix, uint32_t slot, uint32_t count)
{
	ix->blocks += count;
	ix->workers[slot].blocks += count;
}

/* Entries wholly inside the first `matched` blocks become part of `first`, the one
 * before. */
static uint32_t absorb_entries(struct prefix_index *ix, uint32_t first, uint32_t matched)
{
	struct prefix_entry *e = entry_at(ix, first);
	uint32_t reach = e->end;

	while (e->next != PREFIX_NIL) {
		uint32_t cell = e->next;
		const struct prefix_entry *after = entry_at(ix, cell);

		if (use_slot(&after->use) != use_slot(&e->use))
			break;
		reach = MIN(after->end, matched);
		if (after->end > matched)
			break;
		e->next = after->next;
		lru_unlink(ix, cell);
		arena_free(&ix->arena, cell, 0);
	}
	return reach;
}

/* The worker holds the first `matched` blocks of the node, by this use. False without
 * memory. */
static bool hold_matched(
	struct prefix_index *ix, struct visit *v, uint32_t node, uint32_t matched)
{
	uint32_t prev, first = tree_find_entry(ix, node, v->slot, &prev);
	uint32_t reach = 0;

	if (first == PREFIX_NIL) {
		if (!entry_new(ix, v, node, PREFIX_NIL, matched))
			return false;
	} else if (entry_at(ix, first)->end > matched) {
		reach = matched;
		/* It belongs to this very use already if the path is walked again. */
		if (use_clock(use_at(ix, first)) == v->clock)
			v->above = first;
		else if (!entry_new(ix, v, node, prev, matched))
			return false;
	} else {
		reach = absorb_entries(ix, first, matched);
		entry_at(ix, first)->end = matched;
		use_touch(ix, v, first);
	}
	add_blocks(ix, v->slot, matched - reach);
	v->held = v->base + matched;
	return true;
}

/*
 * The path comes to a twig. True if that is all of it, or if there is a node in its place
 * now, for another holder or for more keys. Another holder needs a cell, too: without it
 * there would be a node that could be a twig.
 */
static bool enter_twig(struct prefix_index *ix, struct visit *v, uint32_t twig)
{
	bool is_own = use_slot(use_at(ix, twig)) == v->slot;
	size_t rest = v->n - v->base;

	if (is_own) {
		use_touch(ix, v, twig);
		v->held = v->base + 1;
		if (rest == 1)
			return true;
	}
	if (arena_room(&ix->arena) < (is_own ? 1 : 2)) {
		v->missing = 2 + KEYS_CELLS(rest);
		return false;
	}
	twig_unfold(ix, twig);
	return true;
}

/* A block below `parent` that is the path's last, or the last there is memory for. */
static bool add_twig(struct prefix_index *ix, struct visit *v, uint32_t parent)
{
	size_t rest = v->n - v->base;
	uint32_t cell = twig_new(ix, parent, v->keys[v->base], v->slot, v->clock);

	v->missing = 2 + KEYS_CELLS(rest);
	if (cell == PREFIX_NIL)
		return false;
	lru_link(ix, cell, v->above);
	v->above = cell;
	tree_publish(ix, cell);
	ix->distinct_blocks++;
	add_blocks(ix, v->slot, 1);
	v->held = v->base + 1;
	return rest == 1;
}

/* Puts as many keys behind those of a leaf as there is room for; at least one where a
 * cell is. Returns how many. */
static uint32_t leaf_append(
	struct prefix_index *ix, uint32_t node, const uint64_t *keys, size_t n)
{
	struct prefix_node *leaf = node_at(ix, node);
	uint32_t added;

	if (leaf->len == 1 && (n == 1 || arena_room(&ix->arena) == 0)) {
		pair_set(leaf, keys[0]);
		return 1;
	}
	if (is_pair(leaf)) {
		if (arena_room(&ix->arena) == 0)
			return 0;
		pair_unfold(ix, leaf);
	}
	added = (uint32_t)keys_append(&ix->arena, &leaf->at.run, leaf->len, keys, n);
	leaf->len += added;
	return added;
}

/* The rest of the keys behind those of a leaf that the worker holds whole. False if not
 * all of them. */
static bool extend_leaf(struct prefix_index *ix, struct visit *v, uint32_t node)
{
	size_t rest = v->n - v->held;
	uint32_t added = leaf_append(ix, node, v->keys + v->held, rest);

	entry_at(ix, v->above)->end += added;
	ix->distinct_blocks += added;
	add_blocks(ix, v->slot, added);
	v->held += added;
	if (added < rest)
		v->missing = KEYS_CELLS(rest - added);
	return added == rest;
}

/* The rest of the keys in a node of their own below `parent`. False if not all of them.
 */
static bool add_leaf(struct prefix_index *ix, struct visit *v, uint32_t parent)
{
	uint32_t cell;
	struct prefix_node *leaf;

	if (v->n - v->base == 1 || arena_room(&ix->arena) < 2)
		return add_twig(ix, v, parent);
	cell = tree_new_node(ix, parent);
	leaf = node_at(ix, cell);
	if (!entry_new(ix, v, cell, PREFIX_NIL, 1))
		assert(!"there was room for two cells");
	leaf->at.run.only = v->keys[v->base];
	leaf->len = 1;
	tree_publish(ix, cell);
	ix->distinct_blocks++;
	add_blocks(ix, v->slot, 1);
	v->held = v->base + 1;
	/* One at least: the second needs no cell. */
	return extend_leaf(ix, v, cell);
}

/* The path parts from the node's keys after `matched` of them. */
static bool branch_off(
	struct prefix_index *ix, struct visit *v, uint32_t node, uint32_t matched)
{
	size_t rest = v->n - v->held;
	uint32_t cells = tree_split_cells(ix, node, matched) + 2;

	if (arena_room(&ix->arena) < cells) {
		v->missing = cells + KEYS_CELLS(rest);
		return false;
	}
	node = tree_split(ix, node, matched);
	v->base += matched;
	return add_leaf(ix, v, node);
}

/* Enters the path top-down as far as memory goes. True if v->n blocks are held. */
static bool enter_path(struct prefix_index *ix, struct visit *v)
{
	uint32_t node = PREFIX_ROOT;

	v->base = 0;
	v->held = 0;
	v->above = PREFIX_NIL;
	v->missing = 0;
	while (v->base < v->n) {
		uint32_t child = tree_child(ix, node, v->keys[v->base]);
		const struct prefix_node *c = node_at(ix, child);
		uint32_t matched;

		if (child == PREFIX_NIL)
			return add_leaf(ix, v, node);
		if (is_twig(ix, child) && !enter_twig(ix, v, child))
			return false;
		if (v->held == v->n)
			break;
		matched = node_match(ix, c, v->keys + v->base, v->n - v->base);
		if (!hold_matched(ix, v, child, matched))
			return false;
		if (v->held == v->n)
			break;
		if (matched < node_len(c))
			return branch_off(ix, v, child, matched);
		if (is_leaf(c))
			return extend_leaf(ix, v, child);
		v->base += matched;
		node = child;
	}
	return true;
}

/* Makes room by evicting the oldest leaves of all, sparing this use. False if it is the
 * oldest. */
static bool make_room(struct prefix_index *ix, uint64_t clock, size_t cells)
{
	bool is_some = false;

	while (!is_some || arena_room(&ix->arena) < cells) {
		uint32_t slot = lru_oldest_slot(ix);

		if (slot == PREFIX_NO_SLOT || ix->workers[slot].oldest_clock == clock)
			return is_some;
		evict_use(ix, slot, PREFIX_EVICT_MEMORY);
		is_some = true;
	}
	return true;
}

/* The worker uses keys[0..n): what it lacks is added while memory can be had. Returns the
 * depth. */
static size_t use_path(struct prefix_index *ix, struct visit *v, size_t n)
{
	v->n = n;
	do {
		bool is_whole = enter_path(ix, v);

		lru_settle(ix, v->slot);
		if (is_whole)
			break;
	} while (make_room(ix, v->clock, v->missing));
	return v->held;
}

/* The next use's clock is within its range, at the price of all there is if need be. */
static void wind_clock(struct prefix_index *ix)
{
	if (ix->last_clock > 0 && ix->last_clock < PREFIX_MAX_CLOCK &&
		ix->now_ms - ix->base_ms <= PREFIX_MAX_CLOCK >> PREFIX_COUNT_BITS)
		return;
	tree_forget(ix);
	ix->base_ms = ix->now_ms;
	ix->last_clock = 0;
}

static uint64_t next_clock(struct prefix_index *ix)
{
	uint64_t told = (ix->now_ms - ix->base_ms) << PREFIX_COUNT_BITS;

	ix->last_clock = MAX(ix->last_clock + 1, told);
	return ix->last_clock;
}

/* Expired entries below a live prefix would hang on blocks that a withdrawal takes. */
static void sweep_worker(struct prefix_index *ix, uint32_t slot)
{
	const struct prefix_worker *w = &ix->workers[slot];

	while (w->oldest != PREFIX_NIL &&
		is_expired(ix, slot, w->oldest_clock, ix->now_ms))
		evict_use(ix, slot, PREFIX_EVICT_TTL);
}

void prefix_index_insert(struct prefix_index *ix, uint32_t slot, const uint64_t *keys,
	size_t n, uint64_t now_ms, uint32_t *from, uint64_t *stamp)
{
	const struct prefix_worker *w = worker_at(ix, slot);
	struct visit v = {.keys = keys, .slot = slot};
	size_t live, held, depth;

	tell_time(ix, now_ms);
	wind_clock(ix);
	n = MIN(n, (size_t)UINT32_MAX);
	if (w->capacity > 0)
		n = (size_t)MIN((uint64_t)n, w->capacity);
	held = find_depth(ix, slot, keys, n, &live);
	if (live < held)
		sweep_worker(ix, slot);
	v.clock = next_clock(ix);
	if (w->capacity > 0 && w->blocks + (n - live) > w->capacity) {
		/* Present blocks count as used before the tail is searched for. */
		use_path(ix, &v, live);
		keep_capacity(ix, slot, n - live);
	}
	depth = use_path(ix, &v, n);
	keep_capacity(ix, slot, 0);
	*from = (uint32_t)live;
	*stamp = depth > live ? v.clock : 0;
}

/* The worker's deepest use on the path, and its end counted from the first block. */
static uint32_t find_deepest(const struct prefix_index *ix, uint32_t slot,
	const uint64_t *keys, size_t n, size_t *end)
{
	struct descent d = descent_begin(ix, slot, keys, n);
	uint32_t found = PREFIX_NIL;

	while (descend(&d)) {
		uint32_t entry = d.entry;

		while (is_of_worker(&d, entry)) {
			size_t last = d.is_twig ? 1 : entry_at(ix, entry)->end;

			if (last > d.matched)
				break;
			found = entry;
			*end = d.base + last;
			entry = d.is_twig ? PREFIX_NIL : entry_at(ix, entry)->next;
		}
	}
	return found;
}

static bool has_clock(const struct prefix_index *ix, uint32_t use, uint64_t clock)
{
	return use != PREFIX_NIL && use_clock(use_at(ix, use)) == clock;
}

/*
 * Blocks that still carry the stamp are the path's last ones, and the worker holds
 * nothing below them: whatever it used there later, it used them too, and so gave them
 * another stamp. The entry that carries it above them is in a node with children, whose
 * number outlives theirs.
 */
void prefix_index_withdraw(struct prefix_index *ix, uint32_t slot, const uint64_t *keys,
	size_t n, uint32_t from, uint64_t stamp)
{
	size_t end = 0;
	uint32_t use;

	if (stamp == 0)
		return;
	assert(slot < ix->n_slots);
	use = find_deepest(ix, slot, keys, n, &end);
	if (!has_clock(ix, use, stamp))
		return;
	while (end > from) {
		size_t blocks = tree_use_blocks(ix, use);
		uint32_t above = use_at(ix, use)->newer;
		bool is_last = !has_clock(ix, above, stamp);

		tree_take(ix, use, (uint32_t)MIN(blocks, end - from), PREFIX_EVICT_MAX);
		end -= MIN(blocks, end - from);
		if (is_last)
			break;
		use = above;
	}
}

size_t prefix_index_sweep(struct prefix_index *ix, uint64_t now_ms, size_t max_work)
{
	size_t gone = 0;

	tell_time(ix, now_ms);
	for (uint32_t slot = 0; slot < ix->n_slots; slot++) {
		const struct prefix_worker *w = &ix->workers[slot];

		for (; gone < max_work && w->oldest != PREFIX_NIL &&
			is_expired(ix, slot, w->oldest_clock, ix->now_ms);
			gone++)
			evict_use(ix, slot, PREFIX_EVICT_TTL);
	}
	return gone;
}

void prefix_index_stats(const struct prefix_index *ix, struct prefix_index_stats *out)
{
	out->blocks = ix->blocks;
	out->distinct_blocks = ix->distinct_blocks;
	out->nodes = ix->n_nodes;
	out->twigs = ix->n_twigs;
	out->bytes = sizeof(*ix) + workers_bytes(ix->n_slots) + tree_table_bytes(ix) +
		     arena_bytes(&ix->arena);
	out->used_bytes = out->bytes - (size_t)ix->arena.free_cells * ARENA_CELL_BYTES;
	memcpy(out->evicted, ix->evicted, sizeof(out->evicted));
}
