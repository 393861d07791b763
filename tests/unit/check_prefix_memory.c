/*
 * The prefix index by its weight: what a block and holder takes in any shape, the two
 * loads of distinct prompts that made other routers grow until they were killed, and
 * bounds that change.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "prefix/prefix_index.h"
#include "prefix_rig.h"
#include "unit.h"

START_TEST(a_prompt_over_the_memory_keeps_its_beginning)
{
	struct prefix_index *ix = new_index(64 << 10, 0);
	uint32_t a = add_worker(ix, 0), from, depth[1];
	uint64_t stamp;
	uint64_t *keys = calloc(20000, sizeof(*keys));

	for (size_t i = 0; i < 20000; i++)
		keys[i] = i * 3;
	prefix_index_insert(ix, a, keys, 20000, 1, &from, &stamp);
	prefix_index_check(ix);
	ck_assert_uint_ne(stamp, 0);
	prefix_index_match(ix, keys, 20000, 1, depth, 1);
	/* 52 KiB of cells, at 31 keys in 256 bytes. */
	ck_assert_uint_gt(depth[0], 5500);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), depth[0]);
	ck_assert_uint_eq(stats_of(ix).evicted[PREFIX_EVICT_MEMORY], 0);
	prefix_index_withdraw(ix, a, keys, 20000, from, stamp);
	ck_assert_uint_eq(stats_of(ix).blocks, 0);
	prefix_index_check(ix);
	free(keys);
	prefix_index_free(ix);
}
END_TEST

static void assert_flat(const struct prefix_index *ix, size_t memory_bytes)
{
	WANT(stats_of(ix).bytes <= memory_bytes);
}

/* B31, first half: nothing but new prompts. */
START_TEST(unique_prompts_keep_memory_flat)
{
	enum { BLOCKS = 800, PROMPTS = 20000, RECENT = 100 };
	size_t memory_bytes = (size_t)16 << 20;
	struct prefix_index *ix = new_index(memory_bytes, 0);
	size_t empty = stats_of(ix).bytes, full = 0;
	uint64_t *recent = calloc((size_t)RECENT * BLOCKS, sizeof(*recent));
	uint32_t from, depth[4];
	uint64_t stamp;
	struct rng rng;

	rng_seed(&rng, 31);
	for (unsigned i = 0; i < 4; i++)
		add_worker(ix, 0);
	empty = stats_of(ix).bytes;
	for (unsigned i = 0; i < PROMPTS; i++) {
		uint64_t *keys = recent + (size_t)(i % RECENT) * BLOCKS;

		random_keys(&rng, keys, BLOCKS);
		prefix_index_insert(ix, i % 4, keys, BLOCKS, i, &from, &stamp);
		assert_flat(ix, memory_bytes);
		if (i == 4000)
			full = stats_of(ix).bytes;
		if (i > 4000)
			WANT(stats_of(ix).bytes == full);
	}
	prefix_index_check(ix);
	for (unsigned i = 0; i < RECENT; i++) {
		prefix_index_match(
			ix, recent + (size_t)i * BLOCKS, BLOCKS, PROMPTS, depth, 4);
		ck_assert_uint_eq(depth[i % 4], BLOCKS);
	}
	for (unsigned i = 0; i < 4; i++)
		prefix_index_worker_clear(ix, i);
	ck_assert_uint_eq(stats_of(ix).bytes, empty);
	ck_assert_uint_eq(stats_of(ix).nodes, 0);
	free(recent);
	prefix_index_free(ix);
}
END_TEST

/* B31, second half: shared heads cut anywhere, random tails. What is split must join
 * again. */
START_TEST(shared_heads_with_random_tails_keep_memory_flat)
{
	enum { HEADS = 50, HEAD = 64, TAIL = 40, PROMPTS = 200000 };
	size_t memory_bytes = (size_t)8 << 20;
	struct prefix_index *ix = new_index(memory_bytes, 0);
	static uint64_t heads[HEADS][HEAD];
	uint64_t keys[HEAD + TAIL];
	uint32_t from;
	uint64_t stamp;
	struct rng rng;
	size_t empty;

	rng_seed(&rng, 32);
	random_keys(&rng, heads[0], (size_t)HEADS * HEAD);
	for (unsigned i = 0; i < 4; i++)
		add_worker(ix, i == 0 ? 5000 : 0);
	empty = stats_of(ix).bytes;
	for (unsigned i = 0; i < PROMPTS; i++) {
		size_t head = 1 + rng_below(&rng, HEAD), tail = 1 + rng_below(&rng, TAIL);

		memcpy(keys, heads[rng_below(&rng, HEADS)], head * sizeof(*keys));
		random_keys(&rng, keys + head, tail);
		prefix_index_insert(ix, i % 4, keys, head + tail, i, &from, &stamp);
		if (i % 16 == 0)
			prefix_index_withdraw(ix, i % 4, keys, head + tail, from, stamp);
		assert_flat(ix, memory_bytes);
		if (i % 20000 == 0)
			prefix_index_check(ix);
	}
	/* Most of what is held are tails, each of them one node below a split head. */
	ck_assert_uint_gt(stats_of(ix).blocks, 300000);
	ck_assert_uint_lt(stats_of(ix).nodes, stats_of(ix).blocks / 8);
	for (unsigned i = 1; i < 4; i++)
		prefix_index_worker_clear(ix, i);
	prefix_index_check(ix);
	ck_assert_uint_eq(stats_of(ix).blocks, 5000);
	prefix_index_worker_clear(ix, 0);
	ck_assert_uint_eq(stats_of(ix).bytes, empty);
	ck_assert_uint_eq(stats_of(ix).nodes, 0);
	prefix_index_free(ix);
}
END_TEST

/* A long prompt that others split anywhere and leave again: it must be as small as
 * before. */
START_TEST(what_was_split_joins_without_a_trace)
{
	enum { BLOCKS = 3000 };
	struct prefix_index *ix = new_index(4 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;
	uint64_t stamp;
	uint64_t *keys = calloc(BLOCKS + 1, sizeof(*keys));
	struct rng rng;
	size_t before;

	rng_seed(&rng, 35);
	random_keys(&rng, keys, BLOCKS);
	prefix_index_insert(ix, a, keys, BLOCKS, 1, &from, &stamp);
	before = stats_of(ix).bytes;
	for (size_t at = 1; at < BLOCKS; at++) {
		uint64_t kept = keys[at];

		keys[at] = rng_next(&rng);
		prefix_index_insert(ix, b, keys, at + 1, 2, &from, &stamp);
		WANT(stats_of(ix).nodes == 3);
		keys[at] = kept;
		prefix_index_worker_clear(ix, b);
		WANT(stats_of(ix).nodes == 1);
	}
	prefix_index_check(ix);
	/* The two pages that one split may take stay on the free lists. */
	ck_assert_uint_le(stats_of(ix).bytes, before + 8192);
	free(keys);
	prefix_index_free(ix);
}
END_TEST

START_TEST(the_node_table_shrinks_with_the_nodes)
{
	struct prefix_index *ix = new_index(16 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;
	uint64_t stamp;
	struct rng rng;
	uint64_t key;
	size_t full;

	rng_seed(&rng, 36);
	for (unsigned i = 0; i < 50000; i++) {
		random_keys(&rng, &key, 1);
		prefix_index_insert(ix, i > 0 ? a : b, &key, 1, 1, &from, &stamp);
	}
	full = stats_of(ix).bytes;
	prefix_index_worker_clear(ix, a);
	prefix_index_check(ix);
	/* 200,000 bytes of buckets; the cells stay on the free lists. */
	ck_assert_uint_ge(full - stats_of(ix).bytes, 190000);
	ck_assert_uint_eq(stats_of(ix).nodes, 1);
	prefix_index_free(ix);
}
END_TEST

/* Among many workers, whose oldest use is found by a heap. */
START_TEST(the_oldest_of_many_workers_goes_first)
{
	enum { WORKERS = 60 };
	struct prefix_index *ix = new_index(4 << 20, 1000);
	uint64_t used_ms[WORKERS] = {0}, keys[3];
	uint32_t from;
	uint64_t stamp;
	struct rng rng;

	rng_seed(&rng, 37);
	for (unsigned i = 0; i < WORKERS; i++)
		add_worker(ix, 0);
	for (uint64_t now_ms = 1; now_ms < 1000; now_ms++) {
		uint32_t slot = (uint32_t)rng_below(&rng, WORKERS);

		if (rng_below(&rng, 3) == 0) {
			prefix_index_worker_clear(ix, slot);
			used_ms[slot] = 0;
		} else if (used_ms[slot] == 0) {
			random_keys(&rng, keys, ARRAY_LEN(keys));
			prefix_index_insert(
				ix, slot, keys, ARRAY_LEN(keys), now_ms, &from, &stamp);
			used_ms[slot] = now_ms;
		}
		prefix_index_check(ix);
	}
	for (uint64_t now_ms = 1001; stats_of(ix).blocks > 0; now_ms++) {
		prefix_index_sweep(ix, now_ms, SIZE_MAX);
		prefix_index_check(ix);
		for (uint32_t i = 0; i < WORKERS; i++)
			WANT((prefix_index_worker_blocks(ix, i) > 0) ==
				(used_ms[i] > 0 && now_ms - used_ms[i] <= 1000));
	}
	prefix_index_free(ix);
}
END_TEST

/* From long runs to single blocks and back: what one kind frees must serve the other. */
START_TEST(memory_turns_from_one_shape_to_the_other)
{
	struct prefix_index *ix = new_index(256 << 10, 0);
	uint32_t a = add_worker(ix, 0), from;
	uint64_t stamp;
	uint64_t keys[500];
	struct rng rng;
	uint64_t long_blocks, short_blocks;

	rng_seed(&rng, 33);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 200; i++) {
			random_keys(&rng, keys, ARRAY_LEN(keys));
			prefix_index_insert(
				ix, a, keys, ARRAY_LEN(keys), i, &from, &stamp);
		}
		prefix_index_check(ix);
		long_blocks = stats_of(ix).blocks;
		for (unsigned i = 0; i < 20000; i++) {
			random_keys(&rng, keys, 1);
			prefix_index_insert(ix, a, keys, 1, i, &from, &stamp);
			assert_flat(ix, 256 << 10);
		}
		prefix_index_check(ix);
		short_blocks = stats_of(ix).blocks;
		/* 32 bytes for a block alone, 8.3 in a run; 232 of the 256 KiB are cells.
		 */
		ck_assert_uint_gt(short_blocks, (224 << 10) / 32);
		ck_assert_uint_gt(long_blocks, (216 << 10) / 9);
	}
	prefix_index_free(ix);
}
END_TEST

START_TEST(a_smaller_bound_takes_effect_at_once)
{
	struct prefix_index_opts opts = {.memory_bytes = 4 << 20, .ttl_ms = 0};
	struct prefix_index *ix = prefix_index_new(&opts);
	uint32_t from, depth[3];
	uint64_t stamp;
	uint64_t last[100];
	struct rng rng;

	rng_seed(&rng, 34);
	for (unsigned i = 0; i < 3; i++)
		add_worker(ix, 0);
	for (unsigned i = 0; i < 5000; i++) {
		random_keys(&rng, last + i % 50, 100 - i % 50);
		prefix_index_insert(ix, i % 3, last, 100, i, &from, &stamp);
	}
	ck_assert_uint_gt(stats_of(ix).bytes, 3 << 20);
	opts.memory_bytes = 1 << 20;
	prefix_index_configure(ix, &opts, 5000);
	prefix_index_check(ix);
	assert_flat(ix, 1 << 20);
	/* It keeps what it has room for, the latest first. */
	ck_assert_uint_gt(stats_of(ix).blocks, 40000);
	prefix_index_match(ix, last, 100, 5000, depth, 3);
	ck_assert_uint_eq(depth[4999 % 3], 100);
	opts.memory_bytes = 64 << 20;
	prefix_index_configure(ix, &opts, 5000);
	prefix_index_check(ix);
	prefix_index_match(ix, last, 100, 5000, depth, 3);
	ck_assert_uint_eq(depth[4999 % 3], 100);
	prefix_index_free(ix);
}
END_TEST

/*
 * Nothing but prompts of one block, the dearest there are. Whatever was done, what is in
 * use takes at most 64 bytes a block and holder, the tables included; and so does all
 * there is where no memory lies free for what went.
 */
enum { SINGLES = 60000, SINGLE_WORKERS = 4 };

static void assert_light(const struct prefix_index *ix, bool is_packed)
{
	struct prefix_index_stats stats = stats_of(ix);

	prefix_index_check(ix);
	ck_assert_uint_gt(stats.blocks, 5000);
	ck_assert_uint_le(stats.used_bytes, 64 * stats.blocks);
	if (is_packed)
		ck_assert_uint_le(stats.bytes, 64 * stats.blocks);
}

static void insert_singles(struct prefix_index *ix, const uint64_t *keys, uint32_t from,
	uint32_t to, uint32_t shift, uint64_t now_ms)
{
	uint32_t had;
	uint64_t stamp;

	for (uint32_t i = from; i < to; i++)
		prefix_index_insert(ix, (i + shift) % SINGLE_WORKERS, keys + i, 1, now_ms,
			&had, &stamp);
}

/* A second holder for each, withdrawn at once. */
static void withdraw_singles(struct prefix_index *ix, const uint64_t *keys, uint32_t n)
{
	uint32_t from;
	uint64_t stamp;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = (i + 1) % SINGLE_WORKERS;

		prefix_index_insert(ix, slot, keys + i, 1, 1, &from, &stamp);
		WANT(stamp != 0);
		prefix_index_withdraw(ix, slot, keys + i, 1, from, stamp);
	}
}

START_TEST(single_blocks_are_light_whatever_happens)
{
	struct prefix_index_opts opts = {.memory_bytes = 16 << 20, .ttl_ms = 1000};
	struct prefix_index *ix = prefix_index_new(&opts);
	uint64_t *keys = calloc(SINGLES, sizeof(*keys));
	struct rng rng;

	rng_seed(&rng, 38);
	random_keys(&rng, keys, SINGLES);
	for (unsigned i = 0; i < SINGLE_WORKERS; i++)
		add_worker(ix, 0);
	insert_singles(ix, keys, 0, SINGLES, 0, 1);
	ck_assert_uint_eq(stats_of(ix).twigs, SINGLES);
	ck_assert_uint_le(stats_of(ix).bytes, 37 * SINGLES);
	assert_light(ix, true);
	withdraw_singles(ix, keys, SINGLES);
	ck_assert_uint_eq(stats_of(ix).twigs, SINGLES);
	assert_light(ix, true);
	/* Used again, by the same and by others. */
	insert_singles(ix, keys, 0, SINGLES, 0, 200);
	assert_light(ix, true);
	insert_singles(ix, keys, 0, SINGLES / 2, 1, 400);
	ck_assert_uint_eq(stats_of(ix).twigs, SINGLES / 2);
	assert_light(ix, true);
	/* One worker restarts: half of what it held, others hold as well. */
	prefix_index_worker_clear(ix, 1);
	assert_light(ix, false);
	prefix_index_worker_capacity(ix, 2, 2000);
	assert_light(ix, false);
	prefix_index_sweep(ix, 1300, SIZE_MAX);
	ck_assert_uint_eq(stats_of(ix).twigs, stats_of(ix).nodes);
	assert_light(ix, false);
	prefix_index_worker_capacity(ix, 2, 0);
	insert_singles(ix, keys, 0, SINGLES, 2, 1400);
	assert_light(ix, true);
	/* Fewer than there is room for. */
	opts.memory_bytes = 1 << 20;
	prefix_index_configure(ix, &opts, 1400);
	assert_light(ix, true);
	insert_singles(ix, keys, 0, SINGLES, 0, 1500);
	ck_assert_uint_gt(stats_of(ix).evicted[PREFIX_EVICT_MEMORY], SINGLES);
	assert_light(ix, true);
	free(keys);
	prefix_index_free(ix);
}
END_TEST

/* Each block of each prompt used by itself, as often as it takes: the most entries that
 * prompts of this length can have. */
static void use_from_the_end(struct prefix_index *ix, const uint64_t *keys, size_t blocks,
	uint32_t prompts, size_t shared)
{
	uint32_t from;
	uint64_t stamp;

	for (size_t n = blocks; n > 0; n--) {
		for (uint32_t i = 0; i < prompts; i++)
			prefix_index_insert(ix, (uint32_t)(i / shared) % SINGLE_WORKERS,
				keys + i * blocks, n, blocks - n, &from, &stamp);
	}
}

/* Prompts of `blocks` blocks, `shared` of them with one beginning. */
static void weigh_shape(size_t blocks, size_t beginning, size_t shared, uint64_t seed)
{
	enum { PROMPTS = 6000 };
	struct prefix_index *ix = new_index(16 << 20, 0);
	uint64_t *keys = calloc(PROMPTS * blocks, sizeof(*keys));
	struct rng rng;

	rng_seed(&rng, seed);
	random_keys(&rng, keys, PROMPTS * blocks);
	for (size_t i = 0; i < PROMPTS; i++)
		memcpy(keys + i * blocks, keys + i / shared * shared * blocks,
			beginning * sizeof(*keys));
	for (unsigned i = 0; i < SINGLE_WORKERS; i++)
		add_worker(ix, 0);
	use_from_the_end(ix, keys, blocks, PROMPTS, shared);
	assert_light(ix, true);
	free(keys);
	prefix_index_free(ix);
}

START_TEST(every_shape_is_light_with_a_use_for_each_block)
{
	for (size_t blocks = 1; blocks <= 10; blocks++) {
		weigh_shape(blocks, 0, 1, 39 + blocks);
		for (size_t beginning = 1; beginning < blocks; beginning++)
			weigh_shape(blocks, beginning, 2, 59 + blocks);
	}
}
END_TEST

/* A prompt of a tree in which each block may be followed by either of two. */
static size_t random_prompt(struct rng *rng, uint64_t *keys, size_t most)
{
	size_t n = 1 + rng_below(rng, most);

	keys[0] = rng_below(rng, 8000);
	for (size_t i = 1; i < n; i++)
		keys[i] = rng_below(rng, 4) == 0;
	return n;
}

START_TEST(any_history_leaves_it_light)
{
	enum { OPS = 200000, LONGEST = 9 };
	struct prefix_index *ix = new_index(2 << 20, 3000);
	uint64_t keys[LONGEST], stamp;
	uint32_t from;
	struct rng rng;

	rng_seed(&rng, 40 + (uint64_t)_i);
	for (unsigned i = 0; i < SINGLE_WORKERS; i++)
		add_worker(ix, i == 0 ? 9000 : 0);
	for (unsigned i = 0; i < OPS; i++) {
		uint32_t slot = (uint32_t)rng_below(&rng, SINGLE_WORKERS);
		size_t n = random_prompt(&rng, keys, _i > 0 ? LONGEST : 2);

		prefix_index_insert(ix, slot, keys, n, i / 16, &from, &stamp);
		if (rng_below(&rng, 8) == 0)
			prefix_index_withdraw(ix, slot, keys, n, from, stamp);
		if (rng_below(&rng, OPS / 6) == 0)
			prefix_index_worker_clear(ix, slot);
		if (i % 64 == 0)
			prefix_index_sweep(ix, i / 16, SIZE_MAX);
		if (i > OPS / 8 && i % (OPS / 40) == 0)
			assert_light(ix, false);
	}
	prefix_index_free(ix);
}
END_TEST

static Suite *prefix_memory_suite(void)
{
	Suite *suite = suite_create("prefix_memory");
	TCase *memory = tcase_create("memory");

	tcase_set_timeout(memory, 0);
	tcase_add_test(memory, a_prompt_over_the_memory_keeps_its_beginning);
	tcase_add_test(memory, unique_prompts_keep_memory_flat);
	tcase_add_test(memory, shared_heads_with_random_tails_keep_memory_flat);
	tcase_add_test(memory, what_was_split_joins_without_a_trace);
	tcase_add_test(memory, the_node_table_shrinks_with_the_nodes);
	tcase_add_test(memory, the_oldest_of_many_workers_goes_first);
	tcase_add_test(memory, memory_turns_from_one_shape_to_the_other);
	tcase_add_test(memory, a_smaller_bound_takes_effect_at_once);
	tcase_add_test(memory, single_blocks_are_light_whatever_happens);
	tcase_add_test(memory, every_shape_is_light_with_a_use_for_each_block);
	tcase_add_loop_test(memory, any_history_leaves_it_light, 0, 3);
	suite_add_tcase(suite, memory);
	return suite;
}

UNIT_MAIN(prefix_memory_suite())
