/*
 * The prefix index against a naive oracle: for each worker the set of prefixes it holds,
 * with the last use of each block, kept by brute force. Random operations on prompts that
 * share and part, from long ones down to those of a single block.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "prefix/prefix_index.h"
#include "prefix_rig.h"
#include "unit.h"

#define MAX_WORKERS 5

/* One (worker, block): held since a use. */
struct hold {
	bool is_held;
	uint64_t use; /* number of the insertion */
	uint64_t used_ms;
	uint64_t stamp;
};

/* Every prefix of every prompt is a place in a trie; blocks of equal prefixes are one
 * place. */
struct place {
	uint32_t parent; /* 0: none; places count from 1 */
	uint32_t depth;
	uint64_t key;
	struct hold holds[MAX_WORKERS];
	bool was_held, was_twig; /* when survey() came by last */
};

/* What prompts a history is made of. */
struct shape {
	uint32_t n_keys; /* different ones that a prompt goes on with */
	uint32_t n_prompts, prompt_len;
	unsigned ops;
	uint64_t folds; /* 0, or: oftener a leaf becomes one cell, and one cell more */
};

struct world {
	struct rng rng;
	struct prefix_index *ix;
	struct prefix_index_opts opts;
	uint64_t now_ms, uses;
	uint32_t slots[MAX_WORKERS];
	uint64_t capacity[MAX_WORKERS];
	uint64_t evicted[PREFIX_EVICT_MAX];
	uint32_t n_workers, n_keys, n_prompts, prompt_len;
	uint64_t folds, unfolds; /* of leaves into one cell, and again into more */
	uint64_t *keys;          /* n_prompts x prompt_len */
	uint32_t *places;        /* the same, the place of each prefix */
	uint32_t n_places;
	struct place *place; /* [n_places + 1] */
	/* Insertions that may still be withdrawn. */
	struct pending {
		uint32_t worker, prompt, n, from;
		uint64_t stamp;
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
	uint32_t n = below(w, w->n_keys);

	return 7 + n / 2 + (n % 2) * UINT64_C(0x700000000);
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

/* More than one prompt, so that something is always evicted now and then. */
static uint64_t random_capacity(struct world *w)
{
	return 1 + below(w, MAX(4 * w->prompt_len, 16u));
}

static void world_init(struct world *w, uint64_t seed, const struct shape *shape,
	uint32_t n_workers, size_t memory_bytes)
{
	size_t n_keys = (size_t)shape->n_prompts * shape->prompt_len;

	memset(w, 0, sizeof(*w));
	rng_seed(&w->rng, seed);
	w->n_workers = n_workers;
	w->n_keys = shape->n_keys;
	w->n_prompts = shape->n_prompts;
	w->prompt_len = shape->prompt_len;
	w->keys = calloc(n_keys, sizeof(*w->keys));
	w->places = calloc(n_keys, sizeof(*w->places));
	w->place = calloc(n_keys + 1, sizeof(*w->place));
	make_prompts(w);
	w->opts.memory_bytes = memory_bytes;
	w->opts.ttl_ms = 50;
	w->now_ms = 1000;
	w->ix = prefix_index_new(&w->opts);
	ck_assert_ptr_nonnull(w->ix);
	for (uint32_t i = 0; i < n_workers; i++) {
		w->capacity[i] = i == 0 ? 0 : random_capacity(w);
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

static bool has_expired(const struct world *w, uint32_t worker, const struct hold *h)
{
	return w->opts.ttl_ms > 0 && w->capacity[worker] == 0 &&
	       w->now_ms - h->used_ms > w->opts.ttl_ms;
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

		if (!h->is_held || has_expired(w, worker, h))
			break;
		depth++;
	}
	return depth;
}

static void expire(struct world *w, uint32_t worker)
{
	for (uint32_t i = 1; i <= w->n_places; i++) {
		struct hold *h = &w->place[i].holds[worker];

		if (h->is_held && has_expired(w, worker, h))
			let_go(w, h, PREFIX_EVICT_TTL);
	}
}

static void use_blocks(
	struct world *w, uint32_t worker, uint32_t prompt, uint32_t n, uint64_t stamp)
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

	in.from = UINT32_MAX;
	in.stamp = UINT64_MAX;
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
	uint64_t capacity = below(w, 4) == 0 ? 0 : random_capacity(w);
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

struct survey {
	uint64_t distinct, nodes, twigs;
};

/* How many workers hold a place. */
static uint32_t count_holders(const struct world *w, const struct place *p)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < w->n_workers; k++)
		n += p->holds[k].is_held;
	return n;
}

/*
 * Nodes of a tree whose every run is as long as it can be: as many as runs have ends. And
 * those that must be one cell: the run is one block, no block follows, one worker holds
 * it. Notes what became of each place since the last time.
 */
static void survey(struct world *w, struct survey *out)
{
	uint32_t *children = calloc(w->n_places + 1, sizeof(*children));

	memset(out, 0, sizeof(*out));
	for (uint32_t i = 1; i <= w->n_places; i++)
		children[w->place[i].parent] += count_holders(w, &w->place[i]) > 0;
	for (uint32_t i = 1; i <= w->n_places; i++) {
		struct place *p = &w->place[i];
		uint32_t holders = count_holders(w, p);
		bool is_begin = p->parent == 0 || children[p->parent] != 1;
		bool is_twig = holders == 1 && children[i] == 0 && is_begin;

		out->distinct += holders > 0;
		out->nodes += holders > 0 && children[i] != 1;
		out->twigs += is_twig;
		w->folds += p->was_held && !p->was_twig && is_twig;
		w->unfolds += p->was_twig && !is_twig && holders > 0;
		p->was_held = holders > 0;
		p->was_twig = is_twig;
	}
	free(children);
}

static void compare_stats(struct world *w)
{
	struct prefix_index_stats stats;
	struct survey seen;
	uint64_t blocks = 0;

	survey(w, &seen);
	prefix_index_stats(w->ix, &stats);
	for (uint32_t i = 0; i < w->n_workers; i++) {
		uint64_t held = held_blocks(w, i);

		blocks += held;
		WANT(prefix_index_worker_blocks(w->ix, w->slots[i]) == held);
		WANT(w->capacity[i] == 0 || held <= w->capacity[i]);
	}
	WANT(stats.blocks == blocks);
	WANT(stats.distinct_blocks == seen.distinct);
	WANT(stats.nodes == seen.nodes);
	WANT(stats.twigs == seen.twigs);
	WANT(stats.bytes <= w->opts.memory_bytes);
	WANT(stats.used_bytes <= stats.bytes);
	for (unsigned i = 0; i < PREFIX_EVICT_MAX; i++)
		WANT(stats.evicted[i] == w->evicted[i]);
}

/* Room for all: the index must equal the oracle after every operation. */
static void run_exact(uint64_t seed, const struct shape *shape)
{
	struct world w;

	world_init(&w, seed, shape, 4, (size_t)1 << 20);
	for (unsigned i = 0; i < shape->ops; i++) {
		do_any(&w);
		prefix_index_check(w.ix);
		compare_depths(&w);
		compare_stats(&w);
	}
	for (unsigned i = 0; i < PREFIX_EVICT_MAX; i++)
		WANT(i == PREFIX_EVICT_MEMORY ? w.evicted[i] == 0 : w.evicted[i] > 0);
	WANT(shape->folds == 0 || (w.folds > shape->folds && w.unfolds > shape->folds));
	world_fini(&w);
}

START_TEST(equals_the_oracle)
{
	/* Short prompts that part often, and long ones over several chunks of keys. */
	static const struct shape shapes[] = {
		{3, 16, 8, 4000, 100},
		{3, 12, 40, 2500, 8},
		{3, 6, 150, 1200, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		run_exact(1 + 100 * i + (uint64_t)_i, &shapes[i]);
}
END_TEST

START_TEST(equals_the_oracle_where_prompts_are_a_block_or_few)
{
	/* Single blocks; pairs that share the first; what is split down to one block. */
	static const struct shape shapes[] = {
		{40, 40, 1, 4000, 400},
		{12, 40, 2, 4000, 400},
		{5, 40, 3, 3000, 200},
	};

	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		run_exact(1001 + 100 * i + (uint64_t)_i, &shapes[i]);
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

static void do_any_for_memory(struct world *w, uint32_t more_kib)
{
	w->now_ms += below(w, 2);
	if (below(w, 200) == 0) {
		/* Shrinking moves what stays. */
		w->opts.memory_bytes = (size_t)(64 + below(w, more_kib)) << 10;
		prefix_index_configure(w->ix, &w->opts, w->now_ms);
	} else if (below(w, 10) == 0) {
		do_withdraw(w);
	} else {
		do_insert(w);
	}
}

/* No bound but memory: what goes is older than all that stays. */
static void run_memory(uint64_t seed, const struct shape *shape, uint32_t more_kib)
{
	struct world w;

	world_init(&w, seed, shape, 4, 64 << 10);
	w.opts.ttl_ms = 0;
	prefix_index_configure(w.ix, &w.opts, w.now_ms);
	for (uint32_t i = 0; i < w.n_workers; i++) {
		prefix_index_worker_capacity(w.ix, w.slots[i], 0);
		w.capacity[i] = 0;
	}
	for (unsigned i = 0; i < shape->ops; i++) {
		do_any_for_memory(&w, more_kib);
		prefix_index_check(w.ix);
		follow_memory(&w);
		compare_stats(&w);
	}
	ck_assert_uint_gt(w.evicted[PREFIX_EVICT_MEMORY], shape->ops / 10);
	WANT(w.folds > shape->folds && w.unfolds > shape->folds);
	world_fini(&w);
}

START_TEST(evicts_the_oldest_of_all_for_memory)
{
	static const struct shape shape = {3, 150, 100, 3000, 2};

	run_memory(301 + (uint64_t)_i, &shape, 300);
}
END_TEST

START_TEST(evicts_the_oldest_of_all_where_prompts_are_a_block_or_two)
{
	static const struct shape shapes[] = {
		{1500, 1400, 1, 6000, 300},
		{60, 1400, 2, 6000, 300},
	};

	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		run_memory(1301 + 100 * i + (uint64_t)_i, &shapes[i], 16);
}
END_TEST

static Suite *prefix_oracle_suite(void)
{
	Suite *suite = suite_create("prefix_oracle");
	TCase *exact = tcase_create("exact");
	TCase *memory = tcase_create("memory");

	tcase_set_timeout(exact, 0);
	tcase_set_timeout(memory, 0);
	tcase_add_loop_test(exact, equals_the_oracle, 0, 5);
	tcase_add_loop_test(
		exact, equals_the_oracle_where_prompts_are_a_block_or_few, 0, 3);
	tcase_add_loop_test(memory, evicts_the_oldest_of_all_for_memory, 0, 3);
	tcase_add_loop_test(
		memory, evicts_the_oldest_of_all_where_prompts_are_a_block_or_two, 0, 2);
	suite_add_tcase(suite, exact);
	suite_add_tcase(suite, memory);
	return suite;
}

UNIT_MAIN(prefix_oracle_suite())
