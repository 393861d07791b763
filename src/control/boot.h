/*
 * Prepares the daemon in order: limits, secrets, sockets, threads. A step that fails logs
 * the error and ends the start. Called by daemon.c.
 */
#ifndef CONTROL_BOOT_H
#define CONTROL_BOOT_H

#include "conf/conf.h"
#include "control/control.h"

struct inherited;

/*
 * Fills c from conf, up to open sockets and threads that have none yet. Everything that
 * can fail, fails here. Sockets of in are used where they fit. ERR_*: opened resources
 * are still in c, for boot_undo().
 */
int boot_prepare(struct control *c, struct conf *conf, struct inherited *in) MUST_CHECK;
/* Accepts from now on: clients, the admin API, scrapes. ERR_NOMEM. */
int boot_open(struct control *c) MUST_CHECK;
/* Gives the service manager the sockets that it does not keep yet for the next start. */
void boot_store(struct control *c);
/*
 * Takes everything down in order, also after half a start. Returns true, and logs it, if
 * every load guard that was taken was dropped.
 */
bool boot_undo(struct control *c);

#endif
