/*
 * What GET /metrics says, under the names that routers read from vLLM.
 */
#ifndef ENGINE_METRICS_H
#define ENGINE_METRICS_H

#include "base/metric.h"

struct sched;

/* Appends all families; started_ms is the wall clock at start. */
void engine_metrics_print(
	struct metric_text *out, const struct sched *s, const char *model, uint64_t started_ms);

#endif
