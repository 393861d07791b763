/*
 * The engine's step loop. A timer descriptor wakes it for what is due next, and an
 * eventfd when the step that runs is done. Due times are absolute, so lateness does not
 * add up. The scheduler lives in engine time, which is the clock until a fault slows it
 * down or stops it (engine_set_pace()).
 *
 * Always true: while a step runs the timer is disarmed. Else it is set to
 * sched_wake_us(), or disarmed where that is never or engine time stands still; with
 * pokes it is set at once. Called by engine_daemon.c and serve.c, on the loop's thread
 * only, but for on_done().
 */
#include "core/engine.h"
#include "base/clock.h"
#include "base/err.h"
#include "core/vocab.h"
#include "io/loop.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Builds for finding faults check everything: after each step where the pool is small,
 * seldom enough to go on where it is large. */
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || \
	defined(__SANITIZE_THREAD__)
#	define ENGINE_AUDIT_EVERY(n_blocks) (1 + (n_blocks) / 256)
#else
#	define ENGINE_AUDIT_EVERY(n_blocks) 0
#endif

/*
 * The life of a step. The loop's thread begins it and, once step() has returned, lets it
 * run. The backend's thread makes it done. Only a step that is done after it was let run
 * wakes the loop by the eventfd; the others are seen when step() returns.
 */
enum { STEP_NONE, STEP_BEGINS, STEP_RUNS, STEP_DONE };

struct engine {
	struct loop *loop;
	struct engine_opts opts;
	const struct backend_ops *ops;
	struct backend *backend; /* NULL: not open yet */
	struct sched *sched;
	/* While it loads the loader's, but for gives_up */
	pthread_t loader;
	struct backend *loaded;
	int load_err;
	atomic_bool gives_up;
	bool is_loading; /* the loader is to be joined */
	int timer_fd, done_fd;
	struct loop_watch *watch, *done_watch;
	atomic_int step;     /* STEP_* */
	bool is_poking;      /* it is one of nothing, for pokes */
	uint64_t begun_us;   /* when it began */
	uint64_t longest_us; /* step so far */
	uint64_t due_us;     /* of the next step; UINT64_MAX: there is none */
	uint64_t armed_us;   /* when that became known: it cannot have been done before */
	TAILQ_HEAD(, engine_poke) pokes;
	/* Engine time was engine_us at clock_us, and goes on at 1 / slow; wedged: not at
	 * all. */
	uint64_t engine_us, clock_us;
	double slow;
	bool is_wedged;
};

static uint64_t engine_time_us(const struct engine *e, uint64_t now_us)
{
	uint64_t since_us = now_us - e->clock_us;

	if (e->is_wedged)
		return e->engine_us;
	if (e->slow != 1)
		since_us = (uint64_t)((double)since_us / e->slow);
	return e->engine_us + since_us;
}

/* When engine time will be at_us; what is past is due since the pace was set. */
static uint64_t clock_time_us(const struct engine *e, uint64_t at_us)
{
	uint64_t after_us = at_us > e->engine_us ? at_us - e->engine_us : 0;

	if (e->is_wedged || at_us == UINT64_MAX)
		return UINT64_MAX;
	if (e->slow != 1)
		after_us =
			(uint64_t)ceil((double)after_us * e->slow) + 1; /* never early */
	return e->clock_us + after_us;
}

static bool is_stepping(const struct engine *e)
{
	return atomic_load(&e->step) != STEP_NONE;
}

/* Sets the timer for what is due next; now_us counts for what is due at once. */
static void arm(struct engine *e, uint64_t now_us)
{
	struct itimerspec at = {0};

	if (e->sched == NULL)
		return;
	e->due_us = clock_time_us(e, sched_wake_us(e->sched));
	e->armed_us = now_us;
	if (is_stepping(e)) {
		e->due_us = UINT64_MAX;
	} else if (!TAILQ_EMPTY(&e->pokes) && !e->is_wedged) {
		at.it_value.tv_nsec = 1;
	} else if (e->due_us != UINT64_MAX) {
		at.it_value.tv_sec = (time_t)(e->due_us / 1000000);
		at.it_value.tv_nsec =
			(long)(e->due_us % 1000000 * 1000) + (e->due_us == 0);
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

/* Steps */

static void wake(const struct engine *e)
{
	const uint64_t one = 1;

	if (write(e->done_fd, &one, sizeof(one)) != (ssize_t)sizeof(one))
		abort(); /* of an eventfd whose count is 0 */
}

/* On any thread. */
static void on_done(void *arg)
{
	struct engine *e = arg;

	if (atomic_exchange(&e->step, STEP_DONE) == STEP_RUNS)
		wake(e);
}

static void begin_step(struct engine *e, bool is_poking)
{
	e->is_poking = is_poking;
	e->begun_us = clock_us();
	atomic_store(&e->step, STEP_BEGINS);
}

/* step() has returned. False: the step is done already. */
static bool let_run(struct engine *e)
{
	int begins = STEP_BEGINS;

	return atomic_compare_exchange_strong(&e->step, &begins, STEP_RUNS);
}

static void answer_pokes(struct engine *e, int err)
{
	struct engine_poke *poke;

	while ((poke = TAILQ_FIRST(&e->pokes)) != NULL) {
		engine_poke_cancel(e, poke);
		poke->fn(poke->arg, err);
	}
}

/* Collects the step that is done. */
static void finish_step(struct engine *e)
{
	e->longest_us = MAX(e->longest_us, clock_us() - e->begun_us);
	atomic_store(&e->step, STEP_NONE);
	if (e->is_poking)
		answer_pokes(e, e->ops->collect(e->backend, NULL, 0));
	else
		sched_finish(e->sched);
}

/* A step that computes nothing. */
static void step_for_pokes(struct engine *e)
{
	int err;

	begin_step(e, true);
	err = e->ops->step(e->backend, NULL, 0);
	if (err != 0) {
		atomic_store(&e->step, STEP_NONE);
		answer_pokes(e, err);
	} else if (!let_run(e)) {
		finish_step(e);
	}
}

/* A step of the sequences that are due. */
static void step_sequences(struct engine *e)
{
	begin_step(e, false);
	if (!sched_begin(e->sched, engine_time_us(e, e->begun_us)))
		atomic_store(&e->step, STEP_NONE);
	else if (!let_run(e))
		finish_step(e);
}

/* Pokes go first: something else may always be due. */
static void make_step(struct engine *e)
{
	if (!TAILQ_EMPTY(&e->pokes))
		step_for_pokes(e);
	if (!is_stepping(e))
		step_sequences(e);
}

static void on_due(void *arg, int fd, unsigned events UNUSED)
{
	struct engine *e = arg;
	uint64_t times;

	if (read(fd, &times, sizeof(times)) != (ssize_t)sizeof(times) || e->is_wedged ||
		is_stepping(e))
		return; /* set anew in the meantime */
	make_step(e);
	arm(e, clock_us());
}

/* The next step begins in the same turn: the backend is not to stand idle. */
static void go_on(struct engine *e)
{
	finish_step(e);
	if (!e->is_wedged)
		make_step(e);
	arm(e, clock_us());
}

/* The backend and the scheduler go, after the step that runs. */
static void close_empty(struct engine *e)
{
	int err = 0;
	uint64_t times;
	ssize_t n = 0;

	if (is_stepping(e) && e->is_poking)
		err = e->ops->collect(e->backend, NULL, 0);
	sched_free(e->sched);
	if (e->backend != NULL)
		e->ops->close(e->backend);
	if (is_stepping(e)) /* it has said, or not, that it is done */
		n = read(e->done_fd, &times, sizeof(times));
	(void)err;
	(void)n;
	atomic_store(&e->step, STEP_NONE);
}

void engine_poke(struct engine *e, struct engine_poke *poke)
{
	assert(!poke->is_set);
	poke->is_set = true;
	TAILQ_INSERT_TAIL(&e->pokes, poke, link);
	on_work(e);
}

void engine_poke_cancel(struct engine *e, struct engine_poke *poke)
{
	if (poke->is_set)
		TAILQ_REMOVE(&e->pokes, poke, link);
	poke->is_set = false;
}

void engine_set_pace(struct engine *e, double slow, bool is_wedged)
{
	uint64_t now_us = clock_us();

	assert(slow > 0);
	e->engine_us = engine_time_us(e, now_us);
	e->clock_us = now_us;
	e->slow = slow;
	e->is_wedged = is_wedged;
	arm(e, now_us);
}

uint64_t engine_stall_ms(const struct engine *e)
{
	return engine_stall_after_ms(e->longest_us);
}

bool engine_is_live(const struct engine *e, uint64_t now_us)
{
	uint64_t since_us = is_stepping(e) ? e->begun_us : MAX(e->due_us, e->armed_us);

	return (e->due_us == UINT64_MAX && !is_stepping(e)) ||
	       now_us <= since_us + engine_stall_ms(e) * 1000;
}

/* Whether the model and its tokenizer speak of the same ids. */
static bool fits_vocab(const struct engine *e, const struct backend *backend)
{
	struct backend_shape shape;

	e->ops->shape(backend, &shape);
	return shape.vocab > 0 && shape.vocab == e->ops->vocab(backend)->n;
}

static bool gives_up(void *arg)
{
	struct engine *e = arg;

	return atomic_load(&e->gives_up);
}

static int open_backend(struct engine *e, struct backend **out)
{
	struct backend_opts opts = e->opts.open;
	int err;

	opts.max_rows = e->opts.sched.max_seqs;
	opts.max_new = e->opts.sched.step_tokens;
	opts.on_done = on_done;
	opts.gives_up = gives_up;
	opts.arg = e;
	err = e->ops->open(&opts, out);
	if (err != 0 || fits_vocab(e, *out))
		return err;
	e->ops->close(*out);
	*out = NULL;
	return ERR_UNSUPPORTED;
}

/* NULL: out of memory. */
static struct sched *open_sched(struct engine *e, struct backend *backend)
{
	struct sched_opts opts = e->opts.sched;
	struct backend_shape shape;

	e->ops->shape(backend, &shape);
	opts.n_blocks = shape.n_blocks;
	opts.block_tokens = shape.block_tokens;
	opts.audit_every = ENGINE_AUDIT_EVERY(opts.n_blocks);
	opts.on_work = on_work;
	opts.arg = e;
	return sched_new(&opts, e->ops, backend);
}

/* A backend and a scheduler that know of nothing. */
static int open_empty(struct engine *e, struct backend **backend, struct sched **sched)
{
	int err = open_backend(e, backend);

	if (err != 0)
		return err;
	*sched = open_sched(e, *backend);
	if (*sched != NULL)
		return 0;
	e->ops->close(*backend);
	*backend = NULL;
	return ERR_NOMEM;
}

/* Loading */

static void *run_loader(void *arg)
{
	struct engine *e = arg;

	e->load_err = open_backend(e, &e->loaded);
	wake(e);
	return NULL;
}

/* All signals are for the loop's thread. */
static int start_loader(struct engine *e)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	error = pthread_create(&e->loader, NULL, run_loader, e);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	e->is_loading = error == 0;
	return error == 0 ? 0 : ERR_NOMEM;
}

/* Waits for the loader. The engine owns the backend that it has opened. */
static void join_loader(struct engine *e)
{
	if (!e->is_loading)
		return;
	(void)pthread_join(e->loader, NULL);
	e->is_loading = false;
	e->backend = e->loaded;
}

static void end_load(struct engine *e)
{
	int err;

	join_loader(e);
	err = e->load_err;
	if (err == 0) {
		e->sched = open_sched(e, e->backend);
		err = e->sched != NULL ? 0 : ERR_NOMEM;
	}
	arm(e, clock_us());
	if (e->opts.on_ready != NULL)
		e->opts.on_ready(e->opts.arg, err);
}

/* The loader or a step is done. */
static void on_wake(void *arg, int fd, unsigned events UNUSED)
{
	struct engine *e = arg;
	uint64_t times;

	if (read(fd, &times, sizeof(times)) != (ssize_t)sizeof(times))
		return;
	if (e->is_loading)
		end_load(e);
	else if (is_stepping(e))
		go_on(e);
}

int engine_restart(struct engine *e)
{
	struct backend *backend = NULL;
	struct sched *sched = NULL;
	int err = open_empty(e, &backend, &sched);

	if (err != 0)
		return err;
	assert(sched_running(e->sched) + sched_waiting(e->sched) == 0);
	close_empty(e);
	e->backend = backend;
	e->sched = sched;
	arm(e, clock_us());
	return 0;
}

static int open_events(struct engine *e)
{
	e->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	e->done_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (e->timer_fd < 0 || e->done_fd < 0)
		return ERR_IO;
	e->watch = loop_watch_new(e->loop, e->timer_fd, LOOP_READ, on_due, e);
	e->done_watch = loop_watch_new(e->loop, e->done_fd, LOOP_READ, on_wake, e);
	return e->watch != NULL && e->done_watch != NULL ? 0 : ERR_NOMEM;
}

int engine_new(struct loop *l, const struct engine_opts *opts, struct engine **out)
{
	struct engine *e = calloc(1, sizeof(*e));
	int err;

	if (e == NULL)
		return ERR_NOMEM;
	e->loop = l;
	e->opts = *opts;
	e->ops = opts->backend;
	e->timer_fd = e->done_fd = -1;
	atomic_init(&e->step, STEP_NONE);
	atomic_init(&e->gives_up, false);
	e->due_us = UINT64_MAX;
	e->slow = 1;
	TAILQ_INIT(&e->pokes);
	err = open_events(e);
	if (err == 0)
		err = start_loader(e);
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
	atomic_store(&e->gives_up, true);
	join_loader(e);
	close_empty(e);
	if (e->watch != NULL)
		loop_watch_free(e->watch);
	if (e->done_watch != NULL)
		loop_watch_free(e->done_watch);
	if (e->timer_fd >= 0)
		close(e->timer_fd);
	if (e->done_fd >= 0)
		close(e->done_fd);
	free(e);
}

bool engine_is_ready(const struct engine *e)
{
	return e->sched != NULL;
}

struct sched *engine_sched(struct engine *e)
{
	return e->sched;
}

const struct vocab *engine_vocab(const struct engine *e)
{
	return e->ops->vocab(e->backend);
}

const char *engine_backend(const struct engine *e)
{
	return e->ops->name;
}
