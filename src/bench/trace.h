/*
 * Request traces in Mooncake's format: one JSON object a line with timestamp (ms),
 * input_length and output_length (tokens), and hash_ids, one for each block of the
 * prompt; equal ids stand for equal blocks. A block has 512 tokens, or 16 in all of the
 * trace: the first line that can tell says which. Pure.
 */
#ifndef BENCH_TRACE_H
#define BENCH_TRACE_H

#include "base/base.h"
#include "base/span.h"

#define TRACE_BLOCK_TOKENS 512
#define TRACE_SMALL_TOKENS 16
#define TRACE_TOKENS_MAX 16777216 /* of one prompt or answer */

struct trace_request {
	uint64_t at_us; /* after the first request */
	uint32_t input_tokens, output_tokens;
	size_t first_id; /* its ids are ids[first_id .. first_id + n_ids) of the trace */
	size_t n_ids;    /* input_tokens / block_tokens, rounded up */
};

struct trace {
	struct trace_request *requests;
	uint64_t *ids;
	size_t n, cap, n_ids, cap_ids;
	uint32_t block_tokens;                 /* TRACE_BLOCK_ or TRACE_SMALL_TOKENS */
	uint64_t prompt_tokens, output_tokens; /* of all */
};

struct trace_fault {
	size_t line;         /* from 1 */
	const char *message; /* static or thread-local text */
};

/*
 * Into *out, which trace_free() empties. Empty lines are passed over. ERR_PARSE and
 * *fault (a trace without requests too), ERR_NOMEM; *out is then empty.
 */
int trace_read(struct span text, struct trace *out, struct trace_fault *fault) MUST_CHECK;
void trace_free(struct trace *t);

#endif
