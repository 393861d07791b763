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

/* That rank of c; host_id is that of its ranks, or 0 when there are none. */
static struct worker *find_kept(const struct registry *r, const struct worker_conf *c,
	unsigned rank, uint64_t *host_id)
{
	struct worker *found = NULL;
	size_t i;

	for (i = 0; i < r->n; i++) {
		struct worker *w = r->items[i];

		if (!worker_same_identity(w, c))
			continue;
		*host_id = w->host_id;
		if (w->rank == rank)
			found = w;
	}
	return found;
}

static void drop_list(struct worker **list, size_t n)
{
	while (n > 0)
		worker_unref(list[--n]);
	free(list);
}

/* The new array: kept workers referenced once more, new ones made; nothing shared is
 * changed yet. */
static int build_ranks(
	const struct registry *r, const struct worker_conf *c, struct worker **list)
{
	unsigned rank;
	uint64_t host_id = 0;

	for (rank = 0; rank < registry_ranks(c); rank++) {
		struct worker *w = find_kept(r, c, rank, &host_id);

		list[rank] =
			w != NULL ? worker_ref(w) : worker_new_rank(c, rank, host_id);
		if (list[rank] == NULL)
			return ERR_NOMEM;
		host_id = list[rank]->host_id;
	}
	return 0;
}

static int build_list(const struct registry *r, const struct worker_conf *const *confs,
	size_t n, struct worker **list)
{
	size_t i, at = 0;
	int err = 0;

	for (i = 0; err == 0 && i < n; i++) {
		err = build_ranks(r, confs[i], &list[at]);
		at += registry_ranks(confs[i]);
	}
	return err;
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
static size_t append_api_workers(const struct registry *r, struct worker **list, size_t n)
{
	size_t i, total = n;

	for (i = 0; i < r->n; i++) {
		struct worker *w = r->items[i];

		if (w->origin == ORIGIN_API && !name_taken(list, n, w))
			list[total++] = worker_ref(w);
	}
	return total;
}

static size_t count_ranks(const struct worker_conf *const *confs, size_t n)
{
	size_t i, total = 0;

	for (i = 0; i < n; i++)
		total += registry_ranks(confs[i]);
	return total;
}

static int configure_kept(const struct registry *old,
	const struct worker_conf *const *confs, size_t n, struct worker **list)
{
	size_t i, at = 0;
	unsigned rank;
	int err = 0;

	for (i = 0; i < n; i++) {
		for (rank = 0; err == 0 && rank < registry_ranks(confs[i]); rank++) {
			struct worker *w = list[at++];

			if (list_has(old->items, old->n, w))
				err = worker_configure(w, confs[i]);
		}
	}
	return err;
}

int registry_update(struct registry *r, const struct worker_conf *const *confs, size_t n,
	const struct registry_ops *ops, void *arg)
{
	struct registry old = *r;
	size_t made = count_ranks(confs, n);
	struct worker **list = calloc(made + r->n + 1, sizeof(*list));
	size_t i, total;
	int err = 0;

	if (list == NULL)
		return ERR_NOMEM;
	err = build_list(r, confs, n, list);
	if (err == 0)
		err = configure_kept(&old, confs, n, list);
	if (err != 0) {
		drop_list(list, made);
		return err;
	}
	total = append_api_workers(&old, list, made);
	*r = (struct registry){list, total, made + old.n + 1};
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

/* The name of c, or one that its ranks would have. */
static bool is_name_taken(const struct registry *r, const struct worker_conf *c)
{
	size_t n = strlen(c->name), i;

	if (registry_has(r, span_str(c->name)))
		return true;
	for (i = 0; c->dp_size > 1 && i < r->n; i++) {
		const char *name = r->items[i]->name;
		uint64_t rank;

		if (strncmp(name, c->name, n) == 0 && name[n] == '@' &&
			span_to_u64(span_str(name + n + 1), &rank) == 0 &&
			rank < c->dp_size)
			return true;
	}
	return false;
}

int registry_add(struct registry *r, const struct worker_conf *c,
	const struct registry_ops *ops, void *arg)
{
	unsigned rank, n = registry_ranks(c);
	struct registry none = {0};
	struct worker **at;

	if (is_name_taken(r, c))
		return ERR_EXISTS;
	if (mem_grow(&r->items, &r->cap, r->n + n, sizeof(*r->items)) != 0)
		return ERR_NOMEM;
	at = &r->items[r->n];
	memset(at, 0, n * sizeof(*at));
	if (build_ranks(&none, c, at) != 0) {
		for (rank = 0; rank < n; rank++)
			worker_unref(at[rank]);
		return ERR_NOMEM;
	}
	r->n += n;
	for (rank = 0; rank < n; rank++)
		ops->on_add(arg, at[rank]);
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
