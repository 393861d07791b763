/*
 * One pool: its life, its workers and options as they change. See pool.h.
 */
#include "pool/pool.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "pool/pool_state.h"
#include "worker/model_set.h"
#include "worker/worker.h"

#include <stdlib.h>

struct pool *pool_new(const char *name, const uint64_t boot_secret[2],
	const struct pool_ops *ops, void *arg)
{
	struct pool *p = aligned_alloc(CACHE_LINE, sizeof(*p));
	uint64_t seed;

	if (p == NULL)
		return NULL;
	memset(p, 0, sizeof(*p));
	p->name = strdup(name);
	if (p->name == NULL) {
		free(p);
		return NULL;
	}
	atomic_store(&p->refs, 1);
	p->boot_secret[0] = boot_secret[0];
	p->boot_secret[1] = boot_secret[1];
	p->ops = ops;
	p->arg = arg;
	pthread_mutex_init(&p->lock, NULL);
	queue_init(&p->queue);
	rng_secret(&seed, sizeof(seed));
	rng_seed(&p->rng, seed);
	return p;
}

void pool_seed(struct pool *p, uint64_t seed)
{
	pool_lock(p);
	rng_seed(&p->rng, seed);
	pool_unlock(p);
}

struct pool *pool_ref(struct pool *p)
{
	atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
	return p;
}

void pool_unref(struct pool *p)
{
	enum role r;

	if (p == NULL ||
		atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
		return;
	assert(p->registry.n == 0 && p->queue.n == 0);
	for (r = 0; r < ROLE_MAX; r++) {
		prefix_index_free(p->roles[r].index);
		policy_state_free(&p->roles[r].state);
	}
	pthread_mutex_destroy(&p->lock);
	free(p->candidates);
	free(p->depth);
	free(p->changes);
	free(p->name);
	free(p);
}

const char *pool_name(const struct pool *p)
{
	return p->name;
}

/* ---- workers come and go ---- */

static uint64_t capacity_blocks(const struct pool_role *r, uint64_t tokens)
{
	unsigned block = atomic_load(&r->prefix_block);

	if (tokens == 0 || block == 0)
		return 0;
	return MAX(tokens * TOKEN_BYTES / block, UINT64_C(1));
}

/* The configured size wins over the one that the worker says. */
static uint64_t capacity_tokens(const struct worker *w)
{
	return w->conf->capacity != 0 ? w->conf->capacity : w->pool.learned_tokens;
}

static void give_slot(struct pool *p, struct worker *w)
{
	struct pool_role *r = &p->roles[w->role];

	if (r->index == NULL || w->pool.index_slot != PREFIX_NO_SLOT)
		return;
	if (prefix_index_worker_add(r->index, capacity_blocks(r, capacity_tokens(w)),
		    &w->pool.index_slot) != 0)
		w->pool.index_slot = PREFIX_NO_SLOT; /* picked by load alone */
}

static void take_slot(struct pool *p, struct worker *w)
{
	if (w->pool.index_slot == PREFIX_NO_SLOT)
		return;
	prefix_index_worker_drop(p->roles[w->role].index, w->pool.index_slot);
	w->pool.index_slot = PREFIX_NO_SLOT;
}

static void note_change(struct pool *p, struct worker *w, bool is_added)
{
	/* Room was made before the registry was touched. */
	assert(p->n_changes < p->cap_changes);
	p->changes[p->n_changes++] = (struct change){worker_ref(w), is_added};
}

static void on_add(void *arg, struct worker *w)
{
	struct pool *p = arg;

	atomic_fetch_add(&p->n_workers[w->role], 1);
	give_slot(p, w);
	note_change(p, w, true);
}

static void on_remove(void *arg, struct worker *w)
{
	struct pool *p = arg;

	atomic_fetch_sub(&p->n_workers[w->role], 1);
	take_slot(p, w);
	policy_state_forget(&p->roles[w->role].state, w->stable_hash);
	note_change(p, w, false);
}

static const struct registry_ops registry_ops = {on_add, on_remove};

/* Scratch for `more` further workers. */
static int make_room(struct pool *p, size_t more)
{
	size_t want = p->registry.n + more + 1;

	if (mem_grow(&p->candidates, &p->cap_candidates, want, sizeof(*p->candidates)) !=
		0)
		return ERR_NOMEM;
	/* Slots may be sparse after removals: twice the workers that ever are together is
	 * grown again at need. */
	if (mem_grow(&p->depth, &p->cap_depth, 2 * want, sizeof(*p->depth)) != 0)
		return ERR_NOMEM;
	return mem_grow(&p->changes, &p->cap_changes, p->n_changes + 2 * want,
		sizeof(*p->changes));
}

static void tell_change(struct pool *p, const struct change *c)
{
	if (c->is_added && p->ops->on_worker_add != NULL)
		p->ops->on_worker_add(p->arg, p, c->worker);
	if (!c->is_added && p->ops->on_worker_remove != NULL)
		p->ops->on_worker_remove(p->arg, p, c->worker);
	worker_unref(c->worker);
}

/*
 * On the control thread, which alone changes the registry: the list cannot grow under us.
 * New workers come first: they may take over from removed ones, as ranks do from the one
 * worker that was there.
 */
static void tell_changes(struct pool *p)
{
	size_t i, n = p->n_changes;

	p->n_changes = 0;
	for (i = 0; i < n; i++) {
		if (p->changes[i].is_added)
			tell_change(p, &p->changes[i]);
	}
	for (i = 0; i < n; i++) {
		if (!p->changes[i].is_added)
			tell_change(p, &p->changes[i]);
	}
}

static void reset_slots(struct pool *p, enum role role)
{
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		if (p->registry.items[i]->role == role)
			p->registry.items[i]->pool.index_slot = PREFIX_NO_SLOT;
	}
}

static bool needs_index(const struct role_opts *o)
{
	return policy_needs_index(&o->policy);
}

/* Whether a role's index is replaced: there is none yet, or its blocks change size. */
static bool needs_fresh_index(const struct pool_role *r, const struct role_opts *o)
{
	return needs_index(o) &&
	       (r->index == NULL || atomic_load(&r->prefix_block) != o->prefix_block);
}

/* Returns the index that is used no more, or NULL. */
static struct prefix_index *configure_role(struct pool *p, enum role role,
	const struct role_opts *o, struct prefix_index *fresh, uint64_t now_ms)
{
	struct pool_role *r = &p->roles[role];
	struct prefix_index *old = NULL;

	r->index_opts = (struct prefix_index_opts){o->index_memory, o->prefix_ttl_ms};
	if (fresh != NULL || !needs_index(o)) {
		old = r->index;
		r->index = fresh;
		r->index_epoch += fresh != NULL;
		reset_slots(p, role);
	} else {
		prefix_index_configure(r->index, &r->index_opts, now_ms);
	}
	r->policy = o->policy;
	atomic_store(&r->load_source, (int)o->load_source);
	atomic_store(&r->no_worker_wait_ms, o->worker.no_worker_wait_ms);
	r->retry_percent = o->worker.retry_budget;
	atomic_store(&r->prefix_block, o->prefix_block);
	atomic_store(&r->short_prompts, o->short_prompts);
	atomic_store(&r->last_resort, o->worker.last_resort);
	atomic_store(&r->wants, policy_wants(&o->policy));
	atomic_store(
		&r->prefix_tokens, (policy_wants(&o->policy) & POLICY_WANTS_PREFIX) != 0
					   ? o->policy.affinity_hash_tokens
					   : 0);
	return old;
}

static void refresh_slots(struct pool *p)
{
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];
		struct pool_role *r = &p->roles[w->role];

		give_slot(p, w);
		if (w->pool.index_slot != PREFIX_NO_SLOT)
			prefix_index_worker_capacity(r->index, w->pool.index_slot,
				capacity_blocks(r, capacity_tokens(w)));
	}
}

struct pool_plan {
	struct pool *pool; /* a reference */
	const struct pool_conf *conf;
	struct registry_plan *registry;
	struct prefix_index *fresh[ROLE_MAX];
};

void pool_abandon(struct pool_plan *plan)
{
	enum role r;

	if (plan == NULL)
		return;
	for (r = 0; r < ROLE_MAX; r++)
		prefix_index_free(plan->fresh[r]);
	registry_abandon(plan->registry);
	pool_unref(plan->pool);
	free(plan);
}

static int prepare_indexes(struct pool_plan *plan)
{
	enum role r;

	for (r = 0; r < ROLE_MAX; r++) {
		const struct role_opts *o = &plan->conf->roles[r];
		struct prefix_index_opts opts = {o->index_memory, o->prefix_ttl_ms};

		if (!needs_fresh_index(&plan->pool->roles[r], o))
			continue;
		plan->fresh[r] = prefix_index_new(&opts);
		if (plan->fresh[r] == NULL)
			return ERR_NOMEM;
	}
	return 0;
}

static int prepare_workers(struct pool_plan *plan, const struct conf *conf)
{
	struct pool *p = plan->pool;
	const struct worker_conf **list = calloc(conf->n_workers + 1, sizeof(*list));
	size_t i, n = 0, ranks = 0;
	int err;

	if (list == NULL)
		return ERR_NOMEM;
	for (i = 0; i < conf->n_workers; i++) {
		if (strcmp(conf->workers[i].pool, p->name) != 0)
			continue;
		list[n++] = &conf->workers[i];
		ranks += registry_ranks(&conf->workers[i]);
	}
	pool_lock(p);
	err = make_room(p, ranks);
	pool_unlock(p);
	if (err == 0)
		err = registry_prepare(&p->registry, list, n, &plan->registry);
	free(list);
	return err;
}

int pool_prepare(struct pool *p, const struct pool_conf *pc, const struct conf *conf,
	struct pool_plan **out)
{
	struct pool_plan *plan = calloc(1, sizeof(*plan));
	int err;

	if (plan == NULL)
		return ERR_NOMEM;
	plan->pool = pool_ref(p);
	plan->conf = pc;
	err = prepare_indexes(plan);
	if (err == 0)
		err = prepare_workers(plan, conf);
	if (err != 0)
		pool_abandon(plan);
	else
		*out = plan;
	return err;
}

void pool_commit(struct pool_plan *plan, uint64_t now_ms)
{
	struct pool *p = plan->pool;
	struct prefix_index *fresh;
	enum role r;

	pool_lock(p);
	for (r = 0; r < ROLE_MAX; r++) {
		fresh = take_ptr(plan->fresh[r]);
		/* The replaced state is freed with the plan, outside the lock. */
		plan->fresh[r] =
			configure_role(p, r, &plan->conf->roles[r], fresh, now_ms);
	}
	atomic_store(&p->connector, (int)plan->conf->roles[ROLE_PREFILL].kv_connector);
	atomic_store(&p->passes_transfers,
		plan->conf->roles[ROLE_UNIFIED].kv_params == KV_PARAMS_PASS);
	atomic_store(&p->has_connector,
		plan->conf->roles[ROLE_UNIFIED].kv_connector != CONNECTOR_NONE);
	registry_commit(&p->registry, take_ptr(plan->registry), &registry_ops, p);
	refresh_slots(p);
	pool_unlock(p);
	pool_refresh_policies(p);
	tell_changes(p);
	pool_abandon(plan);
}

size_t pool_plan_new(const struct pool_plan *plan)
{
	return registry_plan_new(plan->registry);
}

static int announce(struct pool *p, size_t n)
{
	return p->ops->make_room != NULL ? p->ops->make_room(p->arg, n) : 0;
}

int pool_update(struct pool *p, const struct pool_conf *pc, const struct conf *conf,
	uint64_t now_ms)
{
	struct pool_plan *plan;
	int err = pool_prepare(p, pc, conf, &plan);

	if (err != 0)
		return err;
	err = announce(p, pool_plan_new(plan));
	if (err == 0)
		pool_commit(plan, now_ms);
	else
		pool_abandon(plan);
	return err;
}

int pool_add_worker(struct pool *p, const struct worker_conf *c)
{
	int err = announce(p, registry_ranks(c));

	if (err != 0)
		return err;
	pool_lock(p);
	err = make_room(p, registry_ranks(c));
	if (err == 0)
		err = registry_add(&p->registry, c, &registry_ops, p);
	pool_unlock(p);
	pool_refresh_policies(p);
	tell_changes(p);
	return err;
}

/* Room for telling of as many as there are was made when they came. */
int pool_remove_worker(struct pool *p, struct span name)
{
	int err;

	pool_lock(p);
	err = registry_remove(&p->registry, name, &registry_ops, p);
	pool_unlock(p);
	pool_refresh_policies(p);
	tell_changes(p);
	return err;
}

void pool_close(struct pool *p)
{
	pool_lock(p);
	registry_free(&p->registry, &registry_ops, p);
	pool_unlock(p);
	tell_changes(p);
}

/* ---- what others ask ---- */

struct worker *pool_find(struct pool *p, struct span name)
{
	struct worker *w;

	pool_lock(p);
	w = registry_find(&p->registry, name);
	if (w != NULL)
		worker_ref(w);
	pool_unlock(p);
	return w;
}

bool pool_has_name(struct pool *p, struct span name)
{
	bool found;

	pool_lock(p);
	found = registry_has(&p->registry, name);
	pool_unlock(p);
	return found;
}

uint64_t pool_generation(const struct pool *p)
{
	return atomic_load_explicit(&p->generation, memory_order_acquire);
}

uint64_t pool_bump_generation(struct pool *p)
{
	uint64_t generation;

	/* A pick sees one generation from its match to its insertion. */
	pool_lock(p);
	generation = atomic_fetch_add(&p->generation, 1) + 1;
	pool_unlock(p);
	return generation;
}

void pool_set_generation(struct pool *p, uint64_t generation)
{
	pool_lock(p);
	atomic_store(&p->generation, generation);
	pool_unlock(p);
}

void pool_clear_worker(struct pool *p, struct worker *w)
{
	pool_lock(p);
	adapters_forget(&w->pool.adapters);
	if (w->pool.index_slot != PREFIX_NO_SLOT)
		prefix_index_worker_clear(p->roles[w->role].index, w->pool.index_slot);
	pool_unlock(p);
}

void pool_clear_host(struct pool *p, const struct worker *w)
{
	size_t i;

	pool_lock(p);
	for (i = 0; i < p->registry.n; i++) {
		const struct worker *rank = p->registry.items[i];

		if (rank->host_id == w->host_id &&
			rank->pool.index_slot != PREFIX_NO_SLOT)
			prefix_index_worker_clear(
				p->roles[rank->role].index, rank->pool.index_slot);
	}
	pool_unlock(p);
}

bool pool_has_hosts(struct pool *p)
{
	bool has = false;
	size_t i;

	pool_lock(p);
	for (i = 1; i < p->registry.n && !has; i++)
		has = p->registry.items[i]->host_id != p->registry.items[0]->host_id;
	pool_unlock(p);
	return has;
}

void pool_worker_capacity(struct pool *p, struct worker *w, uint64_t tokens)
{
	struct pool_role *r = &p->roles[w->role];

	if (w->pool.learned_tokens == tokens)
		return; /* this thread alone writes it */
	pool_lock(p);
	w->pool.learned_tokens = tokens;
	if (w->pool.index_slot != PREFIX_NO_SLOT)
		prefix_index_worker_capacity(r->index, w->pool.index_slot,
			capacity_blocks(r, capacity_tokens(w)));
	pool_unlock(p);
}

static bool do_lists_differ(const struct pool *p)
{
	const struct model_set *first = NULL;
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		const struct model_set *s = p->registry.items[i]->pool.models;

		if (s == NULL)
			continue;
		first = first != NULL ? first : s;
		if (!model_set_is_same(first, s))
			return true;
	}
	return false;
}

void pool_set_models(struct pool *p, struct worker *w, struct model_set *models)
{
	struct model_set *old;

	pool_lock(p);
	old = w->pool.models;
	w->pool.models = model_set_ref(models);
	atomic_store(&p->lists_differ, do_lists_differ(p));
	pool_unlock(p);
	model_set_unref(old);
}

static bool lists_adapters(const struct pool *p)
{
	size_t i;

	for (i = 0; i < p->registry.n; i++)
		if (p->registry.items[i]->pool.adapters_listed != NULL)
			return true;
	return false;
}

void pool_set_adapters(struct pool *p, struct worker *w, struct model_set *adapters)
{
	struct model_set *old;

	pool_lock(p);
	old = w->pool.adapters_listed;
	w->pool.adapters_listed = model_set_ref(adapters);
	atomic_store(&p->has_adapters, lists_adapters(p));
	pool_unlock(p);
	model_set_unref(old);
}

bool pool_has_adapters(const struct pool *p)
{
	return atomic_load_explicit(&p->has_adapters, memory_order_relaxed);
}

void pool_adapters_reported(
	struct pool *p, struct worker *w, const struct adapters_report *report)
{
	pool_lock(p);
	adapters_reported(&w->pool.adapters, report);
	pool_unlock(p);
}

bool pool_lists_model(struct pool *p, struct span model)
{
	uint64_t hash = model_hash(model);
	bool found = false;
	size_t i;

	pool_lock(p);
	for (i = 0; i < p->registry.n && !found; i++)
		found = model_set_has(p->registry.items[i]->pool.models, hash);
	pool_unlock(p);
	return found;
}

bool pool_lists_differ(const struct pool *p)
{
	return atomic_load_explicit(&p->lists_differ, memory_order_relaxed);
}

void pool_doubt_models(struct pool *p, uint64_t now_ms)
{
	atomic_store_explicit(&p->models_doubted_ms, now_ms, memory_order_relaxed);
}

uint64_t pool_models_doubted_ms(const struct pool *p)
{
	return atomic_load_explicit(&p->models_doubted_ms, memory_order_relaxed);
}
