/*
 * One listening socket of one thread. See listener.h.
 */
#include "proxy/listener.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "io/loop.h"
#include "io/sock.h"
#include "io/wheel.h"
#include "proxy/conn.h"
#include "proxy/io_thread.h"
#include "proxy/upstream.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPT_BATCH 32
#define PAUSE_MS 100
#define LOG_EVERY_MS 10000

struct listener {
	struct io_thread *t;
	int fd;
	struct loop_watch *watch;
	struct wheel_timer timer;
};

static struct log_limit pause_limit;

static void pause_accepting(struct listener *l, const char *why)
{
	unsigned missed;

	loop_watch_enable(l->watch, false);
	wheel_set(l->t->wheel, &l->timer, clock_now_ms() + PAUSE_MS);
	metric_inc(METRIC_ACCEPT_PAUSED);
	/* Idle connections to workers are descriptors too. */
	upstream_idle_close_all(l->t->idle);
	if (log_limit_ok(&pause_limit, clock_now_ms(), LOG_EVERY_MS, &missed))
		log_warn("accepting pauses for %d ms: %s (%u more pauses since the last "
			 "such line)",
			PAUSE_MS, why, missed);
}

static void on_timer(void *arg)
{
	struct listener *l = arg;

	loop_watch_enable(l->watch, true);
}

/* Before it is accepted, so that threads that accept at once stay below the limit, too.
 */
static bool take_place(struct process *p)
{
	unsigned n = atomic_load_explicit(&p->connections, memory_order_relaxed);

	while (n < p->max_connections) {
		if (atomic_compare_exchange_weak_explicit(&p->connections, &n, n + 1,
			    memory_order_relaxed, memory_order_relaxed))
			return true;
	}
	return false;
}

/* Accepts up to n; true when the queue is empty. */
static bool accept_some(struct listener *l, int n)
{
	while (n-- > 0) {
		union sock_addr peer;
		int fd = -1, err;

		if (!take_place(l->t->process)) {
			pause_accepting(l, "max_connections is reached");
			return true;
		}
		err = sock_accept(l->fd, &fd, &peer);
		if (err == 0)
			conn_open(l->t, fd, &peer);
		else
			conn_leave_place(l->t);
		if (err == ERR_LIMIT)
			pause_accepting(l, "no more descriptors or memory");
		if (err == ERR_AGAIN || err == ERR_LIMIT)
			return true;
	}
	return false;
}

static void on_readable(void *arg, int fd, unsigned events)
{
	(void)fd;
	(void)events;
	accept_some(arg, ACCEPT_BATCH);
}

struct listener *listener_new(struct io_thread *t, int fd)
{
	struct listener *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return NULL;
	l->t = t;
	l->fd = fd;
	wheel_timer_init(&l->timer, on_timer, l);
	l->watch = loop_watch_new(t->loop, fd, LOOP_READ, on_readable, l);
	if (l->watch == NULL) {
		free(l);
		return NULL;
	}
	return l;
}

void listener_accept_all(struct listener *l)
{
	int rounds = 128; /* of ACCEPT_BATCH: more than the backlog */

	while (rounds-- > 0 && !accept_some(l, ACCEPT_BATCH))
		;
}

void listener_free(struct listener *l, bool for_good)
{
	if (l == NULL)
		return;
	listener_accept_all(l);
	wheel_stop(l->t->wheel, &l->timer);
	loop_watch_free(l->watch);
	if (for_good)
		(void)shutdown(l->fd, SHUT_RDWR);
	close(l->fd);
	free(l);
}
