/*
 * Sorted hashes. See model_set.h.
 */
#include "worker/model_set.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct model_set {
	_Atomic unsigned refs;
	size_t n;
	uint64_t hashes[]; /* ascending */
};

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

struct model_set *model_set_new(const uint64_t *hashes, size_t n)
{
	struct model_set *s = malloc(sizeof(*s) + n * sizeof(*hashes));
	size_t i;

	if (s == NULL)
		return NULL;
	atomic_init(&s->refs, 1);
	s->n = 0;
	if (n > 0) {
		memcpy(s->hashes, hashes, n * sizeof(*hashes));
		qsort(s->hashes, n, sizeof(*hashes), compare);
	}
	for (i = 0; i < n; i++) {
		if (s->n == 0 || s->hashes[s->n - 1] != s->hashes[i])
			s->hashes[s->n++] = s->hashes[i];
	}
	return s;
}

struct model_set *model_set_ref(struct model_set *s)
{
	if (s != NULL)
		atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
	return s;
}

void model_set_unref(struct model_set *s)
{
	if (s != NULL &&
		atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1)
		free(s);
}

bool model_set_has(const struct model_set *s, uint64_t hash)
{
	return s != NULL &&
	       bsearch(&hash, s->hashes, s->n, sizeof(hash), compare) != NULL;
}

bool model_set_is_same(const struct model_set *a, const struct model_set *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return a->n == b->n &&
	       memcmp(a->hashes, b->hashes, a->n * sizeof(*a->hashes)) == 0;
}
