/*
 * Small exchanges that nobody waits for: a request that has ended leaves them behind.
 * Owned by their thread; bounded in number and time, and given up quietly: whatever they
 * ask for happens later by itself, too. Called by prefill_decode.c.
 */
#ifndef PROXY_CLEANUP_H
#define PROXY_CLEANUP_H

#include "base/base.h"
#include "base/span.h"

struct exchange;
struct guard;
struct io_thread;
struct pool;
struct worker;

#define ERRANDS_MAX 256        /* of one thread */
#define ERRAND_TIMEOUT_MS 2000 /* for the connection, and then for the answer */

/*
 * POST /v1/kv/release to w, whose body, of n bytes, is taken. authorization: its value,
 * or empty.
 */
void errand_release(struct io_thread *t, struct worker *w, struct span authorization,
	char *body, size_t n);
/*
 * Reads the rest of an answer that nobody wants any more, and then drops its guard. *ex,
 * *g and body, what it sends or sent (NULL: nothing), are taken. has_head: its head was
 * read, and good.
 */
void errand_drain(struct io_thread *t, struct pool *p, struct exchange **ex,
	bool has_head, struct guard *g, char *body);
/* The thread ends. */
void errand_cancel_all(struct io_thread *t);

#endif
