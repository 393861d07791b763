/*
 * The block manager: the bounded pool of KV blocks, who uses which, and which prefix each
 * holds. Pure: no clock, no bytes of a backend.
 *
 * A block is used (references > 0), or free. A full block gets a name: the hash of its
 * token ids with the name of the block before it as the seed, so that it stands for the
 * whole prefix up to its end; the first one's seed is kv_seed() of what parts
 * caches. The ids are kept and compared when a name is found, so that by induction a
 * found chain is the very prefix, whatever the hash does. A free block that has a name
 * can be found and taken again until it is needed for something else: nameless ones go
 * first, then the one that was free for the longest time. Names are unique. A block is
 * written only by its only holder, while it has no name (kv_cache_own()). The engine's
 * thread alone calls this.
 */
#ifndef ENGINE_CORE_KV_CACHE_H
#define ENGINE_CORE_KV_CACHE_H

#include "base/base.h"
#include "base/span.h"

#define KV_NONE UINT32_MAX

struct kv_cache;

/* A prefix: its ids, and the names of its full blocks as kv_name() chains them from the
 * seed. */
struct kv_chain {
	const uint32_t *ids;
	const uint64_t *names;
	uint64_t seed;
};

/* The seed of the first name: caches of another model, adapter, salt or data-parallel
 * rank never meet. */
uint64_t kv_seed(struct span model, struct span adapter, struct span salt, uint64_t rank);
/* The name of the block of n ids behind the block named `before` (or the seed). */
uint64_t kv_name(uint64_t before, const uint32_t *ids, uint32_t n);

/* Both > 0. NULL: out of memory. */
struct kv_cache *kv_cache_new(uint32_t n_blocks, uint32_t block_tokens);
void kv_cache_free(struct kv_cache *c); /* NULL is fine */

/* How long a run of the chain's first n blocks is held; *n_free: how many of them are
 * free now. Changes nothing. */
size_t kv_cache_match(
	const struct kv_cache *c, const struct kv_chain *chain, size_t n, size_t *n_free);
/* Takes that run, one reference each, into blocks[0..k); returns k. */
size_t kv_cache_find(
	struct kv_cache *c, const struct kv_chain *chain, size_t n, uint32_t *blocks);
/* Takes n nameless blocks, one reference each. ERR_LIMIT (nothing taken): fewer are free.
 */
int kv_cache_alloc(struct kv_cache *c, size_t n, uint32_t *blocks) MUST_CHECK;
/* One more reference of each used block: another sequence goes on from the same prefix.
 */
void kv_cache_share(struct kv_cache *c, const uint32_t *blocks, size_t n);
/*
 * Makes *block writable for its holder. *from is KV_NONE where it was; else *block is a
 * new one, whose contents are to be copied from *from at once, of which the reference was
 * dropped. ERR_LIMIT (nothing changed): no block is free.
 */
int kv_cache_own(struct kv_cache *c, uint32_t *block, uint32_t *from) MUST_CHECK;
/*
 * Names a used, nameless block that holds the i-th block of the chain. Where another
 * block has the name already this one stays nameless: it holds the same, and will be the
 * first to go.
 */
void kv_cache_name(
	struct kv_cache *c, uint32_t block, const struct kv_chain *chain, size_t i);
/* Nobody finds these used blocks any more: what they hold is not what their names say. */
void kv_cache_forget(struct kv_cache *c, const uint32_t *blocks, size_t n);
/* Drops one reference of each; the last block becomes free first, so that a chain loses
 * its tail before its head. */
void kv_cache_drop(struct kv_cache *c, const uint32_t *blocks, size_t n);
/* Forgets all names, those of used blocks too. */
void kv_cache_flush(struct kv_cache *c);

uint32_t kv_cache_blocks(const struct kv_cache *c);
uint32_t kv_cache_used(const struct kv_cache *c);
uint32_t kv_cache_named(const struct kv_cache *c);
bool kv_cache_has_name(const struct kv_cache *c, uint32_t block);
/* Asserts every invariant, in time linear in blocks: refs[i] must be block i's
 * references, as its holders count them. */
void kv_cache_audit(const struct kv_cache *c, const uint32_t *refs);

#endif
