/*
 * The circuit breaker of one worker: closed, open, half-open, by failures within a
 * rolling window. Shared between threads: while nothing is wrong a pick
 * costs two atomic reads; the rest is under a lock of its own. Pure: time is an argument.
 * Called by pool.c (admits, begin) and by guard.c, which reports every outcome.
 *
 * Closed: `failure_threshold` failures within the last `window_ms` open it (a failure
 * counts for window_ms to window_ms + 1/16 of it). Open: nothing is admitted for
 * `timeout_ms`. Half-open: one request at a time is admitted, the trial;
 * success_threshold trials that succeed in a row close it, one that fails opens it anew.
 * Only trials count then, because requests that began before it opened say nothing about
 * now. A neutral outcome (4xx, 429, the client left) counts neither way and gives the
 * trial's place back.
 */
#ifndef WORKER_BREAKER_H
#define WORKER_BREAKER_H

#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

enum breaker_state { BREAKER_CLOSED, BREAKER_HALF_OPEN, BREAKER_OPEN };
const char *breaker_state_name(enum breaker_state s);

enum outcome {
	OUTCOME_NEUTRAL, /* says nothing about the worker */
	OUTCOME_SUCCESS, /* an answer that is neither 4xx nor 5xx, to its end */
	OUTCOME_FAILURE  /* 5xx, no connection, a reset, a broken stream, a time-out */
};

struct breaker_opts {
	unsigned failure_threshold, success_threshold; /* both >= 1 */
	uint64_t timeout_ms, window_ms;
};

#define BREAKER_BUCKETS 16

struct breaker {
	_Atomic int state; /* enum breaker_state; OPEN until a trial begins */
	_Atomic uint64_t paused_until_ms;

	pthread_mutex_t lock;
	struct breaker_opts opts;
	unsigned failures[BREAKER_BUCKETS]; /* in the window, by time */
	uint64_t bucket;                    /* the number of the newest */
	uint64_t opened_ms;
	unsigned successes; /* of trials, in a row */
	bool has_trial;
};

void breaker_init(struct breaker *b, const struct breaker_opts *o);
void breaker_destroy(struct breaker *b);
/* New options. The counts stay, unless the length of the window changes. */
void breaker_configure(struct breaker *b, const struct breaker_opts *o);

/* True if a request may go to the worker now. */
bool breaker_admits(struct breaker *b, uint64_t now_ms);
/*
 * One goes there. True: it is the trial of a half-open breaker, and must be reported with
 * is_trial. Only after breaker_admits() said yes under the same lock of the pool; another
 * pool's pick cannot interfere, since a worker has one pool.
 */
bool breaker_begin(struct breaker *b, uint64_t now_ms);

enum breaker_change { BREAKER_SAME, BREAKER_OPENED, BREAKER_HAS_CLOSED };
/* How one ended. Each trial is reported once. */
enum breaker_change breaker_report(
	struct breaker *b, enum outcome o, bool is_trial, uint64_t now_ms);

/* Describes the change, with its figures, for the log. why: reason of the last
 * failure. */
void breaker_change_text(struct breaker *b, enum breaker_change c, bool was_trial,
	const char *why, char *out, size_t n);

/* The worker asked for rest (Retry-After): nothing is admitted until then, or until a
 * success is reported. An earlier end than the one that stands changes nothing: false. */
bool breaker_pause(struct breaker *b, uint64_t until_ms);
/* A pause is all that is in the way. */
bool breaker_is_paused(struct breaker *b, uint64_t now_ms);

/* The state as metrics show it; open with its time-out over reads as half-open. */
enum breaker_state breaker_state(struct breaker *b, uint64_t now_ms);
/* Failures that count now. */
unsigned breaker_failures(struct breaker *b, uint64_t now_ms);
/* Until it may admit again, an open breaker's time or a pause: 0, it does now (or waits
 * for its trial). */
uint64_t breaker_wait_ms(struct breaker *b, uint64_t now_ms);
/* The worker is another process now: closed, nothing counted, no pause. A trial under way
 * is forgotten; its report counts as one of a request that began before. */
void breaker_reset(struct breaker *b);

#endif
