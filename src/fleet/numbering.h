/*
 * How an engine wants its data-parallel ranks to be numbered in requests. Engines of
 * several nodes are numbered across them in their metrics. One frontend of vLLM takes
 * these numbers in X-data-parallel-rank, the other one counts from 0 on each node. So
 * where the metrics begin with another number than the worker's ranks, and dp_start_rank
 * does not say which, the engine is asked for one token of its last rank, once for each
 * process. Control thread; called by health.c.
 */
#ifndef FLEET_NUMBERING_H
#define FLEET_NUMBERING_H

#include "base/base.h"

struct fetcher;
struct host;
struct js;
struct numbering;

/* host lives longer. on_done comes when an answer came, or none. NULL: out of memory. */
struct numbering *numbering_new(
	struct host *host, struct fetcher *f, void (*on_done)(void *arg), void *arg);
void numbering_free(struct numbering *n); /* NULL is fine */

/* It has ranks, and their numbers are not configured. */
bool numbering_is_open(const struct numbering *n);
/*
 * first: of its ranks, as its metrics say. models: as models_parse() made them; NULL:
 * not known. True: it is being asked, and on_done comes; false: nothing is left to ask.
 */
bool numbering_ask(struct numbering *n, unsigned first, const struct js *models);

#endif
