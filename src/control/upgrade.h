/*
 * Upgrade in place, the side of the process that serves: starts its successor with all
 * listening sockets, waits until that is ready, hands over, or carries on and says why.
 * Control thread. Called by daemon.c (SIGUSR2, the end) and admin_upgrade.c. The other
 * side is successor.c.
 *
 * The successor is started by a double fork, so that it is no child of this process, by
 * the path that this process was started by (the file there may be a newer one). They
 * speak over a socket pair, a message each way at a time:
 *
 *   hello PID           forked; it is about to be executed
 *   exec ERRNO          it could not be
 *   failed TEXT         it cannot serve: its configuration, a port, its workers
 *   ready PID 0|1       it could take over now (1: with this very admin socket)
 *   go [reload]         (to it) accept from now on; a reload was asked for meanwhile
 *   stop, cut           (from it, once it is the main process) close what is idle; all
 *
 * The end of the pair means that the other process has ended. Before go, the successor
 * then gives up. So when this process dies, only the service manager starts another.
 */
#ifndef CONTROL_UPGRADE_H
#define CONTROL_UPGRADE_H

#include "base/base.h"

struct control;
struct upgrade;

#define UPGRADE_VARIABLE "KVSTEER_UPGRADE" /* "CHANNEL,STATE": two descriptors */

/* Remembers the command that starts a successor. Once, at the start, before the folder
 * changes. */
void upgrade_remember(char **argv);

/* pid: of the new main process, if failure is NULL. failure: why this process carries
 * on. */
typedef void upgrade_done_fn(void *arg, pid_t pid, const char *failure);

/*
 * Starts it; done(arg, ...) comes later, once, when it is decided (done may be NULL). Or
 * ERR_STATE and *why: one is under way already, the daemon stops; ERR_IO: it could not be
 * started.
 */
int upgrade_begin(
	struct control *c, upgrade_done_fn *done, void *arg, const char **why) MUST_CHECK;
/* Under way: started, and not decided. */
bool upgrade_is_open(const struct control *c);
/* The process that serves in the end does a reload that is asked for now. */
void upgrade_reload_later(struct control *c);
/* The caller is gone: done is not called any more. */
void upgrade_forget(struct control *c);
/* The daemon stops: no successor. Nothing happens where none is under way. */
void upgrade_cancel(struct control *c, const char *why);
/* The end of this process. */
void upgrade_free(struct control *c);

#endif
