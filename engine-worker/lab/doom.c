/*
 * A timerfd that the loop watches. Called by serve.c.
 */
#include "lab/doom.h"
#include "base/log.h"
#include "io/loop.h"

#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

struct doom {
	int fd;
	struct loop_watch *watch;
	bool is_set;
	void (*fn)(void *arg);
	void *arg;
};

static void on_time(void *arg, int fd, unsigned events UNUSED)
{
	struct doom *d = arg;
	uint64_t n;

	if (read(fd, &n, sizeof(n)) != (ssize_t)sizeof(n))
		return;
	d->is_set = false;
	d->fn(d->arg);
}

struct doom *doom_new(struct loop *l, void (*fn)(void *arg), void *arg)
{
	struct doom *d = calloc(1, sizeof(*d));

	if (d == NULL)
		return NULL;
	d->fn = fn;
	d->arg = arg;
	d->fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (d->fd >= 0)
		d->watch = loop_watch_new(l, d->fd, LOOP_READ, on_time, d);
	if (d->watch == NULL) {
		doom_free(d);
		return NULL;
	}
	return d;
}

void doom_free(struct doom *d)
{
	if (d == NULL)
		return;
	if (d->watch != NULL)
		loop_watch_free(d->watch);
	if (d->fd >= 0)
		close(d->fd);
	free(d);
}

void doom_set(struct doom *d, uint64_t ms)
{
	/* 0 would stop the timer */
	struct itimerspec at = {.it_value = {(time_t)(ms / 1000),
					(long)(ms % 1000 * 1000000 + (ms == 0))}};

	if (d->is_set)
		return;
	if (timerfd_settime(d->fd, 0, &at, NULL) == 0)
		d->is_set = true;
	else
		log_warn("the fault die_after_ms: %m");
}
