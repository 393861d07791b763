/*
 * How kvsteer-bench ends, and what it says of that on stderr. Called by bench.c and the
 * simulator.
 */
#ifndef BENCH_OUTCOME_H
#define BENCH_OUTCOME_H

#include "base/base.h"

enum bench_exit { DONE = 0, FAILED = 1, USAGE = 2 };

/* "kvsteer-bench: ..." on stderr; returns status. */
int bench_complain(int status, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
