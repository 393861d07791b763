/*
 * One run: requests of a corpus to a server, in a closed loop (as many in flight as there
 * are connections) or an open one (each at its time, answered or not).
 */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "bench/arrival.h"
#include "bench/corpus.h"
#include "bench/tally.h"

struct addr_list;
struct loop;

struct run_opts {
	struct loop *loop; /* nothing else may keep it from stopping */
	struct addr_list *addrs;
	const char *authority, *target; /* Host and request target */
	const char *api_key;            /* NULL: none */
	struct corpus *corpus;
	bool is_stream, keeps_text, new_connections;
	struct hashes *hashes; /* NULL: none are sent */
	const char *model;
	uint64_t timeout_ms;
	uint64_t in_flight_max;         /* at least 1 */
	uint64_t requests, duration_us; /* 0: no such end */
	bool is_open;
	const struct trace *trace; /* open: its times, divided by speed; or, when NULL, */
	double speed;
	struct arrival arrival; /* this, started */
	bool shows_progress;    /* a line on stderr */
};

struct run_result {
	uint64_t took_us, cpu_us;
	uint64_t waited_us; /* ready to run, without a core; 0: not known */
	bool was_interrupted;
	const char *gave_up; /* why no connection could be made at all; NULL: one was */
};

/* Runs to its end, SIGINT or SIGTERM; counts into t. Dies without memory at the start. */
void run_go(const struct run_opts *o, struct tally *t, struct run_result *result);
/* The rows of --dump-tables. */
void run_dump_signals(void);

#endif
