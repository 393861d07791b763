/*
 * The text of GET /metrics, under the names that routers read from vLLM.
 */
#ifndef ENGINE_API_ENGINE_METRICS_H
#define ENGINE_API_ENGINE_METRICS_H

#include "base/metric.h"

struct engine_histograms;
struct handoff_counts;
struct sched;

struct engine_metrics_opts {
	const char *model;
	size_t max_model_len; /* no bound of tokens is above it */
	uint64_t started_ms;  /* the wall clock at start */
	const struct handoff_counts *handoff;
};

/* Appends all families. */
void engine_metrics_print(struct text *out, const struct sched *s,
	const struct engine_histograms *h, const struct engine_metrics_opts *opts);

#endif
