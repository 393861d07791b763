/*
 * The consistent-hash ring of the vLLM router, bit for bit: 160 points for each worker at
 * H("<id>:<i>"), i = 0..159, and the hash H. Immutable once made; its owner may share it
 * between threads. Used by the policies consistent_hash and rendezvous_hash.
 *
 * H(text): the Furc hash of mcrouter gives a number below 2^23 - 1, whose four bytes
 * (little-endian) MurmurHash64A spreads over 64 bits; every Murmur has one seed. Furc
 * walks a stream of bits: word 0 is Murmur of the text, word n Murmur of word n - 1. Only
 * 8,388,607 distinct points exist, so two workers may fall on the same one: it is the
 * greater id's, whatever their order (the vLLM router: the later one's in its list).
 */
#ifndef BASE_RING_H
#define BASE_RING_H

#include "base/base.h"
#include "base/span.h"

struct ring;

uint64_t ring_hash(struct span text);

/* The number by which ring_owner() names a worker. */
uint64_t ring_id(struct span id);
/* ids must differ. NULL: out of memory. n may be 0. */
struct ring *ring_new(const struct span *ids, size_t n);
void ring_free(struct ring *r);

size_t ring_points(const struct ring *r);
/* The position of the first point at or after hash, the first of all behind the last;
 * there must be one. */
size_t ring_first(const struct ring *r, uint64_t hash);
/* ring_id() of the point's worker. The next point of position i is (i + 1) % points. */
uint64_t ring_owner(const struct ring *r, size_t position);

#endif
