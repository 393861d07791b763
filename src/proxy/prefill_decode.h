/*
 * One request on two workers, its legs: a prefill worker computes the prompt, its KV
 * blocks go to a decode worker, which answers. Part of its request (a pointer, NULL: one
 * worker serves it), and at no cost in pools of unified workers.
 *
 *	PICK      pd_look(), pd_picked(): a look at decode, then prefill's worker; later
 *	          decode's
 *	FORWARD   pd_prepare(): the leg's body; pd_parallel(), pd_run_parallel(): prefill's
 *	          leg where both are sent at once
 *	HAND_OFF  pd_read_answer(), pd_hand_over(): prefill is done, and PICK again
 *
 * Always true: no byte of a prefill's good response reaches the client; a request that
 * waits for decode holds no guard of prefill; what a prefill worker keeps for a hand-off
 * that will not come is given back, once (pd_release()). Guards are dropped by the spine.
 */
#ifndef PROXY_PREFILL_DECODE_H
#define PROXY_PREFILL_DECODE_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "conf/conf.h"
#include "http/http_head.h"
#include "proxy/decision.h"
#include "route/route_key.h"

struct access_line;
struct budget;
struct exchange;
struct no_response;
struct pd;
struct placement;
struct pool;
struct pool_ask;
struct pool_pick;
struct retry_case;
struct site;
struct slots;
struct worker;

/* For explain: whether such a request goes to a decode worker alone, and why. ERR_NOMEM. */
enum pd_skip { PD_SKIP_NOT, PD_SKIP_WHOLE, PD_SKIP_SHORT };
int pd_would_skip(const struct site *site, const struct pool *p,
	enum route_endpoint endpoint, struct span body, uint64_t uncached_tokens,
	enum pd_skip *skip) MUST_CHECK;

/* ROUTE_KEY, once the pool, which is split, is known. */
struct pd_opts {
	const struct site *site;
	struct pool *pool;
	enum route_endpoint endpoint;
	struct span body;
	struct span pinned; /* the client's worker; empty: any */
	bool is_stored;     /* only the worker that made it knows what is continued */
	struct budget *budget;
};
/* NULL and *why: the request cannot be served. */
struct pd *pd_new(const struct pd_opts *o, enum fail *why) MUST_CHECK;
/* Where decode cuts prompts otherwise: to be built. */
struct route_key *pd_decode_key(struct pd *m);

/* ---- PICK: m may be NULL, and the answers are those of one worker ---- */

/* The role that is asked for now, and the key of its prompts; key: the request's. */
enum role pd_role(const struct pd *m, const struct pool *pool);
struct route_key *pd_key(struct pd *m, struct route_key *key);
/* Adds what this leg asks for. */
void pd_ask(const struct pd *m, struct pool_ask *ask);
/* Workers of this leg's role failed the request. n_tried: workers that did. */
bool pd_was_tried(const struct pd *m, unsigned n_tried);
/* A worker has done a part of it. */
bool pd_is_begun(const struct pd *m);
/* It has one of the process's slots already. */
bool pd_has_slot(const struct pd *m);
/* Where no worker is fit for this leg, the request does without it: no last resort. */
bool pd_may_skip(const struct pd *m);

/* ---- PICK: of a request that has legs ---- */

/* A look at the decode workers comes before the pick. */
bool pd_wants_look(const struct pd *m);
/* 0: the pick is next; errors as of pool_look(). */
int pd_look(struct pd *m, struct pool *pool, const struct pool_ask *ask) MUST_CHECK;
/* Decode's worker was picked before prefill's: it is *p now. */
bool pd_take_reserved(struct pd *m, struct placement *p);
/*
 * p was picked. NEXT_STEP: its leg is sent; NEXT_AGAIN: the other leg's worker is picked
 * as well, first; NEXT_SKIP_PREFILL: this prefill worker cannot be used.
 */
struct decision pd_picked(
	struct pd *m, struct pool *pool, struct placement *p, const void *request);
/* NEXT_SKIP_PREFILL: the next pick is for a decode worker that does all. model: the
 * request's. */
void pd_skip_prefill(struct pd *m, struct pool *pool, struct span model);

/* ---- FORWARD and HAND_OFF ---- */

/* Before each attempt: makes the body that the worker gets. body: the client's. */
enum fail pd_prepare(struct pd *m, struct span body) MUST_CHECK;
struct span pd_body(const struct pd *m, struct span body);
/* id: the request's own. */
struct span pd_request_id(const struct pd *m, struct span id);
/* The exchange is a prefill's; and its response is not the client's. NULL is fine. */
bool pd_is_prefill(const struct pd *m);
/* A prefill sent no response. It computes nothing that the client has seen: any fault is
 * worth another worker, but not of a request that has killed two. */
struct decision pd_prefill_failed(
	struct pd *m, struct retry_case *c, const struct no_response *end);
/* A prefill's header, no 2xx: elsewhere, without prefill, or NEXT_STEP: the client gets
 * the refusal. */
struct decision pd_prefill_refused(
	struct pd *m, struct retry_case *c, const struct http_head *a, const char *base);
/* 0: the prefill's response is whole, and good. ERR_AGAIN. Else ERR_STATE and *why. */
int pd_read_answer(struct pd *m, struct exchange *ex, enum fail *why) MUST_CHECK;
/* NEXT_DECODE: prefill p is done, and its guard about to be dropped. */
void pd_hand_over(struct pd *m, struct placement *p);
/* The client gets a response with this status. */
void pd_answered(struct pd *m, int status);

/* ---- both at once ---- */

/* Prefill's placement beside decode's, which is the request's. NULL: there is none, or it
 * is over; m may be NULL. */
struct placement *pd_parallel(struct pd *m);
/* The body that prefill is sent. */
struct span pd_parallel_body(const struct pd *m);
enum parallel {
	PARALLEL_GOES_ON,
	PARALLEL_DONE,    /* its response is whole */
	PARALLEL_REFUSES, /* its header is in *a and *base, and is no 2xx */
	PARALLEL_FAILED,  /* no response came */
	PARALLEL_BROKE,   /* the response broke off */
};
/* Reads its response as far as it has come. */
enum parallel pd_run_parallel(
	struct pd *m, const struct http_head **a, const char **base);
/* It failed before the client had a byte: prefill is the request's only leg again (p), as
 * if it had been sent first, and decode's worker is kept for later. */
void pd_swap_to_prefill(struct pd *m, struct placement *p, char worker_name[64]);
/* It goes on without its request: the body that it is sent, for the caller to free. */
char *pd_take_parallel_body(struct pd *m);

/* ---- the ends ---- */

/* NEXT_ELSEWHERE: the leg alone is repeated. False: both are, once both legs' holdings are
 * ended; pd_begin_again() follows. is_unheard: its worker was never connected. */
bool pd_repeats_leg(struct pd *m, bool is_unheard);
void pd_begin_again(struct pd *m);
/* Blocks that no decode worker took: the body of the call that releases them, for the
 * caller to free. NULL: there are none. */
char *pd_release(const struct pd *m, struct worker **prefill, size_t *n);
/* Decode's worker that was picked before prefill's, which may be none. */
struct placement *pd_reserved(struct pd *m);
/* A slot that is held between prefill's guard and decode's; NULL: none. */
struct slots *pd_take_slot(struct pd *m);
/* The bodies and the prefill's response are not needed any more. */
void pd_drop_bodies(struct pd *m);
/* How it went, once. */
void pd_count(const struct pd *m);
void pd_free(struct pd *m);
/* Adds the prefill to the access line. NULL is fine. */
void pd_tell(const struct pd *m, struct access_line *line);
/* How many of the prompt's tokens prefill's worker had cached, as it says; prompt 0: it
 * does not say of how many. False: it says nothing; m may be NULL. */
bool pd_cached(const struct pd *m, uint64_t *cached, uint64_t *prompt);
/* Blocks that the worker which computed the prompt was believed to hold; pick: of the
 * request's own worker. NULL is fine. */
void pd_matched(const struct pd *m, const struct pool_pick *pick, uint32_t *matched,
	uint32_t *blocks);

#endif
