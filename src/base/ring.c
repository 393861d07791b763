/*
 * The vLLM router's hash and ring. See ring.h.
 */
#include "base/ring.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>

#define SEED 4193360111u
#define MODULUS ((1u << 23) - 1)
#define FURC_LEVELS 23 /* bits of the modulus */
#define FURC_TRIES 32
#define POINTS_PER_NODE 160

/* ---- the hash ---- */

#define MURMUR_M UINT64_C(0xc6a4a7935bd1e995)

static uint64_t read_le(const unsigned char *p, size_t n)
{
	uint64_t value = 0;

	while (n-- > 0)
		value = value << 8 | p[n];
	return value;
}

static uint64_t murmur_word(uint64_t h, uint64_t k)
{
	k *= MURMUR_M;
	k ^= k >> 47;
	k *= MURMUR_M;
	return (h ^ k) * MURMUR_M;
}

/* MurmurHash64A (A. Appleby, public domain algorithm). */
static uint64_t murmur(const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	uint64_t h = SEED ^ (uint64_t)n * MURMUR_M;

	for (; n >= 8; n -= 8, p += 8)
		h = murmur_word(h, read_le(p, 8));
	if (n > 0)
		h = (h ^ read_le(p, n)) * MURMUR_M;
	h ^= h >> 47;
	h *= MURMUR_M;
	return h ^ h >> 47;
}

static uint64_t murmur_u64(uint64_t value)
{
	uint64_t h = murmur_word(SEED ^ UINT64_C(8) * MURMUR_M, value);

	h ^= h >> 47;
	h *= MURMUR_M;
	return h ^ h >> 47;
}

/* A stream of bits, made as far as they are asked for. Furc asks up to (tries + 1) *
 * levels times, 23 bits further each time. */
struct bits {
	uint64_t words[(FURC_TRIES + 1) * FURC_LEVELS * FURC_LEVELS / 64 + 2];
	unsigned made;
};

static bool bit_at(struct bits *b, unsigned index)
{
	unsigned word = index / 64;

	assert(word < ARRAY_LEN(b->words));
	for (; b->made <= word; b->made++)
		b->words[b->made] = murmur_u64(b->words[b->made - 1]);
	return (b->words[word] >> index % 64 & 1) != 0;
}

/*
 * A number below the modulus: from the top level down, the first level whose bit is set
 * gives the length of the number, whose further bits lie a level's width apart. The vLLM
 * router asks level 0 too, where mcrouter would stop.
 */
static uint32_t furc(struct span text)
{
	struct bits b; /* words are written before they are read */
	unsigned level = FURC_LEVELS, at = FURC_LEVELS, i, tries;

	b.words[0] = murmur(text.p, text.n);
	b.made = 1;
	for (tries = 0; tries < FURC_TRIES; tries++) {
		uint32_t number = 1;

		while (!bit_at(&b, at)) {
			if (level == 0)
				return 0;
			at = --level;
		}
		for (i = 1; i < level; i++) {
			at += FURC_LEVELS;
			number = number << 1 | bit_at(&b, at);
		}
		at += FURC_LEVELS;
		if (number < MODULUS)
			return number;
	}
	return 0;
}

uint64_t ring_hash(struct span text)
{
	uint32_t number = furc(text);
	unsigned char le[4] = {(unsigned char)number, (unsigned char)(number >> 8),
		(unsigned char)(number >> 16), (unsigned char)(number >> 24)};

	return murmur(le, sizeof(le));
}

/* ---- the ring ---- */

struct point {
	uint64_t at;
	uint32_t node; /* in order of their ids */
};

struct ring {
	struct point *points; /* owned; in order of `at`, all different */
	size_t n;
	uint64_t owners[]; /* of each node */
};

uint64_t ring_id(struct span id)
{
	return hash64(id.p, id.n, 0);
}

static int compare_ids(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return span_order(*x, *y);
}

static int compare_points(const void *a, const void *b)
{
	const struct point *x = a, *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return (x->node > y->node) - (x->node < y->node);
}

/* ERR_NOMEM as false. */
static bool add_node(struct ring *r, uint32_t node, struct span id)
{
	size_t room = id.n + sizeof(":159");
	char *text = malloc(room);
	unsigned i;

	if (text == NULL)
		return false;
	memcpy(text, id.p, id.n);
	for (i = 0; i < POINTS_PER_NODE; i++) {
		int n = snprintf(text + id.n, room - id.n, ":%u", i);

		r->points[r->n++] = (struct point){
			ring_hash(span_make(text, id.n + (size_t)n)), node};
	}
	free(text);
	r->owners[node] = ring_id(id);
	return true;
}

/* If several points share a spot, the last one stays, which has the greatest id. */
static void drop_doubles(struct ring *r)
{
	size_t i, kept = 0;

	for (i = 0; i < r->n; i++) {
		if (i + 1 == r->n || r->points[i + 1].at != r->points[i].at)
			r->points[kept++] = r->points[i];
	}
	r->n = kept;
}

struct ring *ring_new(const struct span *ids, size_t n)
{
	struct ring *r = calloc(1, sizeof(*r) + n * sizeof(r->owners[0]));
	struct span *sorted = calloc(n + 1, sizeof(*sorted));
	bool is_good = r != NULL && sorted != NULL;
	size_t i;

	if (is_good) {
		r->points = calloc(n * POINTS_PER_NODE + 1, sizeof(*r->points));
		is_good = r->points != NULL;
	}
	if (is_good && n > 0) {
		memcpy(sorted, ids, n * sizeof(*ids));
		qsort(sorted, n, sizeof(*sorted), compare_ids);
	}
	for (i = 0; is_good && i < n; i++)
		is_good = add_node(r, (uint32_t)i, sorted[i]);
	free(sorted);
	if (!is_good) {
		ring_free(r);
		return NULL;
	}
	qsort(r->points, r->n, sizeof(*r->points), compare_points);
	drop_doubles(r);
	return r;
}

void ring_free(struct ring *r)
{
	if (r == NULL)
		return;
	free(r->points);
	free(r);
}

size_t ring_points(const struct ring *r)
{
	return r->n;
}

size_t ring_first(const struct ring *r, uint64_t hash)
{
	size_t low = 0, high = r->n;

	assert(r->n > 0);
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (r->points[middle].at < hash)
			low = middle + 1;
		else
			high = middle;
	}
	return low < r->n ? low : 0;
}

uint64_t ring_owner(const struct ring *r, size_t position)
{
	return r->owners[r->points[position].node];
}
