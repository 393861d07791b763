/*
 * kvsteer-bench --simulate: policies over a trace in virtual time.
 */
#ifndef SIM_SIMULATE_H
#define SIM_SIMULATE_H

#include <stdbool.h>

/* True if --simulate is among the arguments. */
bool simulate_is_asked(int argc, char **argv);
/* The exit status: 0, 1 (the report could not be written), 2 (usage). */
int simulate_main(int argc, char **argv);

#endif
