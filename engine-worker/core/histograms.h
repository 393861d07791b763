/*
 * Histograms of answers: times as clients see them, and sizes, under the names
 * and with the bounds of vLLM. Counted by the loop's thread alone.
 */
#ifndef ENGINE_CORE_HISTOGRAMS_H
#define ENGINE_CORE_HISTOGRAMS_H

#include "base/base.h"

#include <stdint.h>

/* Times of answers as clients see them, and sizes. Of each choice,
 * but those named _ANSWER: of a request. */
enum engine_histogram {
	ENGINE_TTFT, /* microseconds, as are the times below */
	ENGINE_ITL,  /* of each token but the first */
	ENGINE_E2E,
	ENGINE_QUEUE,         /* until its prompt began to be computed */
	ENGINE_PREFILL,       /* from then to the first token */
	ENGINE_DECODE,        /* from there to the last one */
	ENGINE_INFERENCE,     /* both */
	ENGINE_TPOT,          /* the mean between its tokens */
	ENGINE_PROMPT_TOKENS, /* tokens, as the sizes below */
	ENGINE_NEW_TOKENS,
	ENGINE_COMPUTED_TOKENS, /* of the prompt, as not cached */
	ENGINE_MAX_TOKENS,      /* as the request limited it; not said: not observed */
	ENGINE_LONGEST_ANSWER,  /* of n choices */
	ENGINE_N_ANSWER,
	/* of loads: from its blocks being there to be filled until they are; microseconds
	 */
	ENGINE_KV_SECONDS,
	ENGINE_KV_BYTES,
	ENGINE_KV_BLOCKS,
	ENGINE_HISTOGRAM_MAX
};

enum { ENGINE_BUCKETS_MAX = 22 };

struct engine_histograms {
	struct {
		uint64_t buckets[ENGINE_BUCKETS_MAX + 1]; /* the last: above all bounds */
		uint64_t sum;
	} of[ENGINE_HISTOGRAM_MAX];
};

void engine_observe(
	struct engine_histograms *h, enum engine_histogram which, uint64_t value);

/* A histogram's name, text and upper bounds. */
struct engine_bounds {
	const char *name, *help;
	unsigned n_bounds;
	enum {
		BOUNDS_TOKENS, /* bounds above the model's length are not printed */
		/* of milliseconds; observed in microseconds, printed in seconds */
		BOUNDS_TIME,
		BOUNDS_PLAIN
	} unit;
	uint32_t bounds[ENGINE_BUCKETS_MAX];
};

const struct engine_bounds *engine_bounds(enum engine_histogram which);

#endif
