/*
 * The I/O threads: started, fed with sockets and configurations, drained, joined.
 * Everything here is called on the control thread; threads get
 * messages through their mailboxes only, so a call takes effect a moment later, in order.
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
 * out of threads, memory or descriptors, which was logged.
 */
struct threads *threads_start(unsigned n, struct process *p, struct site *site);
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
void threads_prepare(
	struct threads *all, unsigned index, uint64_t id, int fd, bool is_introduced);
/* Waits for the listeners that were prepared. ERR_NOMEM: some were not made. */
int threads_await_prepared(struct threads *all) MUST_CHECK;
/* Every thread accepts from its sockets with that id. Room for a letter to each was made,
 * here and in the next two. */
void threads_listen(struct threads *all, uint64_t id);
/*
 * Every thread accepts what waits in the queue of its sockets with that id, and closes
 * them, wherever else they are open. Waits for that, for a moment: the address is free
 * for the next reload.
 */
void threads_unlisten(struct threads *all, uint64_t id);
/* Requests that begin from now on use site. Waits a moment until every thread has it. */
void threads_set_site(struct threads *all, struct site *site);
void threads_flush_logs(struct threads *all);
/* A worker has left: each thread closes its idle connections to such workers. Cannot
 * fail. NULL is fine. */
void threads_tidy(struct threads *all);

/*
 * Asks each thread that answered the last question to answer again from its loop. An idle
 * thread does so at once, a thread that hangs never. Returns the index of the first
 * thread that has not answered the question before; -1: all have.
 */
int threads_poke(struct threads *all);

/*
 * Closes listeners and idle connections; busy ones close after their request.
 * on_empty(arg) comes through home once, when no thread has a connection left. Call once.
 *   KEEPS_IDLE       idle connections stay until they have sent one more request
 *   KEEPS_LISTENING  listeners stay open: new connections are late, get 503 and are not
 *                    waited for (conn.h)
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
/* Cuts the remaining connections, ends and joins the threads, frees. NULL is fine. */
void threads_stop(struct threads *all);

#endif
