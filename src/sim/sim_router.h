/*
 * The router of a simulation: a pool of the model, as a configuration makes it, with its
 * policy, index and guards, and no socket. Time is an argument.
 */
#ifndef SIM_SIM_ROUTER_H
#define SIM_SIM_ROUTER_H

#include "policy/policy.h"
#include "sim/sim_input.h"
#include "worker/guard.h"

struct sim_router;

struct sim_router_opts {
	unsigned workers;
	uint64_t kv_tokens;    /* of each worker, as the router learns it; 0: unknown */
	unsigned max_requests; /* of each worker; 0: no cap */
	uint32_t id_tokens;    /* of a block of the trace; prefix_block fits it */
	uint64_t seed;
};

/*
 * spec: POLICY[:SIGNAL[:COST]][,KEY=VALUE]..., keys as in [pool NAME]. ERR_PARSE and
 * *why, a new text, if it is not a configuration. Dies without memory.
 */
int sim_router_new(const char *spec, const struct sim_router_opts *opts,
	struct sim_router **out, char **why) MUST_CHECK;
/* All guards must have been dropped. */
void sim_router_free(struct sim_router *r);

struct sim_choice {
	unsigned worker;
	enum pick_reason reason;
	uint32_t matched_tokens; /* that the worker is believed to hold */
};
/*
 * Chooses a worker and takes the guard, which the caller keeps until the request has
 * ended. ERR_NOENT: all workers are full. now_ms never goes back.
 */
int sim_router_pick(struct sim_router *r, const struct sim_request *req, uint64_t now_ms,
	struct guard *g, struct sim_choice *out) MUST_CHECK;
/* The request has its first token. */
void sim_router_first_token(struct guard *g, uint64_t now_ms);
void sim_router_end(struct guard *g);

/*
 * The specs of every policy, those of cache_aware with each signal and cost, in the order
 * of their tables; *n of them, each a new text.
 */
char **sim_router_all_specs(size_t *n);

#endif
