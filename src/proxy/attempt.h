/*
 * Another attempt on another worker: which failures call for one, whether the pool's
 * budget has it, how long it waits, and the response that is kept meanwhile and sent when
 * no worker has a better one. Decides for requests of one worker (decision.h), before a
 * byte went to the client; prefill_decode.c, resume.c and stored_response.c decide for
 * theirs, and retry by the same functions. Part of its request (by value).
 */
#ifndef PROXY_ATTEMPT_H
#define PROXY_ATTEMPT_H

#include "base/base.h"
#include "base/fail.h"
#include "base/rng.h"
#include "base/span.h"
#include "http/http_head.h"
#include "pool/pool.h"
#include "proxy/decision.h"

struct exchange;
struct placement;

/* Of the body of a response that is kept. A longer one is not kept, nor one whose end
 * does not come in the time that an exchange waits for it. */
#define ATTEMPT_KEPT_BYTES (64u << 10)

struct attempts {
	unsigned n;             /* retries so far, as the access line tells them */
	unsigned n_free;        /* of them, those after a trial */
	bool was_trial;         /* a worker was tried with the request */
	bool died_reused;       /* a pooled connection died without a byte */
	bool died_fresh;        /* so did a fresh one, or a stream: one other is asked */
	bool has_paused;        /* a worker rests because of this request's answer */
	bool was_busy;          /* 429 sent it elsewhere, once */
	bool has_unkept;        /* a response was too large or too slow to be kept */
	bool had_500;           /* so did 500 */
	bool had_404;           /* and 404, since another worker lists the model */
	enum fail last_failure; /* of a worker that was asked */
	uint64_t not_before_ms; /* back-off; 0: at once */
	/* Workers, by id or host_id, that are not asked again: n_tried, ascending. */
	uint64_t *tried;
	unsigned n_tried, tried_cap;
	/* A response: header and body in one piece; NULL: none is kept. */
	char *kept;
	size_t kept_head, kept_body;
	char kept_worker[64];
};

/* The facts for a decision about another worker. Made for the call. */
struct retry_case {
	struct attempts *attempts;
	struct placement *at; /* the worker that the request leaves */
	struct pool *pool;
	struct pool_ask ask; /* for another one */
	struct span body;    /* the client's */
	bool may_repeat;     /* the client's body is all there still */
	bool has_time;       /* total_timeout has not passed */
	const char *worker_name;
	struct rng *rng;
	const void *request; /* the log's subject */
};

/* How an exchange ended that brought no response. */
struct no_response {
	enum fail why;
	bool is_death;   /* its connection was closed or reset before a byte came, or
			    its stream ended or came to a stand before content */
	bool may_repeat; /* the request may be repeated by another worker */
};

/* ---- decisions ---- */

/* A pooled connection that died without a byte had been given up by the worker: true,
 * once, and the request goes out again on a fresh one. */
bool attempt_sends_again(struct attempts *a, const struct exchange *ex, bool may_repeat);
/* Reads how the exchange of p ended. */
struct no_response attempt_no_response(
	const struct attempts *a, const struct placement *p);
/* A worker sent no response. */
struct decision attempt_failed(struct retry_case *c, const struct no_response *end);
/* A worker that was tried with the request sent nothing in time: elsewhere, or NEXT_STEP:
 * no other worker is there, and the request goes on waiting for this one. */
struct decision attempt_trial_is_over(struct retry_case *c);
/* Connects to a worker are late, and the request's waits for them: likewise. */
struct decision attempt_dial_is_late(struct retry_case *c);
/* A worker's header is at hand: elsewhere, or NEXT_STEP: the client gets the response. */
struct decision attempt_answered(
	struct retry_case *c, const struct http_head *a, const char *base);
/* A stream whose header is at hand begins with an error: elsewhere, or NEXT_STEP: the
 * client gets it. */
struct decision attempt_said_error(
	struct retry_case *c, const struct http_head *a, const char *base);
/* No worker is left to ask: the kept response, or why. */
struct decision attempt_gives_up(const struct attempts *a, enum fail why);

/* ---- for all that retry ---- */

/* The status says: not here, not now (retry_on of the worker that the request leaves). */
bool attempt_is_worth_a_retry(const struct retry_case *c, int status);
/*
 * Whether another worker is there (even a full one if status is 0), retry_max_retries has
 * one left, and the pool's budget has it; all but the first are not asked after a trial.
 * Then the retry is counted, id (a worker's, or its host's, whose other ranks are the
 * same process) is among the tried, and the next pick waits a little. status: of the
 * response; 0: none came, for this reason.
 */
bool attempt_retry(
	struct retry_case *c, uint64_t id, int status, enum fail why) MUST_CHECK;
/* Keeps the response whose header is at hand, if all of it is there already. */
void attempt_keep(struct retry_case *c, const struct http_head *a, const char *base);
/* id is not asked again, as c->ask says from now on. ERR_NOMEM. */
int attempt_note_tried(struct retry_case *c, uint64_t id) MUST_CHECK;
/* Workers that failed before may be well again: all may be asked. */
void attempt_forget_tried(struct retry_case *c);
/* The next pick waits a little, but for the first retry. */
void attempt_back_off(struct retry_case *c);

/* ---- the steps ---- */

/* PICK: the back-off is not over yet. */
bool attempt_is_waiting(struct attempts *a);
/* NEXT_KEPT: header, base and body of the response, alive until the request ends. */
bool attempt_kept(const struct attempts *a, enum http_method method, struct http_head *h,
	const char **base, struct span *body) MUST_CHECK;
void attempt_free(struct attempts *a);

#endif
