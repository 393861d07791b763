/*
 * One request on two workers: its prompt is computed by a prefill worker, whose KV blocks
 * go to a decode worker, which answers. Called by the steps of request.c; part of its
 * request, and at no cost in pools of unified workers.
 *
 *	PICK      pd_pick(): a look at decode, then prefill's worker; later decode's
 *	FORWARD   pd_prepare(): the leg's body; pd_start_parallel(), pd_run_parallel():
 *	          prefill's leg where both go at once
 *	HAND_OFF  pd_read_answer(), pd_hand_over(): prefill is done, and PICK again
 *
 * Always true: no byte of a prefill's good answer reaches the client; a guard of prefill
 * is never held while the request waits for decode; what a prefill worker keeps for a
 * hand-off that will not come is given back, once, by pd_end() or pd_retry().
 */
#ifndef PROXY_PREFILL_DECODE_H
#define PROXY_PREFILL_DECODE_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "conf/conf.h"
#include "http/http_head.h"
#include "route/route_key.h"

struct access_line;
struct pd;
struct pool;
struct pool_ask;
struct request;
struct request_key_source;
struct site;

/* For explain: whether such a request goes to a decode worker alone, and why. */
enum pd_skip { PD_SKIP_NOT, PD_SKIP_WHOLE, PD_SKIP_SHORT };
enum pd_skip pd_would_skip(const struct site *site, const struct pool *p,
	enum route_endpoint endpoint, struct span body, uint64_t uncached_tokens);

/* ROUTE_KEY, once the pool is known; src made r->key. FAIL_NONE; or why the request cannot
 * be served. */
enum fail pd_begin(struct request *r, const struct request_key_source *src) MUST_CHECK;

/* ---- PICK ---- */

/* In place of pick_worker(), with the same results, where r->pd is set: the worker of
 * the leg that is to come. */
int pd_pick(struct request *r) MUST_CHECK;
/* The role that is asked for now, and how its prompts are keyed. */
enum role pd_role(const struct request *r);
struct route_key *pd_key(struct request *r);
/* What the ask of this leg has besides. */
void pd_ask(const struct request *r, struct pool_ask *ask);
/* Workers of this leg's role that failed the request. */
unsigned pd_n_failed(const struct request *r);
/* A worker has done a part of it. */
bool pd_is_begun(const struct request *r);
/* It has one of the process's slots already. */
bool pd_has_slot(const struct request *r);
/* Where no worker is fit for this leg, the request does without it: no last resort. */
bool pd_can_skip(const struct request *r);
/* And nobody waits for one, since others waited in vain. */
bool pd_skips_at_once(const struct request *r);

/* ---- FORWARD and HAND_OFF ---- */

/* Before each attempt: the body that its worker gets. */
enum fail pd_prepare(struct request *r) MUST_CHECK;
struct span pd_body(const struct request *r);
struct span pd_request_id(const struct request *r);
/* The exchange is a prefill's; and its answer is not the client's. */
bool pd_is_prefill(const struct request *r);
/* An answer to the prefill that is worth another worker. */
bool pd_is_worth(int status);
/* The prefill's answer is the client's: a refusal. */
void pd_relay(struct request *r);
/* FAIL_NONE: it is whole, and good. ERR_AGAIN. Else ERR_STATE and *why: the prefill
 * failed. */
int pd_read_answer(struct request *r, enum fail *why) MUST_CHECK;
/* Prefill is done, and its guard about to be dropped: the next pick is for decode. */
void pd_hand_over(struct request *r);
/* Prefill cannot be had: the next pick is for a decode worker that does all. False: none
 * could, or the client insists. */
bool pd_skip_prefill(struct request *r);
/* The head of the answer that the client gets. */
void pd_answered(struct request *r, int status);

/* ---- both at once ---- */

/* Prefill's exchange goes on beside the request's own, which is decode's. */
bool pd_is_parallel(const struct request *r);
/* With decode's. False: out of memory. */
bool pd_start_parallel(struct request *r) MUST_CHECK;
enum parallel {
	PARALLEL_GOES_ON, /* or has ended well, or is not there */
	PARALLEL_REFUSES, /* its answer's head, no good one, is in *a and *base */
	PARALLEL_FAILED,  /* no answer came */
	PARALLEL_BROKE,   /* it broke off */
};
/* Whatever happens after the client's first byte is GOES_ON. */
enum parallel pd_run_parallel(
	struct request *r, const struct http_head **a, const char **base);
/* It failed: decode's exchange is closed, and prefill's is the request's, as if it had
 * gone first. */
void pd_turn_back(struct request *r);

/* ---- the ends ---- */

/* Another attempt: of the prefill alone, or, where decode failed, of both. */
void pd_retry(struct request *r);
/* FINISH, after its guard was dropped. */
void pd_end(struct request *r);
void pd_free(struct request *r);
/* What the access line has besides. */
void pd_tell(const struct request *r, struct access_line *line);
/* Blocks that the worker which computed the prompt was believed to hold. */
void pd_matched(const struct request *r, uint32_t *matched, uint32_t *blocks);

#endif
