/*
 * The block manager: reference counts, a hash table of names, and the list of free blocks
 * in the order in which they will go. Always true: a block is on the free list exactly
 * when nobody refers to it; a block is in the table exactly when it has a name. Called by
 * sched.c.
 */
#include "core/kv_cache.h"
#include "base/err.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define NONE KV_NONE

struct kv_block {
	uint64_t name, before; /* before: the name of the block before it, or the seed */
	uint32_t refs;
	uint32_t prev, next; /* free list */
	uint32_t table_next; /* blocks of the same bucket */
	bool has_name;
};

struct kv_cache {
	uint32_t n_blocks, block_tokens, n_used, n_named;
	uint32_t first_free, last_free; /* first: goes first */
	uint32_t bucket_mask;
	uint32_t *buckets;
	uint32_t *ids; /* block_tokens of each block that has a name */
	struct kv_block blocks[];
};

/* The free list */

static void free_unlink(struct kv_cache *c, uint32_t i)
{
	struct kv_block *b = &c->blocks[i];

	*(b->prev == NONE ? &c->first_free : &c->blocks[b->prev].next) = b->next;
	*(b->next == NONE ? &c->last_free : &c->blocks[b->next].prev) = b->prev;
	b->prev = b->next = NONE;
}

static void free_append(struct kv_cache *c, uint32_t i)
{
	struct kv_block *b = &c->blocks[i];

	b->prev = c->last_free;
	b->next = NONE;
	*(b->prev == NONE ? &c->first_free : &c->blocks[b->prev].next) = i;
	c->last_free = i;
}

static void free_prepend(struct kv_cache *c, uint32_t i)
{
	struct kv_block *b = &c->blocks[i];

	b->next = c->first_free;
	b->prev = NONE;
	*(b->next == NONE ? &c->last_free : &c->blocks[b->next].prev) = i;
	c->first_free = i;
}

/* Names */

uint64_t kv_seed(struct span model, struct span adapter, struct span salt, uint64_t rank)
{
	uint64_t seed = hash64(model.p, model.n, rank);

	seed = hash64(adapter.p, adapter.n, seed);
	return hash64(salt.p, salt.n, seed);
}

uint64_t kv_name(uint64_t before, const uint32_t *ids, uint32_t n)
{
	return hash64(ids, n * sizeof(*ids), before);
}

static uint32_t *bucket_of(const struct kv_cache *c, uint64_t name)
{
	return &c->buckets[hash_mix64(name, 0) & c->bucket_mask];
}

static uint32_t find_name(const struct kv_cache *c, uint64_t name)
{
	uint32_t i = *bucket_of(c, name);

	while (i != NONE && c->blocks[i].name != name)
		i = c->blocks[i].table_next;
	return i;
}

static uint64_t name_before(const struct kv_chain *chain, size_t i)
{
	return i > 0 ? chain->names[i - 1] : chain->seed;
}

static uint32_t *ids_of(const struct kv_cache *c, uint32_t block)
{
	return c->ids + (size_t)block * c->block_tokens;
}

/* The block that holds the i-th block of the chain; NONE: nobody does. */
static uint32_t find_block(
	const struct kv_cache *c, const struct kv_chain *chain, size_t i)
{
	uint32_t b = find_name(c, chain->names[i]);

	if (b == NONE || c->blocks[b].before != name_before(chain, i) ||
		memcmp(ids_of(c, b), chain->ids + i * c->block_tokens,
			c->block_tokens * sizeof(*c->ids)) != 0)
		return NONE;
	return b;
}

static void forget_name(struct kv_cache *c, uint32_t i)
{
	uint32_t *at = bucket_of(c, c->blocks[i].name);

	while (*at != i)
		at = &c->blocks[*at].table_next;
	*at = c->blocks[i].table_next;
	c->blocks[i].has_name = false;
	c->n_named--;
}

static void take(struct kv_cache *c, uint32_t i)
{
	if (c->blocks[i].refs++ == 0) {
		free_unlink(c, i);
		c->n_used++;
	}
}

struct kv_cache *kv_cache_new(uint32_t n_blocks, uint32_t block_tokens)
{
	struct kv_cache *c;
	uint32_t buckets = 16;

	assert(n_blocks > 0 && n_blocks < NONE / 2 && block_tokens > 0);
	while (buckets < n_blocks)
		buckets *= 2;
	c = calloc(1, sizeof(*c) + (size_t)n_blocks * sizeof(c->blocks[0]));
	if (c == NULL)
		return NULL;
	c->buckets = malloc(buckets * sizeof(*c->buckets));
	c->ids = malloc((size_t)n_blocks * block_tokens * sizeof(*c->ids));
	if (c->buckets == NULL || c->ids == NULL) {
		kv_cache_free(c);
		return NULL;
	}
	for (uint32_t i = 0; i < buckets; i++)
		c->buckets[i] = NONE;
	c->bucket_mask = buckets - 1;
	c->n_blocks = n_blocks;
	c->block_tokens = block_tokens;
	c->first_free = c->last_free = NONE;
	for (uint32_t i = 0; i < n_blocks; i++)
		free_append(c, i);
	return c;
}

void kv_cache_free(struct kv_cache *c)
{
	if (c == NULL)
		return;
	free(c->buckets);
	free(c->ids);
	free(c);
}

size_t kv_cache_match(
	const struct kv_cache *c, const struct kv_chain *chain, size_t n, size_t *n_free)
{
	size_t k = 0, free_blocks = 0;
	uint32_t i;

	for (; k < n && (i = find_block(c, chain, k)) != NONE; k++)
		free_blocks += c->blocks[i].refs == 0;
	*n_free = free_blocks;
	return k;
}

size_t kv_cache_find(
	struct kv_cache *c, const struct kv_chain *chain, size_t n, uint32_t *blocks)
{
	size_t k = 0;
	uint32_t i;

	for (; k < n && (i = find_block(c, chain, k)) != NONE; k++) {
		take(c, i);
		blocks[k] = i;
	}
	return k;
}

int kv_cache_alloc(struct kv_cache *c, size_t n, uint32_t *blocks)
{
	if (n > c->n_blocks - c->n_used)
		return ERR_LIMIT;
	for (size_t k = 0; k < n; k++) {
		uint32_t i = c->first_free;

		if (c->blocks[i].has_name)
			forget_name(c, i);
		take(c, i);
		blocks[k] = i;
	}
	return 0;
}

void kv_cache_share(struct kv_cache *c, const uint32_t *blocks, size_t n)
{
	for (size_t k = 0; k < n; k++) {
		assert(blocks[k] < c->n_blocks && c->blocks[blocks[k]].refs > 0);
		c->blocks[blocks[k]].refs++;
	}
}

int kv_cache_own(struct kv_cache *c, uint32_t *block, uint32_t *from)
{
	uint32_t old = *block, copy;

	assert(old < c->n_blocks && c->blocks[old].refs > 0);
	if (c->blocks[old].refs == 1 && !c->blocks[old].has_name) {
		*from = NONE;
		return 0;
	}
	if (kv_cache_alloc(c, 1, &copy) != 0)
		return ERR_LIMIT;
	kv_cache_drop(c, &old, 1);
	*from = old;
	*block = copy;
	return 0;
}

void kv_cache_name(
	struct kv_cache *c, uint32_t block, const struct kv_chain *chain, size_t i)
{
	struct kv_block *b = &c->blocks[block];
	uint64_t name = chain->names[i];
	uint32_t *bucket = bucket_of(c, name);

	assert(block < c->n_blocks && b->refs > 0 && !b->has_name);
	if (find_name(c, name) != NONE)
		return;
	b->name = name;
	b->before = name_before(chain, i);
	b->has_name = true;
	memcpy(ids_of(c, block), chain->ids + i * c->block_tokens,
		c->block_tokens * sizeof(*c->ids));
	b->table_next = *bucket;
	*bucket = block;
	c->n_named++;
}

void kv_cache_forget(struct kv_cache *c, const uint32_t *blocks, size_t n)
{
	for (size_t k = 0; k < n; k++) {
		assert(blocks[k] < c->n_blocks && c->blocks[blocks[k]].refs > 0);
		if (c->blocks[blocks[k]].has_name)
			forget_name(c, blocks[k]);
	}
}

void kv_cache_drop(struct kv_cache *c, const uint32_t *blocks, size_t n)
{
	for (size_t k = n; k-- > 0;) {
		uint32_t i = blocks[k];

		assert(i < c->n_blocks && c->blocks[i].refs > 0);
		if (--c->blocks[i].refs > 0)
			continue;
		c->n_used--;
		if (c->blocks[i].has_name)
			free_append(c, i);
		else
			free_prepend(c, i);
	}
}

void kv_cache_flush(struct kv_cache *c)
{
	for (uint32_t i = 0; i < c->n_blocks; i++) {
		if (c->blocks[i].has_name)
			forget_name(c, i);
	}
}

uint32_t kv_cache_blocks(const struct kv_cache *c)
{
	return c->n_blocks;
}

uint32_t kv_cache_used(const struct kv_cache *c)
{
	return c->n_used;
}

uint32_t kv_cache_named(const struct kv_cache *c)
{
	return c->n_named;
}

bool kv_cache_has_name(const struct kv_cache *c, uint32_t block)
{
	assert(block < c->n_blocks);
	return c->blocks[block].has_name;
}

/* The free list holds exactly the blocks without references, each once, linked both ways.
 */
static void audit_free_list(const struct kv_cache *c)
{
	uint32_t n = 0, before = NONE;

	for (uint32_t i = c->first_free; i != NONE; before = i, i = c->blocks[i].next) {
		assert(i < c->n_blocks && n < c->n_blocks);
		assert(c->blocks[i].refs == 0 && c->blocks[i].prev == before);
		n++;
	}
	assert(c->last_free == before && n == c->n_blocks - c->n_used);
}

void kv_cache_audit(const struct kv_cache *c, const uint32_t *refs)
{
	uint32_t used = 0, named = 0;

	for (uint32_t i = 0; i < c->n_blocks; i++) {
		const struct kv_block *b = &c->blocks[i];

		assert(b->refs == refs[i]);
		used += b->refs > 0;
		named += b->has_name;
		if (!b->has_name)
			continue;
		assert(find_name(c, b->name) == i);
		assert(kv_name(b->before, ids_of(c, i), c->block_tokens) == b->name);
	}
	assert(used == c->n_used && named == c->n_named);
	audit_free_list(c);
}
