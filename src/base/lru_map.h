/*
 * A bounded map in order of use: the owner drops the entry that was not used for longest
 * when it needs a place. Entries are the owner's structs, which begin with a struct
 * lru_node and the words of their key; they lie in one array, so that memory is taken
 * once and touched as entries come. Not locked.
 *
 * Always true: each entry in use is in the chain of its bucket and in the list of use;
 * the others are in the chain of free ones, or were never used.
 */
#ifndef BASE_LRU_MAP_H
#define BASE_LRU_MAP_H

#include "base/base.h"

struct lru_map;

struct lru_node {
	uint32_t at;           /* its own place */
	uint32_t next;         /* in its bucket, or free */
	uint32_t older, newer; /* by use */
};

/* 1 to 2^30 entries of entry_bytes, with keys of 1 or 2 words behind their node. seed: a
 * secret, so that nobody can aim at one bucket. NULL: out of memory. */
struct lru_map *lru_map_new(
	uint32_t max, size_t entry_bytes, unsigned key_words, uint64_t seed);
void lru_map_free(struct lru_map *m); /* NULL is fine */

uint32_t lru_map_count(const struct lru_map *m);
bool lru_map_is_full(const struct lru_map *m);
/* The entry with this key, or NULL. Changes nothing. */
void *lru_map_find(const struct lru_map *m, const uint64_t *key);
void *lru_map_oldest(const struct lru_map *m); /* NULL: it is empty */
/* The next one in the order of use; NULL: this one was used last. */
void *lru_map_newer(const struct lru_map *m, const void *entry);
/* A new entry, used last; what is behind its key is the caller's to write. The key must
 * not be there, and the map not full. */
void *lru_map_add(struct lru_map *m, const uint64_t *key);
/* The entry is used now. */
void lru_map_use(struct lru_map *m, void *entry);
void lru_map_drop(struct lru_map *m, void *entry);

#endif
