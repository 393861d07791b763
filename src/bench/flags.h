/*
 * The command line of kvsteer-bench.
 */
#ifndef BENCH_FLAGS_H
#define BENCH_FLAGS_H

#include "base/flag.h"
#include "bench/arrival.h"
#include "bench/corpus.h"

struct bench_flags {
	/* the server */
	const char *url, *model; /* model NULL: ask the server */
	const char *api_key;     /* file:PATH or env:NAME; NULL: none */
	bool is_completions, no_stream, no_ignore_eos, new_connections, send_hashes;
	uint64_t hash_block;
	uint64_t timeout_ms; /* of a request; 0: none */

	/* the load */
	uint64_t connections; /* closed loop: at least 1; open loop: 0 is no cap */
	uint64_t requests, duration_ms; /* 0: no such end */
	bool is_open;                   /* trace or rate */
	double rate;                    /* 0: no open loop by rate */
	enum arrival_kind arrival;
	const char *trace; /* a file; NULL: none */
	double speed;

	/* the prompts; seed, model, trace and the like are bench.c's to fill */
	struct corpus_opts corpus;
	uint64_t seed;
	bool has_seed;

	const char *json; /* a file, "-": stdout; NULL: none */
	bool simulate;    /* main looks for it: the simulator is another program */
};

/*
 * Fills *out. FLAG_DONE: -h or -V was answered on stdout. FLAG_USAGE: stderr says what is
 * wrong. Strings point into argv.
 */
enum flag_result bench_flags_parse(
	int argc, char **argv, struct bench_flags *out) MUST_CHECK;
const char *bench_corpus_name(enum corpus_kind kind);
/* The rows of --dump-tables. */
void bench_flags_dump(void);

#endif
