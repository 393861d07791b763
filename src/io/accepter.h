/*
 * Accepts the connections of one listening socket, a batch in each turn, so that those
 * that are there already get theirs. Where descriptors or memory run out, or the owner
 * has no place, accepting pauses for ACCEPTER_PAUSE_MS and goes on by itself: who
 * connects meanwhile waits in the kernel's queue. A pause is logged, at most once in ten
 * seconds in the whole process. Used by http_server, the router's listener and KVX.
 */
#ifndef IO_ACCEPTER_H
#define IO_ACCEPTER_H

#include "base/base.h"
#include "io/sock.h"

#define ACCEPTER_BATCH 32 /* connections in a turn */
#define ACCEPTER_PAUSE_MS 100

struct accepter;
struct loop;

struct accepter_ops {
	/* A connection; fd is the callee's. 0, or ERR_NOMEM (fd is closed): a pause. It
	 * may call accepter_enable(), not accepter_free(). */
	int (*on_conn)(void *arg, int fd, const union sock_addr *peer);
	/* Asked before each accept; false: a pause. If no connection comes,
	 * leave_place() gives the reservation back. NULL: there is always place. */
	bool (*take_place)(void *arg);
	void (*leave_place)(void *arg); /* may be NULL */
	/* lacks_place: take_place() said no; else descriptors or memory have run out.
	 * NULL is fine. */
	void (*on_pause)(void *arg, bool lacks_place);
	const char
		*limit; /* what take_place() keeps to, for the log; NULL: says nothing */
};

/* Takes fd, closes it at the end; *ops must outlive it. NULL: out of memory, fd stays the
 * caller's. */
struct accepter *accepter_new(
	struct loop *l, int fd, const struct accepter_ops *ops, void *arg);
/* While off, nobody is accepted. On at first. */
void accepter_enable(struct accepter *a, bool on);
/* A place is free: a pause for want of one ends now. */
void accepter_has_place(struct accepter *a);
/* Accepts what waits in the kernel's queue at once. */
void accepter_take_all(struct accepter *a);
void accepter_free(struct accepter *a); /* NULL is fine */

#endif
