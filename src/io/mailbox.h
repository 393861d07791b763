/*
 * Wakes another thread: an eventfd and a locked queue of (fn, arg). Any thread posts, and
 * the loop's thread runs what was posted, in that order.
 */
#ifndef IO_MAILBOX_H
#define IO_MAILBOX_H

#include "base/base.h"

struct loop;
struct mailbox;

struct mailbox *mailbox_new(struct loop *l); /* on the loop's thread, before others post;
						NULL: no memory or descriptors */
void mailbox_free(
	struct mailbox *m); /* runs what is still queued; on the loop's thread, after the
			       last post, not from a letter; NULL is fine */
/* Runs the queued letters now, for an owner that is about to go. On the loop's thread,
 * not from a letter. */
void mailbox_deliver(struct mailbox *m);
/*
 * Posts in memory that the sender brings, so this cannot fail. The mailbox lets go of
 * mail before it calls fn, which may free it or post it again.
 */
struct mail {
	struct mail *next;
	void (*fn)(void *arg);
	void *arg;
};
void mailbox_send(struct mailbox *m, struct mail *mail, void (*fn)(void *arg), void *arg);
/* ERR_NOMEM only. */
int mailbox_post(struct mailbox *m, void (*fn)(void *arg), void *arg) MUST_CHECK;

#endif
