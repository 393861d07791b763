/*
 * One in-flight slot of a worker: taken in one function, dropped in one function; the
 * only writer of load, queued_blocks and streams in a worker's guard part. Embedded by
 * value in the request; holds a reference, so that a removed or re-added worker's counts cannot mix.
 *
 * A request is first a prefill that waits or runs, then a stream. Its guard remembers
 * what it added to the worker's counts and takes back exactly that, so that the sums
 * return to zero with the last guard, whatever happened in between.
 */
#ifndef WORKER_GUARD_H
#define WORKER_GUARD_H

#include "worker/breaker.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct worker;

/* Requests in flight of all pools together, which have a cap. */
struct slots {
	_Atomic unsigned taken;
};

struct guard {
	struct worker *worker; /* NULL: holds nothing */
	struct slots *slots;   /* NULL: it holds no slot of these */
	uint32_t queued;       /* its part of w->guard.queued_blocks */
	bool is_stream;        /* it counts in w->guard.streams */
	struct breaker_ticket ticket;
	bool is_reported;
	/* For the worker's latency, in us of one clock: when the request was given to it (0:
	 * its time says nothing), and the first content of an event stream (0: none yet). */
	uint64_t began_us, content_us;
};

/* g must be empty. */
void guard_take(struct guard *g, struct worker *w);
/* With the breaker's leave (breaker_admits): it may be the trial. After guard_take(). */
void guard_try(struct guard *g, uint32_t tenant, uint64_t now_ms);
/* The slot that was taken is given back with the drop. After guard_take(). */
void guard_hold(struct guard *g, struct slots *s);
/* The blocks that the worker must compute for it, as far as known; once, before the
 * prefill is over. */
void guard_queue(struct guard *g, uint32_t blocks);
/*
 * The answer shows that the prefill is over: its blocks are no longer queued, and until
 * the drop it is a stream. For an event stream that is the first byte of the body of a
 * 2xx answer (engines send its head at once, and its first event with the first token);
 * for any other answer it is the head, since the whole of it comes at the end. Safe on an
 * empty guard; a second time is harmless.
 */
void guard_prefilled(struct guard *g);
/* The same for the first byte of an event stream, which came when the prefill was over:
 * the worker's pace is learned from it. Not for answers that come whole, whose head says
 * nothing of that time. */
void guard_streams(struct guard *g, uint64_t now_ms);
/*
 * How it ended, for the worker's breaker: once; a second time changes nothing. A guard
 * that is dropped unreported was neutral, so that a trial's place is never lost.
 */
enum breaker_change guard_report(struct guard *g, enum outcome o, uint64_t now_ms);
/* The response is good and whole: counts its times, if guard.began_us is set. */
void guard_time(struct guard *g, uint64_t now_us);
/* Safe on an empty guard. */
void guard_drop(struct guard *g);

/* A look at them: all `max` are taken now. NULL is no cap. */
bool slots_are_taken(const struct slots *s, unsigned max);
/* One of `max`; false: all are taken. */
bool slots_take(struct slots *s, unsigned max) MUST_CHECK;
void slots_give(struct slots *s);
/* The guard's slot, or NULL, is the caller's from now on: to hold with another guard, or
 * to give. */
struct slots *guard_let_go(struct guard *g);

#endif
