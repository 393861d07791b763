/*
 * A request's share of body_memory, the process's limit for bodies: the client's body,
 * those that are made from it, and a prefill's response that is read. Embedded by value
 * in the request; each holder of bytes counts them here, and lets go of as many.
 */
#ifndef PROXY_BUDGET_H
#define PROXY_BUDGET_H

#include "base/base.h"

#include <stdatomic.h>

struct budget {
	_Atomic uint64_t *total; /* of the process, in bytes */
	uint64_t limit;          /* body_memory */
	uint64_t held;           /* by this request */
};

/* Counts n bytes in any case. False: the process is over its limit now, and the caller
 * refuses the request; it still lets go of the bytes. */
bool budget_hold(struct budget *b, size_t n) MUST_CHECK;
void budget_let_go(struct budget *b, size_t n);

#endif
