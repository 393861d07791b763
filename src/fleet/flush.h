/*
 * The prefix caches of a whole pool emptied: each host is asked once, by the call that
 * its engine has for it, all at the same time; then the pool's generation is bumped.
 * Control thread. Called by the admin API.
 */
#ifndef FLEET_FLUSH_H
#define FLEET_FLUSH_H

#include "base/base.h"

struct fetcher;
struct flush;
struct pool;

struct flush_outcome {
	const char *worker; /* as configured: all its ranks */
	bool is_flushed;
	const char *why_not; /* "" when it is flushed */
};

/*
 * on_done(arg, flush) comes later, once, when every host has answered or not; not for one
 * that was freed before. If no host could be asked it is over at once (flush_is_over),
 * and on_done does not come.
 */
struct flush *flush_start(struct fetcher *f, struct pool *p,
	void (*on_done)(void *arg, struct flush *flush), void *arg);
bool flush_is_over(const struct flush *flush);
/* Cancels what is under way. NULL is fine; allowed in on_done. */
void flush_free(struct flush *flush);

struct pool *flush_pool(const struct flush *flush);
size_t flush_count(const struct flush *flush);
struct flush_outcome flush_outcome(const struct flush *flush, size_t i);

#endif
