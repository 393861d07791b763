/*
 * The merged answer to GET /v1/models: one OpenAI list over the healthy workers, ids
 * unique, first worker wins. Each worker's part is kept by health.c; the text is
 * published whole and copied under a lock, so that I/O threads never see half of one.
 */
#ifndef FLEET_MODELS_H
#define FLEET_MODELS_H

#include "base/span.h"

struct js;
struct models;

struct models *models_new(void);
void models_free(struct models *m); /* NULL is fine */

/*
 * The `data` of a worker's answer as a new array with the entries that have an id, for
 * js_free(); NULL when it is no such list.
 */
struct js *models_parse(struct span body);

/* True: all parsed answers together name one model, *id, which lives as long as they do.
 */
bool models_only(const struct js *const *parts, size_t n, struct span *id);

/* Publishes the list merged from n parsed answers (NULL ones count as empty), in order.
 */
void models_publish(struct models *m, const struct js *const *parts, size_t n);

/* Any thread: a copy of the text for free(). NULL: out of memory. */
char *models_copy(struct models *m, size_t *n);

#endif
