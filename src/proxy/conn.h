/*
 * One client connection: reads, keep-alive, deadlines, lingering close; owns at most one
 * request at a time. Pipelined requests wait in its buffer.
 */
#ifndef PROXY_CONN_H
#define PROXY_CONN_H

#include "base/base.h"
#include "io/sock.h"

struct io_thread;

/* Takes the accepted descriptor (closes it when memory is short). */
void conn_open(struct io_thread *t, int fd, const union sock_addr *peer);
/* Idle connections close now, the others after what they are doing; t->on_last_conn is
 * called when none is left. */
void conn_drain_all(struct io_thread *t);
/* Everything is cut. */
void conn_close_all(struct io_thread *t);

#endif
