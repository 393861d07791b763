/*
 * One simulation: a trace, N workers and one policy in virtual time. Deterministic: the
 * same options give the same result. Pure.
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "sim/sim_input.h"
#include "sim/sim_router.h"

struct sim_opts {
	const struct sim_input *input; /* borrowed */
	unsigned workers;
	uint64_t kv_tokens;               /* of each worker; 0: no bound */
	double prefill_rate, decode_rate; /* tokens a second; 0: no time */
	unsigned max_seqs;                /* that run at once on a worker */
	unsigned max_requests;            /* that the router sends to one; 0: no cap */
	uint64_t seed;
};

struct sim_times {
	double mean_s, p50_s, p99_s, max_s;
};

struct sim_result {
	char *spec; /* owned */
	uint64_t requests;
	uint64_t refused; /* larger than a worker's cache: counted as nothing else */
	uint64_t waited;  /* for the router to find a worker that is not full */
	uint64_t blocks,
		hit_blocks; /* of the trace, in prompts and found at their worker */
	uint64_t tokens, cached_tokens; /* of prompts */
	uint64_t believed_tokens;       /* that the router thought to be cached there */
	uint64_t computed_tokens;       /* after preemptions, too */
	uint64_t preemptions;
	struct sim_times ttft;
	/*
	 * Coefficient of variation of the workers' requests in flight, a mean over time:
	 * from the first arrival to the last one, and from then until all have ended.
	 */
	double cv_busy, cv_tail;
	double requests_spread, work_spread; /* the most over the mean; work: computed */
	uint64_t reasons[PICK_REASON_MAX];
	double shed_share; /* sent elsewhere than their prefix or key, because of load */
	double virtual_s, real_s;
};

/* An upper bound for all policies: one unlimited cache, and no prompt that waits. */
void sim_ceiling(const struct sim_opts *o, struct sim_result *out);
/* ERR_PARSE and *why, a new text: the spec is invalid. Dies without memory. */
int sim_run(const struct sim_opts *o, const char *spec, struct sim_result *out,
	char **why) MUST_CHECK;
void sim_result_free(struct sim_result *r);

/* For tests: called as each request gets its first token. */
struct sim_watch {
	void (*on_first)(void *arg, size_t request, unsigned worker, uint64_t ttft_us,
		const struct sim_found *found);
	void *arg;
};
int sim_run_watched(const struct sim_opts *o, const char *spec,
	const struct sim_watch *watch, struct sim_result *out, char **why) MUST_CHECK;

#endif
