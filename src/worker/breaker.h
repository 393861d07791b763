/*
 * The circuit breaker of one worker: closed, open, half-open, by the share of failures
 * within a rolling window. Shared between threads: while nothing is wrong a pick costs two
 * atomic reads and an end two more; the rest is under a lock of its own. Pure: time is an
 * argument. Called by pool.c (admits, begin, sweep) and by guard.c, which reports every
 * outcome.
 *
 * Closed: it opens when the last `window_ms` (and up to 1/16 of it more) have at least
 * `failure_threshold` failures, and these are at least `failure_percent` of all that
 * ended; a whole, well-formed 5xx weighs a quarter, since what a request provoked looks the
 * same. As many failures in a row, without a success and none of them such a 5xx, open it
 * whatever was before. What one tenant alone provokes, while others succeed, never does.
 *
 * Open: nothing is admitted for `timeout_ms`. Half-open: one request at a time is
 * admitted, the trial; one that fails opens it anew. success_threshold successes of
 * requests that began since close it, trials or not. Requests that began before it opened
 * say nothing about now. A neutral outcome (4xx, busy, the client left) counts neither way
 * and gives the trial's place back.
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
	OUTCOME_STATUS,  /* a whole 5xx */
	OUTCOME_FAILURE  /* no connection, a reset, a broken stream, a time-out */
};

struct breaker_opts {
	unsigned failure_threshold, success_threshold; /* both >= 1 */
	unsigned failure_percent;
	bool counts_5xx; /* a whole 5xx is a failure as any other */
	uint64_t timeout_ms, window_ms;
};

#define BREAKER_BUCKETS 16
#define BREAKER_NO_TENANT 0

struct breaker_bucket {
	unsigned failures, statuses; /* statuses: of the failures */
	uint64_t successes_before;   /* of all time, as it began */
};

struct breaker {
	_Atomic int state; /* enum breaker_state; OPEN until a trial begins */
	_Atomic uint64_t paused_until_ms;
	_Atomic unsigned openings;
	_Atomic uint64_t successes; /* of all time */
	/* Who had all failures of the window, and nobody else: a tenant; else
	 * BREAKER_NO_TENANT. */
	_Atomic uint32_t culprit;
	_Atomic bool others_succeed; /* since it is the culprit */

	pthread_mutex_t lock;
	struct breaker_opts opts;
	struct breaker_bucket buckets[BREAKER_BUCKETS]; /* the window, by time */
	uint64_t bucket;                                /* the number of the newest */
	uint64_t run_successes;                         /* as the run of failures began */
	unsigned run; /* failures since, without a 5xx among them */
	uint64_t opened_ms;
	unsigned opened_by; /* so many failures */
	unsigned closing;   /* successes since it opened, without a failed trial */
	bool has_trial;
	bool is_by_status; /* it opened by nothing but whole 5xx */
};

void breaker_init(struct breaker *b, const struct breaker_opts *o);
void breaker_destroy(struct breaker *b);
/* New options. The counts stay, unless the length of the window changes. */
void breaker_configure(struct breaker *b, const struct breaker_opts *o);

/* True if a request may go to the worker now. */
bool breaker_admits(struct breaker *b, uint64_t now_ms);

/* What a request keeps for its report. */
struct breaker_ticket {
	bool is_trial;     /* of a half-open breaker */
	unsigned openings; /* before it began */
	uint32_t tenant;
};
/*
 * One goes there. It may be the trial of a half-open breaker, and each is reported. Only
 * after breaker_admits() said yes under the same lock of the pool; another pool's pick
 * cannot interfere, since a worker has one pool.
 */
struct breaker_ticket breaker_begin(struct breaker *b, uint32_t tenant, uint64_t now_ms);

enum breaker_change { BREAKER_SAME, BREAKER_OPENED, BREAKER_HAS_CLOSED };
/* How one ended. Each trial is reported once. NULL: it is not of a request. */
enum breaker_change breaker_report(struct breaker *b, enum outcome o,
	const struct breaker_ticket *ticket, uint64_t now_ms);
/* Each second, so that the window knows the successes of its time. */
void breaker_sweep(struct breaker *b, uint64_t now_ms);

/* Describes the change, with its figures, for the log. why: reason of the last
 * failure. */
void breaker_change_text(struct breaker *b, enum breaker_change c, bool was_trial,
	const char *why, char *out, size_t n);

/* The worker asked for rest (Retry-After): nothing is admitted until then, or until a
 * success is reported. An earlier end than the one that stands changes nothing: false. */
bool breaker_pause(struct breaker *b, uint64_t until_ms);
/* A pause is all that is in the way. */
bool breaker_is_paused(struct breaker *b, uint64_t now_ms);
/* It is open, by nothing but whole 5xx. */
bool breaker_is_by_status(struct breaker *b);
/*
 * It is half-open and has no trial under way. A request that loses little by it is due
 * now; any is once the breaker's time-out has gone by again (is_overdue).
 */
bool breaker_wants_trial(struct breaker *b, uint64_t now_ms, bool *is_overdue);

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
