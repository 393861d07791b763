/*
 * The cells of one prefix index: a buddy allocator inside 256-byte blocks of one
 * reservation.
 *
 * Always true: a free group is as large as its free neighbours allow, and stands in the
 * list of its size; a cell's bit in `busy` is set exactly while it is given out. Called
 * by the other prefix_*.c files, under the pool's lock.
 */
#include "prefix/prefix_arena.h"

#include <string.h>
#include <sys/mman.h>

#include "base/err.h"

/* The first cell of a free group. */
struct free_group {
	uint32_t next;
	uint32_t prev; /* 0: the head of its list */
};

static struct free_group *group_at(const struct prefix_arena *a, uint32_t cell)
{
	return arena_cell(a, cell);
}

static unsigned group_bits(uint32_t cell, unsigned order)
{
	return ((1u << (1u << order)) - 1) << (cell % ARENA_BLOCK_CELLS);
}

size_t arena_pages(size_t bytes)
{
	return (bytes + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
}

void *arena_reserve(size_t bytes)
{
	void *p = mmap(NULL, arena_pages(bytes), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void arena_unreserve(void *p, size_t bytes)
{
	if (p != NULL)
		munmap(p, arena_pages(bytes));
}

void *arena_rereserve(void *p, size_t old_bytes, size_t new_bytes)
{
	void *moved =
		mremap(p, arena_pages(old_bytes), arena_pages(new_bytes), MREMAP_MAYMOVE);

	return moved == MAP_FAILED ? NULL : moved;
}

void arena_release(void *p, size_t from, size_t to)
{
	from = arena_pages(from);
	to = arena_pages(to);
	if (from < to)
		madvise((unsigned char *)p + from, to - from, MADV_DONTNEED);
}

static size_t bytes_of_blocks(uint32_t blocks)
{
	return arena_pages((size_t)blocks * ARENA_BLOCK_BYTES) + arena_pages(blocks);
}

uint32_t arena_blocks_within(size_t max_bytes)
{
	size_t pages = max_bytes / ARENA_PAGE;
	size_t most = ARENA_MAX_CELLS / ARENA_BLOCK_CELLS;
	size_t per_page = ARENA_PAGE / ARENA_BLOCK_BYTES;
	/* One page of bits serves 4096 blocks, which are 256 pages. */
	size_t bit_pages = (pages + 256) / 257;
	size_t blocks = (pages - MIN(pages, bit_pages)) * per_page;

	return (uint32_t)MIN(blocks, most);
}

int arena_init(struct prefix_arena *a, size_t max_bytes)
{
	memset(a, 0, sizeof(*a));
	a->max_blocks = arena_blocks_within(max_bytes);
	assert(a->max_blocks > 0);
	a->reserved_blocks = a->max_blocks;
	a->cells = arena_reserve(a->reserved_blocks * ARENA_BLOCK_BYTES);
	a->busy = arena_reserve(a->reserved_blocks);
	if (a->cells == NULL || a->busy == NULL) {
		arena_fini(a);
		return ERR_NOMEM;
	}
	arena_reset(a);
	return 0;
}

void arena_fini(struct prefix_arena *a)
{
	arena_unreserve(a->cells, a->reserved_blocks * ARENA_BLOCK_BYTES);
	arena_unreserve(a->busy, a->reserved_blocks);
	memset(a, 0, sizeof(*a));
}

static int reserve_blocks(struct prefix_arena *a, size_t blocks)
{
	void *moved;

	moved = arena_rereserve(a->busy, a->reserved_blocks, blocks);
	if (moved == NULL)
		return ERR_NOMEM;
	a->busy = moved;
	moved = arena_rereserve(a->cells, a->reserved_blocks * ARENA_BLOCK_BYTES,
		blocks * ARENA_BLOCK_BYTES);
	if (moved == NULL) {
		/* Shrinking back happens in place. */
		a->busy = arena_rereserve(a->busy, blocks, a->reserved_blocks);
		return ERR_NOMEM;
	}
	a->cells = moved;
	a->reserved_blocks = blocks;
	return 0;
}

int arena_limit(struct prefix_arena *a, size_t max_bytes)
{
	uint32_t blocks = arena_blocks_within(max_bytes);

	assert(blocks >= a->n_blocks);
	if (blocks > a->reserved_blocks) {
		int err = reserve_blocks(a, blocks);

		if (err < 0)
			return err;
	}
	a->max_blocks = blocks;
	return 0;
}

static void list_push(struct prefix_arena *a, uint32_t cell, unsigned order)
{
	struct free_group *group = group_at(a, cell);

	group->prev = 0;
	group->next = a->free_head[order];
	if (group->next != 0)
		group_at(a, group->next)->prev = cell;
	a->free_head[order] = cell;
	a->free_cells += 1u << order;
}

static void list_remove(struct prefix_arena *a, uint32_t cell, unsigned order)
{
	const struct free_group *group = group_at(a, cell);

	if (group->next != 0)
		group_at(a, group->next)->prev = group->prev;
	if (group->prev != 0)
		group_at(a, group->prev)->next = group->next;
	else
		a->free_head[order] = group->next;
	a->free_cells -= 1u << order;
}

/* The smallest free group of at least this order, from a new block if need be. */
static bool find_group(struct prefix_arena *a, unsigned *order)
{
	for (; *order < ARENA_ORDERS; (*order)++) {
		if (a->free_head[*order] != 0)
			return true;
	}
	if (a->n_blocks >= a->max_blocks)
		return false;
	*order = ARENA_ORDERS - 1;
	a->busy[a->n_blocks] = 0;
	list_push(a, a->n_blocks * ARENA_BLOCK_CELLS, *order);
	a->n_blocks++;
	return true;
}

uint32_t arena_alloc(struct prefix_arena *a, unsigned order)
{
	unsigned found = order;
	uint32_t cell;

	if (!find_group(a, &found))
		return 0;
	cell = a->free_head[found];
	list_remove(a, cell, found);
	while (found > order) {
		found--;
		list_push(a, cell + (1u << found), found);
	}
	a->busy[cell / ARENA_BLOCK_CELLS] |= (uint8_t)group_bits(cell, order);
	return cell;
}

static void free_group(struct prefix_arena *a, uint32_t cell, unsigned order)
{
	const uint8_t *busy = &a->busy[cell / ARENA_BLOCK_CELLS];

	while (order < ARENA_ORDERS - 1) {
		uint32_t buddy = cell ^ (1u << order);

		if (*busy & group_bits(buddy, order))
			break;
		list_remove(a, buddy, order);
		cell &= ~(1u << order);
		order++;
	}
	list_push(a, cell, order);
}

void arena_free(struct prefix_arena *a, uint32_t cell, unsigned order)
{
	uint8_t *busy = &a->busy[cell / ARENA_BLOCK_CELLS];
	unsigned bits = group_bits(cell, order);

	assert(cell != 0 && (*busy & bits) == bits);
	*busy &= (uint8_t)~bits;
	/* Beyond a bound that just fell: given back by arena_cut_done(). */
	if (cell / ARENA_BLOCK_CELLS < a->max_blocks)
		free_group(a, cell, order);
}

/* Lists the free cells of a block, in groups as large as they go. */
static void list_block(struct prefix_arena *a, uint32_t block)
{
	for (unsigned at = 0; at < ARENA_BLOCK_CELLS;) {
		uint32_t cell = block * ARENA_BLOCK_CELLS + at;
		unsigned order = ARENA_ORDERS;

		while (order-- > 0) {
			if (at % (1u << order) == 0 &&
				!(a->busy[block] & group_bits(cell, order)))
				break;
		}
		if (order < ARENA_ORDERS)
			list_push(a, cell, order);
		at += order < ARENA_ORDERS ? 1u << order : 1;
	}
}

void arena_reset(struct prefix_arena *a)
{
	arena_release(
		a->cells, ARENA_BLOCK_BYTES, (size_t)a->n_blocks * ARENA_BLOCK_BYTES);
	arena_release(a->busy, 1, a->n_blocks);
	memset(a->free_head, 0, sizeof(a->free_head));
	a->free_cells = 0;
	a->n_blocks = 1;
	a->busy[0] = 1; /* cell 0 */
	list_block(a, 0);
}

void arena_cut(struct prefix_arena *a, uint32_t blocks)
{
	assert(blocks > 0 && blocks <= a->n_blocks);
	memset(a->free_head, 0, sizeof(a->free_head));
	a->free_cells = 0;
	for (uint32_t i = blocks; i-- > 0;)
		list_block(a, i);
	a->max_blocks = blocks;
}

void arena_cut_done(struct prefix_arena *a)
{
	assert(arena_busy_cells(a, a->max_blocks, a->n_blocks) == 0);
	arena_release(a->cells, (size_t)a->max_blocks * ARENA_BLOCK_BYTES,
		(size_t)a->n_blocks * ARENA_BLOCK_BYTES);
	arena_release(a->busy, a->max_blocks, a->n_blocks);
	a->n_blocks = a->max_blocks;
}

uint32_t arena_busy_cells(
	const struct prefix_arena *a, uint32_t from_block, uint32_t to_block)
{
	uint32_t cells = 0;

	for (uint32_t i = from_block; i < to_block; i++)
		cells += (uint32_t)__builtin_popcount(a->busy[i]);
	return cells;
}

size_t arena_bytes(const struct prefix_arena *a)
{
	return bytes_of_blocks(a->n_blocks);
}

uint32_t arena_check(const struct prefix_arena *a)
{
	uint32_t busy = arena_busy_cells(a, 0, a->n_blocks);
	uint32_t listed = 0;

	assert(a->n_blocks <= a->max_blocks && a->max_blocks <= a->reserved_blocks);
	for (unsigned order = 0; order < ARENA_ORDERS; order++) {
		uint32_t prev = 0;

		for (uint32_t cell = a->free_head[order]; cell != 0;) {
			assert(cell / ARENA_BLOCK_CELLS < a->n_blocks);
			assert(!(a->busy[cell / ARENA_BLOCK_CELLS] &
				 group_bits(cell, order)));
			assert(group_at(a, cell)->prev == prev);
			listed += 1u << order;
			prev = cell;
			cell = group_at(a, cell)->next;
		}
	}
	assert(listed == a->free_cells);
	assert(busy + listed == a->n_blocks * ARENA_BLOCK_CELLS);
	return busy;
}
