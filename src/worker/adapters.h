/*
 * The LoRA adapters that a worker holds ready: those that this router sent it requests for
 * last, as many as the engine keeps at a time (engines drop the one not used for longest),
 * and those that run or wait there by what the engine says, for whomever. Names are
 * model_hash(). Under the pool's lock.
 */
#ifndef WORKER_ADAPTERS_H
#define WORKER_ADAPTERS_H

#include "base/base.h"

#define ADAPTERS_MAX 16u /* more are not noted */

/* As its engine says. */
struct adapters_report {
	uint64_t names[ADAPTERS_MAX]; /* those that run, then those that wait */
	unsigned n_running, n;
	unsigned slots; /* that the engine keeps at a time; 0: not said */
};

struct adapters {
	uint64_t sent[ADAPTERS_MAX]; /* the last one first */
	unsigned n_sent;
	struct adapters_report report;
};

/* The state of one adapter, from the best to the worst place for a request that needs it.
 */
enum adapter_state {
	ADAPTER_READY,
	ADAPTER_FREE,    /* not there, and nothing has to go for it */
	ADAPTER_WAITS,   /* for a place, with requests of its own */
	ADAPTER_CROWDED, /* it takes the place of another */
	ADAPTER_STATE_MAX
};

/* A request for it goes there. */
void adapters_sent(struct adapters *a, uint64_t adapter);
void adapters_reported(struct adapters *a, const struct adapters_report *report);
enum adapter_state adapters_state(const struct adapters *a, uint64_t adapter);
/* Its process began anew. */
void adapters_forget(struct adapters *a);

#endif
