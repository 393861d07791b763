/*
 * The engine's step loop. One timer descriptor wakes it for what is due next; due times are absolute, so lateness does not add up.
 * Always true: the timer is set to sched_wake_us(), or disarmed where that is never.
 * Called by engine_daemon.c and serve.c, on the loop's thread only.
 */
#include "engine.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "io/loop.h"
#include "kv_cache.h"

#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Builds for finding faults check everything: after each step where the pool is small, seldom enough to go on where it is large. */
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ENGINE_AUDIT_EVERY(n_blocks) (1 + (n_blocks) / 256)
#else
#define ENGINE_AUDIT_EVERY(n_blocks) 0
#endif

struct engine {
	const struct backend_ops *ops;
	struct backend *backend;
	struct sched *sched;
	int timer_fd;
	struct loop_watch *watch;
	uint64_t due_us;   /* of the next step; UINT64_MAX: there is none */
	uint64_t armed_us; /* when that became known: it cannot have been done before */
};

/* Sets the timer for what is due next; now_us counts for what is due at once. */
static void arm(struct engine *e, uint64_t now_us)
{
	struct itimerspec at = { 0 };

	e->due_us = sched_wake_us(e->sched);
	e->armed_us = now_us;
	if (e->due_us != UINT64_MAX) {
		at.it_value.tv_sec = (time_t)(e->due_us / 1000000);
		at.it_value.tv_nsec = (long)(e->due_us % 1000000 * 1000) + (e->due_us == 0);
	}
	(void)timerfd_settime(e->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* A step that was due already does not become due anew. */
static void on_work(void *arg)
{
	struct engine *e = arg;
	uint64_t now_us = clock_us(), since_us = MAX(e->due_us, e->armed_us);

	arm(e, since_us < now_us ? since_us : now_us);
}

static void on_wake(void *arg, int fd, unsigned events UNUSED)
{
	struct engine *e = arg;
	uint64_t times, now_us = clock_us();

	if (read(fd, &times, sizeof(times)) != (ssize_t)sizeof(times))
		return; /* set anew in the meantime */
	sched_step(e->sched, now_us);
	arm(e, clock_us());
}

bool engine_is_live(const struct engine *e, uint64_t now_us)
{
	uint64_t since_us = MAX(e->due_us, e->armed_us);

	return e->due_us == UINT64_MAX || now_us <= since_us + ENGINE_STALL_MS * 1000u;
}

static int open_backend(struct engine *e, const struct engine_opts *opts)
{
	struct backend_opts backend_opts = {
		.model = opts->model,
		.n_blocks = opts->sched.n_blocks,
		.block_tokens = KV_BLOCK,
		.max_rows = opts->sched.max_seqs,
		.max_new = opts->sched.step_tokens,
	};

	e->ops = opts->backend;
	return e->ops->open(&backend_opts, &e->backend);
}

static int open_sched(struct engine *e, const struct engine_opts *opts)
{
	struct sched_opts sched_opts = opts->sched;

	sched_opts.prefill_us = opts->speed * 1e6 / opts->prefill_rate;
	sched_opts.decode_us = opts->speed * 1e6 / opts->decode_rate;
	sched_opts.step_us = opts->speed * 1e3 * (double)opts->step_ms;
	sched_opts.audit_every = ENGINE_AUDIT_EVERY(sched_opts.n_blocks);
	sched_opts.on_work = on_work;
	sched_opts.arg = e;
	e->sched = sched_new(&sched_opts, e->ops, e->backend);
	return e->sched != NULL ? 0 : ERR_NOMEM;
}

static int open_timer(struct engine *e, struct loop *l)
{
	e->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (e->timer_fd < 0)
		return ERR_IO;
	e->watch = loop_watch_new(l, e->timer_fd, LOOP_READ, on_wake, e);
	return e->watch != NULL ? 0 : ERR_NOMEM;
}

int engine_new(struct loop *l, const struct engine_opts *opts, struct engine **out)
{
	struct engine *e = calloc(1, sizeof(*e));
	int err;

	if (e == NULL)
		return ERR_NOMEM;
	e->timer_fd = -1;
	e->due_us = UINT64_MAX;
	err = open_backend(e, opts);
	if (err == 0)
		err = open_sched(e, opts);
	if (err == 0)
		err = open_timer(e, l);
	if (err != 0)
		engine_free(e);
	else
		*out = e;
	return err;
}

void engine_free(struct engine *e)
{
	if (e == NULL)
		return;
	if (e->watch != NULL)
		loop_watch_free(e->watch);
	if (e->timer_fd >= 0)
		close(e->timer_fd);
	sched_free(e->sched);
	if (e->backend != NULL)
		e->ops->close(e->backend);
	free(e);
}

struct sched *engine_sched(struct engine *e)
{
	return e->sched;
}

const char *engine_backend(const struct engine *e)
{
	return e->ops->name;
}
