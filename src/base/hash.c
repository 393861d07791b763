/*
 * The only includer of xxhash.h: XXH3-64, whose values are fixed by its specification on
 * every machine and byte order, and pinned by golden values in check_hash.c. XXH3 is
 * inlined here, so loops over blocks live here too.
 * Stateless; used by route_key (prompt blocks), ring and rendezvous policies, tenant, and
 * the engine.
 */
#include "base/hash.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#define XXH_INLINE_ALL
#include <xxhash.h>
#pragma GCC diagnostic pop

static_assert(sizeof(XXH3_state_t) <= sizeof(((struct hash_stream *)0)->opaque),
	"hash_stream is too small");
static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct hash_stream),
	"hash_stream's alignment");

/* The same value either way; the unseeded form needs no secret derived from the seed. */
static inline uint64_t hash_block(const void *bytes, size_t n, uint64_t seed)
{
	return seed == 0 ? XXH3_64bits(bytes, n) : XXH3_64bits_withSeed(bytes, n, seed);
}

uint64_t hash64(const void *bytes, size_t n, uint64_t seed)
{
	return hash_block(bytes, n, seed);
}

/* The usual block: with its length known, XXH3 comes down to straight code. */
#define USUAL_BLOCK 128
/* A long prompt is no longer in the near caches when it is whole, and hardware fetches
 * ahead within a page only. */
#define FETCH_AHEAD 2048

static void fetch_ahead(const unsigned char *block)
{
	uintptr_t at = (uintptr_t)block + FETCH_AHEAD; /* may lie behind the end */

	__builtin_prefetch((const void *)at);
	__builtin_prefetch((const void *)(at + CACHE_LINE));
}

__attribute__((flatten)) static void chain_usual(
	const unsigned char *block, size_t n_blocks, uint64_t seed, uint64_t *out)
{
	for (size_t i = 0; i < n_blocks; i++, block += USUAL_BLOCK) {
		fetch_ahead(block);
		out[i] = seed = XXH3_64bits_withSeed(block, USUAL_BLOCK, seed);
	}
}

void hash_chain(const void *bytes, size_t n_blocks, size_t block_bytes, uint64_t seed,
	uint64_t *out)
{
	const unsigned char *block = bytes;

	if (block_bytes == USUAL_BLOCK) {
		chain_usual(block, n_blocks, seed, out);
		return;
	}
	for (size_t i = 0; i < n_blocks; i++, block += block_bytes)
		out[i] = seed = hash_block(block, block_bytes, seed);
}

static XXH3_state_t *state_of(struct hash_stream *h)
{
	return (XXH3_state_t *)(void *)h->opaque;
}

static void update(struct hash_stream *h, const void *bytes, size_t n)
{
	XXH_errorcode rc = XXH3_64bits_update(state_of(h), bytes, n);

	assert(rc == XXH_OK);
	(void)rc;
}

void hash_stream_init(struct hash_stream *h, uint64_t seed)
{
	h->seed = seed;
	h->n_short = 0;
	h->is_long = false;
}

static void become_long(struct hash_stream *h)
{
	unsigned char begun[HASH_SHORT_MAX];
	XXH_errorcode rc;

	memcpy(begun, h->opaque, h->n_short);
	XXH3_INITSTATE(state_of(h));
	rc = XXH3_64bits_reset_withSeed(state_of(h), h->seed);
	assert(rc == XXH_OK);
	(void)rc;
	h->is_long = true;
	update(h, begun, h->n_short);
}

void hash_stream_add_long(struct hash_stream *h, const void *bytes, size_t n)
{
	if (n == 0)
		return;
	if (!h->is_long)
		become_long(h);
	update(h, bytes, n);
}

uint64_t hash_stream_end(const struct hash_stream *h)
{
	if (!h->is_long)
		return hash_block(h->opaque, h->n_short, h->seed);
	return XXH3_64bits_digest((const XXH3_state_t *)(const void *)h->opaque);
}
