/*
 * Workers that come and go by a call, of the admin API or of the vLLM router's. Control
 * thread.
 */
#ifndef CONTROL_WORKER_CHANGE_H
#define CONTROL_WORKER_CHANGE_H

#include "base/base.h"

struct pool;
struct site;
struct worker;
struct worker_conf;

enum worker_added { WORKER_ADDED, WORKER_IS_TAKEN, WORKER_HAS_NO_POOL, WORKER_NO_MEMORY };

/* Adds it to its pool; else why not, for people. */
enum worker_added worker_change_add(
	const struct site *site, const struct worker_conf *wc, char *why, size_t n);
/* It gets no more requests; those in flight end. */
void worker_change_remove(struct pool *pool, struct worker *w);

#endif
