/*
 * The admin API on its unix socket, and /metrics on its own listener: dispatch tables on
 * the small HTTP server. Runs on the control thread. Access is guarded by the socket's
 * mode. Called by daemon.c.
 */
#ifndef CONTROL_ADMIN_H
#define CONTROL_ADMIN_H

#include "control/control.h"

/* Takes both listening descriptors, either may be -1. NULL: out of memory or descriptors.
 */
struct admin *admin_new(struct control *c, int admin_fd, int metrics_fd);
/* No new connections; open ones end after their current call. */
void admin_drain(struct admin *a);
/* NULL is fine. */
void admin_free(struct admin *a);

#endif
