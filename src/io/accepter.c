/*
 * Accepting, and its pauses. See accepter.h. Always true: the descriptor is watched
 * unless the accepter is off or its timer, which ends a pause, is set.
 */
#include "io/accepter.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "io/loop.h"
#include "io/wheel.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOG_EVERY_MS 10000

struct accepter {
	struct loop *loop;
	int fd;
	struct loop_watch *watch;
	struct wheel_timer timer;
	bool is_off, lacks_place;
	const struct accepter_ops *ops;
	void *arg;
};

static struct log_limit pause_limit;

static void watch(struct accepter *a)
{
	loop_watch_enable(a->watch, !a->is_off && !wheel_is_set(&a->timer));
}

static void log_pause(const struct accepter *a, const char *what, const char *is)
{
	union sock_addr own = {.sa.sa_family = AF_UNSPEC};
	socklen_t n = sizeof(own);
	char text[SOCK_ADDR_TEXT_MAX];
	unsigned missed;

	if (!log_limit_ok(&pause_limit, clock_now_ms(), LOG_EVERY_MS, &missed))
		return;
	(void)getsockname(a->fd, &own.sa, &n);
	(void)sock_addr_text(&own, true, text, sizeof(text));
	log_warn("accepting on %s pauses for %d ms: %s%s (%u more pauses since the last "
		 "such line)",
		text, ACCEPTER_PAUSE_MS, what, is, missed);
}

static void pause_accepting(struct accepter *a, bool lacks_place)
{
	wheel_set(loop_wheel(a->loop), &a->timer, clock_now_ms() + ACCEPTER_PAUSE_MS);
	a->lacks_place = lacks_place;
	watch(a);
	if (!lacks_place)
		log_pause(a, "no more descriptors or memory", "");
	else if (a->ops->limit != NULL)
		log_pause(a, a->ops->limit, " is reached");
	if (a->ops->on_pause != NULL)
		a->ops->on_pause(a->arg, lacks_place);
}

static void on_timer(void *arg)
{
	watch(arg);
}

/* 0: one was accepted, or broke off before that; ERR_AGAIN: none waits, or a pause has
 * begun. */
static int accept_one(struct accepter *a)
{
	union sock_addr peer;
	int fd, err;

	if (a->ops->take_place != NULL && !a->ops->take_place(a->arg)) {
		pause_accepting(a, true);
		return ERR_AGAIN;
	}
	err = sock_accept(a->fd, &fd, &peer);
	if (err == 0) {
		err = a->ops->on_conn(a->arg, fd, &peer);
	} else if (a->ops->leave_place != NULL) {
		a->ops->leave_place(a->arg);
	}
	if (err == ERR_LIMIT || err == ERR_NOMEM)
		pause_accepting(a, false);
	return err == ERR_AGAIN || err == ERR_LIMIT || err == ERR_NOMEM ? ERR_AGAIN : 0;
}

static void on_readable(void *arg, int fd UNUSED, unsigned events UNUSED)
{
	struct accepter *a = arg;

	for (int i = 0; i < ACCEPTER_BATCH && !a->is_off; i++)
		if (accept_one(a) != 0)
			return;
}

struct accepter *accepter_new(
	struct loop *l, int fd, const struct accepter_ops *ops, void *arg)
{
	struct accepter *a = calloc(1, sizeof(*a));

	if (a == NULL)
		return NULL;
	a->loop = l;
	a->fd = fd;
	a->ops = ops;
	a->arg = arg;
	wheel_timer_init(&a->timer, on_timer, a);
	a->watch = loop_watch_new(l, fd, LOOP_READ, on_readable, a);
	if (a->watch == NULL) {
		free(a);
		return NULL;
	}
	return a;
}

void accepter_enable(struct accepter *a, bool on)
{
	a->is_off = !on;
	watch(a);
}

void accepter_has_place(struct accepter *a)
{
	if (!wheel_is_set(&a->timer) || !a->lacks_place)
		return;
	wheel_stop(loop_wheel(a->loop), &a->timer);
	watch(a);
}

void accepter_take_all(struct accepter *a)
{
	for (int i = 0; i < SOCK_BACKLOG; i++)
		if (accept_one(a) != 0)
			return;
}

void accepter_free(struct accepter *a)
{
	if (a == NULL)
		return;
	wheel_stop(loop_wheel(a->loop), &a->timer);
	loop_watch_free(a->watch);
	close(a->fd);
	free(a);
}
