/*
 * What the daemon is given before it runs: limits, secrets, sockets, threads. In order,
 * each step logs what is wrong and ends the start. Called by daemon.c.
 */
#ifndef CONTROL_BOOT_H
#define CONTROL_BOOT_H

#include "control/control.h"
#include "model/conf.h"

/*
 * Fills c from conf, up to threads that accept. ERR_*: what was opened is still in c, for
 * boot_undo().
 */
int boot_run(struct control *c, struct conf *conf) MUST_CHECK;
/*
 * Takes everything down in the order that it needs; half of it may be there. Returns
 * whether every load guard that was taken has been dropped, which it logs.
 */
bool boot_undo(struct control *c);

#endif
