/*
 * What is known of a request on two workers, for the files that are the legs: prefill_decode.c (the
 * order of things), prefill_decode_body.c (what each leg sends and gets), prefill_decode_parallel.c (both at
 * once). Nobody else includes this.
 */
#ifndef PROXY_PREFILL_DECODE_STATE_H
#define PROXY_PREFILL_DECODE_STATE_H

#include "pool/pool.h"
#include "rewrite/kv_transfer.h"
#include "route/route_key.h"
#include "worker/guard.h"

struct exchange;
struct request;

#define PD_ANSWER_MAX (1u << 20) /* of a prefill */

enum pd_at {
	PD_LOOK,    /* is a prefill worth it, and has decode room? */
	PD_RESERVE, /* decode's worker, before prefill's */
	PD_PREFILL, /* prefill's worker, and its exchange */
	PD_DECODE,  /* decode's worker, and its exchange */
};

/* How it went, for the counts. */
enum pd_way {
	WAY_SPLIT,      /* over both */
	WAY_RECOMPUTED, /* over both, but prefill's answer named no blocks */
	WAY_SHORT,      /* below pd_min_prefill: decode alone */
	WAY_WHOLE,      /* it cannot be split: decode alone */
	WAY_NO_PREFILL, /* no prefill worker was to be had: decode alone */
};

struct pd {
	enum pd_at at;
	enum pd_way way;
	struct kv_request kv;
	const struct kv_form *form;
	uint64_t min_prefill; /* tokens */
	bool is_prefill_pinned;
	uint64_t pinned_group, kv_group; /* 0: any */
	unsigned failed[ROLE_MAX];       /* workers that did */
	struct route_key decode_key;     /* sealed: decode cuts prompts otherwise */

	/* decode's worker that was picked before prefill's */
	struct guard reserved;
	struct pool_pick reserved_pick;
	struct slots *slot; /* between prefill's guard and decode's; NULL: none */

	/* this attempt's prefill */
	struct worker *prefill; /* a reference; NULL: none yet */
	char prefill_name[64];
	struct pool_pick prefill_pick;
	uint64_t began_us, took_us;
	bool is_computed; /* its answer is there, and good */
	bool is_relayed;  /* it refused: the client gets its answer */
	bool is_taken;    /* decode answered: the blocks are its affair */
	char transfer_id[KV_TRANSFER_ID_ROOM];
	char id[KV_ID_ROOM];
	size_t id_len; /* 0: the request's own */
	uint64_t room;
	char engine[KV_ENGINE_MAX]; /* of prefill, where the form needs it */
	char *answer;               /* owned */
	size_t answer_len, answer_cap;
	struct span params; /* in it */

	/* both at once: prefill's part, while decode's is the request's */
	struct guard parallel; /* holds nothing: it has ended, or has not begun */
	struct exchange *parallel_ex;
	bool is_parallel_good; /* its head was 2xx */
	char *parallel_body;   /* owned */
	size_t parallel_len;

	/* of the leg that is sent; NULL: the client's own */
	char *body;
	size_t body_len;

	uint64_t counted; /* in body_memory */
};

/* prefill_decode_body.c: as prefill_decode.h has it, and what the next attempt begins without. */
void pd_drop_body(struct request *r);
void pd_drop_answer(struct request *r);
/* parallel_body is no longer counted: who takes it frees it. */
void pd_give_body(struct request *r);

/* Since its prefill was picked for, in us. */
uint64_t pd_since(const struct pd *m);

/* prefill_decode_parallel.c. PICK: prefill's worker was picked, and decode's before: both go. */
void pd_go_parallel(struct request *r);
/* Prefill's exchange ends with the attempt. may_go_on: decode has answered all: prefill
 * is drained when the request has gone. */
void pd_end_parallel(struct request *r, bool may_go_on);

#endif
