/*
 * The set of workers of one pool, updated by merge-join. See registry.h.
 */
#include "worker/registry.h"

#include "base/err.h"
#include "base/mem.h"
#include "worker/worker.h"

#include <stdlib.h>

struct worker *registry_find(const struct registry *r, struct span name)
{
	size_t i;

	for (i = 0; i < r->n; i++) {
		if (span_is(name, r->items[i]->name))
			return r->items[i];
	}
	return NULL;
}

static void retire(struct worker *w, const struct registry_ops *ops, void *arg)
{
	atomic_store(&w->is_draining, true);
	atomic_store(&w->is_removed, true);
	ops->on_remove(arg, w);
	worker_unref(w);
}

bool registry_has(const struct registry *r, struct span name)
{
	size_t i;

	for (i = 0; i < r->n; i++) {
		if (span_is(name, r->items[i]->name) || span_is(name, r->items[i]->group))
			return true;
	}
	return false;
}

unsigned registry_ranks(const struct worker_conf *c)
{
	return MAX(c->dp_size, 1u);
}

/* That rank of c. *sibling: another one behind its URL, one that does not drain first. */
static struct worker *find_kept(const struct registry *r, const struct worker_conf *c,
	unsigned rank, struct worker **sibling)
{
	struct worker *found = NULL;
	size_t i;

	for (i = 0; i < r->n; i++) {
		struct worker *w = r->items[i];

		if (!worker_is_sibling(w, c))
			continue;
		if (*sibling == NULL || atomic_load(&(*sibling)->is_draining))
			*sibling = w;
		if (worker_same_identity(w, c) && w->rank == rank)
			found = w;
	}
	return found;
}

/* The next list, and what its kept workers become; nothing shared is changed yet. */
struct registry_plan {
	struct worker **list;          /* each a reference */
	struct worker_change *changes; /* of list[i]; empty for a new one */
	size_t n, cap, n_new;
};

size_t registry_plan_new(const struct registry_plan *plan)
{
	return plan->n_new;
}

void registry_abandon(struct registry_plan *plan)
{
	if (plan == NULL)
		return;
	while (plan->n > 0) {
		worker_abandon(&plan->changes[--plan->n]);
		worker_unref(plan->list[plan->n]);
	}
	free(plan->list);
	free(plan->changes);
	free(plan);
}

/* Kept as w is, or (NULL) as a new worker. */
static int plan_worker(struct registry_plan *plan, struct worker *w,
	const struct worker_conf *c, unsigned rank, struct worker *sibling)
{
	struct worker_change change = {NULL, NULL, NULL};

	if (w != NULL && worker_prepare(w, c, &change) != 0)
		return ERR_NOMEM;
	plan->n_new += w == NULL;
	w = w != NULL ? worker_ref(w) : worker_new_rank(c, rank, sibling);
	if (w == NULL)
		return ERR_NOMEM;
	plan->changes[plan->n] = change;
	plan->list[plan->n++] = w;
	return 0;
}

static int plan_ranks(
	const struct registry *r, const struct worker_conf *c, struct registry_plan *plan)
{
	struct worker *sibling = NULL;
	unsigned rank = c->dp_start_rank, end = rank + registry_ranks(c);

	for (; rank < end; rank++) {
		struct worker *kept = find_kept(r, c, rank, &sibling);

		if (plan_worker(plan, kept, c, rank, sibling) != 0)
			return ERR_NOMEM;
		if (sibling == NULL)
			sibling = plan->list[plan->n - 1];
	}
	return 0;
}

static bool list_has(struct worker *const *list, size_t n, const struct worker *w)
{
	size_t i;

	for (i = 0; i < n; i++) {
		if (list[i] == w)
			return true;
	}
	return false;
}

static bool name_taken(struct worker *const *list, size_t n, const struct worker *w)
{
	size_t i;

	for (i = 0; i < n; i++) {
		if (strcmp(list[i]->name, w->name) == 0 ||
			strcmp(list[i]->group, w->group) == 0)
			return true;
	}
	return false;
}

/* Workers of the admin API live on, unless the file now gives their name to another. */
static void plan_api_workers(const struct registry *r, struct registry_plan *plan)
{
	size_t i, n = plan->n;

	for (i = 0; i < r->n; i++) {
		struct worker *w = r->items[i];

		if (w->origin == ORIGIN_API && !name_taken(plan->list, n, w))
			plan->list[plan->n++] = worker_ref(w);
	}
}

static size_t count_ranks(const struct worker_conf *const *confs, size_t n)
{
	size_t i, total = 0;

	for (i = 0; i < n; i++)
		total += registry_ranks(confs[i]);
	return total;
}

static struct registry_plan *plan_new(size_t cap)
{
	struct registry_plan *plan = calloc(1, sizeof(*plan));

	if (plan == NULL)
		return NULL;
	plan->cap = cap;
	plan->list = calloc(cap, sizeof(struct worker *));
	plan->changes = calloc(cap, sizeof(*plan->changes));
	if (plan->list != NULL && plan->changes != NULL)
		return plan;
	registry_abandon(plan);
	return NULL;
}

int registry_prepare(const struct registry *r, const struct worker_conf *const *confs,
	size_t n, struct registry_plan **out)
{
	struct registry_plan *plan = plan_new(count_ranks(confs, n) + r->n + 1);
	int err = plan == NULL ? ERR_NOMEM : 0;
	size_t i;

	for (i = 0; err == 0 && i < n; i++)
		err = plan_ranks(r, confs[i], plan);
	if (err != 0) {
		registry_abandon(plan);
		return err;
	}
	plan_api_workers(r, plan);
	*out = plan;
	return 0;
}

void registry_commit(struct registry *r, struct registry_plan *plan,
	const struct registry_ops *ops, void *arg)
{
	struct registry old = *r;
	size_t i;

	for (i = 0; i < plan->n; i++) {
		if (plan->changes[i].conf != NULL)
			worker_commit(plan->list[i], &plan->changes[i]);
	}
	*r = (struct registry){plan->list, plan->n, plan->cap};
	for (i = 0; i < old.n; i++) {
		if (list_has(r->items, r->n, old.items[i]))
			worker_unref(old.items[i]);
		else
			retire(old.items[i], ops, arg);
	}
	for (i = 0; i < r->n; i++) {
		if (!list_has(old.items, old.n, r->items[i]))
			ops->on_add(arg, r->items[i]);
	}
	free(old.items);
	free(plan->changes);
	free(plan);
}

/* The name of c, or one that its ranks would have. */
static bool is_name_taken(const struct registry *r, const struct worker_conf *c)
{
	size_t n = strlen(c->name), i;

	if (registry_has(r, span_str(c->name)))
		return true;
	for (i = 0; worker_conf_has_ranks(c) && i < r->n; i++) {
		const char *name = r->items[i]->name;
		uint64_t rank;

		if (strncmp(name, c->name, n) == 0 && name[n] == '@' &&
			span_to_u64(span_str(name + n + 1), &rank) == 0 &&
			worker_conf_has_rank(c, rank))
			return true;
	}
	return false;
}

int registry_add(struct registry *r, const struct worker_conf *c,
	const struct registry_ops *ops, void *arg)
{
	unsigned n = registry_ranks(c), i;
	struct registry none = {0};
	struct registry_plan *plan;
	size_t first = r->n;

	if (is_name_taken(r, c))
		return ERR_EXISTS;
	if (mem_grow(&r->items, &r->cap, r->n + n, sizeof(*r->items)) != 0 ||
		registry_prepare(&none, &c, 1, &plan) != 0)
		return ERR_NOMEM;
	for (i = 0; i < n; i++)
		r->items[r->n++] = worker_ref(plan->list[i]);
	registry_abandon(plan);
	for (i = 0; i < n; i++)
		ops->on_add(arg, r->items[first + i]);
	return 0;
}

int registry_remove(
	struct registry *r, struct span name, const struct registry_ops *ops, void *arg)
{
	size_t i = 0, before = r->n;

	while (i < r->n) {
		struct worker *w = r->items[i];

		if (!worker_has_name(w, name)) {
			i++;
			continue;
		}
		memmove(&r->items[i], &r->items[i + 1],
			(r->n - i - 1) * sizeof(*r->items));
		r->n--;
		retire(w, ops, arg);
	}
	return r->n < before ? 0 : ERR_NOENT;
}

void registry_free(struct registry *r, const struct registry_ops *ops, void *arg)
{
	size_t i;

	for (i = 0; i < r->n; i++)
		retire(r->items[i], ops, arg);
	free(r->items);
	*r = (struct registry){0};
}
