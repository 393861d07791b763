/*
 * One listening socket of one thread: accepts, pauses 100 ms when descriptors run out or
 * max_connections is reached, hands to conn.
 */
#ifndef PROXY_LISTENER_H
#define PROXY_LISTENER_H

#include "base/base.h"

struct io_thread;
struct listener;

/* is_introduced: connections begin with a header of the PROXY protocol. Takes fd; closes it at the end. Accepts nothing before it is opened. NULL: out of
 * memory (fd stays the caller's). */
struct listener *listener_new(struct io_thread *t, int fd, bool is_introduced);
void listener_open(struct listener *l);
/* Accepts all connections in the accept queue. */
void listener_accept_all(struct listener *l);
/* Accepts all connections in the accept queue first. for_good: the socket stops listening
 * even where it is open elsewhere (the service manager may keep a copy). NULL is fine. */
void listener_free(struct listener *l, bool for_good);

#endif
