/*
 * The bounded pool of KV blocks: who uses which, and which prefix each holds. Pure: no clock, no tokens, no bytes.
 *
 * A block is used (references > 0), or free. A free block that has a name (the hash of the whole prefix up to its end) can be found and taken
 * again until it is needed for something else: nameless ones go first, then the one that was free for the longest time. Names are unique.
 * The engine thread alone calls this.
 */
#ifndef ENGINE_KV_CACHE_H
#define ENGINE_KV_CACHE_H

#include "base/base.h"

struct kv_cache;

/* n_blocks > 0. NULL: out of memory. */
struct kv_cache *kv_cache_new(uint32_t n_blocks);
void kv_cache_free(struct kv_cache *c); /* NULL is fine */

/* Takes the longest run names[0..k) that is held, one reference each, into blocks[0..k); returns k. */
size_t kv_cache_find(struct kv_cache *c, const uint64_t *names, size_t n, uint32_t *blocks);
/* Takes n nameless blocks, one reference each. ERR_LIMIT (nothing taken): fewer are free. */
int kv_cache_alloc(struct kv_cache *c, size_t n, uint32_t *blocks) MUST_CHECK;
/*
 * Names a used, nameless block, and stores a check value in it. Where another block has the name already this one stays nameless: it holds the
 * same, and will be the first to go.
 */
void kv_cache_name(struct kv_cache *c, uint32_t block, uint64_t name, uint64_t check);
uint64_t kv_cache_check(const struct kv_cache *c, uint32_t block);
/* Drops one reference of each; the last block becomes free first, so that a chain loses its tail before its head. */
void kv_cache_drop(struct kv_cache *c, const uint32_t *blocks, size_t n);
/* Forgets all names, those of used blocks too. */
void kv_cache_flush(struct kv_cache *c);

uint32_t kv_cache_blocks(const struct kv_cache *c);
uint32_t kv_cache_used(const struct kv_cache *c);
uint32_t kv_cache_named(const struct kv_cache *c);

#endif
