/*
 * Answers of the daemon as tables and lines for people. Used by ctl.c.
 */
#ifndef CTL_CTL_PRINT_H
#define CTL_CTL_PRINT_H

#include <stdint.h>

struct js;

void ctl_print_status(const struct js *document);
void ctl_print_workers(const struct js *document);
void ctl_print_tenants(const struct js *document);
/* A worker after drain, undrain or remove, in one line. */
void ctl_print_outcome(const struct js *document);
void ctl_print_worker(const struct js *document);
void ctl_print_explain(const struct js *document);
/* What each worker said to a call, a line each. */
void ctl_print_called(const struct js *document);
void ctl_print_reload(const struct js *document);

/* "2d 3h", "5m 12s", "340ms"; a new string. */
char *ctl_age_text(int64_t ms);
/* "closed", "half-open", "open 12s", "paused 3s"; "-": nothing is said of it. A new
 * string. */
char *ctl_breaker_text(const struct js *worker, const char *key);
/* "45ms", "1.2s"; "-": nothing ended of late. key: ttft or response_time; which: p50_ms or
 * p99_ms. A new string. */
char *ctl_latency_text(const struct js *worker, const char *key, const char *which);

#endif
