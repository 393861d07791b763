/*
 * The only includer of xxhash.h: 64-bit hashes whose values are part of the public
 * contract (kvsteer-prefix(7)), so they must not change between releases, machines or
 * byte orders.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include "base/base.h"

#include <string.h>

/*
 * XXH3-64 of the bytes with a seed (XXH3_64bits_withSeed). The prefix chain is h_i =
 * hash64(block_i, n, h_(i-1)).
 */
uint64_t hash64(const void *bytes, size_t n, uint64_t seed);

/*
 * The chain over n_blocks blocks of block_bytes bytes that lie side by side: out[i] =
 * hash64(block i, block_bytes, i > 0 ? out[i - 1] : seed). out has room for n_blocks.
 */
void hash_chain(const void *bytes, size_t n_blocks, size_t block_bytes, uint64_t seed,
	uint64_t *out);

/*
 * mix64: a keyed bijection of h (splitmix64's finaliser, Steele et al. 2014, over h ^
 * secret). Index keys are hash_mix64(h_i, S).
 */
static inline uint64_t hash_mix64(uint64_t h, uint64_t secret)
{
	uint64_t z = h ^ secret;

	z += 0x9e3779b97f4a7c15ULL;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

/*
 * XXH3-64 of bytes that come in parts. Embedded by value, needs 64-byte alignment. Short
 * input is gathered and hashed at the end: XXH3's state costs more than that.
 */
#define HASH_SHORT_MAX 240
struct hash_stream {
	_Alignas(64) unsigned char opaque[576]; /* the bytes so far; is_long: the state */
	uint64_t seed;
	size_t n_short;
	bool is_long;
};
void hash_stream_init(struct hash_stream *h, uint64_t seed);
void hash_stream_add_long(struct hash_stream *h, const void *bytes, size_t n);
static inline void hash_stream_add(struct hash_stream *h, const void *bytes, size_t n)
{
	if (h->is_long || n > HASH_SHORT_MAX || h->n_short > HASH_SHORT_MAX - n) {
		hash_stream_add_long(h, bytes, n);
		return;
	}
	if (n > 0)
		memcpy(h->opaque + h->n_short, bytes, n);
	h->n_short += n;
}
uint64_t hash_stream_end(const struct hash_stream *h);

#endif
