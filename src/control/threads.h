/*
 * The I/O threads: started, fed with sockets and configurations, drained, joined.
 * Everything here is called on the control thread; each thread is spoken to through its
 * mailbox only, so what is said takes effect a moment later, in the order it was said.
 * Called by daemon.c, listen.c and reload.c.
 */
#ifndef CONTROL_THREADS_H
#define CONTROL_THREADS_H

#include "base/base.h"

struct mailbox;
struct process;
struct site;
struct threads;

/* One for each core that this process may run on. */
unsigned threads_for_cores(void);

/*
 * Starts n threads, each with a loop, a mailbox and an io_thread of its own. NULL:
 * threads, memory or descriptors are short, which was logged.
 */
struct threads *threads_start(
	unsigned n, struct process *p, struct site *site, int access_log_fd);
unsigned threads_count(const struct threads *all);

/*
 * Memory for what n threads, or one thread n times, are told: what must not be half told
 * cannot fail after this. ERR_NOMEM.
 */
int threads_make_room(struct threads *all, size_t n) MUST_CHECK;

/*
 * A listener on fd is made in thread `index`. From now on fd belongs to that thread. The
 * listener accepts nothing before threads_listen(). Room for one letter was made.
 */
void threads_prepare(struct threads *all, unsigned index, uint64_t id, int fd);
/* Waits for the listeners that were prepared. ERR_NOMEM: some were not made. */
int threads_await_prepared(struct threads *all) MUST_CHECK;
/* Every thread accepts from its sockets with that id. Room for a letter to each was made,
 * here and in the next two. */
void threads_listen(struct threads *all, uint64_t id);
/*
 * Every thread accepts what waits in the queue of its sockets with that id, and closes
 * them, wherever else they are open. Waits for that, for a moment: the address is free for
 * the next reload.
 */
void threads_unlisten(struct threads *all, uint64_t id);
/* Requests that begin from now on begin under site: it waits, for a moment, until every
 * thread knows. */
void threads_set_site(struct threads *all, struct site *site);
void threads_flush_logs(struct threads *all);
/* A worker has left: each thread closes its idle connections to such workers. Cannot fail.
 * NULL is fine. */
void threads_tidy(struct threads *all);

/*
 * Asks each thread that has answered the last time to answer once more, from its loop: an
 * idle one does at once, one that hangs never. The index of the first that has not
 * answered what it was asked before; -1: all have.
 */
int threads_poke(struct threads *all);

/*
 * Listeners close, idle connections too, the others after what they are doing.
 * on_empty(arg) comes through home once, when no thread has a connection left. Call once.
 *   KEEPS_IDLE       idle connections stay until they have sent one more request
 *   KEEPS_LISTENING  listeners stay open: who comes from now on is late, is told so and
 *                    not waited for (conn.h)
 */
enum drain_way { DRAIN_ALL, DRAIN_KEEPS_IDLE, DRAIN_KEEPS_LISTENING };
void threads_drain(struct threads *all, enum drain_way way, struct mailbox *home,
	void (*on_empty)(void *arg), void *arg);
/* After DRAIN_KEEPS_LISTENING, when on_empty() has come: listeners close, late
 * connections end, and it comes once more. */
void threads_drain_late(struct threads *all);
/* Idle connections that were kept close now. After threads_drain(). */
void threads_close_idle(struct threads *all);
/* Cuts every connection. After threads_drain(). */
void threads_cut(struct threads *all);
/* Cuts what is left, ends and joins the threads, frees. NULL is fine. */
void threads_stop(struct threads *all);

#endif
