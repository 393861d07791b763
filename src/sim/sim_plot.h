/*
 * The comparison as a drawing: an SVG with bars for each policy, and marks for the
 * upper bound and for round robin. Pure.
 */
#ifndef SIM_SIM_PLOT_H
#define SIM_SIM_PLOT_H

#include "base/text.h"
#include "sim/sim_report.h"

void sim_plot(const struct sim_report *r, struct text *out);

#endif
