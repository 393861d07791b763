/*
 * The block manager against a naive model: every sequence of operations over a few blocks
 * and chains up to a length, then long random ones. The model keeps a plain list in the
 * order in which free blocks go, and searches it. After each operation the manager audits
 * itself against the model's references.
 */
#include "base/err.h"
#include "base/rng.h"
#include "core/kv_cache.h"
#include "unit.h"

#include <string.h>

enum { MODEL_MAX = 16 };

enum { KV_BLOCK = 16 }; /* tokens of a block */

/* As ck_assert(), which costs too much to be asked millions of times. */
#define REQUIRE(what)                                   \
	do {                                            \
		if (!(what))                            \
			ck_abort_msg("not: %s", #what); \
	} while (0)

/* One holder of blocks, as a sequence is: a chain that it takes or fills. */
struct holder {
	uint32_t blocks[MODEL_MAX];
	size_t n, n_named;
};

/* The ids and names of a chain of blocks: block i of chain w is all ids chain_id(w, i).
 */
struct text {
	uint32_t ids[MODEL_MAX * KV_BLOCK];
	uint64_t names[MODEL_MAX];
	struct kv_chain chain;
};

struct model {
	uint32_t n_blocks;
	struct {
		unsigned refs;
		uint64_t name; /* 0: none */
	} blocks[MODEL_MAX];
	uint32_t order[MODEL_MAX]; /* free blocks, the first goes first */
	size_t n_free;
};

static struct model m;
static struct kv_cache *cache;

static void start(uint32_t n_blocks)
{
	memset(&m, 0, sizeof(m));
	m.n_blocks = n_blocks;
	for (uint32_t i = 0; i < n_blocks; i++)
		m.order[m.n_free++] = i;
	cache = kv_cache_new(n_blocks, KV_BLOCK);
	REQUIRE(cache != NULL);
}

static void model_take(uint32_t block)
{
	if (m.blocks[block].refs++ > 0)
		return;
	for (size_t i = 0; i < m.n_free; i++) {
		if (m.order[i] == block) {
			memmove(m.order + i, m.order + i + 1,
				(m.n_free - i - 1) * sizeof(m.order[0]));
			m.n_free--;
			return;
		}
	}
	ck_abort_msg("block %u is neither free nor used", block);
}

static uint32_t model_find(uint64_t name)
{
	for (uint32_t i = 0; i < m.n_blocks; i++) {
		if (m.blocks[i].name == name)
			return i;
	}
	return UINT32_MAX;
}

static void model_drop(uint32_t block)
{
	REQUIRE(m.blocks[block].refs > 0);
	if (--m.blocks[block].refs > 0)
		return;
	if (m.blocks[block].name != 0) {
		m.order[m.n_free++] = block;
	} else {
		memmove(m.order + 1, m.order, m.n_free * sizeof(m.order[0]));
		m.order[0] = block;
		m.n_free++;
	}
}

/* Chains 0 and 1 share their first block, as 2 and 3 do. */
static uint32_t chain_id(unsigned w, size_t i)
{
	return i == 0 ? 100 + w / 2 : 1000 + w * 16 + (uint32_t)i;
}

static const struct kv_chain *chain_of(unsigned w, struct text *t)
{
	t->chain = (struct kv_chain){t->ids, t->names, 5};
	for (size_t i = 0; i < MODEL_MAX; i++) {
		for (size_t k = 0; k < KV_BLOCK; k++)
			t->ids[i * KV_BLOCK + k] = chain_id(w, i);
		t->names[i] = kv_name(i > 0 ? t->names[i - 1] : t->chain.seed,
			t->ids + i * KV_BLOCK, KV_BLOCK);
	}
	return &t->chain;
}

/* A sequence of n blocks of chain w: finds, then fills the rest. False: no room. */
static bool begin(struct holder *h, unsigned w, size_t n)
{
	struct text t;
	const struct kv_chain *chain = chain_of(w, &t);
	uint32_t expected[MODEL_MAX];
	size_t want = 0, want_free = 0, found, found_free;
	int err;

	while (want < n && model_find(t.names[want]) != UINT32_MAX) {
		expected[want] = model_find(t.names[want]);
		want_free += m.blocks[expected[want]].refs == 0;
		want++;
	}
	REQUIRE(kv_cache_match(cache, chain, n, &found_free) == want);
	REQUIRE(found_free == want_free);
	for (size_t i = 0; i < want; i++)
		model_take(expected[i]);
	found = kv_cache_find(cache, chain, n, h->blocks);
	REQUIRE(found == want);
	for (size_t i = 0; i < found; i++)
		REQUIRE(h->blocks[i] == expected[i]);
	err = kv_cache_alloc(cache, n - found, h->blocks + found);
	REQUIRE(err == (n - found > m.n_free ? ERR_LIMIT : 0));
	if (err != 0) {
		for (size_t i = found; i-- > 0;)
			model_drop(h->blocks[i]);
		kv_cache_drop(cache, h->blocks, found);
		return false;
	}
	for (size_t i = found; i < n; i++) {
		uint32_t first = m.order[0];

		REQUIRE(h->blocks[i] == first);
		m.blocks[first].name = 0;
		model_take(first);
	}
	h->n = n;
	h->n_named = found;
	return true;
}

static void fill(struct holder *h, unsigned w)
{
	struct text t;
	const struct kv_chain *chain = chain_of(w, &t);

	for (; h->n_named < h->n; h->n_named++) {
		uint64_t name = t.names[h->n_named];
		uint32_t block = h->blocks[h->n_named];

		if (m.blocks[block].name != 0)
			continue; /* whom it is shared with was first */
		kv_cache_name(cache, block, chain, h->n_named);
		if (model_find(name) == UINT32_MAX)
			m.blocks[block].name = name;
	}
}

/* The other holder goes on from the same blocks. */
static void share(const struct holder *from, struct holder *to)
{
	*to = *from;
	kv_cache_share(cache, from->blocks, from->n);
	for (size_t i = 0; i < from->n; i++)
		m.blocks[from->blocks[i]].refs++;
}

/* Makes the last block the holder's own, and begins to write it anew. */
static void own(struct holder *h)
{
	size_t last = h->n - 1;
	uint32_t old = h->blocks[last], from = 77;
	bool is_own = m.blocks[old].refs == 1 && m.blocks[old].name == 0;
	int err = kv_cache_own(cache, &h->blocks[last], &from);

	if (is_own) {
		REQUIRE(err == 0 && from == KV_NONE && h->blocks[last] == old);
	} else if (m.n_free == 0) {
		REQUIRE(err == ERR_LIMIT && h->blocks[last] == old && from == 77);
		return;
	} else {
		REQUIRE(err == 0 && from == old && h->blocks[last] == m.order[0]);
		m.blocks[m.order[0]].name = 0;
		model_take(m.order[0]);
		model_drop(old);
	}
	if (h->n_named > last)
		h->n_named = last;
}

static void forget(const struct holder *h)
{
	kv_cache_forget(cache, h->blocks, h->n);
	for (size_t i = 0; i < h->n; i++)
		m.blocks[h->blocks[i]].name = 0;
}

static void end(struct holder *h)
{
	kv_cache_drop(cache, h->blocks, h->n);
	for (size_t i = h->n; i-- > 0;)
		model_drop(h->blocks[i]);
	h->n = h->n_named = 0;
}

static void flush(void)
{
	kv_cache_flush(cache);
	for (uint32_t i = 0; i < m.n_blocks; i++)
		m.blocks[i].name = 0;
}

static void compare(void)
{
	uint32_t refs[MODEL_MAX], named = 0;

	for (uint32_t i = 0; i < m.n_blocks; i++) {
		refs[i] = m.blocks[i].refs;
		REQUIRE(kv_cache_has_name(cache, i) == (m.blocks[i].name != 0));
		named += m.blocks[i].name != 0;
	}
	REQUIRE(kv_cache_named(cache) == named);
	REQUIRE(kv_cache_used(cache) == m.n_blocks - m.n_free);
	REQUIRE(kv_cache_blocks(cache) == m.n_blocks);
	kv_cache_audit(cache, refs);
}

enum { OPS = 19 };

/* One of 19 operations on 2 holders and 3 chains; what is impossible does nothing. */
static void apply(struct holder holders[2], unsigned chains[2], unsigned op)
{
	unsigned k = op % 2;
	struct holder *h = &holders[k];

	if (op == OPS - 1) {
		flush();
	} else if (op < 8) { /* begin: chain 0 or 1 with 1 block, 1 or 2 with 3 */
		static const unsigned chain[] = {0, 1, 1, 2};
		static const size_t n[] = {1, 1, 3, 3};

		if (h->n == 0 && begin(h, chain[op / 2], n[op / 2]))
			chains[k] = chain[op / 2];
	} else if (op < 10) {
		fill(h, chains[k]);
	} else if (op < 12 && h->n > 0) {
		end(h);
	} else if (op < 14 && h->n == 0 && holders[!k].n > 0) {
		share(&holders[!k], h);
		chains[k] = chains[!k];
	} else if (op >= 14 && op < 16 && h->n > 0) {
		own(h);
	} else if (op >= 16 && h->n > 0) {
		forget(h);
	}
	compare();
}

static void play(uint32_t n_blocks, const unsigned *ops, size_t n)
{
	struct holder holders[2] = {{{0}, 0, 0}, {{0}, 0, 0}};
	unsigned chains[2] = {0, 0};

	start(n_blocks);
	for (size_t i = 0; i < n; i++)
		apply(holders, chains, ops[i]);
	for (int k = 0; k < 2; k++) {
		if (holders[k].n > 0)
			end(&holders[k]);
	}
	REQUIRE(kv_cache_used(cache) == 0);
	kv_cache_free(cache);
}

START_TEST(every_short_history)
{
	enum { LENGTH = 4 };
	unsigned ops[LENGTH];

	for (uint32_t n_blocks = 1; n_blocks <= 4; n_blocks += n_blocks == 1 ? 2 : 1) {
		size_t total = 1;

		for (int i = 0; i < LENGTH; i++)
			total *= OPS;
		for (size_t code = 0; code < total; code++) {
			size_t rest = code;

			for (int i = 0; i < LENGTH; i++, rest /= OPS)
				ops[i] = (unsigned)(rest % OPS);
			play(n_blocks, ops, LENGTH);
		}
	}
}
END_TEST

START_TEST(long_random_histories)
{
	enum { LENGTH = 2000 };
	static unsigned ops[LENGTH];
	struct rng rng;

	rng_seed(&rng, 3);
	for (int round = 0; round < 30; round++) {
		for (int i = 0; i < LENGTH; i++)
			ops[i] = (unsigned)rng_below(&rng, OPS - (round % 4 != 0));
		play(1 + (uint32_t)rng_below(&rng, 8), ops, LENGTH);
	}
}
END_TEST

/* A chain loses its tail first, and the chain that was used last stays longest. */
START_TEST(order_of_eviction)
{
	struct holder a = {{0}, 0, 0}, b = a, c = a;
	struct text t;
	uint32_t blocks[3];

	start(6);
	ck_assert(begin(&a, 2, 3));
	fill(&a, 2);
	ck_assert(begin(&b, 4, 3));
	fill(&b, 4);
	end(&a);
	end(&b);
	REQUIRE(kv_cache_named(cache) == 6);
	ck_assert(begin(&c, 6, 2)); /* two blocks: the tail of chain 2 */
	REQUIRE(kv_cache_find(cache, chain_of(2, &t), 3, blocks) == 1);
	kv_cache_drop(cache, blocks, 1);
	REQUIRE(kv_cache_find(cache, chain_of(4, &t), 3, blocks) == 3);
	kv_cache_drop(cache, blocks, 3);
	kv_cache_drop(cache, c.blocks, c.n);
	REQUIRE(kv_cache_used(cache) == 0);
	kv_cache_free(cache);
}
END_TEST

/* Equal names are not enough: the ids and what came before them must be the same. */
START_TEST(a_name_proves_nothing)
{
	struct holder a = {{0}, 0, 0};
	struct text t, other;
	struct kv_chain forged;
	uint32_t blocks[3];
	size_t n_free;

	start(6);
	ck_assert(begin(&a, 2, 3));
	fill(&a, 2);
	chain_of(2, &t);
	chain_of(4, &other);
	REQUIRE(kv_cache_match(cache, &t.chain, 3, &n_free) == 3);
	forged = (struct kv_chain){
		other.ids, t.names, 5}; /* other ids under the same names */
	REQUIRE(kv_cache_match(cache, &forged, 3, &n_free) == 0);
	REQUIRE(kv_cache_find(cache, &forged, 3, blocks) == 0);
	forged = (struct kv_chain){t.ids, t.names, 6}; /* of another seed */
	REQUIRE(kv_cache_match(cache, &forged, 3, &n_free) == 0);
	memcpy(other.ids, t.ids,
		2 * KV_BLOCK * sizeof(t.ids[0])); /* other ids in the third block */
	forged = (struct kv_chain){other.ids, t.names, 5};
	REQUIRE(kv_cache_match(cache, &forged, 3, &n_free) == 2);
	end(&a);
	kv_cache_free(cache);
}
END_TEST

START_TEST(seeds_differ)
{
	struct span none = span_make(NULL, 0), a = SPAN_LIT("a"), b = SPAN_LIT("b");
	uint64_t seeds[] = {kv_seed(a, none, none, 0), kv_seed(b, none, none, 0),
		kv_seed(a, b, none, 0), kv_seed(a, none, b, 0), kv_seed(a, a, none, 0),
		kv_seed(a, none, none, 1), kv_seed(a, none, none, 2)};

	for (size_t i = 0; i < ARRAY_LEN(seeds); i++) {
		for (size_t k = 0; k < i; k++)
			REQUIRE(seeds[i] != seeds[k]);
	}
	REQUIRE(kv_seed(a, none, none, 0) == seeds[0]);
}
END_TEST

START_TEST(many_blocks_by_name)
{
	enum { N = 5000 };
	static uint32_t blocks[N], found[N], ids[N * KV_BLOCK];
	static uint64_t names[N];
	struct kv_chain chain = {ids, names, 0};

	cache = kv_cache_new(N, KV_BLOCK);
	REQUIRE(cache != NULL);
	ck_assert_int_eq(kv_cache_alloc(cache, N, blocks), 0);
	ck_assert_int_eq(kv_cache_alloc(cache, 1, found), ERR_LIMIT);
	for (uint32_t i = 0; i < N; i++) {
		ids[i * KV_BLOCK] = i;
		names[i] =
			kv_name(i > 0 ? names[i - 1] : 0, ids + i * KV_BLOCK, KV_BLOCK);
		kv_cache_name(cache, blocks[i], &chain, i);
	}
	REQUIRE(kv_cache_find(cache, &chain, N, found) == N);
	ck_assert_int_eq(memcmp(blocks, found, sizeof(blocks)), 0);
	kv_cache_drop(cache, blocks, N);
	REQUIRE(kv_cache_used(cache) == N);
	kv_cache_drop(cache, found, N);
	REQUIRE(kv_cache_used(cache) == 0);
	REQUIRE(kv_cache_named(cache) == N);
	kv_cache_free(cache);
	kv_cache_free(NULL);
}
END_TEST

static Suite *kv_cache_suite(void)
{
	Suite *suite = suite_create("kv_cache");
	TCase *tc = tcase_create("kv_cache");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, every_short_history);
	tcase_add_test(tc, long_random_histories);
	tcase_add_test(tc, order_of_eviction);
	tcase_add_test(tc, a_name_proves_nothing);
	tcase_add_test(tc, seeds_differ);
	tcase_add_test(tc, many_blocks_by_name);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(kv_cache_suite())
