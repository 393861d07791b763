/*
 * Small exchanges that nobody waits for: a request that has ended leaves them behind.
 * Owned by their thread; bounded in number and time, and given up quietly: whatever they
 * ask for happens later by itself, too. Called by legs.c.
 */
#ifndef PROXY_ERRAND_H
#define PROXY_ERRAND_H

#include "base/base.h"
#include "base/span.h"

struct io_thread;
struct worker;

#define ERRANDS_MAX 256        /* of one thread */
#define ERRAND_TIMEOUT_MS 2000 /* for the connection, and then for the answer */

/*
 * POST /v1/kv/release to w, whose body, of n bytes, is taken. authorization: its value,
 * or empty.
 */
void errand_release(struct io_thread *t, struct worker *w, struct span authorization,
	char *body, size_t n);
/* The thread ends. */
void errand_cancel_all(struct io_thread *t);

#endif
