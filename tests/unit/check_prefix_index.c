/*
 * The prefix index against a naive oracle: for each worker the set of prefixes it holds,
 * with the last use of each block, kept by brute force. Random operations on prompts that
 * share and part; then, by hand, the order of eviction, withdrawal, age, the memory
 * bound, and the two loads of distinct prompts that made other routers grow until they
 * were killed.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "model/prefix_index.h"
#include "unit.h"

#define MAX_WORKERS 5

/* ck_assert writes a file position each time; what is asked millions of times asks here.
 */
#define WANT(fact)                                         \
	do {                                               \
		if (!(fact))                               \
			ck_abort_msg("not so: %s", #fact); \
	} while (0)

/* One (worker, block): held since a use. */
struct hold {
	bool is_held;
	uint64_t use; /* number of the insertion */
	uint64_t used_ms;
	uint32_t stamp;
};

/* Every prefix of every prompt is a place in a trie; blocks of equal prefixes are one
 * place. */
struct place {
	uint32_t parent; /* 0: none; places count from 1 */
	uint32_t depth;
	uint64_t key;
	struct hold holds[MAX_WORKERS];
};

struct world {
	struct rng rng;
	struct prefix_index *ix;
	struct prefix_index_opts opts;
	uint64_t now_ms, uses;
	uint32_t slots[MAX_WORKERS];
	uint64_t capacity[MAX_WORKERS];
	uint64_t evicted[PREFIX_EVICT_MAX];
	uint32_t n_workers, n_prompts, prompt_len;
	uint64_t *keys;   /* n_prompts x prompt_len */
	uint32_t *places; /* the same, the place of each prefix */
	uint32_t n_places;
	struct place *place; /* [n_places + 1] */
	/* Insertions that may still be withdrawn. */
	struct pending {
		uint32_t worker, prompt, n, from, stamp;
	} pending[8];
};

static uint32_t below(struct world *w, uint32_t n)
{
	return (uint32_t)rng_below(&w->rng, n);
}

static uint64_t *prompt_keys(const struct world *w, uint32_t prompt)
{
	return w->keys + (size_t)prompt * w->prompt_len;
}

static struct place *prompt_place(const struct world *w, uint32_t prompt, uint32_t i)
{
	return &w->place[w->places[(size_t)prompt * w->prompt_len + i]];
}

static uint32_t find_place(struct world *w, uint32_t parent, uint64_t key)
{
	uint32_t i;

	/* Children are younger than their parents. */
	for (i = parent + 1; i <= w->n_places; i++) {
		if (w->place[i].parent == parent && w->place[i].key == key)
			return i;
	}
	w->n_places++;
	w->place[i].parent = parent;
	w->place[i].key = key;
	w->place[i].depth = parent > 0 ? w->place[parent].depth + 1 : 1;
	return i;
}

/* Few different keys, two of which agree in their low halves. */
static uint64_t random_key(struct world *w)
{
	static const uint64_t keys[] = {7, 0x700000007, 8};

	return keys[below(w, ARRAY_LEN(keys))];
}

static void make_prompts(struct world *w)
{
	for (uint32_t p = 0; p < w->n_prompts; p++) {
		uint64_t *keys = prompt_keys(w, p);
		uint32_t shared = p > 0 && below(w, 5) > 0 ? below(w, w->prompt_len) : 0;
		uint32_t parent = 0;

		if (shared > 0)
			memcpy(keys, prompt_keys(w, below(w, p)), shared * sizeof(*keys));
		for (uint32_t i = shared; i < w->prompt_len; i++)
			keys[i] = random_key(w);
		for (uint32_t i = 0; i < w->prompt_len; i++) {
			parent = find_place(w, parent, keys[i]);
			w->places[(size_t)p * w->prompt_len + i] = parent;
		}
	}
}

static void world_init(struct world *w, uint64_t seed, uint32_t n_workers,
	uint32_t n_prompts, uint32_t prompt_len, size_t memory_bytes)
{
	memset(w, 0, sizeof(*w));
	rng_seed(&w->rng, seed);
	w->n_workers = n_workers;
	w->n_prompts = n_prompts;
	w->prompt_len = prompt_len;
	w->keys = calloc((size_t)n_prompts * prompt_len, sizeof(*w->keys));
	w->places = calloc((size_t)n_prompts * prompt_len, sizeof(*w->places));
	w->place = calloc((size_t)n_prompts * prompt_len + 1, sizeof(*w->place));
	make_prompts(w);
	w->opts.memory_bytes = memory_bytes;
	w->opts.ttl_ms = 50;
	w->now_ms = 1000;
	w->ix = prefix_index_new(&w->opts);
	ck_assert_ptr_nonnull(w->ix);
	for (uint32_t i = 0; i < n_workers; i++) {
		w->capacity[i] = i == 0 ? 0 : below(w, 3 * prompt_len);
		ck_assert_int_eq(
			prefix_index_worker_add(w->ix, w->capacity[i], &w->slots[i]), 0);
	}
}

static void world_fini(struct world *w)
{
	prefix_index_free(w->ix);
	free(w->keys);
	free(w->places);
	free(w->place);
}

static bool has_expired(const struct world *w, const struct hold *h)
{
	return w->opts.ttl_ms > 0 && w->now_ms - h->used_ms > w->opts.ttl_ms;
}

static uint64_t held_blocks(const struct world *w, uint32_t worker)
{
	uint64_t n = 0;

	for (uint32_t i = 1; i <= w->n_places; i++)
		n += w->place[i].holds[worker].is_held;
	return n;
}

static void let_go(struct world *w, struct hold *h, enum prefix_evict reason)
{
	h->is_held = false;
	if (reason < PREFIX_EVICT_MAX)
		w->evicted[reason]++;
}

/* Least recently used first; of one use the deepest first. */
static void evict(struct world *w, uint32_t worker, uint64_t count)
{
	while (count-- > 0) {
		struct place *oldest = NULL;

		for (uint32_t i = 1; i <= w->n_places; i++) {
			struct place *p = &w->place[i];
			const struct hold *h = &p->holds[worker];

			if (!h->is_held)
				continue;
			if (oldest == NULL || h->use < oldest->holds[worker].use ||
				(h->use == oldest->holds[worker].use &&
					p->depth > oldest->depth))
				oldest = p;
		}
		WANT(oldest != NULL);
		let_go(w, &oldest->holds[worker], PREFIX_EVICT_CAPACITY);
	}
}

static uint32_t live_depth(
	const struct world *w, uint32_t worker, uint32_t prompt, uint32_t n)
{
	uint32_t depth = 0;

	while (depth < n) {
		const struct hold *h = &prompt_place(w, prompt, depth)->holds[worker];

		if (!h->is_held || has_expired(w, h))
			break;
		depth++;
	}
	return depth;
}

static void expire(struct world *w, uint32_t worker)
{
	for (uint32_t i = 1; i <= w->n_places; i++) {
		struct hold *h = &w->place[i].holds[worker];

		if (h->is_held && has_expired(w, h))
			let_go(w, h, PREFIX_EVICT_TTL);
	}
}

static void use_blocks(
	struct world *w, uint32_t worker, uint32_t prompt, uint32_t n, uint32_t stamp)
{
	for (uint32_t i = 0; i < n; i++) {
		struct hold *h = &prompt_place(w, prompt, i)->holds[worker];

		h->is_held = true;
		h->use = w->uses;
		h->used_ms = w->now_ms;
		h->stamp = stamp;
	}
}

static void oracle_insert(struct world *w, const struct pending *in, uint32_t live)
{
	uint64_t capacity = w->capacity[in->worker];
	uint32_t n = capacity > 0 ? (uint32_t)MIN((uint64_t)in->n, capacity) : in->n;
	uint64_t blocks;

	/* What has expired behind a live part of this prompt goes, and with it all that
	 * has. */
	if (live < n && prompt_place(w, in->prompt, live)->holds[in->worker].is_held)
		expire(w, in->worker);
	w->uses++;
	use_blocks(w, in->worker, in->prompt, live, in->stamp);
	blocks = held_blocks(w, in->worker) + n - live;
	if (capacity > 0 && blocks > capacity)
		evict(w, in->worker, blocks - capacity);
	use_blocks(w, in->worker, in->prompt, n, in->stamp);
}

static void do_insert(struct world *w)
{
	struct pending in = {.worker = below(w, w->n_workers),
		.prompt = below(w, w->n_prompts),
		.n = 1 + below(w, w->prompt_len)};
	uint64_t capacity = w->capacity[in.worker];
	uint32_t n = capacity > 0 ? (uint32_t)MIN((uint64_t)in.n, capacity) : in.n;
	uint32_t live = live_depth(w, in.worker, in.prompt, n);

	in.from = in.stamp = UINT32_MAX;
	prefix_index_insert(w->ix, w->slots[in.worker], prompt_keys(w, in.prompt), in.n,
		w->now_ms, &in.from, &in.stamp);
	WANT(in.from == live);
	oracle_insert(w, &in, live);
	w->pending[below(w, ARRAY_LEN(w->pending))] = in;
}

static void do_withdraw(struct world *w)
{
	struct pending *in = &w->pending[below(w, ARRAY_LEN(w->pending))];

	prefix_index_withdraw(w->ix, w->slots[in->worker], prompt_keys(w, in->prompt),
		in->n, in->from, in->stamp);
	for (uint32_t i = in->from; in->stamp != 0 && i < in->n; i++) {
		struct hold *h = &prompt_place(w, in->prompt, i)->holds[in->worker];

		if (h->is_held && h->stamp == in->stamp)
			let_go(w, h, PREFIX_EVICT_MAX);
	}
	memset(in, 0, sizeof(*in));
}

static void oracle_drop(struct world *w, uint32_t worker)
{
	for (uint32_t i = 1; i <= w->n_places; i++) {
		if (w->place[i].holds[worker].is_held)
			let_go(w, &w->place[i].holds[worker], PREFIX_EVICT_DROPPED);
	}
}

static void do_clear(struct world *w)
{
	uint32_t worker = below(w, w->n_workers);

	prefix_index_worker_clear(w->ix, w->slots[worker]);
	oracle_drop(w, worker);
}

static void do_drop(struct world *w)
{
	uint32_t worker = below(w, w->n_workers);
	uint32_t slot = w->slots[worker];

	prefix_index_worker_drop(w->ix, slot);
	oracle_drop(w, worker);
	ck_assert_int_eq(
		prefix_index_worker_add(w->ix, w->capacity[worker], &w->slots[worker]),
		0);
	WANT(w->slots[worker] == slot);
}

static void do_capacity(struct world *w)
{
	uint32_t worker = below(w, w->n_workers);
	uint64_t capacity = below(w, 4) == 0 ? 0 : 1 + below(w, 4 * w->prompt_len);
	uint64_t blocks = held_blocks(w, worker);

	prefix_index_worker_capacity(w->ix, w->slots[worker], capacity);
	w->capacity[worker] = capacity;
	if (capacity > 0 && blocks > capacity)
		evict(w, worker, blocks - capacity);
}

static void do_sweep(struct world *w)
{
	uint64_t before = w->evicted[PREFIX_EVICT_TTL];
	size_t gone = prefix_index_sweep(w->ix, w->now_ms, SIZE_MAX);

	for (uint32_t i = 0; i < w->n_workers; i++)
		expire(w, i);
	ck_assert_int_eq(gone > 0, w->evicted[PREFIX_EVICT_TTL] > before);
}

static void do_configure(struct world *w)
{
	w->opts.ttl_ms = below(w, 3) == 0 ? 0 : 20 + below(w, 60);
	w->opts.memory_bytes = (size_t)(64 << below(w, 5)) << 10;
	prefix_index_configure(w->ix, &w->opts, w->now_ms);
	for (uint32_t i = 0; i < w->n_workers; i++)
		expire(w, i);
}

static void do_any(struct world *w)
{
	uint32_t roll = below(w, 1000);

	if (below(w, 3) == 0)
		w->now_ms += below(w, 8);
	if (roll < 800)
		do_insert(w);
	else if (roll < 930)
		do_withdraw(w);
	else if (roll < 960)
		do_sweep(w);
	else if (roll < 980)
		do_capacity(w);
	else if (roll < 990)
		do_configure(w);
	else if (roll < 996)
		do_clear(w);
	else
		do_drop(w);
}

static void read_depths(const struct world *w, uint32_t prompt, uint32_t *depth)
{
	uint32_t all[MAX_WORKERS];
	size_t deepest = prefix_index_match(w->ix, prompt_keys(w, prompt), w->prompt_len,
		w->now_ms, all, prefix_index_slots(w->ix));
	uint32_t most = 0;

	for (uint32_t i = 0; i < w->n_workers; i++) {
		depth[i] = all[w->slots[i]];
		most = MAX(most, depth[i]);
	}
	WANT(deepest == most);
}

static void compare_depths(const struct world *w)
{
	for (uint32_t p = 0; p < w->n_prompts; p++) {
		uint32_t depth[MAX_WORKERS];

		read_depths(w, p, depth);
		for (uint32_t i = 0; i < w->n_workers; i++)
			WANT(depth[i] == live_depth(w, i, p, w->prompt_len));
	}
}

/* Nodes of a tree whose every run is as long as it can be: as many as runs have ends. */
static uint64_t count_nodes(const struct world *w, uint64_t *distinct)
{
	uint32_t *children = calloc(w->n_places + 1, sizeof(*children));
	bool *is_held = calloc(w->n_places + 1, sizeof(*is_held));
	uint64_t nodes = 0;

	*distinct = 0;
	for (uint32_t i = 1; i <= w->n_places; i++) {
		for (uint32_t k = 0; k < w->n_workers; k++)
			is_held[i] |= w->place[i].holds[k].is_held;
		*distinct += is_held[i];
		children[w->place[i].parent] += is_held[i];
	}
	for (uint32_t i = 1; i <= w->n_places; i++)
		nodes += is_held[i] && children[i] != 1;
	free(children);
	free(is_held);
	return nodes;
}

static void compare_stats(const struct world *w)
{
	struct prefix_index_stats stats;
	uint64_t blocks = 0, distinct, nodes = count_nodes(w, &distinct);

	prefix_index_stats(w->ix, &stats);
	for (uint32_t i = 0; i < w->n_workers; i++) {
		uint64_t held = held_blocks(w, i);

		blocks += held;
		WANT(prefix_index_worker_blocks(w->ix, w->slots[i]) == held);
		WANT(w->capacity[i] == 0 || held <= w->capacity[i]);
	}
	WANT(stats.blocks == blocks);
	WANT(stats.distinct_blocks == distinct);
	WANT(stats.nodes == nodes);
	WANT(stats.bytes <= w->opts.memory_bytes);
	for (unsigned i = 0; i < PREFIX_EVICT_MAX; i++)
		WANT(stats.evicted[i] == w->evicted[i]);
}

/* Room for all: the index must equal the oracle after every operation. */
static void run_exact(
	uint64_t seed, uint32_t n_prompts, uint32_t prompt_len, unsigned ops)
{
	struct world w;

	world_init(&w, seed, 4, n_prompts, prompt_len, (size_t)1 << 20);
	for (unsigned i = 0; i < ops; i++) {
		do_any(&w);
		prefix_index_check(w.ix);
		compare_depths(&w);
		compare_stats(&w);
	}
	for (unsigned i = 0; i < PREFIX_EVICT_MAX; i++)
		WANT(i == PREFIX_EVICT_MEMORY ? w.evicted[i] == 0 : w.evicted[i] > 0);
	world_fini(&w);
}

START_TEST(equals_the_oracle)
{
	/* Short prompts that part often, and long ones over several chunks of keys. */
	run_exact(1 + (uint64_t)_i, 16, 8, 4000);
	run_exact(101 + (uint64_t)_i, 12, 40, 2500);
	run_exact(201 + (uint64_t)_i, 6, 150, 1200);
}
END_TEST

/* Where a hold stands among all: by use, and of one use the deepest first. */
static uint64_t rank_of(const struct place *p, uint32_t worker)
{
	return p->holds[worker].use * 100000 + (99999 - p->depth);
}

/*
 * Takes from the oracle what the index no longer has, for memory, and asserts that all of
 * it is older than all that stayed.
 */
static void follow_memory(struct world *w)
{
	uint8_t *kept = calloc((size_t)w->n_places + 1, MAX_WORKERS);
	uint64_t newest_gone = 0, oldest_kept = UINT64_MAX;

	for (uint32_t p = 0; p < w->n_prompts; p++) {
		uint32_t depth[MAX_WORKERS];

		read_depths(w, p, depth);
		for (uint32_t i = 0; i < w->n_workers; i++) {
			for (uint32_t d = 0; d < depth[i]; d++)
				kept[(prompt_place(w, p, d) - w->place) * MAX_WORKERS +
					i] = 1;
		}
	}
	for (uint32_t n = 1; n <= w->n_places; n++) {
		for (uint32_t i = 0; i < w->n_workers; i++) {
			struct hold *h = &w->place[n].holds[i];
			uint64_t rank = rank_of(&w->place[n], i);

			WANT(h->is_held || !kept[n * MAX_WORKERS + i]);
			if (!h->is_held)
				continue;
			if (kept[n * MAX_WORKERS + i]) {
				oldest_kept = MIN(oldest_kept, rank);
			} else {
				newest_gone = MAX(newest_gone, rank);
				let_go(w, h, PREFIX_EVICT_MEMORY);
			}
		}
	}
	WANT(newest_gone < oldest_kept);
	free(kept);
}

START_TEST(evicts_the_oldest_of_all_for_memory)
{
	struct world w;

	world_init(&w, 301 + (uint64_t)_i, 4, 150, 100, 64 << 10);
	w.opts.ttl_ms = 0;
	prefix_index_configure(w.ix, &w.opts, w.now_ms);
	for (uint32_t i = 0; i < w.n_workers; i++) {
		prefix_index_worker_capacity(w.ix, w.slots[i], 0);
		w.capacity[i] = 0;
	}
	for (unsigned i = 0; i < 3000; i++) {
		w.now_ms += below(&w, 2);
		if (below(&w, 200) == 0) {
			/* Shrinking moves what stays. */
			w.opts.memory_bytes = (size_t)(64 + below(&w, 300)) << 10;
			prefix_index_configure(w.ix, &w.opts, w.now_ms);
		} else if (below(&w, 10) == 0) {
			do_withdraw(&w);
		} else {
			do_insert(&w);
		}
		prefix_index_check(w.ix);
		follow_memory(&w);
		compare_stats(&w);
	}
	ck_assert_uint_gt(w.evicted[PREFIX_EVICT_MEMORY], 1000);
	world_fini(&w);
}
END_TEST

/* By hand from here: one worker or two, prompts written as letters. */

static struct prefix_index *new_index(size_t memory_bytes, uint64_t ttl_ms)
{
	struct prefix_index_opts opts = {.memory_bytes = memory_bytes, .ttl_ms = ttl_ms};
	struct prefix_index *ix = prefix_index_new(&opts);

	ck_assert_ptr_nonnull(ix);
	return ix;
}

static uint32_t add_worker(struct prefix_index *ix, uint64_t capacity)
{
	uint32_t slot;

	ck_assert_int_eq(prefix_index_worker_add(ix, capacity, &slot), 0);
	return slot;
}

static size_t spell(const char *prompt, uint64_t *keys)
{
	size_t n = strlen(prompt);

	ck_assert_uint_le(n, 64);
	for (size_t i = 0; i < n; i++)
		keys[i] = (uint64_t)(unsigned char)prompt[i] << 40;
	return n;
}

static uint32_t insert(struct prefix_index *ix, uint32_t slot, const char *prompt,
	uint64_t now_ms, uint32_t *from)
{
	uint64_t keys[64];
	size_t n = spell(prompt, keys);
	uint32_t stamp;

	prefix_index_insert(ix, slot, keys, n, now_ms, from, &stamp);
	prefix_index_check(ix);
	return stamp;
}

static void withdraw(struct prefix_index *ix, uint32_t slot, const char *prompt,
	uint32_t from, uint32_t stamp)
{
	uint64_t keys[64];
	size_t n = spell(prompt, keys);

	prefix_index_withdraw(ix, slot, keys, n, from, stamp);
	prefix_index_check(ix);
}

static uint32_t depth_at(
	struct prefix_index *ix, uint32_t slot, const char *prompt, uint64_t now_ms)
{
	uint64_t keys[64];
	size_t n = spell(prompt, keys);
	uint32_t depth[8];

	ck_assert_uint_le(prefix_index_slots(ix), ARRAY_LEN(depth));
	prefix_index_match(ix, keys, n, now_ms, depth, ARRAY_LEN(depth));
	return depth[slot];
}

static struct prefix_index_stats stats_of(const struct prefix_index *ix)
{
	struct prefix_index_stats stats;

	prefix_index_stats(ix, &stats);
	return stats;
}

START_TEST(matches_prefixes_only)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;
	uint32_t depth[2] = {9, 9};

	insert(ix, a, "abcdef", 1, &from);
	insert(ix, b, "xyz", 1, &from);
	insert(ix, b, "abc", 1, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 1), 6);
	ck_assert_uint_eq(depth_at(ix, b, "abcdef", 1), 3);
	ck_assert_uint_eq(depth_at(ix, a, "abcdefgh", 1), 6);
	ck_assert_uint_eq(depth_at(ix, a, "abcdxf", 1), 4);
	ck_assert_uint_eq(depth_at(ix, a, "Abcdef", 1), 0);
	/* B64: what comes first decides, not what occurs. */
	ck_assert_uint_eq(depth_at(ix, b, "xyzabcdef", 1), 3);
	ck_assert_uint_eq(depth_at(ix, a, "xyzabcdef", 1), 0);
	/* An empty prompt matches nothing; the depths are zeroed all the same. */
	ck_assert_uint_eq(prefix_index_match(ix, NULL, 0, 1, depth, 2), 0);
	ck_assert_uint_eq(depth[0] + depth[1], 0);
	ck_assert_uint_eq(prefix_index_match(ix, NULL, 0, 1, NULL, 0), 0);
	insert(ix, a, "", 1, &from);
	ck_assert_uint_eq(from, 0);
	prefix_index_free(ix);
	prefix_index_free(NULL);
}
END_TEST

START_TEST(matching_is_no_use)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 4), from;

	insert(ix, a, "ab", 1, &from);
	insert(ix, a, "cd", 1, &from);
	depth_at(ix, a, "ab", 1);
	insert(ix, a, "e", 1, &from);
	ck_assert_uint_eq(depth_at(ix, a, "ab", 1), 1);
	ck_assert_uint_eq(depth_at(ix, a, "cd", 1), 2);
	prefix_index_free(ix);
}
END_TEST

START_TEST(capacity_takes_the_oldest_leaf_block_by_block)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 10), from;

	/* The clock stands still: the order is that of the calls. */
	insert(ix, a, "abcd", 5, &from);
	insert(ix, a, "abxy", 5, &from);
	insert(ix, a, "mnop", 5, &from);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 10);
	insert(ix, a, "q", 5, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 5), 3);
	insert(ix, a, "qr", 5, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 5), 2);
	/* "ab" was used with "abxy": that is next, from its end. */
	insert(ix, a, "qrst", 5, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abxy", 5), 2);
	ck_assert_uint_eq(depth_at(ix, a, "mnop", 5), 4);
	/* Used again: now "mnop" is the oldest. */
	insert(ix, a, "ab", 5, &from);
	ck_assert_uint_eq(from, 2);
	insert(ix, a, "uvw", 5, &from);
	ck_assert_uint_eq(depth_at(ix, a, "mnop", 5), 1);
	ck_assert_uint_eq(depth_at(ix, a, "ab", 5), 2);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 10);
	ck_assert_uint_eq(stats_of(ix).evicted[PREFIX_EVICT_CAPACITY], 7);
	prefix_index_worker_capacity(ix, a, 3);
	ck_assert_uint_eq(depth_at(ix, a, "uvw", 5), 3);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 3);
	prefix_index_free(ix);
}
END_TEST

START_TEST(a_prompt_over_the_capacity_keeps_its_beginning)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 4), from, stamp;

	insert(ix, a, "xy", 1, &from);
	stamp = insert(ix, a, "abcdefgh", 1, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcdefgh", 1), 4);
	ck_assert_uint_eq(depth_at(ix, a, "xy", 1), 0);
	ck_assert_uint_ne(stamp, 0);
	/* All that can be kept is there: nothing was new. */
	ck_assert_uint_eq(insert(ix, a, "abcdefgh", 1, &from), 0);
	ck_assert_uint_eq(from, 4);
	prefix_index_free(ix);
}
END_TEST

START_TEST(withdrawal_takes_back_its_own)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from1, from2, from;
	uint32_t first, second;

	insert(ix, a, "ab", 1, &from);
	insert(ix, b, "abcdef", 1, &from);
	first = insert(ix, a, "abcdef", 1, &from1);
	ck_assert_uint_eq(from1, 2);
	withdraw(ix, a, "abcdef", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 1), 2);
	ck_assert_uint_eq(depth_at(ix, b, "abcdef", 1), 6);
	/* Twice is harmless. */
	withdraw(ix, a, "abcdef", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 1), 2);

	/* A later use of some of them keeps those, and what it added. */
	first = insert(ix, a, "abcdef", 1, &from1);
	second = insert(ix, a, "abcdxy", 1, &from2);
	ck_assert_uint_ne(first, second);
	ck_assert_uint_eq(from2, 4);
	withdraw(ix, a, "abcdef", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 1), 4);
	ck_assert_uint_eq(depth_at(ix, a, "abcdxy", 1), 6);
	withdraw(ix, a, "abcdxy", from2, second);
	ck_assert_uint_eq(depth_at(ix, a, "abcdxy", 1), 4);

	/* A use that adds nothing keeps all the same. */
	first = insert(ix, a, "mnop", 1, &from1);
	ck_assert_uint_eq(insert(ix, a, "mno", 1, &from), 0);
	withdraw(ix, a, "mnop", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "mnop", 1), 3);

	/* The worker restarted in between. */
	first = insert(ix, a, "stuv", 1, &from1);
	prefix_index_worker_clear(ix, a);
	insert(ix, a, "st", 1, &from);
	withdraw(ix, a, "stuv", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "stuv", 1), 2);
	prefix_index_free(ix);
}
END_TEST

START_TEST(age_is_counted_from_the_last_use)
{
	struct prefix_index *ix = new_index(1 << 20, 100);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;

	insert(ix, a, "abcd", 0, &from);
	insert(ix, b, "abcd", 50, &from);
	insert(ix, a, "ab", 60, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 100), 4);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 101), 2);
	ck_assert_uint_eq(depth_at(ix, b, "abcd", 150), 4);
	ck_assert_uint_eq(depth_at(ix, b, "abcd", 151), 0);
	/* The oldest first, and no further than the first live one. */
	ck_assert_uint_eq(prefix_index_sweep(ix, 100, 10), 0);
	ck_assert_uint_eq(prefix_index_sweep(ix, 101, 0), 0);
	ck_assert_uint_eq(prefix_index_sweep(ix, 101, 10), 1);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 2);
	ck_assert_uint_eq(prefix_index_sweep(ix, 161, 1), 1);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, b), 0);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 2);
	ck_assert_uint_eq(prefix_index_sweep(ix, 161, 10), 1);
	ck_assert_uint_eq(stats_of(ix).blocks, 0);
	ck_assert_uint_eq(stats_of(ix).evicted[PREFIX_EVICT_TTL], 8);
	/* A clock that goes back is not believed. */
	insert(ix, a, "x", 10, &from);
	ck_assert_uint_eq(depth_at(ix, a, "x", 261), 1);
	prefix_index_free(ix);
}
END_TEST

START_TEST(an_expired_prefix_counts_as_absent_when_it_is_used_again)
{
	struct prefix_index *ix = new_index(1 << 20, 100);
	uint32_t a = add_worker(ix, 0), from, stamp;

	insert(ix, a, "abcdef", 0, &from);
	insert(ix, a, "abc", 90, &from);
	stamp = insert(ix, a, "abcde", 150, &from);
	ck_assert_uint_eq(from, 3);
	ck_assert_uint_ne(stamp, 0);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 150), 5);
	withdraw(ix, a, "abcde", from, stamp);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 150), 3);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 3);
	prefix_index_free(ix);
}
END_TEST

START_TEST(slots_are_small_and_used_again)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;

	ck_assert_uint_eq(a, 0);
	ck_assert_uint_eq(b, 1);
	insert(ix, a, "ab", 1, &from);
	prefix_index_worker_drop(ix, a);
	ck_assert_uint_eq(depth_at(ix, a, "ab", 1), 0);
	ck_assert_uint_eq(prefix_index_slots(ix), 2);
	ck_assert_uint_eq(add_worker(ix, 0), 0);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, 0), 0);
	ck_assert_uint_eq(depth_at(ix, 0, "ab", 1), 0);
	prefix_index_free(ix);
}
END_TEST

START_TEST(slots_end_at_a_bound)
{
	struct prefix_index *ix = new_index((size_t)256 << 20, 0);
	uint32_t slot = 7;

	for (uint32_t i = 0; i < 65535; i++)
		ck_assert_uint_eq(add_worker(ix, 0), i);
	ck_assert_int_eq(prefix_index_worker_add(ix, 0, &slot), ERR_LIMIT);
	ck_assert_uint_eq(slot, 7);
	prefix_index_free(ix);
	/* A table of workers larger than its share of a small index. */
	ix = new_index(64 << 10, 0);
	for (uint32_t i = 0; i < 50; i++)
		add_worker(ix, 0);
	while (prefix_index_worker_add(ix, 0, &slot) == 0)
		;
	ck_assert_int_eq(prefix_index_worker_add(ix, 0, &slot), ERR_NOMEM);
	ck_assert_uint_le(stats_of(ix).bytes, 64 << 10);
	prefix_index_free(ix);
}
END_TEST

START_TEST(a_prompt_over_the_memory_keeps_its_beginning)
{
	struct prefix_index *ix = new_index(64 << 10, 0);
	uint32_t a = add_worker(ix, 0), from, stamp, depth[1];
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

/* A slot's worth of unrelated keys. */
static void random_keys(struct rng *rng, uint64_t *keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		keys[i] = rng_next(rng);
}

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
	uint32_t from, stamp, depth[4];
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
	uint32_t from, stamp;
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
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from, stamp;
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
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from, stamp;
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
	uint32_t from, stamp;
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
	uint32_t a = add_worker(ix, 0), from, stamp;
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
		/* 64 bytes for a block alone, 8.3 in a run; 240 of the 256 KiB are cells.
		 */
		ck_assert_uint_gt(short_blocks, (224 << 10) / 64);
		ck_assert_uint_gt(long_blocks, (216 << 10) / 9);
	}
	prefix_index_free(ix);
}
END_TEST

START_TEST(a_smaller_bound_takes_effect_at_once)
{
	struct prefix_index_opts opts = {.memory_bytes = 4 << 20, .ttl_ms = 0};
	struct prefix_index *ix = prefix_index_new(&opts);
	uint32_t from, stamp, depth[3];
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

static Suite *prefix_index_suite(void)
{
	Suite *suite = suite_create("prefix_index");
	TCase *oracle = tcase_create("oracle");
	TCase *by_hand = tcase_create("by hand");
	TCase *memory = tcase_create("memory");

	tcase_set_timeout(oracle, 0);
	tcase_set_timeout(memory, 0);
	tcase_add_loop_test(oracle, equals_the_oracle, 0, 5);
	tcase_add_loop_test(oracle, evicts_the_oldest_of_all_for_memory, 0, 3);
	tcase_add_test(by_hand, matches_prefixes_only);
	tcase_add_test(by_hand, matching_is_no_use);
	tcase_add_test(by_hand, capacity_takes_the_oldest_leaf_block_by_block);
	tcase_add_test(by_hand, a_prompt_over_the_capacity_keeps_its_beginning);
	tcase_add_test(by_hand, withdrawal_takes_back_its_own);
	tcase_add_test(by_hand, age_is_counted_from_the_last_use);
	tcase_add_test(by_hand, an_expired_prefix_counts_as_absent_when_it_is_used_again);
	tcase_add_test(by_hand, slots_are_small_and_used_again);
	tcase_add_test(by_hand, slots_end_at_a_bound);
	tcase_add_test(memory, a_prompt_over_the_memory_keeps_its_beginning);
	tcase_add_test(memory, unique_prompts_keep_memory_flat);
	tcase_add_test(memory, shared_heads_with_random_tails_keep_memory_flat);
	tcase_add_test(memory, what_was_split_joins_without_a_trace);
	tcase_add_test(memory, the_node_table_shrinks_with_the_nodes);
	tcase_add_test(memory, the_oldest_of_many_workers_goes_first);
	tcase_add_test(memory, memory_turns_from_one_shape_to_the_other);
	tcase_add_test(memory, a_smaller_bound_takes_effect_at_once);
	suite_add_tcase(suite, by_hand);
	suite_add_tcase(suite, oracle);
	suite_add_tcase(suite, memory);
	return suite;
}

UNIT_MAIN(prefix_index_suite())
