/*
 * What GET /metrics says, under the names that routers read from vLLM.
 */
#ifndef ENGINE_METRICS_H
#define ENGINE_METRICS_H

#include "base/metric.h"

struct handoff_counts;
struct sched;

/* What is known of answers: times as their clients see them, and sizes. Of each choice, but those named _ANSWER: of a request. */
enum engine_histogram {
	ENGINE_TTFT,	 /* microseconds, as are the times below */
	ENGINE_ITL,	 /* of each token but the first */
	ENGINE_E2E,
	ENGINE_QUEUE,	 /* until its prompt began to be computed */
	ENGINE_PREFILL,	 /* from then to the first token */
	ENGINE_DECODE,	 /* from there to the last one */
	ENGINE_INFERENCE, /* both */
	ENGINE_TPOT,	 /* the mean between its tokens */
	ENGINE_PROMPT_TOKENS, /* tokens, as the sizes below */
	ENGINE_NEW_TOKENS,
	ENGINE_COMPUTED_TOKENS, /* of the prompt, as not cached */
	ENGINE_MAX_TOKENS,	/* as the request limited it; not said: not observed */
	ENGINE_LONGEST_ANSWER,	/* of n choices */
	ENGINE_N_ANSWER,
	ENGINE_KV_SECONDS, /* of loads: from its blocks being there to be filled until they are; microseconds */
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

void engine_observe(struct engine_histograms *h, enum engine_histogram which, uint64_t value);

struct engine_metrics_opts {
	const char *model;
	size_t max_model_len; /* no bound of tokens is above it */
	uint64_t started_ms;  /* the wall clock at start */
	const struct handoff_counts *handoff;
};

/* Appends all families. */
void engine_metrics_print(struct metric_text *out, const struct sched *s,
	const struct engine_histograms *h, const struct engine_metrics_opts *opts);

#endif
