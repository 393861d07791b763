/*
 * One event base: descriptors, signals, one timer wheel, the reap list, callbacks at the
 * end of a turn. One loop for each thread; nothing in it is locked. libevent shows in
 * loop, stream and fetch only (evthread_use_pthreads is never called: other threads speak
 * through mailbox).
 */
#ifndef IO_LOOP_H
#define IO_LOOP_H

#include "base/base.h"

struct loop;
struct event_base;

struct loop *loop_new(void);    /* NULL: no memory or descriptors */
void loop_free(struct loop *l); /* NULL is fine; reaps first; watches, signals and timers
				   must be gone */
/* Runs turns until loop_stop(), also one called before; each turn: wait, callbacks of
 * descriptors, of timers, end-of-turn callbacks, reap. clock_update() was called before
 * each callback. */
void loop_run(struct loop *l);
void loop_stop(struct loop *l);
/* One turn, waiting at most wait_ms (-1: as long as it takes). For tests and tools. */
void loop_turn(struct loop *l, int wait_ms);

/* Frees obj by destroy(obj) at the end of this turn, in the order of the calls. Objects
 * that a destroy() reaps are freed in the same turn. So nothing is freed inside its own
 * callback. Never fails (intrusive entry in the object). */
struct reap {
	struct reap *next;
	void (*destroy)(struct reap *r);
};
void loop_reap(struct loop *l, struct reap *r, void (*destroy)(struct reap *r));

/* Calls fn(arg) at the end of each turn, before reaping, until removed (also inside a
 * hook). A hook does not keep the loop awake. */
struct turn_hook {
	struct turn_hook *next;
	void (*fn)(void *arg);
	void *arg;
};
void loop_turn_hook_add(struct loop *l, struct turn_hook *h);
void loop_turn_hook_remove(struct loop *l, struct turn_hook *h);

/* Readiness of a descriptor that is no stream (listener, eventfd, pipe). Opaque. */
struct loop_watch;
enum { LOOP_READ = 1, LOOP_WRITE = 2 };
typedef void loop_watch_fn(void *arg, int fd, unsigned events);
/* Enabled. NULL: no memory, or the kernel refuses fd. */
struct loop_watch *loop_watch_new(
	struct loop *l, int fd, unsigned events, loop_watch_fn *fn, void *arg);
void loop_watch_enable(struct loop_watch *w, bool on);
void loop_watch_free(
	struct loop_watch *w); /* does not close fd; safe inside its callback */

/*
 * Reports the end of a connection that the program does not read from now (stream only).
 * libevent cannot do this:
 * with EV_CLOSED alone a reset spins the base without a callback (EPOLLERR is reported to
 * EV_READ and EV_WRITE only). So each loop has a second epoll for these.
 */
struct loop_hangup {
	int fd; /* -1: not armed; set so before the first arm */
	void (*fn)(void *arg);
	void *arg;
};
/* fn once: when the peer's FIN is there (with_fin), or the connection broke. fd must not
 * be armed yet. ERR_IO. */
int loop_hangup_arm(
	struct loop *l, struct loop_hangup *h, int fd, bool with_fin) MUST_CHECK;
void loop_hangup_disarm(
	struct loop *l, struct loop_hangup *h); /* before fd is closed; idempotent */

/* One loop of the process may watch signals. NULL: no memory. */
struct loop_signal;
struct loop_signal *loop_signal_new(
	struct loop *l, int signo, void (*fn)(void *arg, int signo), void *arg);
void loop_signal_free(struct loop_signal *s);

struct wheel *loop_wheel(struct loop *l);
struct event_base *loop_base(struct loop *l); /* for stream, fetch only */

#endif
