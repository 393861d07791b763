/*
 * Questions of other modules to a pool, and its periodic work. See pool.h.
 */
#include "pool/pool_state.h"

#include "worker/worker.h"

#include <stdlib.h>

#define SWEEP_MAX 4096 /* expired entries a second under one lock hold */

static unsigned count(struct pool *p, enum role role, bool only_usable)
{
	unsigned n = 0;
	size_t i;

	pool_lock(p);
	for (i = 0; i < p->registry.n; i++) {
		const struct worker *w = p->registry.items[i];

		if (w->role == role && (!only_usable || worker_is_usable(w)))
			n++;
	}
	pool_unlock(p);
	return n;
}

unsigned pool_usable(struct pool *p, enum role role)
{
	return count(p, role, true);
}

unsigned pool_workers(struct pool *p, enum role role)
{
	return count(p, role, false);
}

bool pool_is_split(const struct pool *p)
{
	if (atomic_load_explicit(&p->n_workers[ROLE_DECODE], memory_order_relaxed) > 0)
		return true;
	return atomic_load_explicit(&p->n_workers[ROLE_PREFILL], memory_order_relaxed) >
		       0 &&
	       atomic_load_explicit(&p->n_workers[ROLE_UNIFIED], memory_order_relaxed) ==
		       0;
}

enum role pool_whole_role(const struct pool *p)
{
	return pool_is_split(p) ? ROLE_DECODE : ROLE_UNIFIED;
}

bool pool_find_role(struct pool *p, struct span name, enum role *role, uint64_t *kv_group)
{
	bool is_found = false;
	size_t i;

	pool_lock(p);
	for (i = 0; !is_found && i < p->registry.n; i++) {
		const struct worker *w = p->registry.items[i];

		if (!worker_has_name(w, name))
			continue;
		is_found = true;
		*role = w->role;
		*kv_group = worker_kv_group(w);
	}
	pool_unlock(p);
	return is_found;
}

enum kv_connector pool_connector(const struct pool *p)
{
	return (enum kv_connector)atomic_load_explicit(
		&p->connector, memory_order_relaxed);
}

bool pool_passes_transfers(const struct pool *p)
{
	return atomic_load_explicit(&p->passes_transfers, memory_order_relaxed);
}

bool pool_searches_bodies(const struct pool *p)
{
	if (pool_is_split(p))
		return true;
	return !pool_passes_transfers(p) &&
	       atomic_load_explicit(&p->has_connector, memory_order_relaxed);
}

void pool_set_engine(struct pool *p, struct worker *w, struct span id)
{
	if (id.n >= sizeof(w->pool.kv_engine))
		id.n = 0;
	if (span_is(id, w->pool.kv_engine))
		return; /* this thread alone writes it */
	pool_lock(p);
	if (id.n > 0)
		memcpy(w->pool.kv_engine, id.p, id.n);
	w->pool.kv_engine[id.n] = '\0';
	pool_unlock(p);
}

size_t pool_engine(struct pool *p, const struct worker *w, char out[KV_ENGINE_MAX])
{
	pool_lock(p);
	memcpy(out, w->pool.kv_engine, sizeof(w->pool.kv_engine));
	pool_unlock(p);
	return strlen(out);
}

bool pool_lacks_prefill(const struct pool *p)
{
	return atomic_load_explicit(&p->lacks_prefill, memory_order_relaxed);
}

bool pool_note_prefill(struct pool *p, bool is_lacking)
{
	if (pool_lacks_prefill(p) == is_lacking)
		return false;
	return atomic_exchange(&p->lacks_prefill, is_lacking) != is_lacking;
}

struct worker *pool_worker_at(const struct pool *p, size_t i)
{
	return i < p->registry.n ? p->registry.items[i] : NULL;
}

struct worker **pool_list(struct pool *p, size_t *n)
{
	struct worker **list;
	size_t i;

	*n = 0;
	pool_lock(p);
	list = p->registry.n > 0 ? calloc(p->registry.n, sizeof(*list)) : NULL;
	for (i = 0; list != NULL && i < p->registry.n; i++)
		list[(*n)++] = worker_ref(p->registry.items[i]);
	pool_unlock(p);
	return list;
}

uint64_t pool_worker_blocks(struct pool *p, const struct worker *w)
{
	uint64_t n = 0;

	pool_lock(p);
	if (w->pool.index_slot != PREFIX_NO_SLOT)
		n = prefix_index_worker_blocks(
			p->roles[w->role].index, w->pool.index_slot);
	pool_unlock(p);
	return n;
}

void pool_index_stats(struct pool *p, enum role role, struct prefix_index_stats *out)
{
	*out = (struct prefix_index_stats){0};
	pool_lock(p);
	if (p->roles[role].index != NULL)
		prefix_index_stats(p->roles[role].index, out);
	pool_unlock(p);
}

const char *pool_policy_name(const struct pool *p, enum role role)
{
	struct pool *unconst = (struct pool *)p;
	enum policy_kind kind;

	pool_lock(unconst);
	kind = p->roles[role].policy.policy;
	pool_unlock(unconst);
	return policy_name(kind);
}

static void roll_latencies(struct pool *p, uint64_t now_ms)
{
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];

		latency_roll(&w->pool.latency, &w->latency, now_ms);
	}
}

void pool_sweep(struct pool *p, uint64_t now_ms)
{
	enum role r;

	pool_retry_policies(p);
	pool_measure(p, now_ms);
	pool_judge_outliers(p);
	roll_latencies(p, now_ms);
	pool_lock(p);
	for (r = 0; r < ROLE_MAX; r++) {
		struct pool_role *role = &p->roles[r];

		if (role->index != NULL)
			prefix_index_sweep(role->index, now_ms, SWEEP_MAX);
		policy_state_sweep(&role->state, &role->policy, now_ms, SWEEP_MAX);
	}
	pool_unlock(p);
}

uint64_t pool_decisions(const struct pool *p, enum role role, enum pick_reason reason)
{
	struct pool *unconst = (struct pool *)p;
	uint64_t n;

	pool_lock(unconst);
	n = p->roles[role].decisions[reason];
	pool_unlock(unconst);
	return n;
}
