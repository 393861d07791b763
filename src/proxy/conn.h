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
int conn_open(struct io_thread *t, int fd, const union sock_addr *peer,
	bool is_introduced) MUST_CHECK;
/* Gives such a place back. */
void conn_leave_place(struct io_thread *t);
/* Connections close after their current request. Idle ones close now, or with keeps_idle
 * after one more request or when their time is up. t->on_last_conn is called when none is
 * left. May be called again. keeps_listening: connections accepted from now on are late.
 * The daemon answers them what concerns itself, refuses the rest, and does not wait for
 * them. */
void conn_drain_all(struct io_thread *t, bool keeps_idle, bool keeps_listening);
/* Late connections are waited for now too: each gets its answer, or is closed if it sent
 * no request. The listeners are closed. */
void conn_drain_late(struct io_thread *t);
/* Cuts all connections. */
void conn_close_all(struct io_thread *t);

#endif
