/*
 * The set of workers of one pool, in file order, updated by merge-join from a new list:
 * kept ones keep load, health and residency. A worker_conf with several data-parallel
 * ranks stands for as many workers, one after the other. Not locked here: the pool's lock
 * is held around update and around walks by I/O threads.
 */
#ifndef WORKER_REGISTRY_H
#define WORKER_REGISTRY_H

#include "base/base.h"
#include "base/span.h"

struct worker;
struct worker_conf;

struct registry_plan;

struct registry {
	struct worker **items; /* each a reference */
	size_t n, cap;
};

/* Called for each worker that comes or goes; the worker is in (or still in) the registry
 * then. */
struct registry_ops {
	void (*on_add)(void *arg, struct worker *w);
	void (*on_remove)(void *arg, struct worker *w);
};

/*
 * Makes the registry hold exactly confs (in that order), then those added by the admin
 * API, which survive. Same name, URL, role and rank: kept and reconfigured. Everything
 * that can fail happens in prepare (ERR_NOMEM: nothing changed); the commit cannot fail.
 * A plan is committed or abandoned, once, and the registry does not change in between.
 */
int registry_prepare(const struct registry *r, const struct worker_conf *const *confs,
	size_t n, struct registry_plan **out) MUST_CHECK;
void registry_commit(struct registry *r, struct registry_plan *plan,
	const struct registry_ops *ops, void *arg);
void registry_abandon(struct registry_plan *plan); /* NULL is fine */
/* How many workers of the plan are new. */
size_t registry_plan_new(const struct registry_plan *plan);
/* All ranks of c, or none: ERR_EXISTS (name), ERR_NOMEM. */
int registry_add(struct registry *r, const struct worker_conf *c,
	const struct registry_ops *ops, void *arg) MUST_CHECK;
/* Marks it draining and removed, takes it out; all ranks where name is a group's.
 * ERR_NOENT. */
int registry_remove(struct registry *r, struct span name, const struct registry_ops *ops,
	void *arg) MUST_CHECK;
struct worker *registry_find(
	const struct registry *r, struct span name); /* borrowed; NULL */
/* A worker or a group of ranks has this name. */
bool registry_has(const struct registry *r, struct span name);
/* How many workers a worker_conf stands for. */
unsigned registry_ranks(const struct worker_conf *c);
void registry_free(struct registry *r, const struct registry_ops *ops, void *arg);

#endif
