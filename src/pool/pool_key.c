/*
 * How a pool keys prompts: what its policies read of them, and the secrets that are mixed
 * into their hashes. See pool.h.
 */
#include "pool/pool.h"

#include "base/hash.h"
#include "pool/pool_state.h"

#define BLOCK_TOKENS 32 /* unit 't' */

unsigned pool_wants(const struct pool *p, enum role role)
{
	return atomic_load_explicit(&p->roles[role].wants, memory_order_relaxed);
}

bool pool_needs_key(const struct pool *p, enum role role)
{
	return (pool_wants(p, role) & (POLICY_WANTS_PROMPT | POLICY_WANTS_PREFIX)) != 0;
}

enum load_source pool_load_source(const struct pool *p, enum role role)
{
	return (enum load_source)atomic_load_explicit(
		&p->roles[role].load_source, memory_order_relaxed);
}

static unsigned prefix_tokens(const struct pool *p, enum role role)
{
	return atomic_load_explicit(&p->roles[role].prefix_tokens, memory_order_relaxed);
}

void pool_key_opts(const struct pool *p, enum role role, struct route_key_opts *out)
{
	unsigned wants = pool_wants(p, role), tokens = prefix_tokens(p, role);

	*out = (struct route_key_opts){
		.block_bytes = atomic_load_explicit(
			&p->roles[role].prefix_block, memory_order_relaxed),
		.block_tokens = BLOCK_TOKENS,
		.keeps_short = atomic_load_explicit(
			&p->roles[role].short_prompts, memory_order_relaxed),
		.skip_prompt = (wants & (POLICY_WANTS_PROMPT | POLICY_WANTS_PREFIX)) == 0,
	};
	if ((wants & POLICY_WANTS_PROMPT) == 0 && tokens > 0)
		out->max_blocks =
			MAX(routing_prefix_blocks(tokens, 'b', out->block_bytes),
				routing_prefix_blocks(tokens, 't', BLOCK_TOKENS));
}

/* Before the hashes are sealed: what routers with other secrets see as well. */
static void note_beginnings(
	const struct pool *p, struct route_key *key, const struct route_salt *salt)
{
	enum role r;

	static_assert(ROUTE_ROLES_MAX == (int)ROLE_MAX, "a place for each role");
	for (r = 0; r < ROLE_MAX; r++) {
		unsigned tokens = prefix_tokens(p, r);

		key->beginning[r].is_known =
			tokens > 0 &&
			routing_prefix(key, salt, tokens, &key->beginning[r].hash);
	}
}

void pool_set_only_model(struct pool *p, struct span model)
{
	pool_lock(p);
	p->only_model_len = model.n <= POOL_MODEL_MAX ? model.n : 0;
	if (p->only_model_len > 0)
		memcpy(p->only_model, model.p, p->only_model_len);
	pool_unlock(p);
}

size_t pool_only_model(struct pool *p, char to[POOL_MODEL_MAX])
{
	size_t n;

	pool_lock(p);
	n = p->only_model_len;
	memcpy(to, p->only_model, n);
	pool_unlock(p);
	return n;
}

void pool_seal_key(struct pool *p, struct route_key *key, struct span tenant)
{
	char only[POOL_MODEL_MAX];
	struct route_salt salt = {
		.boot_secret = {p->boot_secret[0], p->boot_secret[1]},
		.model = key->model,
		.lora = key->lora,
		.cache_salt = key->cache_salt,
		.tenant = tenant,
		.generation = pool_generation(p),
		.unit = key->unit,
		.block = key->block,
	};
	uint64_t secret;
	size_t i;

	assert(!key->is_sealed);
	if (salt.model.n == 0)
		salt.model = span_make(only, pool_only_model(p, only));
	note_beginnings(p, key, &salt);
	secret = route_key_secret(&salt);
	for (i = 0; i < key->n_blocks; i++)
		key->hashes[i] = hash_mix64(key->hashes[i], secret);
	key->is_sealed = true;
	key->sealed_generation = salt.generation;
}
