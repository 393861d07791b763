/*
 * One request on two workers: its prompt is computed by a prefill worker, whose KV blocks
 * go to a decode worker, which answers. Called by the steps of request.c; part of its
 * request, and at no cost in pools of unified workers.
 *
 *	PICK      legs_pick(): a look at decode, then prefill's worker; later decode's
 *	FORWARD   legs_prepare(): the leg's body; legs_start_beside(), legs_run_beside():
 *	          prefill's leg where both go at once
 *	HAND_OFF  legs_read_answer(), legs_hand_over(): prefill is done, and PICK again
 *
 * Always true: no byte of a prefill's good answer reaches the client; a guard of prefill
 * is never held while the request waits for decode; what a prefill worker keeps for a
 * hand-off that will not come is given back, once, by legs_end() or legs_retry().
 */
#ifndef PROXY_LEGS_H
#define PROXY_LEGS_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "conf/conf.h"
#include "http/http_head.h"
#include "route/route_key.h"

struct access_line;
struct legs;
struct pool;
struct pool_ask;
struct request;
struct request_key_source;
struct site;

/* For explain: whether such a request goes to a decode worker alone, and why. */
enum legs_skip { LEGS_SKIP_NOT, LEGS_SKIP_WHOLE, LEGS_SKIP_SHORT };
enum legs_skip legs_would_skip(const struct site *site, const struct pool *p,
	enum route_endpoint endpoint, struct span body, uint64_t uncached_tokens);

/* ROUTE_KEY, once the pool is known; src made r->key. FAIL_NONE; or why the request cannot
 * be served. */
enum fail legs_begin(struct request *r, const struct request_key_source *src) MUST_CHECK;

/* ---- PICK ---- */

/* In place of pick_worker(), with the same results, where r->legs is set: the worker of
 * the leg that is to come. */
int legs_pick(struct request *r) MUST_CHECK;
/* The role that is asked for now, and how its prompts are keyed. */
enum role legs_role(const struct request *r);
struct route_key *legs_key(struct request *r);
/* What the ask of this leg has besides. */
void legs_ask(const struct request *r, struct pool_ask *ask);
/* Workers of this leg's role that failed the request. */
unsigned legs_n_failed(const struct request *r);
/* A worker has done a part of it. */
bool legs_is_begun(const struct request *r);
/* It has one of the process's slots already. */
bool legs_has_slot(const struct request *r);
/* Where no worker is fit for this leg, the request does without it: no last resort. */
bool legs_can_skip(const struct request *r);
/* And nobody waits for one, since others waited in vain. */
bool legs_skips_at_once(const struct request *r);

/* ---- FORWARD and HAND_OFF ---- */

/* Before each attempt: the body that its worker gets. */
enum fail legs_prepare(struct request *r) MUST_CHECK;
struct span legs_body(const struct request *r);
struct span legs_request_id(const struct request *r);
/* The exchange is a prefill's; and its answer is not the client's. */
bool legs_is_prefill(const struct request *r);
/* An answer to the prefill that is worth another worker. */
bool legs_is_worth(int status);
/* The prefill's answer is the client's: a refusal. */
void legs_relay(struct request *r);
/* FAIL_NONE: it is whole, and good. ERR_AGAIN. Else ERR_STATE and *why: the prefill
 * failed. */
int legs_read_answer(struct request *r, enum fail *why) MUST_CHECK;
/* Prefill is done, and its guard about to be dropped: the next pick is for decode. */
void legs_hand_over(struct request *r);
/* Prefill cannot be had: the next pick is for a decode worker that does all. False: none
 * could, or the client insists. */
bool legs_skip_prefill(struct request *r);
/* The head of the answer that the client gets. */
void legs_answered(struct request *r, int status);

/* ---- both at once ---- */

/* Prefill's exchange goes on beside the request's own, which is decode's. */
bool legs_is_beside(const struct request *r);
/* With decode's. False: out of memory. */
bool legs_start_beside(struct request *r) MUST_CHECK;
enum beside {
	BESIDE_GOES_ON, /* or has ended well, or is not there */
	BESIDE_REFUSES, /* its answer's head, no good one, is in *a and *base */
	BESIDE_FAILED,  /* no answer came */
	BESIDE_BROKE,   /* it broke off */
};
/* Whatever happens after the client's first byte is GOES_ON. */
enum beside legs_run_beside(
	struct request *r, const struct http_head **a, const char **base);
/* It failed: decode's exchange is closed, and prefill's is the request's, as if it had
 * gone first. */
void legs_turn_back(struct request *r);

/* ---- the ends ---- */

/* Another attempt: of the prefill alone, or, where decode failed, of both. */
void legs_retry(struct request *r);
/* FINISH, after its guard was dropped. */
void legs_end(struct request *r);
void legs_free(struct request *r);
/* What the access line has besides. */
void legs_tell(const struct request *r, struct access_line *line);
/* Blocks that the worker which computed the prompt was believed to hold. */
void legs_matched(const struct request *r, uint32_t *matched, uint32_t *blocks);

#endif
