/*
 * The command line of kvsteer-bench --simulate.
 */
#ifndef SIM_SIM_FLAGS_H
#define SIM_SIM_FLAGS_H

#include "base/flag.h"

enum { SIM_POLICIES_MAX = 64 };

struct sim_flags {
	bool simulate;
	const char *trace; /* a file */
	struct sim_policies {
		const char *specs[SIM_POLICIES_MAX]; /* "all" stands for every one */
		unsigned n;
	} policies;
	uint64_t workers, kv_tokens, requests, max_seqs, max_requests, seed;
	double prefill_rate, decode_rate, speed;
	bool speed_free;         /* nothing takes time */
	const char *json, *plot; /* files; NULL: none; json "-": stdout */
};

/* Fills *out; as flag_parse(). Strings point into argv. */
enum flag_result sim_flags_parse(int argc, char **argv, struct sim_flags *out) MUST_CHECK;
/* The rows of --dump-tables. */
void sim_flags_dump(void);

#endif
