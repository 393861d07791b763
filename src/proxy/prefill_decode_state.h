/*
 * The state of a request on two workers, for prefill_decode.c (the order of things),
 * prefill_decode_body.c (what each leg sends and gets) and prefill_decode_parallel.c
 * (both at once).
 */
#ifndef PROXY_PREFILL_DECODE_STATE_H
#define PROXY_PREFILL_DECODE_STATE_H

#include "proxy/placement.h"
#include "rewrite/kv_transfer.h"
#include "route/route_key.h"

struct budget;

#define PD_OVERHEARD_MAX (1u << 16)

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
	WAY_NO_PREFILL, /* no prefill worker was available: decode alone */
};

struct pd {
	enum pd_at at;
	enum pd_way way;
	struct kv_request kv;
	const struct kv_form *form;
	struct budget *budget; /* of its request */
	uint64_t min_prefill;  /* tokens */
	uint64_t max_answer;   /* bytes of a prefill's response */
	bool is_prefill_pinned;
	uint64_t pinned_group, kv_group; /* 0: any */
	unsigned failed[ROLE_MAX];       /* workers that did */
	struct route_key decode_key;     /* sealed: decode cuts prompts otherwise */

	struct placement reserved; /* decode's worker that was picked before prefill's */
	struct slots *slot;        /* between prefill's guard and decode's; NULL: none */

	/* this attempt's prefill */
	struct worker *prefill; /* a reference; NULL: none yet */
	char prefill_name[64];
	struct pool_pick prefill_pick;
	uint64_t began_us, took_us;
	bool is_computed; /* its answer is there, and good */
	bool is_relayed;  /* it refused: the client gets its answer */
	bool is_pressed;  /* a prefill worker said that it has too much to do */
	bool is_deaf;     /* its response, beside decode's, is too long to be read */
	bool is_taken;    /* decode answered: the blocks are its affair */
	char transfer_id[KV_TRANSFER_ID_ROOM];
	char id[KV_ID_ROOM];
	size_t id_len; /* 0: the request's own */
	uint64_t room;
	char engine[KV_ENGINE_MAX]; /* of prefill, where the form needs it */
	struct kv_usage usage;      /* its own, once it has answered */
	char *answer;               /* owned */
	size_t answer_len, answer_cap;
	struct span params; /* in it */

	/* both at once: prefill's part, while decode's is the request's */
	struct placement parallel; /* no worker: it has ended, or has not begun */
	char *parallel_body;       /* owned */
	size_t parallel_len;

	/* of the leg that is sent; NULL: the client's own */
	char *body;
	size_t body_len;
};

static inline bool pd_is_parallel(const struct pd *m)
{
	return m->parallel.guard.worker != NULL;
}

/* prefill_decode_body.c: the prefill's response is not needed any more. */
void pd_drop_answer(struct pd *m);
void pd_drop_body(struct pd *m);
/* Some more of a prefill's response that nobody waits for: its usage is read once it is
 * whole, if it is short and memory is there. */
void pd_overhear(struct pd *m, struct span data);
void pd_overhear_end(struct pd *m);

/* prefill_decode_parallel.c. PICK: p is prefill's worker; decode's was reserved before,
 * and is p afterwards. */
void pd_begin_parallel(struct pd *m, struct placement *p);

/* Since its prefill was picked, in us. */
uint64_t pd_since(const struct pd *m);

#endif
