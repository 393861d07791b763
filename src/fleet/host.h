/*
 * One process behind one URL, as the control thread sees it: its worker, or its
 * data-parallel ranks, which are workers of one pool with the same address, key and
 * options. Each question is asked once, not once for each rank.
 */
#ifndef FLEET_HOST_H
#define FLEET_HOST_H

#include "base/base.h"
#include "base/list.h"
#include "io/fetch.h"

struct pool;
struct worker;

/* The place of a worker in its host. The caller of host_add owns it. */
struct host_seat {
	STAILQ_ENTRY(host_seat) link;
	struct worker *worker; /* a reference */
};

struct host {
	struct pool *pool;              /* a reference */
	uint64_t id;                    /* host_id of its workers */
	STAILQ_HEAD(, host_seat) seats; /* in the order in which they came */
	size_t n;
	unsigned restarts;  /* that were noticed */
	unsigned addr_turn; /* the address to ask: the next one after a failure */
};

#define HOST_FOREACH(seat, h) STAILQ_FOREACH (seat, &(h)->seats, link)

void host_init(struct host *h, struct pool *p, uint64_t id);
void host_add(struct host *h, struct host_seat *seat, struct worker *w);
/* Lets go of w. Returns the seat that is free now, or NULL where w had none. */
struct host_seat *host_drop(struct host *h, struct worker *w);
/* Lets go of the pool and of every worker. */
void host_clear(struct host *h);

/* The process was restarted: its cache is empty, and earlier failures count no more. */
void host_restarted(struct host *h);

/* The first of its workers, of which there is one: all have the same URL, options and
 * addresses. */
static inline struct worker *host_worker(const struct host *h)
{
	return STAILQ_FIRST(&h->seats)->worker;
}

#define HOST_FIELDS_MAX 5

struct host_ask {
	const char *method; /* NULL: GET */
	const char *path;   /* behind the URL's base path */
	uint16_t port;      /* not the URL's: another server there, which is shown no key
			       and has no base path; 0: the URL's */
	struct span body;   /* to send, as JSON; may be empty */
	bool body_stays;    /* as in struct fetch_request */
	const char *fields[HOST_FIELDS_MAX]; /* more headers; those that are NULL do not
						count */
	bool hides_key;                      /* the worker is not shown its own key */
	size_t max_body;                     /* 0: the body is not wanted */
	bool cuts_body;                      /* a longer one is cut there */
	uint64_t timeout_ms, connect_timeout_ms;
};
/*
 * Asks the address that was checked, without another look-up, and with the worker's key.
 * NULL: it has no address, or memory is short.
 */
struct fetch *host_fetch(const struct host *h, struct fetcher *f,
	const struct host_ask *ask, fetch_done_fn *fn, void *arg);

/* Answered with 2xx. */
bool host_said_yes(const struct fetch_answer *a);

#endif
