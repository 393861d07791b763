/*
 * The daemon as the service manager (systemd) sees it: ready, reloading, stopping, one
 * line of status, keep-alives. Holds the last message. On the control thread.
 *
 * A keep-alive is sent only while every I/O thread answers from its loop: the control
 * thread asks each through its mailbox four times in the manager's interval, and stays
 * silent from the moment that one has not answered the question of the turn before.
 */
#ifndef CONTROL_SERVICE_H
#define CONTROL_SERVICE_H

#include "base/base.h"

struct control;
struct service;

/* Never NULL: it dies without memory. */
struct service *service_new(struct control *c);
/* Sends nothing any more, because the daemon is taken down. NULL is fine. */
void service_end(struct service *s);
/* NULL is fine. The loop must still be there. */
void service_free(struct service *s);

/* READY=1 with a first status; keep-alives begin. */
void service_ready(struct service *s);
void service_reloading(struct service *s);
/* The reload is over; failure: the error, or NULL. */
void service_reloaded(struct service *s, const char *failure);
/* STOPPING=1; from now on each tick asks for more time. */
void service_stopping(struct service *s);
/*
 * Another process is the main one now (MAINPID=), and this one sends nothing any more.
 * With the own pid: the hand-over failed, and this process continues.
 */
void service_handed_over(struct service *s, pid_t main_pid);
/* The end of the status text, such as an upgrade that is under way; NULL: none. */
void service_note(struct service *s, const char *note);
/* Something may have changed: STATUS=, at most once a second. */
void service_changed(struct service *s);
/* Once a second. */
void service_tick(struct service *s);

#endif
