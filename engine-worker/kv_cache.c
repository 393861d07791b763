/*
 * The pool of KV blocks: reference counts, a hash table of names, and the list of free blocks in the order in which they will go.
 * Always true: a block is on the free list exactly when nobody refers to it; a block is in the table exactly when it has a name.
 * Called by sim.c.
 */
#include "kv_cache.h"
#include "base/err.h"
#include "base/hash.h"

#include <stdlib.h>

#define NONE UINT32_MAX

struct kv_block {
	uint64_t name, check;
	uint32_t refs;
	uint32_t prev, next;  /* free list */
	uint32_t table_next;  /* blocks of the same bucket */
	bool has_name;
};

struct kv_cache {
	uint32_t n_blocks, n_used, n_named;
	uint32_t first_free, last_free; /* first: goes first */
	uint32_t bucket_mask;
	uint32_t *buckets;
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

static uint32_t *bucket_of(struct kv_cache *c, uint64_t name)
{
	return &c->buckets[hash_mix64(name, 0) & c->bucket_mask];
}

static uint32_t find_name(struct kv_cache *c, uint64_t name)
{
	uint32_t i = *bucket_of(c, name);

	while (i != NONE && c->blocks[i].name != name)
		i = c->blocks[i].table_next;
	return i;
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

struct kv_cache *kv_cache_new(uint32_t n_blocks)
{
	struct kv_cache *c;
	uint32_t buckets = 16;

	assert(n_blocks > 0 && n_blocks < NONE / 2);
	while (buckets < n_blocks)
		buckets *= 2;
	c = calloc(1, sizeof(*c) + (size_t)n_blocks * sizeof(c->blocks[0]));
	if (c == NULL)
		return NULL;
	c->buckets = malloc(buckets * sizeof(*c->buckets));
	if (c->buckets == NULL) {
		free(c);
		return NULL;
	}
	for (uint32_t i = 0; i < buckets; i++)
		c->buckets[i] = NONE;
	c->bucket_mask = buckets - 1;
	c->n_blocks = n_blocks;
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
	free(c);
}

size_t kv_cache_find(struct kv_cache *c, const uint64_t *names, size_t n, uint32_t *blocks)
{
	size_t k = 0;
	uint32_t i;

	for (; k < n && (i = find_name(c, names[k])) != NONE; k++) {
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

void kv_cache_name(struct kv_cache *c, uint32_t block, uint64_t name, uint64_t check)
{
	struct kv_block *b = &c->blocks[block];
	uint32_t *bucket = bucket_of(c, name);

	assert(block < c->n_blocks && b->refs > 0 && !b->has_name);
	if (find_name(c, name) != NONE)
		return;
	b->name = name;
	b->check = check;
	b->has_name = true;
	b->table_next = *bucket;
	*bucket = block;
	c->n_named++;
}

uint64_t kv_cache_check(const struct kv_cache *c, uint32_t block)
{
	assert(block < c->n_blocks && c->blocks[block].has_name);
	return c->blocks[block].check;
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
