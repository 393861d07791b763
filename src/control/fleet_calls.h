/*
 * Clients' calls to all workers (proxy/fan_out.h), run on the control thread.
 */
#ifndef CONTROL_FLEET_CALLS_H
#define CONTROL_FLEET_CALLS_H

#include "base/base.h"

struct control;
struct fleet_calls;

/* Before the I/O threads start. NULL: out of memory. */
struct fleet_calls *fleet_calls_start(struct control *c);
/* After they have ended, and before c's mailbox goes. NULL is fine. */
void fleet_calls_stop(struct fleet_calls *calls);

#endif
