/*
 * A configuration and the pools that serve it: the immutable, reference-counted snapshot
 * that a request begins and ends with. Pools are shared between snapshots by name, so
 * that loads, health and residency live through a reload.
 */
#ifndef POOL_SITE_H
#define POOL_SITE_H

#include "base/base.h"
#include "base/ip.h"
#include "conf/conf.h"
#include "http/http_edit.h"
#include "pool/pool.h"
#include "pool/tenant.h"

/* Another name for a model of a pool; points into the configuration. */
struct site_alias {
	struct span name, target;
	struct pool *pool;
};

struct site {
	_Atomic unsigned refs;
	struct conf *conf;   /* a reference */
	struct pool **pools; /* references, as conf->pools */
	size_t n_pools;
	struct ip_set trusted; /* trusted_proxies */
	struct ip_set allow, deny;
	struct http_edit request_edit, response_edit;
	struct tenants *tenants;    /* the clients that may send; NULL: all */
	bool needs_body_scan;       /* some pool chooses by prompt or model */
	unsigned wants;             /* enum policy_wants, of all its pools */
	bool resumes_streams;       /* of some worker */
	struct site_alias *aliases; /* by name: site_alias() */
	size_t n_aliases;
	bool needs_model; /* a request of no known model has no sure pool or worker */
};

struct site_opts {
	uint64_t boot_secret[2];
	const struct pool_ops *pool_ops;
	void *pool_arg;
	uint64_t now_ms;
};

/* Takes its own reference to conf; old may be NULL. Updates the pools that both share.
 * NULL: out of memory, and nothing changed. */
struct site *site_new(struct conf *conf, struct site *old, const struct site_opts *o);
struct site *site_ref(struct site *s);
void site_unref(struct site *s);
/* n references at once; none may be given back that is not there. */
void site_ref_many(struct site *s, unsigned n);
void site_unref_many(struct site *s, unsigned n);
/* Closes the pools of old that next (may be NULL) has no more. */
void site_retire(struct site *old, const struct site *next);
/*
 * The pool whose alias it is; else of the pools whose `models` match the first with a
 * worker that lists the model, else the first in file order; NULL: no pool serves it. An
 * empty model means the pool if there is one, else the only one without `models`, else the
 * first of those whose workers all have one and the same model; NULL: it is not clear.
 */
struct pool *site_pool_for(const struct site *s, struct span model);
/* By allow and deny. */
bool site_serves_address(const struct site *s, const struct ip *client);
struct pool *site_pool(const struct site *s, struct span name);
/* The alias of that name; NULL: there is none. Aliases live as long as the site. */
const struct site_alias *site_find_alias(const struct site *s, struct span name);
static inline const struct site_alias *site_alias(const struct site *s, struct span name)
{
	return s->n_aliases > 0 ? site_find_alias(s, name) : NULL;
}

/* The session lives on no worker of any pool any more; false: it did not. */
bool site_finish_session(const struct site *s, struct span session);

/* The parts of a request's head that decide its destination. */
struct site_head {
	enum route_endpoint endpoint;
	struct policy_head said; /* as far as site.wants asks for it */
	bool is_pinned;          /* to one worker, and pins count */
	struct span model;       /* X-Kvsteer-Model; empty: not said */
	bool finds_object;       /* the body may name an object that one worker keeps */
};
/*
 * True if pool or policy needs anything from the body. This is the one place that decides
 * it, for requests and for explain. If it is false, the body may be forwarded unread.
 */
bool site_reads_body(const struct site *s, const struct site_head *h);

#endif
