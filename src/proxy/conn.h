/*
 * One client connection: reads, keep-alive, deadlines, lingering close; owns at most one
 * request at a time. Pipelined requests wait in its buffer.
 */
#ifndef PROXY_CONN_H
#define PROXY_CONN_H

#include "base/base.h"
#include "io/sock.h"

struct io_thread;

/* Takes the accepted descriptor and the place that the caller has taken for it in
 * process->connections; gives both up on ERR_NOMEM. */
int conn_open(struct io_thread *t, int fd, const union sock_addr *peer) MUST_CHECK;
/* Gives such a place back. */
void conn_leave_place(struct io_thread *t);
/* Connections close after what they are doing, idle ones now, or with keeps_idle after
 * one more request or when their time is up; t->on_last_conn is called when none is left.
 * May be called again. keeps_listening: those that come from now on are late; they are
 * told what they ask of the daemon itself, nothing else, and are not waited for. */
void conn_drain_all(struct io_thread *t, bool keeps_idle, bool keeps_listening);
/* Late connections are waited for, too: each is told now, or closed if it asks nothing.
 * The listeners are closed. */
void conn_drain_late(struct io_thread *t);
/* Everything is cut. */
void conn_close_all(struct io_thread *t);

#endif
