/*
 * A configuration and its pools as one snapshot. See site.h.
 */
#include "pool/site.h"

#include "base/err.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct pool *site_pool(const struct site *s, struct span name)
{
	size_t i;

	for (i = 0; s != NULL && i < s->n_pools; i++) {
		if (span_is(name, pool_name(s->pools[i])))
			return s->pools[i];
	}
	return NULL;
}

/* Whether some role of the pool must read the body, when the head says that much. */
static bool pool_reads_body(const struct pool_conf *pc, const struct policy_head *said)
{
	enum role r;

	for (r = 0; r < ROLE_MAX; r++) {
		if (policy_needs_body(policy_wants(&pc->roles[r].policy), said))
			return true;
	}
	return false;
}

static unsigned all_wants(const struct conf *c)
{
	unsigned wants = 0;
	size_t i;
	enum role r;

	for (i = 0; i < c->n_pools; i++) {
		for (r = 0; r < ROLE_MAX; r++)
			wants |= policy_wants(&c->pools[i].roles[r].policy);
	}
	return wants;
}

static bool needs_model(const struct conf *c)
{
	size_t i;

	if (c->n_pools > 1)
		return true;
	for (i = 0; i < c->n_pools; i++) {
		if (c->pools[i].models.n > 0)
			return true;
	}
	for (i = 0; i < c->n_workers; i++) {
		if (c->workers[i].models.n > 0)
			return true;
	}
	return false;
}

/* Some stream may have to be asked for anew, from the body that the client sent. */
static bool resumes_streams(const struct conf *c)
{
	size_t i;
	enum role r;

	for (i = 0; i < c->n_pools; i++) {
		for (r = 0; r < ROLE_MAX; r++) {
			if (c->pools[i].roles[r].worker.resume_streams)
				return true;
		}
	}
	for (i = 0; i < c->n_workers; i++) {
		if (c->workers[i].opts.resume_streams)
			return true;
	}
	return false;
}

static bool may_resume(const struct site *s, const struct site_head *h)
{
	return s->resumes_streams && !h->is_pinned &&
	       (h->endpoint == ENDPOINT_CHAT || h->endpoint == ENDPOINT_COMPLETIONS);
}

/* Its body is to be taken apart, or searched for what must not reach such workers. */
static bool must_be_searched(const struct site *s, const struct site_head *h)
{
	size_t i;

	for (i = 0; i < s->n_pools; i++) {
		if (pool_searches_bodies(s->pools[i]) &&
			(h->model.n == 0 || site_pool_for(s, h->model) == s->pools[i]))
			return true;
	}
	return false;
}

/* Pool or worker cannot be told without the model. */
static bool is_model_needed(const struct site *s)
{
	size_t i;

	for (i = 0; i < s->n_pools && !s->needs_model; i++) {
		if (pool_lists_differ(s->pools[i]) || pool_has_adapters(s->pools[i]))
			return true;
	}
	return s->needs_model;
}

bool site_reads_body(const struct site *s, const struct site_head *h)
{
	size_t i;

	if (must_be_searched(s, h))
		return true;
	/* Its model may have to be put in the place of an alias. */
	if (s->n_aliases > 0 && h->endpoint != ENDPOINT_OTHER)
		return true;

	/* What is continued lives on one worker: more than any policy has to say. */
	if (h->endpoint != ENDPOINT_OTHER && !h->is_pinned &&
		(h->finds_object || h->endpoint == ENDPOINT_RESPONSES))
		return true;
	if (may_resume(s, h))
		return true;
	if (h->endpoint == ENDPOINT_OTHER)
		return false;
	if (h->model.n == 0 && is_model_needed(s))
		return true;
	if (!s->needs_body_scan || h->is_pinned || h->endpoint == ENDPOINT_PLAIN)
		return false;
	for (i = 0; i < s->n_pools; i++) {
		if (site_pool_for(s, h->model) == s->pools[i])
			return pool_reads_body(&s->conf->pools[i], &h->said);
	}
	return false;
}

/* ---- aliases ---- */

static int compare_names(struct span a, struct span b)
{
	if (a.n != b.n)
		return a.n < b.n ? -1 : 1;
	return a.n > 0 ? memcmp(a.p, b.p, a.n) : 0;
}

static int by_name(const void *a, const void *b)
{
	return compare_names(((const struct site_alias *)a)->name,
		((const struct site_alias *)b)->name);
}

static int add_aliases(struct site *s)
{
	size_t i, j, n = 0;

	for (i = 0; i < s->n_pools; i++)
		n += s->conf->pools[i].aliases.n;
	if (n == 0)
		return 0;
	s->aliases = calloc(n, sizeof(*s->aliases));
	if (s->aliases == NULL)
		return ERR_NOMEM;
	for (i = 0; i < s->n_pools; i++) {
		const struct conf_list *list = &s->conf->pools[i].aliases;

		for (j = 0; j < list->n; j++) {
			struct conf_alias a = conf_alias(list->items[j]);

			s->aliases[s->n_aliases++] =
				(struct site_alias){a.name, a.target, s->pools[i]};
		}
	}
	qsort(s->aliases, s->n_aliases, sizeof(*s->aliases), by_name);
	return 0;
}

const struct site_alias *site_find_alias(const struct site *s, struct span name)
{
	const struct site_alias wanted = {.name = name};

	if (name.n == 0)
		return NULL;
	return bsearch(&wanted, s->aliases, s->n_aliases, sizeof(*s->aliases), by_name);
}

/* ---- life ---- */

static int add_pool(struct site *s, const struct pool_conf *pc, struct site *old,
	const struct site_opts *o, struct pool_plan **plan)
{
	struct pool *p = site_pool(old, span_str(pc->name));

	p = p != NULL ? pool_ref(p)
		      : pool_new(pc->name, o->boot_secret, o->pool_ops, o->pool_arg);
	if (p == NULL)
		return ERR_NOMEM;
	s->pools[s->n_pools++] = p;
	return pool_prepare(p, pc, s->conf, plan);
}

/* All pools change, or none does. */
static int add_pools(struct site *s, struct site *old, const struct site_opts *o)
{
	const struct conf *conf = s->conf;
	struct pool_plan **plans = calloc(conf->n_pools + 1, sizeof(struct pool_plan *));
	int err = plans == NULL ? ERR_NOMEM : 0;
	size_t i, n_new = 0;

	for (i = 0; err == 0 && i < conf->n_pools; i++) {
		err = add_pool(s, &conf->pools[i], old, o, &plans[i]);
		if (err == 0)
			n_new += pool_plan_new(plans[i]);
	}
	if (err == 0 && o->pool_ops->make_room != NULL)
		err = o->pool_ops->make_room(o->pool_arg, n_new);
	for (i = 0; plans != NULL && i < s->n_pools; i++) {
		if (err == 0)
			pool_commit(plans[i], o->now_ms);
		else
			pool_abandon(plans[i]);
	}
	free(plans);
	return err;
}

static int read_set(struct ip_set *set, const struct conf_list *list)
{
	return ip_set_init(set, list->items, list->n);
}

static int read_addresses(struct site *s, const struct router_opts *o)
{
	int err = read_set(&s->trusted, &o->trusted_proxies);

	if (err == 0)
		err = read_set(&s->allow, &o->allow);
	return err == 0 ? read_set(&s->deny, &o->deny) : err;
}

static int read_edit(struct http_edit *e, const struct conf_list *rules)
{
	return http_edit_init(e, rules->items, rules->n);
}

/* What the header of a request is judged by, and changed. */
static int read_rules(struct site *s, const struct router_opts *o)
{
	int err = read_addresses(s, o);

	if (err == 0)
		err = read_edit(&s->request_edit, &o->request_headers);
	return err == 0 ? read_edit(&s->response_edit, &o->response_headers) : err;
}

bool site_serves_address(const struct site *s, const struct ip *client)
{
	bool is_bounded = s->allow.n > 0 || s->allow.has_unix;

	return !ip_set_has(&s->deny, client) &&
	       (!is_bounded || ip_set_has(&s->allow, client));
}

struct site *site_new(struct conf *conf, struct site *old, const struct site_opts *o)
{
	struct site *s = calloc(1, sizeof(*s));
	int err;

	if (s == NULL)
		return NULL;
	atomic_store(&s->refs, 1);
	s->conf = conf_ref(conf);
	s->wants = all_wants(conf);
	s->needs_model = needs_model(conf);
	s->resumes_streams = resumes_streams(conf);
	s->needs_body_scan = s->wants != 0 || s->needs_model;
	s->pools = calloc(conf->n_pools + 1, sizeof(struct pool *));
	err = s->pools == NULL ? ERR_NOMEM : read_rules(s, &conf->router);
	if (err == 0)
		err = tenants_new(conf->client_keys, old != NULL ? old->tenants : NULL,
			&s->tenants);
	if (err == 0)
		err = add_pools(s, old, o);
	if (err == 0)
		err = add_aliases(s);
	if (err != 0) {
		site_retire(s, old);
		site_unref(s);
		return NULL;
	}
	return s;
}

struct site *site_ref(struct site *s)
{
	site_ref_many(s, 1);
	return s;
}

void site_ref_many(struct site *s, unsigned n)
{
	atomic_fetch_add_explicit(&s->refs, n, memory_order_relaxed);
}

void site_unref(struct site *s)
{
	if (s != NULL)
		site_unref_many(s, 1);
}

void site_unref_many(struct site *s, unsigned n)
{
	size_t i;

	if (n == 0 || atomic_fetch_sub_explicit(&s->refs, n, memory_order_acq_rel) != n)
		return;
	for (i = 0; i < s->n_pools; i++)
		pool_unref(s->pools[i]);
	free(s->pools);
	free(s->aliases);
	tenants_free(s->tenants);
	ip_set_free(&s->trusted);
	ip_set_free(&s->allow);
	ip_set_free(&s->deny);
	http_edit_free(&s->request_edit);
	http_edit_free(&s->response_edit);
	conf_unref(s->conf);
	free(s);
}

void site_retire(struct site *old, const struct site *next)
{
	size_t i;

	for (i = 0; old != NULL && i < old->n_pools; i++) {
		if (site_pool(next, span_str(pool_name(old->pools[i]))) == NULL)
			pool_close(old->pools[i]);
	}
}

/* NULL: there is none, or there are several. */
static struct pool *only_pool_for_all(const struct site *s)
{
	struct pool *found = NULL;
	size_t i;

	for (i = 0; i < s->n_pools; i++) {
		if (s->conf->pools[i].models.n > 0)
			continue;
		if (found != NULL)
			return NULL;
		found = s->pools[i];
	}
	return found;
}

/* No pool has another model than the first one that is known. */
static struct pool *pool_of_only_model(const struct site *s)
{
	char first[POOL_MODEL_MAX], other[POOL_MODEL_MAX];
	size_t n, i;

	n = pool_only_model(s->pools[0], first);
	for (i = 1; n > 0 && i < s->n_pools; i++) {
		if (pool_only_model(s->pools[i], other) != n ||
			memcmp(first, other, n) != 0)
			return NULL;
	}
	return n > 0 ? s->pools[0] : NULL;
}

static struct pool *pool_for_unnamed(const struct site *s)
{
	struct pool *p;

	if (s->n_pools <= 1)
		return s->n_pools == 1 ? s->pools[0] : NULL;
	p = only_pool_for_all(s);
	return p != NULL ? p : pool_of_only_model(s);
}

struct pool *site_pool_for(const struct site *s, struct span model)
{
	const struct site_alias *alias = site_alias(s, model);
	struct pool *first = NULL;
	size_t i;

	if (alias != NULL)
		return alias->pool;
	if (model.n == 0)
		return pool_for_unnamed(s);
	for (i = 0; i < s->n_pools; i++) {
		if (!conf_pool_serves(&s->conf->pools[i], model))
			continue;
		if (first != NULL && pool_lists_model(s->pools[i], model))
			return s->pools[i];
		if (first != NULL)
			continue;
		first = s->pools[i];
		if (i + 1 == s->n_pools || pool_lists_model(first, model))
			break;
	}
	return first;
}

bool site_finish_session(const struct site *s, struct span session)
{
	bool was_known = false;
	size_t i;

	for (i = 0; i < s->n_pools; i++)
		was_known |= pool_finish_session(s->pools[i], session);
	return was_known;
}
