/*
 * A listener whose connects get no answer, as of a machine that is gone: its backlog is
 * full, and nobody accepts.
 */
#ifndef ENGINE_LAB_HANG_H
#define ENGINE_LAB_HANG_H

#include "base/base.h"

enum { HANG_FILLERS = 4 };

struct hang {
	int fds[HANG_FILLERS]; /* own connections that fill the backlog; -1: none */
	bool is_on;
};

void hang_init(struct hang *h);
/*
 * Idempotent. On: the owner has stopped accepting; listen_fd gets the smallest backlog,
 * which is filled here. Off: the fillers go and the backlog is as it was; who has
 * connected meanwhile can be accepted. listen_fd < 0: it is closed already.
 */
void hang_set(struct hang *h, int listen_fd, bool on);

#endif
