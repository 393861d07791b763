/*
 * Another attempt on another worker: which answers call for one, whether the pool's
 * budget has it, how long it waits, and the last answer, which is kept meanwhile and sent
 * when nobody has a better one. Called by the steps of request.c before a byte went to
 * the client; part of its request.
 */
#ifndef PROXY_ATTEMPT_H
#define PROXY_ATTEMPT_H

#include "base/base.h"
#include "base/fail.h"
#include "http/http_head.h"

struct pool_ask;
struct request;

/* The body of an answer that is kept; a longer one, or one that comes late, is not. */
#define ATTEMPT_KEPT_BYTES (16u << 10)

struct attempts {
	unsigned n;             /* made so far, as the log line tells them */
	unsigned n_free;        /* of them, those that were for a trial */
	bool was_trial;         /* a worker was tried with it */
	uint64_t not_before_ms; /* 0: at once */
	char *kept;             /* head and body of an answer; NULL: none */
	size_t kept_head, kept_body;
	char kept_worker[64];
};

/* It may make one more, as far as retry_max_retries goes: what failed was a trial, which
 * is no doing of its client's, or there is one left. */
bool attempt_has_one_left(const struct request *r);
/* An answer that says: not here, not now. */
bool attempt_is_worth(int status);
/*
 * Whether there is another worker (for may_queue: even a full one) and the budget has a
 * retry, which is then taken. status: of the answer; 0: none came, for this reason. ask:
 * with the worker that failed among the tried. After a trial the budget is not asked.
 */
bool attempt_take_leave(struct request *r, const struct pool_ask *ask, int status,
	enum fail why) MUST_CHECK;
/* The next pick waits a little, but for the first one. */
void attempt_back_off(struct request *r);
/* PICK: it waits, and is run again when it does no more. */
bool attempt_is_waiting(struct request *r);
/*
 * Keeps the answer whose head is at hand, if all of it is there already. Its exchange is
 * done with after that.
 */
void attempt_keep(struct request *r, const struct http_head *a, const char *base);
/* The answer that was kept: true, and head, base and body, alive until the request ends.
 * The worker's name is the request's again. */
bool attempt_kept(
	struct request *r, struct http_head *a, const char **base, struct span *body);
void attempt_free(struct request *r);

#endif
