/*
 * Runs of block keys in chunks of arena cells. A chunk is as small as its keys allow
 * after every shortening (the upper half of a group goes back in place), and grows to 31
 * keys as keys follow.
 *
 * Always true: a ring's chunks hold the run's keys in order; head->prev is the last one.
 * Called by prefix_tree.c, prefix_index.c and prefix_shrink.c.
 */
#include "prefix/prefix_keys.h"

#include <string.h>

#define MAX_ORDER (ARENA_ORDERS - 1)
#define MAX_KEYS 31

struct key_chunk {
	uint64_t next : 28;
	uint64_t prev : 28;
	uint64_t count : 5;
	uint64_t order : 2;
	uint64_t keys[];
};

static struct key_chunk *chunk_at(const struct prefix_arena *a, uint32_t cell)
{
	return arena_cell(a, cell);
}

static uint32_t capacity_of(unsigned order)
{
	return (ARENA_CELL_BYTES << order) / sizeof(uint64_t) - 1;
}

/* The smallest order whose capacity is `count`, or the largest there is. */
static unsigned order_for(size_t count)
{
	unsigned order = 0;

	while (order < MAX_ORDER && capacity_of(order) < count)
		order++;
	return order;
}

/* An empty ring of one chunk of exactly this order; 0 without room. */
static uint32_t chunk_new(struct prefix_arena *a, unsigned order)
{
	uint32_t cell = arena_alloc(a, order);

	if (cell != 0) {
		struct key_chunk *c = chunk_at(a, cell);

		c->next = cell;
		c->prev = cell;
		c->count = 0;
		c->order = order & 3;
	}
	return cell;
}

/* The same for `count` keys, smaller where memory is in pieces. */
static uint32_t chunk_new_for(struct prefix_arena *a, size_t count)
{
	unsigned order = order_for(count);
	uint32_t cell = chunk_new(a, order);

	while (cell == 0 && order-- > 0)
		cell = chunk_new(a, order);
	return cell;
}

static void chunk_free(struct prefix_arena *a, uint32_t cell)
{
	arena_free(a, cell, chunk_at(a, cell)->order);
}

/*
 * The two chunks, first != second, exchange what stands before them. Heads of two rings:
 * they are one ring, that of `first` followed by that of `second`. A ring's head and
 * another of its chunks: [second .. the ring's tail] is a ring of its own.
 */
static void rings_swap_tails(struct prefix_arena *a, uint32_t first, uint32_t second)
{
	uint32_t first_tail = chunk_at(a, first)->prev;
	uint32_t second_tail = chunk_at(a, second)->prev;

	chunk_at(a, first_tail)->next = second & 0xfffffff;
	chunk_at(a, second)->prev = first_tail & 0xfffffff;
	chunk_at(a, second_tail)->next = first & 0xfffffff;
	chunk_at(a, first)->prev = second_tail & 0xfffffff;
}

static void chunk_remove(struct prefix_arena *a, union prefix_run *run, uint32_t cell)
{
	struct key_chunk *c = chunk_at(a, cell);

	assert(c->next != cell);
	chunk_at(a, c->prev)->next = c->next;
	chunk_at(a, c->next)->prev = c->prev;
	if (run->head == cell)
		run->head = c->next;
	chunk_free(a, cell);
}

/* Puts the lone chunk `fresh` where `cell` stands in the ring, and frees that. */
static void chunk_replace(
	struct prefix_arena *a, union prefix_run *run, uint32_t cell, uint32_t fresh)
{
	struct key_chunk *c = chunk_at(a, cell);
	struct key_chunk *f = chunk_at(a, fresh);

	if (c->next != cell) {
		f->next = c->next;
		f->prev = c->prev;
		chunk_at(a, c->prev)->next = fresh & 0xfffffff;
		chunk_at(a, c->next)->prev = fresh & 0xfffffff;
	}
	if (run->head == cell)
		run->head = fresh;
	chunk_free(a, cell);
}

static void chunk_add(struct key_chunk *c, const uint64_t *keys, size_t n)
{
	assert(c->count + n <= capacity_of(c->order));
	memcpy(c->keys + c->count, keys, n * sizeof(*keys));
	c->count = (c->count + n) & MAX_KEYS;
}

/* Gives back the upper halves that a chunk no longer needs. */
static void chunk_shrink(struct prefix_arena *a, uint32_t cell)
{
	struct key_chunk *c = chunk_at(a, cell);

	while (c->order > 0 && c->count <= capacity_of(c->order - 1u)) {
		unsigned half = c->order - 1u;

		c->order = half & 3;
		arena_free(a, cell + (1u << half), half);
	}
}

/* Replaces a chunk by a larger one for `want` keys, if that is to be had. */
static uint32_t chunk_grow(
	struct prefix_arena *a, union prefix_run *run, uint32_t cell, size_t want)
{
	const struct key_chunk *c = chunk_at(a, cell);
	unsigned order = order_for(MIN(want, (size_t)MAX_KEYS));
	uint32_t fresh;

	if (order <= c->order)
		return 0;
	fresh = chunk_new(a, order);
	if (fresh == 0)
		return 0;
	chunk_add(chunk_at(a, fresh), c->keys, c->count);
	chunk_replace(a, run, cell, fresh);
	return fresh;
}

/* Moves the keys of a chunk's successor into it where they fit, so that splits leave no
 * trace. */
static void chunk_absorb_next(
	struct prefix_arena *a, union prefix_run *run, uint32_t cell)
{
	struct key_chunk *c = chunk_at(a, cell);
	uint32_t next = c->next;
	size_t sum = c->count + (size_t)chunk_at(a, next)->count;

	if (sum > MAX_KEYS)
		return;
	if (sum > capacity_of(c->order)) {
		cell = chunk_grow(a, run, cell, sum);
		if (cell == 0)
			return;
		c = chunk_at(a, cell);
	}
	chunk_add(c, chunk_at(a, next)->keys, chunk_at(a, next)->count);
	chunk_remove(a, run, next);
}

static void ring_free(struct prefix_arena *a, uint32_t head)
{
	uint32_t cell = head;

	do {
		uint32_t next = chunk_at(a, cell)->next;

		chunk_free(a, cell);
		cell = next;
	} while (cell != head);
}

/* A ring of one key becomes the run itself. */
static void run_from_ring(
	struct prefix_arena *a, union prefix_run *run, uint32_t head, uint32_t len)
{
	uint64_t first = chunk_at(a, head)->keys[0];

	if (len == 1) {
		ring_free(a, head);
		run->only = first;
	} else {
		run->tag = (uint32_t)first;
		run->head = head;
	}
}

uint64_t keys_first(
	const struct prefix_arena *a, const union prefix_run *run, uint32_t len)
{
	return len == 1 ? run->only : chunk_at(a, run->head)->keys[0];
}

uint64_t keys_last(
	const struct prefix_arena *a, const union prefix_run *run, uint32_t len)
{
	const struct key_chunk *c;

	if (len == 1)
		return run->only;
	c = chunk_at(a, chunk_at(a, run->head)->prev);
	return c->keys[c->count - 1u];
}

static size_t match_chunk(const uint64_t *mine, const uint64_t *keys, size_t n)
{
	size_t i = 0;

	if (memcmp(mine, keys, n * sizeof(*keys)) == 0)
		return n;
	while (mine[i] == keys[i])
		i++;
	return i;
}

size_t keys_match(const struct prefix_arena *a, const union prefix_run *run, uint32_t len,
	const uint64_t *keys, size_t n)
{
	size_t at = 0;
	uint32_t cell;

	n = MIN(n, (size_t)len);
	if (n == 0)
		return 0;
	if (len == 1)
		return run->only == keys[0];
	for (cell = run->head; at < n; cell = chunk_at(a, cell)->next) {
		const struct key_chunk *c = chunk_at(a, cell);
		size_t part = MIN((size_t)c->count, n - at);
		size_t same;

		__builtin_prefetch(chunk_at(a, c->next));
		same = match_chunk(c->keys, keys + at, part);
		at += same;
		if (same < part)
			break;
	}
	return at;
}

/* A run of one key moves into a chunk with room for `want`. False without a cell. */
static bool run_to_ring(struct prefix_arena *a, union prefix_run *run, size_t want)
{
	uint64_t first = run->only;
	uint32_t cell = chunk_new_for(a, want);

	if (cell == 0)
		return false;
	chunk_add(chunk_at(a, cell), &first, 1);
	run->tag = (uint32_t)first;
	run->head = cell;
	return true;
}

/* The ring's last chunk, made or found with room for a key; 0 without memory. */
static uint32_t tail_with_room(struct prefix_arena *a, union prefix_run *run, size_t want)
{
	uint32_t tail = chunk_at(a, run->head)->prev;
	const struct key_chunk *c = chunk_at(a, tail);
	uint32_t fresh;

	if (c->count < capacity_of(c->order))
		return tail;
	fresh = chunk_grow(a, run, tail, c->count + want);
	if (fresh != 0)
		return fresh;
	fresh = chunk_new_for(a, want);
	if (fresh != 0)
		rings_swap_tails(a, run->head, fresh);
	return fresh;
}

size_t keys_append(struct prefix_arena *a, union prefix_run *run, uint32_t len,
	const uint64_t *keys, size_t n)
{
	size_t done = 0;

	if (n == 0)
		return 0;
	if (len == 0) {
		run->only = keys[0];
		len = 1;
		done = 1;
	}
	if (len == 1 && done < n && !run_to_ring(a, run, 1 + n - done))
		return done;
	while (done < n) {
		uint32_t tail = tail_with_room(a, run, n - done);
		struct key_chunk *c;
		size_t part;

		if (tail == 0)
			break;
		c = chunk_at(a, tail);
		part = MIN(n - done, (size_t)capacity_of(c->order) - c->count);
		chunk_add(c, keys + done, part);
		done += part;
	}
	return done;
}

static void trim_ring(struct prefix_arena *a, union prefix_run *run, uint32_t drop)
{
	while (drop > 0) {
		uint32_t tail = chunk_at(a, run->head)->prev;
		struct key_chunk *c = chunk_at(a, tail);
		uint32_t part = MIN((uint32_t)c->count, drop);

		drop -= part;
		if (part == c->count) {
			chunk_remove(a, run, tail);
			continue;
		}
		c->count = (c->count - part) & MAX_KEYS;
		chunk_shrink(a, tail);
	}
}

void keys_trim(
	struct prefix_arena *a, union prefix_run *run, uint32_t len, uint32_t new_len)
{
	assert(new_len <= len);
	if (len <= 1 || new_len == len)
		return;
	if (new_len > 1) {
		trim_ring(a, run, len - new_len);
		return;
	}
	uint64_t first = chunk_at(a, run->head)->keys[0];

	ring_free(a, run->head);
	run->only = first;
}

/* Finds the chunk of the key at `at`, and its first key's place in the run. */
static uint32_t chunk_of(
	const struct prefix_arena *a, uint32_t head, uint32_t at, uint32_t *start)
{
	uint32_t cell = head;

	*start = 0;
	while (*start + chunk_at(a, cell)->count <= at) {
		*start += chunk_at(a, cell)->count;
		cell = chunk_at(a, cell)->next;
	}
	return cell;
}

void keys_split(struct prefix_arena *a, union prefix_run *upper, union prefix_run *lower,
	uint32_t len, uint32_t at)
{
	uint32_t head = lower->head, start, part;
	uint32_t cell = chunk_of(a, head, at, &start);
	struct key_chunk *c = chunk_at(a, cell);
	union prefix_run mid = {0};

	assert(at > 0 && at < len && arena_room(a) >= KEYS_SPLIT_CELLS);
	part = start + c->count - at;
	if (at == start) {
		part = 0;
	} else {
		size_t moved = keys_append(a, &mid, 0, c->keys + (at - start), part);

		assert(moved == part);
		c->count = (at - start) & MAX_KEYS;
		chunk_shrink(a, cell);
		cell = c->next; /* the first chunk that is wholly beyond */
	}
	if (at + part < len) {
		rings_swap_tails(a, head, cell);
		run_from_ring(a, lower, cell, len - at - part);
		keys_join(a, &mid, part, lower, len - at - part);
	} else {
		*lower = mid;
	}
	run_from_ring(a, upper, head, at);
}

/* One key in front of a ring: in place where its first chunk has room. */
static void ring_prepend(struct prefix_arena *a, uint64_t key, union prefix_run *run)
{
	struct key_chunk *c = chunk_at(a, run->head);
	union prefix_run front = {.only = key};

	if (c->count < capacity_of(c->order)) {
		memmove(c->keys + 1, c->keys, c->count * sizeof(c->keys[0]));
		c->keys[0] = key;
		c->count = (c->count + 1u) & MAX_KEYS;
		run->tag = (uint32_t)key;
		return;
	}
	if (!run_to_ring(a, &front, 1))
		assert(!"room for a cell was promised");
	rings_swap_tails(a, front.head, run->head);
	*run = front;
	chunk_absorb_next(a, run, run->head);
}

void keys_join(struct prefix_arena *a, const union prefix_run *upper, uint32_t upper_len,
	union prefix_run *lower, uint32_t lower_len)
{
	union prefix_run run = *upper;
	uint32_t seam;

	if (upper_len == 0)
		return;
	if (lower_len == 1) {
		size_t added = keys_append(a, &run, upper_len, &lower->only, 1);

		assert(added == 1);
		*lower = run;
		return;
	}
	if (upper_len == 1) {
		ring_prepend(a, upper->only, lower);
		return;
	}
	seam = chunk_at(a, run.head)->prev;
	rings_swap_tails(a, run.head, lower->head);
	*lower = run;
	chunk_absorb_next(a, lower, seam);
}

/* The keys of one chunk in chunks elsewhere, as a ring of their own. */
static uint32_t chunk_copy(struct prefix_arena *a, const struct key_chunk *c)
{
	uint32_t ring = 0;

	for (uint32_t done = 0; done < c->count;) {
		uint32_t cell = chunk_new_for(a, c->count - done);
		struct key_chunk *f;
		uint32_t part;

		assert(cell != 0);
		f = chunk_at(a, cell);
		part = MIN((uint32_t)c->count - done, capacity_of(f->order));
		chunk_add(f, c->keys + done, part);
		done += part;
		if (ring == 0)
			ring = cell;
		else
			rings_swap_tails(a, ring, cell);
	}
	return ring;
}

void keys_move(
	struct prefix_arena *a, union prefix_run *run, uint32_t len, uint32_t limit)
{
	uint32_t head, cell, ring = 0;

	if (len <= 1)
		return;
	head = cell = run->head;
	do {
		struct key_chunk *c = chunk_at(a, cell);
		uint32_t next = c->next;

		if (cell >= limit) {
			uint32_t copy = chunk_copy(a, c);

			chunk_free(a, cell);
			cell = copy;
		} else {
			c->next = cell & 0xfffffff;
			c->prev = cell & 0xfffffff;
		}
		if (ring == 0)
			ring = cell;
		else
			rings_swap_tails(a, ring, cell);
		cell = next;
	} while (cell != head);
	run->head = ring;
}

uint32_t keys_check(
	const struct prefix_arena *a, const union prefix_run *run, uint32_t len)
{
	uint32_t cell, cells = 0, keys = 0;

	if (len <= 1)
		return 0;
	cell = run->head;
	assert(run->tag == (uint32_t)chunk_at(a, cell)->keys[0]);
	do {
		const struct key_chunk *c = chunk_at(a, cell);

		assert(c->count > 0 && c->count <= capacity_of(c->order));
		assert(chunk_at(a, c->next)->prev == cell);
		cells += 1u << c->order;
		keys += c->count;
		cell = c->next;
	} while (cell != run->head);
	assert(keys == len);
	return cells;
}
