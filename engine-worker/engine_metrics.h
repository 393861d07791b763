/*
 * What GET /metrics says, under the names that routers read from vLLM.
 */
#ifndef ENGINE_METRICS_H
#define ENGINE_METRICS_H

#include "base/metric.h"

struct sched;

/* How long answers took, as their clients see it. */
enum engine_time { ENGINE_TTFT, ENGINE_ITL, ENGINE_E2E, ENGINE_TIME_MAX };

enum { ENGINE_BUCKETS_MAX = 22 };

struct engine_times {
	struct {
		uint64_t buckets[ENGINE_BUCKETS_MAX + 1]; /* the last: above all bounds */
		uint64_t sum_us;
	} times[ENGINE_TIME_MAX];
};

void engine_times_observe(struct engine_times *t, enum engine_time which, uint64_t us);

/* Appends all families; started_ms is the wall clock at start. */
void engine_metrics_print(
	struct metric_text *out, const struct sched *s, const struct engine_times *times,
	const char *model, uint64_t started_ms);

#endif
