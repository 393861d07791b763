/*
 * One listening socket of one thread. See listener.h.
 */
#include "proxy/listener.h"

#include "base/metric.h"
#include "io/accepter.h"
#include "proxy/conn.h"
#include "proxy/io_thread.h"
#include "proxy/upstream.h"

#include <stdlib.h>
#include <sys/socket.h>

struct listener {
	struct io_thread *t;
	int fd; /* the accepter's */
	bool is_introduced;
	struct accepter *accepter;
};

static int on_conn(void *arg, int fd, const union sock_addr *peer)
{
	struct listener *l = arg;

	return conn_open(l->t, fd, peer, l->is_introduced);
}

/* Before it is accepted, so that threads that accept at once stay below the limit, too.
 */
static bool take_place(void *arg)
{
	struct listener *l = arg;
	struct process *p = l->t->process;
	unsigned n = atomic_load_explicit(&p->connections, memory_order_relaxed);

	while (n < p->max_connections) {
		if (atomic_compare_exchange_weak_explicit(&p->connections, &n, n + 1,
			    memory_order_relaxed, memory_order_relaxed))
			return true;
	}
	return false;
}

static void leave_place(void *arg)
{
	struct listener *l = arg;

	conn_leave_place(l->t);
}

static void on_pause(void *arg, bool lacks_place)
{
	struct listener *l = arg;

	metric_inc(METRIC_ACCEPT_PAUSED);
	/* Idle connections to workers are descriptors too. At max_connections nothing is
	 * short, and clients would only wait for connects. */
	if (!lacks_place)
		upstream_idle_close_all(l->t->idle);
}

static const struct accepter_ops accepter_ops = {
	.on_conn = on_conn,
	.take_place = take_place,
	.leave_place = leave_place,
	.on_pause = on_pause,
	.limit = "max_connections",
};

struct listener *listener_new(struct io_thread *t, int fd, bool is_introduced)
{
	struct listener *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return NULL;
	l->t = t;
	l->fd = fd;
	l->is_introduced = is_introduced;
	l->accepter = accepter_new(t->loop, fd, &accepter_ops, l);
	if (l->accepter == NULL) {
		free(l);
		return NULL;
	}
	accepter_enable(l->accepter, false);
	return l;
}

void listener_open(struct listener *l)
{
	accepter_enable(l->accepter, true);
}

void listener_accept_all(struct listener *l)
{
	accepter_take_all(l->accepter);
}

void listener_free(struct listener *l, bool for_good)
{
	if (l == NULL)
		return;
	accepter_take_all(l->accepter);
	if (for_good)
		(void)shutdown(l->fd, SHUT_RDWR);
	accepter_free(l->accepter);
	free(l);
}
