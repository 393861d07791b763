/*
 * A trace as the simulator plays it: each block of each prompt as a small number (for the
 * workers) and as a public hash (for the router), times after --speed. Pure.
 *
 * A trace has no names of sessions. Requests with the same first block count as one,
 * without blocks that many have (a system prompt): more than one in 20 requests, and at
 * least 50 of them.
 */
#ifndef SIM_SIM_INPUT_H
#define SIM_SIM_INPUT_H

#include "bench/trace.h"
#include "sim/sim_kv.h"

struct sim_request {
	uint64_t at_us;
	struct sim_prompt prompt; /* its ids point into the input's */
	const uint64_t *hashes;   /* one for each of prompt.ids */
	uint32_t output;
	uint64_t session; /* derived; 0: none */
};

struct sim_input {
	struct sim_request *requests;
	size_t n;
	uint32_t *ids;
	uint64_t *hashes;
	size_t n_blocks; /* of all prompts */
	uint32_t n_ids;  /* different ones */
	uint64_t tokens; /* of all prompts */
};

/*
 * The first `first` requests (0: all), speed times as fast. ERR_LIMIT: more than 2^31
 * blocks. Dies without memory. sim_input_free() releases it.
 */
int sim_input_make(const struct trace *t, size_t first, double speed,
	struct sim_input *out) MUST_CHECK;
void sim_input_free(struct sim_input *in);

#endif
