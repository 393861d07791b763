/*
 * Counters, gauges and histograms, one set a thread on its own cache lines, summed when
 * scraped. Prometheus text format 0.0.4.
 * A thread registers once (metric_thread_start) and writes its own set without locks
 * (relaxed atomics); any thread may sum.
 * Each starts at zero and is printed even when zero.
 */
#ifndef BASE_METRIC_H
#define BASE_METRIC_H

#include "base/base.h"
#include "base/fail.h"
#include "base/metric_table.h"
#include "base/span.h"
#include "base/text.h"

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE };

enum metric_id {
#define X(id, kind, name, help) METRIC_##id,
	METRIC_TABLE(X)
#undef X
		METRIC_MAX
};

/*
 * Histograms: fixed bounds in metric.c. Times are observed in microseconds and printed in
 * seconds; ratio in thousandths.
 */
enum metric_histogram {
	METRIC_REQUEST_SECONDS,
	METRIC_TTFT_SECONDS,
	METRIC_QUEUE_SECONDS,
	METRIC_ROUTE_SECONDS,
	METRIC_PREFIX_MATCH_RATIO,
	METRIC_HISTOGRAM_MAX
};

/*
 * Registers this thread's set (idempotent; the set outlives the thread, so totals never
 * go back). Dies without memory.
 */
void metric_thread_start(void);

void metric_add(enum metric_id id, int64_t n);
static inline void metric_inc(enum metric_id id)
{
	metric_add(id, 1);
}
int64_t metric_total(enum metric_id id);

void metric_observe(enum metric_histogram h, uint64_t value);

/*
 * requests_total{route,code,reason}: route is the number of a label of the path table below
 * METRIC_ROUTES_MAX, code the status sent (0: none).
 */
#define METRIC_ROUTES_MAX 128
void metric_request(unsigned route, int status, enum fail why);
/* retries_total{reason}, of a worker's response with this status. */
void metric_retry(int status);
/*
 * All requests ended, and those of them that went wrong on our side or a worker's: status
 * 500 and above, or a response that ended early.
 */
void metric_request_sum(uint64_t *all, uint64_t *errors);
/* Names the rows for printing; called once at start with a static array. */
void metric_set_routes(const char *const *names, unsigned count);

/* Appends a label value, escaped for the text format (backslash, quote, newline). */
void metric_label(struct text *out, struct span value);
/* Prints "# HELP"/"# TYPE" for a family. */
void metric_family(
	struct text *out, const char *name, const char *type, const char *help);
/* Everything this module holds. */
void metric_print(struct text *out);

#endif
