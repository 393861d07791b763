/*
 * Exchanges that outlive their request: KV blocks that no decode worker took are given
 * back, and a prefill that is slower than its decode is read to its end. Owned by their
 * thread; bounded in number, those that give back blocks in time as well. A worker that
 * fails them comes to the same end by itself, later. Called by the spine.
 */
#ifndef PROXY_CLEANUP_H
#define PROXY_CLEANUP_H

#include "base/base.h"
#include "base/span.h"

struct io_thread;
struct placement;
struct pool;
struct worker;

#define CLEANUPS_MAX 256        /* of one thread, of both kinds */
#define RELEASE_TIMEOUT_MS 2000 /* for the connection, and then for the answer */

/*
 * POST /v1/kv/release to w, whose body, of n bytes, is taken. authorization: its value,
 * or empty. Beyond CLEANUPS_MAX, or without memory, the blocks are left to their lease.
 */
void cleanup_release(struct io_thread *t, struct worker *w, struct span authorization,
	char *body, size_t n);
/*
 * Reads the rest of a response that no client gets, then leaves its worker. *p and body,
 * what the exchange sends (NULL: nothing), are taken. Beyond CLEANUPS_MAX, or without
 * memory, it leaves at once.
 */
void cleanup_drain(
	struct io_thread *t, struct pool *pool, struct placement *p, char *body);
/* The thread ends. */
void cleanup_cancel_all(struct io_thread *t);

#endif
