/*
 * The figures of a run, as a table and as JSON.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "bench/flags.h"
#include "bench/run.h"
#include "bench/tally.h"

struct js;

struct report {
	const struct bench_flags *flags;
	const char *model;
	uint64_t started_wall_ms; /* since the epoch */
	uint64_t seed;
	struct run_result result;
	struct tally *tally; /* sorted */
};

/* The share of one core that the bench used; and the share of the time that it was ready
 * to run but other programs had the cores. */
double report_cpu_share(const struct report *r);
double report_wait_share(const struct report *r);
/*
 * True if the figures may be the bench's own limit: the two shares together were above
 * .8, over a time long enough to tell (half a second).
 */
bool report_is_busy(const struct report *r);
/*
 * The busiest worker's requests over the mean: 1 is even; 0 with less than two workers.
 * It knows only of workers that answered.
 */
double report_spread(const struct tally *t);
void report_print(const struct report *r);      /* on stdout */
struct js *report_json(const struct report *r); /* the caller's */

#endif
