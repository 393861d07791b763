/*
 * The report of a worker's process on itself, read again with the probes: its KV capacity
 * (which limits the prefixes that it is expected to hold), its running and waiting
 * requests, and whether it is still the same process (another one has an empty cache).
 * One report for each host; the ranks of a host share one. Control thread.
 *
 * /metrics is asked first (vLLM, our engine, SGLang with --enable-metrics); missing
 * values are looked for at the other paths of engines. A path that is missing, or has no
 * wanted value, is left alone for some minutes.
 */
#ifndef FLEET_REPORT_H
#define FLEET_REPORT_H

#include "base/base.h"

struct fetcher;
struct host;
struct report;

/*
 * host lives longer, and has a worker when the report is asked for. on_done comes when
 * the values are there or cannot be had. NULL: out of memory.
 */
struct report *report_new(
	struct host *host, struct fetcher *f, void (*on_done)(void *arg), void *arg);
void report_free(struct report *r);

/* Begins a round, unless one is under way. */
void report_ask(struct report *r);
bool report_is_asking(const struct report *r);
/* It said when its process began, or its id: another one will be told from it. */
bool report_knows_process(const struct report *r);
/* By its metrics. */
bool report_is_sglang(const struct report *r);
/* What its metrics call the first of its ranks; its dp_start_rank where they do not say. */
unsigned report_first_rank(const struct report *r);
/* The worker was away: another process may have other paths and another size. */
void report_start_anew(struct report *r);

#endif
