/*
 * A process that is no child of this one: forked twice, with descriptors and variables of
 * its own choice, then executed. Used by upgrade.c.
 */
#ifndef CONTROL_LAUNCH_H
#define CONTROL_LAUNCH_H

#include "base/base.h"

struct bequest;

struct launch {
	const char *path;
	char **argv;
	int channel, state;            /* open in the new process; UPGRADE_VARIABLE */
	const struct bequest *sockets; /* too; INHERIT_VARIABLE */
};

/*
 * 0: it is forked, and says "hello PID" on the channel, and "exec ERRNO" if path cannot
 * be executed. ERR_IO: it is not. Only the named descriptors, and 0, 1 and 2, are open
 * there.
 */
int launch(const struct launch *l) MUST_CHECK;

#endif
