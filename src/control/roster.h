/*
 * What this process does when workers come and go: probes begin and end, and what is
 * remembered of a worker that left is forgotten at once. Called by the pools, on the
 * control thread.
 */
#ifndef CONTROL_ROSTER_H
#define CONTROL_ROSTER_H

#include "pool/pool.h"

/* Their arg is the struct control, whose health exists. */
extern const struct pool_ops roster_ops;

#endif
