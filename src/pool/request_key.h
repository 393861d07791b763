/*
 * The route key of a request: how much of its body is read for it, the pool it names, and
 * the blocks into which that pool cuts its prompt. Routing (src/proxy) and explain
 * (src/control) build their keys here and nowhere else, so that both see the same blocks
 * and depths. Pure.
 *
 *	request_key_body()	the head has come
 *	request_key_read()	the body has been scanned: its fields, and the pool they name
 *	request_key_hash()	the prompt's blocks as that pool wants them, sealed
 *	request_key_decode()	the same for decode, where decode cuts prompts otherwise
 */
#ifndef POOL_REQUEST_KEY_H
#define POOL_REQUEST_KEY_H

#include "base/base.h"
#include "base/span.h"
#include "pool/site.h"
#include "route/route_key.h"

/* The parts of the body that the key needs. */
struct request_key_body {
	bool is_awaited; /* site_reads_body(): nothing is decided before it is whole */
	/* It is scanned; where it is not awaited, only if it is whole with the head. */
	bool is_scanned;
};
struct request_key_body request_key_body(const struct site *s, const struct site_head *h);

/* Everything points into the request, and must live as long as the source. */
struct request_key_source {
	const struct site *site;
	struct route_scan *scan; /* fed the whole body; NULL: the body is not scanned */
	struct span body;
	bool is_body_awaited;
	/* X-Kvsteer-Model, -Lora-Path and -Cache-Salt; empty: absent. They count where
	 * the body is not awaited or not scanned, and the model also where the body names none. */
	struct span model, lora, cache_salt;
};

/*
 * The fields of key, with the target in place of *alias (NULL: it is none); and *pool: the
 * one that serves its model, NULL: none does, or no model is named and several pools might
 * be meant. Hashes that the client sent (route_key_from_header() came first) stay.
 * ERR_NOMEM.
 */
int request_key_read(const struct request_key_source *src, struct route_key *key,
	struct pool **pool, const struct site_alias **alias) MUST_CHECK;

/*
 * After request_key_read(): the blocks as the pool's policies of all roles want them,
 * sealed for the tenant's salt. key->is_sealed stays false if neither head nor body
 * described the prompt; then nothing is looked up. ERR_NOMEM.
 */
int request_key_hash(const struct request_key_source *src, struct pool *pool,
	struct span tenant, struct route_key *key) MUST_CHECK;

/*
 * In a split pool whose decode workers cut prompts into other blocks than prefill's: a
 * key for decode, sealed. Else out->is_sealed stays false, and decode goes by the
 * request's key. ERR_NOMEM.
 */
int request_key_decode(const struct request_key_source *src, struct pool *pool,
	struct span tenant, const struct route_key *key,
	struct route_key *out) MUST_CHECK;

#endif
