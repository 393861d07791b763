/*
 * Upgrade in place, the side of the new process: takes over its predecessor's sockets and
 * state, waits until its workers are up, reports, and accepts nothing until it is told
 * to. See upgrade.h for the messages. Control thread. Called by daemon.c.
 */
#ifndef CONTROL_SUCCESSOR_H
#define CONTROL_SUCCESSOR_H

#include "base/base.h"

struct control;
struct successor;

/* Reads from the environment that this process is a successor; NULL: an ordinary
 * start. */
struct successor *successor_take(void);
/* Sends the predecessor the reason of the failure (text NULL: the last error that was
 * logged), if it still waits. s may be NULL. */
void successor_fail(struct successor *s, const char *text);
/* NULL is fine. The loop must still be there, if there was one. */
void successor_free(struct successor *s);

struct successor_ops {
	void (*on_go)(void *arg, bool reload); /* accept from now on */
	void (*on_give_up)(void *arg);         /* gives up; the reason was logged */
	void (*on_alone)(void *arg);           /* later: the predecessor has ended */
};

/* The site is there and nothing accepts yet. ERR_NOMEM; else one of ops comes later. */
int successor_start(struct successor *s, struct control *c,
	const struct successor_ops *ops, void *arg) MUST_CHECK;
/* The predecessor still finishes its requests. s may be NULL. */
bool successor_has_predecessor(const struct successor *s);
/* This process stops: the predecessor closes what is idle, or cuts everything. */
void successor_hurry(struct successor *s, bool cut);

#endif
