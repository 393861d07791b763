/*
 * One process behind one URL, as the control thread sees it: its worker, or its
 * data-parallel ranks, which are workers of one pool with the same address, key and
 * options. What is asked of it is asked once, not once for each rank.
 */
#ifndef FLEET_HOST_H
#define FLEET_HOST_H

#include "base/base.h"
#include "io/fetch.h"

struct pool;
struct worker;

struct host {
	struct pool *pool;       /* a reference */
	uint64_t id;             /* host_id of its workers */
	struct worker **workers; /* a reference to each; at least one */
	size_t n, cap;
	unsigned addr_turn; /* the address to ask: the next one after a failure */
};

void host_init(struct host *h, struct pool *p, struct worker *w);
void host_add(struct host *h, struct worker *w);
/* False: it was the last one, which is gone now too. */
bool host_drop(struct host *h, struct worker *w);
void host_free(struct host *h);

/* It is another process now: no cache, and what was held against the last one is past. */
void host_restarted(struct host *h);

/* The first of its workers: all have the same URL, options and addresses. */
static inline struct worker *host_worker(const struct host *h)
{
	return h->workers[0];
}

struct host_ask {
	const char *method; /* NULL: GET */
	const char *path;   /* behind the URL's base path */
	uint16_t port;      /* not the URL's: another server there, which is shown no key
			       and has no base path; 0: the URL's */
	size_t max_body;    /* 0: the body is not wanted */
	uint64_t timeout_ms;
};
/*
 * Asks the address that was checked, not the name once more, with the worker's key. NULL:
 * it has no address, or memory is short.
 */
struct fetch *host_fetch(const struct host *h, struct fetcher *f,
	const struct host_ask *ask, fetch_done_fn *fn, void *arg);

/* Answered with 2xx. */
bool host_said_yes(const struct fetch_answer *a);

#endif
