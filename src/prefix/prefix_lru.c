/*
 * Order of last use: each worker's list of uses (entries and twigs), and a heap of the
 * workers by their tails, so that the oldest leaf of all is found at once.
 *
 * Always true after lru_settle(): parents in the heap are no younger than their children;
 * a worker is in the heap exactly while its list is not empty. Called by prefix_fold.c,
 * prefix_tree.c, prefix_index.c and prefix_shrink.c.
 */
#include "prefix/prefix_tree.h"

/* Sets the links of a place's neighbours in the worker's list, or of its ends: that of
 * the newer one to `next`, that of the older one to `last`. */
static void set_neighbours(struct prefix_index *ix, struct prefix_worker *w,
	uint32_t newer, uint32_t next, uint32_t older, uint32_t last)
{
	if (newer != PREFIX_NIL)
		use_at(ix, newer)->older = next;
	else
		w->newest = next;
	if (older != PREFIX_NIL)
		use_at(ix, older)->newer = last;
	else
		w->oldest = last;
}

void lru_link(struct prefix_index *ix, uint32_t cell, uint32_t newer)
{
	struct prefix_use *use = use_at(ix, cell);
	struct prefix_worker *w = &ix->workers[use_slot(use)];
	uint32_t older = newer != PREFIX_NIL ? use_at(ix, newer)->older : w->newest;

	use->newer = newer;
	use->older = older;
	set_neighbours(ix, w, newer, cell, older, cell);
}

void lru_replace(struct prefix_index *ix, uint32_t cell)
{
	const struct prefix_use *use = use_at(ix, cell);

	set_neighbours(
		ix, &ix->workers[use_slot(use)], use->newer, cell, use->older, cell);
}

void lru_unlink(struct prefix_index *ix, uint32_t cell)
{
	const struct prefix_use *use = use_at(ix, cell);

	set_neighbours(ix, &ix->workers[use_slot(use)], use->newer, use->older,
		use->older, use->newer);
}

static bool is_older(const struct prefix_worker *a, const struct prefix_worker *b)
{
	return a->oldest_clock < b->oldest_clock;
}

static struct prefix_worker *heap_worker(const struct prefix_index *ix, uint32_t at)
{
	return &ix->workers[ix->workers[at].heap_slot];
}

static void heap_put(struct prefix_index *ix, uint32_t at, uint32_t slot)
{
	ix->workers[at].heap_slot = slot;
	ix->workers[slot].heap_at = at;
}

static void heap_up(struct prefix_index *ix, uint32_t slot)
{
	uint32_t at = ix->workers[slot].heap_at;

	while (at > 0) {
		uint32_t up = (at - 1) / 2;

		if (!is_older(&ix->workers[slot], heap_worker(ix, up)))
			break;
		heap_put(ix, at, ix->workers[up].heap_slot);
		at = up;
	}
	heap_put(ix, at, slot);
}

static void heap_down(struct prefix_index *ix, uint32_t slot)
{
	uint32_t at = ix->workers[slot].heap_at;

	for (;;) {
		uint32_t down = 2 * at + 1;

		if (down >= ix->heap_n)
			break;
		if (down + 1 < ix->heap_n &&
			is_older(heap_worker(ix, down + 1), heap_worker(ix, down)))
			down++;
		if (!is_older(heap_worker(ix, down), &ix->workers[slot]))
			break;
		heap_put(ix, at, ix->workers[down].heap_slot);
		at = down;
	}
	heap_put(ix, at, slot);
}

static void heap_leave(struct prefix_index *ix, uint32_t slot)
{
	uint32_t at = ix->workers[slot].heap_at;
	uint32_t last = ix->workers[--ix->heap_n].heap_slot;

	ix->workers[slot].heap_at = PREFIX_NO_HEAP;
	if (last == slot)
		return;
	heap_put(ix, at, last);
	heap_up(ix, last);
	heap_down(ix, last);
}

void lru_settle(struct prefix_index *ix, uint32_t slot)
{
	struct prefix_worker *w = &ix->workers[slot];

	if (w->oldest == PREFIX_NIL) {
		if (w->heap_at != PREFIX_NO_HEAP)
			heap_leave(ix, slot);
		return;
	}
	w->oldest_clock = use_clock(use_at(ix, w->oldest));
	if (w->heap_at == PREFIX_NO_HEAP)
		heap_put(ix, ix->heap_n++, slot);
	heap_up(ix, slot);
	heap_down(ix, slot);
}

uint32_t lru_oldest_slot(const struct prefix_index *ix)
{
	return ix->heap_n > 0 ? ix->workers[0].heap_slot : PREFIX_NO_SLOT;
}

void lru_check_heap(const struct prefix_index *ix)
{
	uint32_t holding = 0;

	for (uint32_t slot = 0; slot < ix->n_slots; slot++) {
		const struct prefix_worker *w = &ix->workers[slot];

		assert((w->oldest == PREFIX_NIL) == (w->heap_at == PREFIX_NO_HEAP));
		if (w->heap_at == PREFIX_NO_HEAP)
			continue;
		holding++;
		assert(w->heap_at < ix->heap_n && heap_worker(ix, w->heap_at) == w);
		assert(w->oldest_clock == use_clock(use_at(ix, w->oldest)));
		if (w->heap_at > 0)
			assert(!is_older(w, heap_worker(ix, (w->heap_at - 1) / 2)));
	}
	assert(holding == ix->heap_n);
}
