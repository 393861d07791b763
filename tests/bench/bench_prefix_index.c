/*
 * Times the prefix index and weighs it. Not part of "make check": prints, asserts
 * nothing.
 *
 * Build beside a configured tree:
 *   gcc -O2 -std=gnu11 -D_GNU_SOURCE -Isrc -o bench_prefix_index \
 *       tests/bench/bench_prefix_index.c libkvsteer.a
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/rng.h"
#include "prefix/prefix_index.h"

#define LONG_BLOCKS 3125 /* 100,000 tokens in blocks of 32 */
#define MAX_WORKERS 64
#define SAMPLES 20000

static struct rng rng;
static uint32_t depth[MAX_WORKERS];

static uint64_t now_ns(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static int compare_ns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void print_times(const char *what, uint64_t *ns, size_t n)
{
	qsort(ns, n, sizeof(*ns), compare_ns);
	printf("%-58s p50 %8.2f us  p99 %8.2f us\n", what, (double)ns[n / 2] / 1000,
		(double)ns[n * 99 / 100] / 1000);
}

static void random_keys(uint64_t *keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		keys[i] = rng_next(&rng);
}

static struct prefix_index *new_index(size_t memory_bytes, unsigned workers)
{
	struct prefix_index_opts opts = {.memory_bytes = memory_bytes, .ttl_ms = 0};
	struct prefix_index *ix = prefix_index_new(&opts);
	uint32_t slot;

	if (ix == NULL)
		exit(1);
	for (unsigned i = 0; i < workers; i++) {
		if (prefix_index_worker_add(ix, 0, &slot) < 0)
			exit(1);
	}
	return ix;
}

static void insert(struct prefix_index *ix, uint32_t slot, const uint64_t *keys, size_t n)
{
	uint32_t from;
	uint64_t stamp;

	prefix_index_insert(ix, slot, keys, n, 1, &from, &stamp);
}

static void print_weight(const char *what, const struct prefix_index *ix)
{
	struct prefix_index_stats stats;

	prefix_index_stats(ix, &stats);
	printf("%-58s %6.1f bytes a block and holder (%lu of them, %lu nodes, %.1f "
	       "MiB)\n",
		what, (double)stats.bytes / (double)stats.blocks,
		(unsigned long)stats.blocks, (unsigned long)stats.nodes,
		(double)stats.bytes / 1048576);
}

/* Matches of random ones of `n` prompts. */
static void time_matches(const char *what, struct prefix_index *ix,
	const uint64_t *prompts, size_t n, size_t blocks, uint32_t workers)
{
	uint64_t *ns = xcalloc(SAMPLES, sizeof(*ns));

	for (size_t i = 0; i < SAMPLES; i++) {
		const uint64_t *keys = prompts + rng_below(&rng, n) * blocks;
		uint64_t start = now_ns();

		prefix_index_match(ix, keys, blocks, 1, depth, workers);
		ns[i] = now_ns() - start;
	}
	print_times(what, ns, SAMPLES);
	free(ns);
}

static void bench_long_prompts(void)
{
	enum { PROMPTS = 1000 };
	struct prefix_index *ix = new_index((size_t)256 << 20, 8);
	uint64_t *prompts = xcalloc((size_t)PROMPTS * LONG_BLOCKS, sizeof(*prompts));

	random_keys(prompts, (size_t)PROMPTS * LONG_BLOCKS);
	for (uint32_t i = 0; i < PROMPTS; i++)
		insert(ix, i % 8, prompts + (size_t)i * LONG_BLOCKS, LONG_BLOCKS);
	time_matches(
		"match, 3125 blocks in one run, hot", ix, prompts, 1, LONG_BLOCKS, 8);
	time_matches("match, 3125 blocks in one run, of 1000 such", ix, prompts, PROMPTS,
		LONG_BLOCKS, 8);
	print_weight("1000 unique prompts of 3125 blocks", ix);
	free(prompts);
	prefix_index_free(ix);
}

/* The memory full and churned: chunks lie anywhere. */
static void bench_churned(void)
{
	enum { PROMPTS = 500 };
	struct prefix_index *ix = new_index((size_t)64 << 20, 8);
	uint64_t *prompts = xcalloc((size_t)PROMPTS * LONG_BLOCKS, sizeof(*prompts));
	uint64_t *ns = xcalloc(SAMPLES, sizeof(*ns));
	uint64_t keys[100];

	for (unsigned i = 0; i < 1000000; i++) {
		size_t n = 1 + rng_below(&rng, ARRAY_LEN(keys));

		random_keys(keys, n);
		insert(ix, i % 8, keys, n);
	}
	random_keys(prompts, (size_t)PROMPTS * LONG_BLOCKS);
	for (size_t i = 0; i < SAMPLES; i++) {
		size_t n = 1 + rng_below(&rng, ARRAY_LEN(keys));
		uint64_t start;

		random_keys(keys, n);
		start = now_ns();
		insert(ix, i % 8, keys, n);
		ns[i] = now_ns() - start;
	}
	print_times(
		"insert, 1-100 new blocks, memory full (evicts as much)", ns, SAMPLES);
	for (uint32_t i = 0; i < PROMPTS; i++)
		insert(ix, i % 8, prompts + (size_t)i * LONG_BLOCKS, LONG_BLOCKS);
	time_matches("match, 3125 blocks, one of 500, after churn", ix, prompts, PROMPTS,
		LONG_BLOCKS, 8);
	print_weight("the same", ix);
	free(ns);
	free(prompts);
	prefix_index_free(ix);
}

/* A system prompt that all workers hold, conversations that each grow on one. */
static void bench_conversations(uint32_t workers)
{
	enum {
		TALKS = 4000,
		TURNS = 8,
		SYSTEM = 64,
		TURN = 12,
		LEN = SYSTEM + TURNS * TURN
	};
	struct prefix_index *ix = new_index((size_t)256 << 20, workers);
	uint64_t *talks = xcalloc((size_t)TALKS * LEN, sizeof(*talks));
	uint64_t *ns = xcalloc((size_t)TALKS * TURNS, sizeof(*ns));
	uint64_t system[SYSTEM];
	char what[80];
	size_t n = 0;

	random_keys(system, SYSTEM);
	random_keys(talks, (size_t)TALKS * LEN);
	for (size_t i = 0; i < TALKS; i++)
		memcpy(talks + i * LEN, system, sizeof(system));
	for (size_t turn = 1; turn <= TURNS; turn++) {
		for (size_t i = 0; i < TALKS; i++) {
			uint64_t start = now_ns();

			insert(ix, (uint32_t)(i % workers), talks + i * LEN,
				SYSTEM + turn * TURN);
			ns[n++] = now_ns() - start;
		}
	}
	snprintf(what, sizeof(what), "insert, a turn of a conversation, %u workers",
		workers);
	print_times(what, ns, n);
	snprintf(what, sizeof(what), "match, the same, %u workers", workers);
	time_matches(what, ix, talks, TALKS, LEN, workers);
	print_weight("4000 conversations of 8 turns under one system prompt", ix);
	free(ns);
	free(talks);
	prefix_index_free(ix);
}

/* 50 heads of 64 blocks that all may hold, cut anywhere, tails of 1 to 40 blocks. */
static void bench_shared_heads(void)
{
	struct prefix_index *ix = new_index((size_t)256 << 20, 4);
	static uint64_t heads[50][64];
	uint64_t keys[104];

	random_keys(heads[0], sizeof(heads) / sizeof(heads[0][0]));
	for (unsigned i = 0; i < 200000; i++) {
		size_t head = 1 + rng_below(&rng, 64), tail = 1 + rng_below(&rng, 40);

		memcpy(keys, heads[rng_below(&rng, 50)], head * sizeof(*keys));
		random_keys(keys + head, tail);
		insert(ix, i % 4, keys, head + tail);
	}
	print_weight("200,000 prompts: 50 heads cut anywhere, tails 1-40", ix);
	prefix_index_free(ix);
}

static void bench_unique(size_t blocks, const char *what)
{
	struct prefix_index *ix = new_index((size_t)64 << 20, 4);
	uint64_t *keys = xcalloc(blocks, sizeof(*keys));

	for (unsigned i = 0; i < 200000; i++) {
		random_keys(keys, blocks);
		insert(ix, i % 4, keys, blocks);
	}
	print_weight(what, ix);
	free(keys);
	prefix_index_free(ix);
}

/* What is done with each of many prompts of one block, in this order. */
static void insert_one(struct prefix_index *ix, const uint64_t *key, uint32_t slot)
{
	insert(ix, slot, key, 1);
}

static void match_one(struct prefix_index *ix, const uint64_t *key, UNUSED uint32_t slot)
{
	prefix_index_match(ix, key, 1, 1, depth, 4);
}

/* By one who has not got it: a second holder comes and goes. */
static void withdraw_one(struct prefix_index *ix, const uint64_t *key, uint32_t slot)
{
	uint32_t from;
	uint64_t stamp;

	slot = (slot + 1) % 4;
	prefix_index_insert(ix, slot, key, 1, 1, &from, &stamp);
	prefix_index_withdraw(ix, slot, key, 1, from, stamp);
}

static void insert_elsewhere(struct prefix_index *ix, const uint64_t *key, uint32_t slot)
{
	insert(ix, (slot + 1) % 4, key, 1);
}

static const struct {
	const char *what;
	void (*do_one)(struct prefix_index *ix, const uint64_t *key, uint32_t slot);
	bool is_weighed;
} single_ops[] = {
	{"  insert, new", insert_one, true},
	{"  match", match_one, false},
	{"  insert of what is there", insert_one, false},
	{"  insert by a second holder, and withdraw", withdraw_one, false},
	{"  insert by a second holder", insert_elsewhere, true},
};

/* The time for each of `n` prompts; `order` holds their numbers in any order. */
static double time_single(struct prefix_index *ix, const uint64_t *keys,
	const uint32_t *order, size_t n, size_t op)
{
	uint64_t start = now_ns();

	for (size_t i = 0; i < n; i++)
		single_ops[op].do_one(ix, keys + order[i], order[i] % 4);
	return (double)(now_ns() - start) / (double)n;
}

static uint32_t *any_order(size_t n)
{
	uint32_t *order = xcalloc(n, sizeof(*order));

	for (size_t i = 0; i < n; i++) {
		size_t k = rng_below(&rng, i + 1);

		order[i] = order[k];
		order[k] = (uint32_t)i;
	}
	return order;
}

/* Prompts of one block, each held by one worker: the smallest there are. The best of
 * several rounds. */
static void bench_single_blocks(size_t n, unsigned rounds)
{
	uint64_t *keys = xcalloc(n, sizeof(*keys));
	uint32_t *order = any_order(n);
	double best[ARRAY_LEN(single_ops)] = {0};

	printf("prompts of one block, %zu of them, best of %u rounds:\n", n, rounds);
	for (unsigned round = 1; round <= rounds; round++) {
		struct prefix_index *ix = new_index((size_t)64 << 20, 4);

		random_keys(keys, n);
		for (size_t op = 0; op < ARRAY_LEN(single_ops); op++) {
			double ns = time_single(ix, keys, order, n, op);

			best[op] = round == 1 ? ns : MIN(best[op], ns);
			if (round < rounds)
				continue;
			printf("%-58s %8.1f ns\n", single_ops[op].what, best[op]);
			if (single_ops[op].is_weighed)
				print_weight(single_ops[op].what, ix);
		}
		prefix_index_free(ix);
	}
	free(order);
	free(keys);
}

/* The memory full of them: each new one takes the place of the oldest. */
static void bench_single_blocks_full(unsigned rounds)
{
	enum { PROMPTS = 200000 };
	struct prefix_index *ix = new_index((size_t)4 << 20, 4);
	uint64_t *keys = xcalloc(PROMPTS, sizeof(*keys));
	uint32_t *order = any_order(PROMPTS);
	double best = 0;

	for (unsigned round = 0; round <= rounds; round++) {
		double ns;

		random_keys(keys, PROMPTS);
		ns = time_single(ix, keys, order, PROMPTS, 0);
		if (round > 0)
			best = round == 1 ? ns : MIN(best, ns);
	}
	printf("%-58s %8.1f ns\n", "insert, new, one block, 4 MiB full", best);
	print_weight("the same", ix);
	free(order);
	free(keys);
	prefix_index_free(ix);
}

int main(void)
{
	rng_seed(&rng, 1);
	bench_long_prompts();
	bench_churned();
	bench_conversations(8);
	bench_conversations(64);
	bench_shared_heads();
	bench_single_blocks(2000, 200);
	bench_single_blocks(200000, 9);
	bench_single_blocks_full(9);
	bench_unique(1, "unique prompts of 1 block");
	bench_unique(2, "unique prompts of 2 blocks");
	bench_unique(8, "unique prompts of 8 blocks");
	bench_unique(800, "unique prompts of 800 blocks");
	return 0;
}
