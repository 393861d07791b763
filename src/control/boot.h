/*
 * What the daemon is given before it runs: limits, secrets, sockets, threads. In order,
 * each step logs what is wrong and ends the start. Called by daemon.c.
 */
#ifndef CONTROL_BOOT_H
#define CONTROL_BOOT_H

#include "conf/conf.h"
#include "control/control.h"

struct inherited;

/*
 * Fills c from conf, up to sockets that are open and threads that have none yet: what may
 * fail, failed here. Sockets of in are used where they fit. ERR_*: what was opened is
 * still in c, for boot_undo().
 */
int boot_prepare(struct control *c, struct conf *conf, struct inherited *in) MUST_CHECK;
/* Accepts from now on: clients, the admin API, scrapes. ERR_NOMEM. */
int boot_open(struct control *c) MUST_CHECK;
/* The service manager keeps the sockets for the next start, as far as it does not yet. */
void boot_store(struct control *c);
/*
 * Takes everything down in the order that it needs; half of it may be there. Returns
 * whether every load guard that was taken has been dropped, which it logs.
 */
bool boot_undo(struct control *c);

#endif
