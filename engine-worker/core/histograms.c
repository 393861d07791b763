/*
 * The histograms of an engine's answers: their names, bounds and counts.
 * Called by all that sees a part of an answer; printed by engine_metrics.c.
 */
#include "core/histograms.h"

/* The histograms of vLLM. Times are observed in microseconds and printed in seconds;
 * their bounds are milliseconds. */
#define REQUEST_BOUNDS                                                                   \
	21, BOUNDS_TIME,                                                                 \
	{                                                                                \
		300, 500, 800, 1000, 1500, 2000, 2500, 5000, 10000, 15000, 20000, 30000, \
			40000, 50000, 60000, 120000, 240000, 480000, 960000, 1920000,    \
			7680000                                                          \
	}
#define TOKEN_BOUNDS                                                                 \
	19, BOUNDS_TIME,                                                             \
	{                                                                            \
		10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500, 5000, \
			7500, 10000, 20000, 40000, 80000                             \
	}
#define SIZE_BOUNDS                                                                 \
	22, BOUNDS_TOKENS,                                                          \
	{                                                                           \
		1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, \
			50000, 100000, 200000, 500000, 1000000, 2000000, 5000000,   \
			10000000                                                    \
	}

/* clang-format off */
static const struct engine_bounds histograms[ENGINE_HISTOGRAM_MAX] = {
	[ENGINE_TTFT] = { "vllm:time_to_first_token_seconds", "From the request to its first token",
		22, BOUNDS_TIME, { 1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000,
			20000, 40000, 80000, 160000, 640000, 2560000 } },
	[ENGINE_ITL] = { "vllm:inter_token_latency_seconds", "From one token of a sequence to its next", TOKEN_BOUNDS },
	[ENGINE_E2E] = { "vllm:e2e_request_latency_seconds", "From the request to the end of its answer", REQUEST_BOUNDS },
	[ENGINE_QUEUE] = { "vllm:request_queue_time_seconds", "From the request to the begin of its prefill", REQUEST_BOUNDS },
	[ENGINE_PREFILL] = { "vllm:request_prefill_time_seconds", "From the begin of the prefill to the first token", REQUEST_BOUNDS },
	[ENGINE_DECODE] = { "vllm:request_decode_time_seconds", "From the first token to the last", REQUEST_BOUNDS },
	[ENGINE_INFERENCE] = { "vllm:request_inference_time_seconds", "From the begin of the prefill to the last token", REQUEST_BOUNDS },
	[ENGINE_TPOT] = { "vllm:request_time_per_output_token_seconds", "The mean time between the tokens of an answer", TOKEN_BOUNDS },
	[ENGINE_PROMPT_TOKENS] = { "vllm:request_prompt_tokens", "Tokens of the prompt", SIZE_BOUNDS },
	[ENGINE_NEW_TOKENS] = { "vllm:request_generation_tokens", "Tokens of the answer", SIZE_BOUNDS },
	[ENGINE_COMPUTED_TOKENS] = { "vllm:request_prefill_kv_computed_tokens", "Tokens of the prompt that were not cached", SIZE_BOUNDS },
	[ENGINE_MAX_TOKENS] = { "vllm:request_params_max_tokens", "What max_tokens said", SIZE_BOUNDS },
	[ENGINE_LONGEST_ANSWER] = { "vllm:request_max_num_generation_tokens", "Tokens of the longest of n answers", SIZE_BOUNDS },
	[ENGINE_N_ANSWER] = { "vllm:request_params_n", "What n said", 5, BOUNDS_TOKENS, { 1, 2, 5, 10, 20 } },
	[ENGINE_KV_SECONDS] = { "vllm:nixl_xfer_time_seconds", "From a prompt's blocks being there to be filled until they are",
		13, BOUNDS_TIME, { 1, 5, 10, 25, 50, 75, 100, 200, 300, 500, 750, 1000, 5000 } },
	[ENGINE_KV_BYTES] = { "vllm:nixl_bytes_transferred", "Bytes of a prompt's blocks that came from a prefill worker",
		11, BOUNDS_PLAIN, { 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30 } },
	[ENGINE_KV_BLOCKS] = { "vllm:nixl_num_descriptors", "Blocks of a prompt that came from a prefill worker",
		10, BOUNDS_PLAIN, { 10, 20, 30, 50, 100, 200, 500, 1000, 2000, 5000 } },
};
/* clang-format on */

void engine_observe(
	struct engine_histograms *h, enum engine_histogram which, uint64_t value)
{
	const struct engine_bounds *row = &histograms[which];
	uint64_t unit = row->unit == BOUNDS_TIME ? 1000 : 1;
	unsigned i = 0;

	while (i < row->n_bounds && value > row->bounds[i] * unit)
		i++;
	h->of[which].buckets[i]++;
	h->of[which].sum += value;
}

const struct engine_bounds *engine_bounds(enum engine_histogram which)
{
	return &histograms[which];
}
