/*
 * One builder of route keys for routing and explain. See request_key.h.
 */
#include "pool/request_key.h"

struct request_key_body request_key_body(const struct site *s, const struct site_head *h)
{
	struct request_key_body use = {.is_awaited = site_reads_body(s, h)};
	bool is_remembered = h->is_pinned && !h->said.hashes_sent && s->needs_body_scan;

	/* A pin decides without the body, but the worker's cache keeps the prompt. */
	use.is_scanned =
		h->endpoint != ENDPOINT_OTHER && (use.is_awaited || is_remembered);
	return use;
}

static bool are_blocks_equal(
	const struct route_key_opts *a, const struct route_key_opts *b)
{
	return a->block_bytes == b->block_bytes && a->block_tokens == b->block_tokens;
}

/* As the policies of all roles want it; prefill's blocks where the roles differ. */
static void key_opts(const struct pool *p, struct route_key_opts *out)
{
	struct route_key_opts decode;

	if (!pool_is_split(p)) {
		pool_key_opts(p, ROLE_UNIFIED, out);
		return;
	}
	pool_key_opts(p, ROLE_PREFILL, out);
	pool_key_opts(p, ROLE_DECODE, &decode);
	if (out->skip_prompt)
		*out = decode;
	else if (!decode.skip_prompt && are_blocks_equal(out, &decode))
		out->max_blocks = out->max_blocks == 0 || decode.max_blocks == 0
					  ? 0
					  : MAX(out->max_blocks, decode.max_blocks);
}

static int build(const struct request_key_source *src, const struct route_key_opts *o,
	struct route_key *key)
{
	int err = route_key_build(src->scan, src->body.p, src->body.n, o, key);

	if (err == 0 && key->model.n == 0 && src->model.n > 0)
		err = route_key_say_model(key, src->model);
	return err;
}

static int build_for(
	const struct request_key_source *src, const struct pool *p, struct route_key *key)
{
	struct route_key_opts o;

	key_opts(p, &o);
	return build(src, &o, key);
}

/* An alias means its target, for the key and all else. NULL: it is none. */
static const struct site_alias *take_target(
	const struct request_key_source *src, struct route_key *key)
{
	const struct site_alias *a = site_alias(src->site, key->model);

	if (a != NULL)
		key->model = a->target;
	return a;
}

static bool has_one_pool(const struct request_key_source *src)
{
	return src->site->n_pools == 1;
}

/* With several pools, the fields must name one before its block size is known. */
static int read_body(const struct request_key_source *src, struct route_key *key)
{
	const struct route_key_opts fields_only = {.skip_prompt = true};

	if (has_one_pool(src))
		return build_for(src, src->site->pools[0], key);
	return build(src, &fields_only, key);
}

int request_key_read(const struct request_key_source *src, struct route_key *key,
	struct pool **pool, const struct site_alias **alias)
{
	int err = 0;

	if (src->scan == NULL || !src->is_body_awaited)
		err = route_key_say(key, src->model, src->lora, src->cache_salt);
	if (err == 0 && src->scan != NULL)
		err = read_body(src, key);
	*pool = site_pool_for(src->site, key->model);
	*alias = take_target(src, key);
	return err;
}

int request_key_hash(const struct request_key_source *src, struct pool *pool,
	struct span tenant, struct route_key *key)
{
	int err = 0;

	if (src->scan != NULL && !has_one_pool(src))
		err = build_for(src, pool, key);
	(void)take_target(src, key);
	if (err == 0 && (src->scan != NULL || key->hashes_sent))
		pool_seal_key(pool, key, tenant);
	return err;
}

int request_key_decode(const struct request_key_source *src, struct pool *pool,
	struct span tenant, const struct route_key *key, struct route_key *out)
{
	struct route_key_opts prefill, decode;
	int err;

	if (src->scan == NULL || key->hashes_sent || !pool_is_split(pool))
		return 0;
	pool_key_opts(pool, ROLE_PREFILL, &prefill);
	pool_key_opts(pool, ROLE_DECODE, &decode);
	if (prefill.skip_prompt || decode.skip_prompt ||
		are_blocks_equal(&prefill, &decode))
		return 0;
	err = build(src, &decode, out);
	(void)take_target(src, out);
	if (err == 0)
		pool_seal_key(pool, out, tenant);
	return err;
}
