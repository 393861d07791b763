/*
 * The end of the prompt stream: takes its bytes (or token ids) in order and writes the
 * public chain of block hashes into a route key.
 *
 * Always true: what was put is either hashed, or lies in the stage; long plain bytes are
 * hashed where they are and never copied (but for the edges). The first error sticks, and
 * route_hash_end() returns it. Called by route_prompt.c only.
 */
#ifndef ROUTE_ROUTE_HASH_H
#define ROUTE_ROUTE_HASH_H

#include "route/json_walk.h"
#include "route/route_key.h"

#define ROUTE_STAGE_BYTES 4096
#define ROUTE_DIGEST_BYTES 8
#define ROUTE_IN_PLACE_BYTES 1024 /* from here on it pays to hash bytes in place */

struct route_hash {
	struct route_key *key;
	size_t block_bytes; /* of a block, ids too */
	size_t max_blocks;  /* SIZE_MAX: no limit */
	size_t stage_bytes; /* a multiple of block_bytes */
	size_t used;        /* bytes in the stage */
	uint64_t total;     /* bytes put */
	bool keeps_short;
	char *stage; /* `own`, or allocated where a block is longer */
	int err;
	_Alignas(16) char own[ROUTE_STAGE_BYTES + 2 * JSON_DECODE_SLACK];
};

/* Starts a stream of bytes: sets key's unit, block, n_blocks and prompt_units. */
void route_hash_begin(
	struct route_hash *h, const struct route_key_opts *opts, struct route_key *key);
/* Makes it a stream of token ids; nothing was put yet. */
void route_hash_be_ids(struct route_hash *h, const struct route_key_opts *opts);
/* Forgets what was put: no blocks, no units. */
void route_hash_forget(struct route_hash *h);
/* Hashes what is whole, sets prompt_units, frees. 0 or ERR_NOMEM. */
int route_hash_end(struct route_hash *h) MUST_CHECK;

/* Puts the bytes that route_hash_bytes() does not put into the stage at once. */
void route_hash_long(struct route_hash *h, const char *p, size_t n);
/* The bytes of a JSON string, decoded where escaped. */
void route_hash_string(struct route_hash *h, struct span raw, bool escaped);
/* The XXH3-64 of the decoded string, lowest byte first, again and again to n bytes, a
 * multiple of ROUTE_DIGEST_BYTES. */
void route_hash_digest(struct route_hash *h, struct span raw, bool escaped, size_t n);
/* Makes room in the stage for 4 bytes more (of ids), or for less than a block. */
void route_hash_flush(struct route_hash *h);

static inline void route_hash_bytes(struct route_hash *h, const char *p, size_t n)
{
	if (n > h->stage_bytes - h->used || n >= ROUTE_IN_PLACE_BYTES) {
		route_hash_long(h, p, n);
		return;
	}
	memcpy(h->stage + h->used, p, n);
	h->used += n;
	h->total += n;
}

static inline void route_hash_byte(struct route_hash *h, char byte)
{
	if (h->used == h->stage_bytes)
		route_hash_flush(h);
	h->stage[h->used++] = byte;
	h->total++;
}

static inline void route_hash_id(struct route_hash *h, uint32_t id)
{
	char *p;

	if (h->used + 4 > h->stage_bytes)
		route_hash_flush(h);
	p = h->stage + h->used;
	p[0] = (char)id;
	p[1] = (char)(id >> 8);
	p[2] = (char)(id >> 16);
	p[3] = (char)(id >> 24);
	h->used += 4;
	h->total += 4;
}

/* 0xFF and a tag: a border. 0xFF is in no UTF-8 text. */
static inline void route_hash_tag(struct route_hash *h, char tag)
{
	char border[2] = {(char)0xFF, tag};

	route_hash_bytes(h, border, 2);
}

#endif
