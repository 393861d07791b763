/*
 * Fuzzes the prefix index: the input is a program of operations on up to four workers and
 * a small alphabet of keys. After each operation every invariant is checked, and what the
 * calls report is held against each other.
 *
 * An operation is a byte (what, which worker) and its operands, a byte each; a prompt is
 * a length and its keys, two bits each, the last one repeated where the input says so.
 */
#include <stdlib.h>
#include <string.h>

#include "prefix/prefix_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define WORKERS 4
#define MAX_PROMPT 600
#define MAX_OPS 300
#define CHECK_EVERY 64

struct input {
	const uint8_t *bytes;
	size_t size;
};

struct insertion {
	uint32_t slot;
	size_t n;
	uint32_t from;
	uint64_t stamp;
	uint64_t keys[MAX_PROMPT];
};

struct fuzz {
	struct input in;
	struct prefix_index *ix;
	struct prefix_index_opts opts;
	uint64_t now_ms;
	uint64_t capacity[WORKERS];
	struct insertion last[2]; /* that may be withdrawn */
	unsigned turn;
};

static uint8_t next_byte(struct input *in)
{
	if (in->size == 0)
		return 0;
	in->size--;
	return *in->bytes++;
}

static size_t next_prompt(struct input *in, uint64_t *keys)
{
	size_t spelled = next_byte(in), n = spelled & 63;
	uint8_t packed = 0;

	for (size_t i = 0; i < n; i++) {
		if (i % 4 == 0)
			packed = next_byte(in);
		/* Keys 0 and 1, and two more that share their low halves. */
		keys[i] = (packed & 1u) | (uint64_t)(packed >> 1 & 1u) << 40;
		packed >>= 2;
	}
	if (spelled & 64) {
		size_t more = n + 2u * next_byte(in);

		for (; n < more; n++)
			keys[n] = 5;
	}
	return n;
}

static uint32_t depth_of(struct fuzz *f, uint32_t slot, const uint64_t *keys, size_t n)
{
	uint32_t depth[WORKERS];
	size_t deepest = prefix_index_match(f->ix, keys, n, f->now_ms, depth, WORKERS);
	uint32_t most = 0;

	for (unsigned i = 0; i < WORKERS; i++)
		most = MAX(most, depth[i]);
	assert(deepest == most);
	return depth[slot];
}

static void op_insert(struct fuzz *f, uint32_t slot)
{
	struct insertion *at = &f->last[f->turn++ % ARRAY_LEN(f->last)];
	uint32_t before, after;

	at->slot = slot;
	at->n = next_prompt(&f->in, at->keys);
	before = depth_of(f, slot, at->keys, at->n);
	prefix_index_insert(
		f->ix, slot, at->keys, at->n, f->now_ms, &at->from, &at->stamp);
	after = depth_of(f, slot, at->keys, at->n);
	/* It may hold more than its capacity lets a prompt keep only if it did before. */
	if (f->capacity[slot] > 0)
		before = (uint32_t)MIN((uint64_t)before, f->capacity[slot]);
	assert(at->from == before && after >= before);
	assert((at->stamp != 0) == (after > before));
}

static void op_withdraw(struct fuzz *f, unsigned which)
{
	struct insertion *at = &f->last[which % ARRAY_LEN(f->last)];
	uint32_t before = depth_of(f, at->slot, at->keys, at->n), after;

	prefix_index_withdraw(f->ix, at->slot, at->keys, at->n, at->from, at->stamp);
	after = depth_of(f, at->slot, at->keys, at->n);
	assert(after <= before && after >= MIN(before, at->from));
	at->stamp = 0;
}

static void op_configure(struct fuzz *f, uint8_t how)
{
	f->opts.memory_bytes = (size_t)(60 + how % 16 * 8) << 10;
	f->opts.ttl_ms = how / 16;
	prefix_index_configure(f->ix, &f->opts, f->now_ms);
}

static void op_capacity(struct fuzz *f, uint32_t slot, uint8_t how)
{
	f->capacity[slot] = how;
	prefix_index_worker_capacity(f->ix, slot, how);
	assert(how == 0 || prefix_index_worker_blocks(f->ix, slot) <= how);
}

static void op_drop(struct fuzz *f, uint32_t slot)
{
	uint32_t again;

	prefix_index_worker_drop(f->ix, slot);
	if (prefix_index_worker_add(f->ix, f->capacity[slot], &again) < 0)
		abort();
	assert(again == slot && prefix_index_worker_blocks(f->ix, slot) == 0);
}

static void run_op(struct fuzz *f)
{
	uint8_t what = next_byte(&f->in);
	uint32_t slot = what >> 3 & 3;

	f->now_ms += what >> 6;
	switch (what & 7) {
	case 0:
	case 1:
	case 2:
		op_insert(f, slot);
		break;
	case 3:
		op_withdraw(f, slot);
		break;
	case 4:
		prefix_index_sweep(f->ix, f->now_ms, slot);
		break;
	case 5:
		op_capacity(f, slot, next_byte(&f->in));
		break;
	case 6:
		op_configure(f, next_byte(&f->in));
		break;
	default:
		if (what & 32)
			op_drop(f, slot);
		else
			prefix_index_worker_clear(f->ix, slot);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	static struct fuzz f;

	memset(&f, 0, sizeof(f));
	f.in.bytes = bytes;
	f.in.size = size;
	f.opts.memory_bytes = 64 << 10;
	f.ix = prefix_index_new(&f.opts);
	if (f.ix == NULL)
		abort();
	for (uint32_t i = 0; i < WORKERS; i++) {
		uint32_t slot;

		if (prefix_index_worker_add(f.ix, 0, &slot) < 0)
			abort();
		assert(slot == i);
	}
	for (unsigned i = 0; i < MAX_OPS && f.in.size > 0; i++) {
		run_op(&f);
		/* It walks over all entries: each time would be most of the work. */
		if (i % CHECK_EVERY == CHECK_EVERY - 1)
			prefix_index_check(f.ix);
	}
	for (uint32_t i = 0; i < WORKERS; i++)
		prefix_index_worker_drop(f.ix, i);
	prefix_index_check(f.ix);
	prefix_index_free(f.ix);
	return 0;
}
