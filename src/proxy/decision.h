/*
 * A decision: what happens to a request after a step, or after an event. It is one
 * value, made by the feature that knows (attempt, prefill_decode, resume,
 * stored_response, response) and applied in one place, request.c.
 */
#ifndef PROXY_DECISION_H
#define PROXY_DECISION_H

#include "base/fail.h"

enum next {
	NEXT_STEP,       /* the next step of the table */
	NEXT_WAIT,       /* the same step, when the request is woken */
	NEXT_AGAIN,      /* the same step, now */
	NEXT_SEND_AGAIN, /* the same, on a fresh connection to the same worker */
	/* Another step, after the request has left its worker. */
	NEXT_ELSEWHERE,    /* PICK: another worker, for what this one failed at */
	NEXT_DECODE,       /* PICK: prefill is done, decode's worker is next */
	NEXT_SKIP_PREFILL, /* PICK: a decode worker computes the prompt as well */
	/* The end. FINISH follows. */
	NEXT_END,   /* nothing is left to send */
	NEXT_LOCAL, /* the client gets the router's own answer (own_answer_local()) */
	NEXT_KEPT,  /* the client gets the response that was kept (attempt.h) */
	NEXT_REST,  /* the client gets the end of its stream from the router (resume.h) */
	NEXT_CUT,   /* the client sees a broken response: why */
	NEXT_FAIL,  /* the client gets an error response, if it has nothing yet: why */
};

struct decision {
	enum next next;
	enum fail why; /* of NEXT_CUT, NEXT_FAIL and, if it fails so, NEXT_REST */
};

static inline struct decision next_is(enum next next)
{
	return (struct decision){.next = next};
}

static inline struct decision next_cut(enum fail why)
{
	return (struct decision){NEXT_CUT, why};
}

static inline struct decision next_fail(enum fail why)
{
	return (struct decision){NEXT_FAIL, why};
}

#endif
