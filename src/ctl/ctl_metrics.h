/*
 * kvsteerctl --json metrics. Used by ctl.c.
 */
#ifndef CTL_CTL_METRICS_H
#define CTL_CTL_METRICS_H

struct js;

/*
 * Metrics in Prometheus' text format as {"metrics":[{"name","labels":{},"value"}]}, in
 * their order; the caller frees it. Lines that are no samples are left out.
 */
struct js *ctl_metrics_document(const char *text);
/* The same on stdout. */
void ctl_print_metrics(const char *text);

#endif
