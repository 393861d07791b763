/*
 * Bounded maps in order of use. See lru_map.h.
 */
#include "base/lru_map.h"

#include "base/hash.h"

#include <stdlib.h>

#define NONE UINT32_MAX

/* What every entry begins with. */
struct head {
	struct lru_node node;
	uint64_t key[];
};

struct lru_map {
	uint64_t seed;
	size_t entry_bytes;
	unsigned key_words;
	uint32_t max, n;
	uint32_t touched; /* entries from here on were never used */
	uint32_t free;    /* of the others */
	uint32_t newest, oldest;
	uint32_t mask;     /* of buckets */
	uint32_t *buckets; /* each holds its first entry's place plus one */
	char *entries;
};

struct lru_map *lru_map_new(
	uint32_t max, size_t entry_bytes, unsigned key_words, uint64_t seed)
{
	struct lru_map *m = calloc(1, sizeof(*m));
	uint32_t buckets = 1;

	assert(max >= 1 && max <= 1u << 30 && (key_words == 1 || key_words == 2));
	assert(entry_bytes >= sizeof(struct head) + key_words * sizeof(uint64_t));
	if (m == NULL)
		return NULL;
	while (buckets < max)
		buckets *= 2;
	*m = (struct lru_map){.seed = seed,
		.entry_bytes = entry_bytes,
		.key_words = key_words,
		.max = max,
		.free = NONE,
		.newest = NONE,
		.oldest = NONE,
		.mask = buckets - 1};
	/* Fresh pages from the kernel: only those that are used count. */
	m->buckets = calloc(buckets, sizeof(*m->buckets));
	m->entries = calloc(max, entry_bytes);
	if (m->buckets == NULL || m->entries == NULL) {
		lru_map_free(m);
		return NULL;
	}
	return m;
}

void lru_map_free(struct lru_map *m)
{
	if (m == NULL)
		return;
	free(m->buckets);
	free(m->entries);
	free(m);
}

uint32_t lru_map_count(const struct lru_map *m)
{
	return m->n;
}

bool lru_map_is_full(const struct lru_map *m)
{
	return m->n == m->max;
}

static struct head *entry_at(const struct lru_map *m, uint32_t at)
{
	return (struct head *)(void *)(m->entries + at * m->entry_bytes);
}

static uint32_t *bucket_of(const struct lru_map *m, const uint64_t *key)
{
	return &m->buckets[(uint32_t)hash_mix64(key[0], m->seed) & m->mask];
}

void *lru_map_find(const struct lru_map *m, const uint64_t *key)
{
	uint32_t at = *bucket_of(m, key);

	while (at != 0) {
		struct head *e = entry_at(m, at - 1);

		if (e->key[0] == key[0] && (m->key_words == 1 || e->key[1] == key[1]))
			return e;
		at = e->node.next;
	}
	return NULL;
}

void *lru_map_oldest(const struct lru_map *m)
{
	return m->oldest != NONE ? entry_at(m, m->oldest) : NULL;
}

void *lru_map_newer(const struct lru_map *m, const void *entry)
{
	const struct head *e = entry;

	return e->node.newer != NONE ? entry_at(m, e->node.newer) : NULL;
}

/* ---- the list of use ---- */

static void unlink_use(struct lru_map *m, const struct lru_node *e)
{
	if (e->newer != NONE)
		entry_at(m, e->newer)->node.older = e->older;
	else
		m->newest = e->older;
	if (e->older != NONE)
		entry_at(m, e->older)->node.newer = e->newer;
	else
		m->oldest = e->newer;
}

static void link_newest(struct lru_map *m, struct lru_node *e)
{
	e->newer = NONE;
	e->older = m->newest;
	if (m->newest != NONE)
		entry_at(m, m->newest)->node.newer = e->at;
	else
		m->oldest = e->at;
	m->newest = e->at;
}

void lru_map_use(struct lru_map *m, void *entry)
{
	struct head *e = entry;

	unlink_use(m, &e->node);
	link_newest(m, &e->node);
}

/* ---- coming and going ---- */

static uint32_t take_place(struct lru_map *m)
{
	uint32_t at = m->free;

	assert(m->n < m->max);
	if (at == NONE)
		return m->touched++;
	m->free = entry_at(m, at)->node.next;
	return at;
}

void *lru_map_add(struct lru_map *m, const uint64_t *key)
{
	uint32_t at = take_place(m), *bucket = bucket_of(m, key);
	struct head *e = entry_at(m, at);

	e->key[0] = key[0];
	if (m->key_words == 2)
		e->key[1] = key[1];
	e->node.at = at;
	e->node.next = *bucket;
	*bucket = at + 1;
	link_newest(m, &e->node);
	m->n++;
	return e;
}

void lru_map_drop(struct lru_map *m, void *entry)
{
	struct head *e = entry;
	uint32_t *link = bucket_of(m, e->key);

	while (*link != e->node.at + 1)
		link = &entry_at(m, *link - 1)->node.next;
	*link = e->node.next;
	unlink_use(m, &e->node);
	e->node.next = m->free;
	m->free = e->node.at;
	m->n--;
}
