/*
 * The set of workers of one pool, updated by merge-join. See registry.h.
 */
#include "model/registry.h"

#include "base/err.h"
#include "base/mem.h"
#include "model/worker.h"

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

static struct worker *find_kept(const struct registry *r, const struct worker_conf *c)
{
	struct worker *w = registry_find(r, span_str(c->name));

	return w != NULL && worker_same_identity(w, c) ? w : NULL;
}

static void drop_list(struct worker **list, size_t n)
{
	while (n > 0)
		worker_unref(list[--n]);
	free(list);
}

/* The new array: kept workers referenced once more, new ones made; nothing shared is
 * changed yet. */
static int build_list(const struct registry *r, const struct worker_conf *const *confs,
	size_t n, struct worker **list)
{
	size_t i;

	for (i = 0; i < n; i++) {
		struct worker *w = find_kept(r, confs[i]);

		list[i] = w != NULL ? worker_ref(w) : worker_new(confs[i]);
		if (list[i] == NULL)
			return ERR_NOMEM;
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

static bool name_taken(struct worker *const *list, size_t n, const char *name)
{
	size_t i;

	for (i = 0; i < n; i++) {
		if (strcmp(list[i]->name, name) == 0)
			return true;
	}
	return false;
}

/* Workers of the admin API live on, unless the file now gives their name to another. */
static size_t append_api_workers(const struct registry *r, struct worker **list, size_t n)
{
	size_t i, total = n;

	for (i = 0; i < r->n; i++) {
		struct worker *w = r->items[i];

		if (w->origin == ORIGIN_API && !name_taken(list, n, w->name))
			list[total++] = worker_ref(w);
	}
	return total;
}

int registry_update(struct registry *r, const struct worker_conf *const *confs, size_t n,
	const struct registry_ops *ops, void *arg)
{
	struct registry old = *r;
	struct worker **list = calloc(n + r->n + 1, sizeof(*list));
	size_t i, total;
	int err = 0;

	if (list == NULL)
		return ERR_NOMEM;
	err = build_list(r, confs, n, list);
	for (i = 0; err == 0 && i < n; i++) {
		if (list_has(old.items, old.n, list[i]))
			err = worker_configure(list[i], confs[i]);
	}
	if (err != 0) {
		drop_list(list, n);
		return err;
	}
	total = append_api_workers(&old, list, n);
	*r = (struct registry){list, total, n + old.n + 1};
	for (i = 0; i < old.n; i++) {
		if (list_has(list, total, old.items[i]))
			worker_unref(old.items[i]);
		else
			retire(old.items[i], ops, arg);
	}
	for (i = 0; i < total; i++) {
		if (!list_has(old.items, old.n, list[i]))
			ops->on_add(arg, list[i]);
	}
	free(old.items);
	return 0;
}

int registry_add(struct registry *r, const struct worker_conf *c,
	const struct registry_ops *ops, void *arg)
{
	struct worker *w;

	if (registry_find(r, span_str(c->name)) != NULL)
		return ERR_EXISTS;
	if (mem_grow(&r->items, &r->cap, r->n + 1, sizeof(*r->items)) != 0)
		return ERR_NOMEM;
	w = worker_new(c);
	if (w == NULL)
		return ERR_NOMEM;
	r->items[r->n++] = w;
	ops->on_add(arg, w);
	return 0;
}

int registry_remove(
	struct registry *r, struct span name, const struct registry_ops *ops, void *arg)
{
	struct worker *w = registry_find(r, name);
	size_t i;

	if (w == NULL)
		return ERR_NOENT;
	for (i = 0; r->items[i] != w; i++)
		;
	memmove(&r->items[i], &r->items[i + 1], (r->n - i - 1) * sizeof(*r->items));
	r->n--;
	retire(w, ops, arg);
	return 0;
}

void registry_free(struct registry *r, const struct registry_ops *ops, void *arg)
{
	size_t i;

	for (i = 0; i < r->n; i++)
		retire(r->items[i], ops, arg);
	free(r->items);
	*r = (struct registry){0};
}
