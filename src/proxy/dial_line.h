/*
 * Exchanges that wait for what the connects of others bring (reach.h). A connect that
 * ends, on whichever thread, calls them; nobody looks by a timer. Each thread has a line,
 * touched by it alone; the threads are called by their mailboxes, and only while somebody
 * waits for that worker. Called by upstream.c.
 */
#ifndef PROXY_DIAL_LINE_H
#define PROXY_DIAL_LINE_H

#include "base/base.h"
#include "base/list.h"

struct dial_line;
struct io_thread;
struct process;
struct worker;

/* Embedded in who waits; zeroed at first. */
struct dial_place {
	LIST_ENTRY(dial_place) link;
	struct dial_line *line; /* NULL: it does not wait */
	struct worker *worker;
	void (*look)(void *arg);
	void *arg;
};

struct dial_line *dial_line_new(struct io_thread *t); /* NULL: out of memory */
void dial_line_free(struct dial_line *line); /* nobody waits any more; NULL is fine */

/* look(arg) comes after each connect to the worker that ends from now on, and maybe
 * without one, until it leaves; never from inside a call of this file. Who joins looks
 * once more itself. Idempotent. */
void dial_line_join(struct dial_line *line, struct dial_place *place, struct worker *w);
void dial_line_leave(struct dial_place *place); /* idempotent */

/* A connect to the worker has ended. */
void dial_line_call(struct process *p, struct worker *w);

#endif
