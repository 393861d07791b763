/*
 * Blocks of the prompt stream, and their chain (route_hash.h).
 */
#include "route/route_hash.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"

#include <stdlib.h>

/* A digest is repeated from a pattern of so many bytes: ROUTE_DIGEST_BYTES, doubled a few
 * times. */
#define PATTERN_BYTES 512

static void set_block(struct route_hash *h, size_t block_bytes)
{
	size_t blocks = MAX(ROUTE_STAGE_BYTES / block_bytes, (size_t)1);

	h->block_bytes = block_bytes;
	h->stage_bytes = blocks * block_bytes;
	if (h->stage != h->own)
		free(h->stage);
	h->stage = h->own;
	if (h->stage_bytes > ROUTE_STAGE_BYTES) {
		h->stage = malloc(h->stage_bytes + 2 * JSON_DECODE_SLACK);
		if (h->stage == NULL) {
			/* Nothing is kept from now on, but the code goes its way. */
			h->err = ERR_NOMEM;
			h->stage = h->own;
			h->block_bytes = h->stage_bytes = ROUTE_STAGE_BYTES;
		}
	}
}

void route_hash_begin(
	struct route_hash *h, const struct route_key_opts *opts, struct route_key *key)
{
	assert(opts->block_bytes > 0 && opts->block_tokens > 0);
	h->key = key;
	h->max_blocks = opts->max_blocks > 0 ? opts->max_blocks : SIZE_MAX;
	h->used = 0;
	h->total = 0;
	h->keeps_short = opts->keeps_short;
	h->err = 0;
	h->stage = h->own;
	key->unit = 'b';
	key->block = opts->block_bytes;
	key->n_blocks = 0;
	key->prompt_units = 0;
	set_block(h, opts->block_bytes);
}

void route_hash_be_ids(struct route_hash *h, const struct route_key_opts *opts)
{
	assert(h->total == 0);
	h->key->unit = 't';
	h->key->block = opts->block_tokens;
	set_block(h, (size_t)opts->block_tokens * 4);
}

void route_hash_forget(struct route_hash *h)
{
	h->used = 0;
	h->total = 0;
	h->key->n_blocks = 0;
}

static void hash_blocks(struct route_hash *h, const char *p, size_t n)
{
	struct route_key *key = h->key;
	uint64_t seed = key->n_blocks > 0 ? key->hashes[key->n_blocks - 1] : 0;

	n = MIN(n, h->max_blocks - key->n_blocks);
	if (n == 0 || h->err < 0)
		return;
	h->err = mem_grow(
		&key->hashes, &key->cap_blocks, key->n_blocks + n, sizeof(*key->hashes));
	if (h->err < 0)
		return;
	hash_chain(p, n, h->block_bytes, seed, key->hashes + key->n_blocks);
	key->n_blocks += n;
}

void route_hash_flush(struct route_hash *h)
{
	size_t n = h->used / h->block_bytes, done = n * h->block_bytes;

	if (n == 0)
		return;
	hash_blocks(h, h->stage, n);
	h->used -= done;
	memmove(h->stage, h->stage + done, h->used);
}

static void stage_bytes(struct route_hash *h, const char *p, size_t n)
{
	while (n > 0) {
		size_t take;

		if (h->used >= h->stage_bytes)
			route_hash_flush(h);
		take = MIN(n, h->stage_bytes - h->used);
		memcpy(h->stage + h->used, p, take);
		h->used += take;
		p += take;
		n -= take;
	}
}

void route_hash_long(struct route_hash *h, const char *p, size_t n)
{
	size_t edge, whole;

	h->total += n;
	if (n < ROUTE_IN_PLACE_BYTES || n < 2 * h->block_bytes) {
		stage_bytes(h, p, n);
		return;
	}
	route_hash_flush(h);
	edge = h->used > 0 ? h->block_bytes - h->used : 0;
	stage_bytes(h, p, edge);
	route_hash_flush(h);
	whole = (n - edge) / h->block_bytes;
	hash_blocks(h, p + edge, whole);
	edge += whole * h->block_bytes;
	stage_bytes(h, p + edge, n - edge);
}

void route_hash_string(struct route_hash *h, struct span raw, bool escaped)
{
	if (!escaped) {
		route_hash_bytes(h, raw.p, raw.n);
		return;
	}
	while (raw.n > 0) {
		size_t n = json_decode(&raw, h->stage + h->used,
			h->stage_bytes + 2 * JSON_DECODE_SLACK - h->used);

		h->used += n;
		h->total += n;
		route_hash_flush(h);
	}
}

static uint64_t digest_escaped(struct span raw)
{
	struct hash_stream stream;
	char decoded[4096];

	hash_stream_init(&stream, 0);
	while (raw.n > 0) {
		size_t n = json_decode(&raw, decoded, sizeof(decoded));

		hash_stream_add(&stream, decoded, n);
	}
	return hash_stream_end(&stream);
}

void route_hash_digest(struct route_hash *h, struct span raw, bool escaped, size_t n)
{
	uint64_t digest = escaped ? digest_escaped(raw) : hash64(raw.p, raw.n, 0);
	size_t have = ROUTE_DIGEST_BYTES;
	char pattern[PATTERN_BYTES];

	assert(n % ROUTE_DIGEST_BYTES == 0);
	for (unsigned i = 0; i < ROUTE_DIGEST_BYTES; i++)
		pattern[i] = (char)(digest >> (8 * i));
	for (; have < n && have < PATTERN_BYTES; have *= 2)
		memcpy(pattern + have, pattern, have);
	for (; n > have; n -= have)
		route_hash_bytes(h, pattern, have);
	route_hash_bytes(h, pattern, n);
}

int route_hash_end(struct route_hash *h)
{
	route_hash_flush(h);
	if (h->keeps_short && h->key->n_blocks == 0 && h->used > 0) {
		h->block_bytes = h->used;
		hash_blocks(h, h->stage, 1);
	}
	h->key->prompt_units = h->key->unit == 't' ? h->total / 4 : h->total;
	if (h->stage != h->own)
		free(h->stage);
	return h->err;
}
