/*
 * Whether connects to a worker succeed, as its I/O threads see it. Shared between
 * threads, without a lock: a pick asks with two reads. A failed connect is evidence at
 * once: the worker is in doubt, and gets no request, until a probe or a connect succeeds.
 * A connect that is late, in a network that drops packets, keeps others from it, too.
 * The first connects go ahead, REACH_DIALS of them; the others wait for their results.
 * Called by upstream.c (begin, end), pool_pick.c (asks) and health.c (proven).
 */
#ifndef WORKER_REACH_H
#define WORKER_REACH_H

#include "base/base.h"

#include <stdatomic.h>

/* Below the first repeat of a SYN, above the way around the earth. */
#define REACH_LATE_MS 250

/* So many connects to a worker are under way before one of them has brought a result. */
#define REACH_DIALS 3

struct reach {
	_Atomic bool is_doubted;       /* a connect failed, and nothing has come since */
	_Atomic unsigned dialing;      /* connects under way */
	_Atomic uint64_t since_ms;     /* the first of them began, or one succeeded */
	_Atomic unsigned made, failed; /* connects so far */
	_Atomic unsigned waiting;      /* for them (dial_line.h) */
};

/* What had come of a worker's connects when somebody wanted one more. */
struct reach_seen {
	unsigned made, failed;
};

enum dial_end { DIAL_OK, DIAL_FAILED, DIAL_LEFT };

struct reach_seen reach_look(const struct reach *r);
/* False: not now. REACH_DIALS are under way, and none has succeeded since: if the worker
 * refuses, or swallows packets, it costs a few connects and not one for each request. */
bool reach_dial(
	struct reach *r, const struct reach_seen *seen, uint64_t now_ms) MUST_CHECK;
/* A connect failed since, and none has succeeded after it. */
bool reach_has_failed(const struct reach *r, const struct reach_seen *seen);
/* True: the worker is in doubt from now on, which it was not before. */
bool reach_end(struct reach *r, enum dial_end end, uint64_t now_ms);
/* True: it was in doubt. */
bool reach_prove(struct reach *r);
void reach_doubt(struct reach *r);

static inline bool reach_is_doubted(const struct reach *r)
{
	return atomic_load_explicit(&r->is_doubted, memory_order_relaxed);
}

/* A connect has taken long, and no other one has succeeded meanwhile. */
static inline bool reach_is_late(const struct reach *r, uint64_t now_ms)
{
	return atomic_load_explicit(&r->dialing, memory_order_relaxed) > 0 &&
	       now_ms >= atomic_load_explicit(&r->since_ms, memory_order_relaxed) +
				 REACH_LATE_MS;
}

#endif
