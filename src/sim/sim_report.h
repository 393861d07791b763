/*
 * The figures of a simulation, as a table and as JSON.
 */
#ifndef SIM_SIM_REPORT_H
#define SIM_SIM_REPORT_H

#include "sim/sim.h"
#include "sim/sim_flags.h"

struct js;

struct sim_report {
	const struct sim_flags *flags;
	const struct sim_input *input;
	struct sim_result ceiling;  /* an upper bound for all policies */
	struct sim_result *results; /* of the policies, in order */
	size_t n;
};

double sim_hit_rate(const struct sim_result *r); /* of blocks */

void sim_report_print(const struct sim_report *r);      /* on stdout */
struct js *sim_report_json(const struct sim_report *r); /* the caller's */

#endif
