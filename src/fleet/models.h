/*
 * The merged answer to GET /v1/models: one OpenAI list over the healthy workers, ids
 * unique, first worker wins. Each worker's part is kept by health.c; the text is
 * published whole and copied under a lock, so that I/O threads never see half of one.
 */
#ifndef FLEET_MODELS_H
#define FLEET_MODELS_H

#include "base/span.h"

#include <stdbool.h>

struct js;
struct models;

#define MODELS_MAX 4096 /* of one worker's list; the others do not count */

struct models *models_new(void);    /* NULL: out of memory */
void models_free(struct models *m); /* NULL is fine */

/*
 * The `data` of a worker's answer as a new array with the entries that have an id, for
 * js_free(); NULL when it is no such list. ERR_NOMEM: *list is as it was.
 */
int models_parse(struct span body, struct js **list) MUST_CHECK;

/* The names of a parsed answer; NULL of NULL. ERR_NOMEM. */
struct model_set;
int models_set(const struct js *part, struct model_set **out) MUST_CHECK;

/* Those of them that are LoRA adapters: they have a parent. NULL: none. ERR_NOMEM. */
int models_adapters(const struct js *part, struct model_set **out) MUST_CHECK;

/* The only model that several parsed answers name together. Begins zeroed. */
struct models_only {
	struct span id; /* lives as long as the answers; empty: none, or several */
	bool has_several;
};
/* A further answer; NULL counts as empty. */
void models_only_add(struct models_only *only, const struct js *part);

/* Publishes the list merged from n parsed answers (NULL ones count as empty), in order.
 * ERR_NOMEM: the last list stays. */
int models_publish(struct models *m, const struct js *const *parts, size_t n) MUST_CHECK;

/* Any thread: true if the published list has the model. */
bool models_has(struct models *m, struct span id);
/* Any thread: a copy of the text for free(). NULL: out of memory. */
char *models_copy(struct models *m, size_t *n);

#endif
