/*
 * The names of models that an engine lists, by their hashes. Immutable; lives by
 * reference count, since the ranks of one engine share it.
 */
#ifndef WORKER_MODEL_SET_H
#define WORKER_MODEL_SET_H

#include "base/base.h"
#include "base/hash.h"
#include "base/span.h"

struct model_set;

static inline uint64_t model_hash(struct span name)
{
	return hash64(name.p, name.n, 0);
}

/* Takes hashes in any order, of which several may be equal. NULL: out of memory. */
struct model_set *model_set_new(const uint64_t *hashes, size_t n);
/* Both take NULL. */
struct model_set *model_set_ref(struct model_set *s);
void model_set_unref(struct model_set *s);
bool model_set_has(const struct model_set *s, uint64_t hash);
bool model_set_is_same(const struct model_set *a, const struct model_set *b);

#endif
