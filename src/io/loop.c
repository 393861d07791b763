/*
 * The event loop of one thread over libevent: turns, watches, signals, hang-ups, the
 * wheel's clock, reaping. Always true: between turns nothing is on the reap list but what
 * outsiders put there; the base's timer is armed for armed_ms, which is the wheel's
 * wake-up time as it was when the turn began; no callback runs before clock_update().
 * Driven by threads.c, daemon.c and the tools.
 */
#include "io/loop.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "io/wheel.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define NOT_ARMED UINT64_MAX
#define HANGUPS_A_TURN 64

struct loop {
	struct event_base *base;
	struct wheel *wheel;
	struct event *wake_timer; /* for the wheel */
	uint64_t woken_ms;        /* in this turn: what it was armed for; 0: not */
	struct event *wait_timer; /* for loop_turn(l, wait_ms) */
	struct loop_watch *hangup_watch;
	int hangup_fd; /* the second epoll */
	uint64_t armed_ms;
	bool is_stopped;
	struct reap *reap_first, **reap_end;
	struct turn_hook *hooks,
		*hook_next; /* hook_next: the one after that which runs */
};

struct loop_watch {
	struct loop *loop;
	struct event *ev;
	loop_watch_fn *fn;
	void *arg;
	struct reap reap;
	bool is_on;
};

struct loop_signal {
	struct loop *loop;
	struct event *ev;
	void (*fn)(void *arg, int signo);
	void *arg;
	struct reap reap;
};

static void on_hangups(void *arg, int fd, unsigned events);

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
	struct loop *l = arg;

	(void)fd;
	(void)what;
	l->woken_ms = l->armed_ms;
	l->armed_ms = NOT_ARMED; /* the end of the turn advances the wheel */
}

static void on_waited(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

/* libevent writes to stderr by itself otherwise; its callers' return values say what
 * matters. */
static void on_event_log(int severity, const char *message)
{
	(void)severity;
	log_debug("libevent: %s", message);
}

static void set_event_log(void)
{
	event_set_log_callback(on_event_log);
}

static struct event_base *new_base(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct event_config *config;
	struct event_base *base;

	pthread_once(&once, set_event_log);
	config = event_config_new();
	if (config == NULL)
		return NULL;
	event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
	event_config_set_flag(config, EVENT_BASE_FLAG_IGNORE_ENV);
	base = event_base_new_with_config(config);
	event_config_free(config);
	return base;
}

static bool open_loop(struct loop *l)
{
	l->base = new_base();
	l->wheel = wheel_new();
	if (l->base == NULL || l->wheel == NULL)
		return false;
	l->wake_timer = event_new(l->base, -1, 0, on_wake, l);
	l->wait_timer = event_new(l->base, -1, 0, on_waited, l);
	if (l->wake_timer == NULL || l->wait_timer == NULL)
		return false;
	l->hangup_fd = epoll_create1(EPOLL_CLOEXEC);
	if (l->hangup_fd < 0)
		return false;
	l->hangup_watch = loop_watch_new(l, l->hangup_fd, LOOP_READ, on_hangups, l);
	return l->hangup_watch != NULL;
}

struct loop *loop_new(void)
{
	struct loop *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return NULL;
	l->hangup_fd = -1;
	l->armed_ms = NOT_ARMED;
	l->reap_end = &l->reap_first;
	if (!open_loop(l)) {
		loop_free(l);
		return NULL;
	}
	clock_update();
	return l;
}

static void reap_all(struct loop *l)
{
	struct reap *r;

	while ((r = l->reap_first) != NULL) {
		l->reap_first = r->next;
		if (l->reap_first == NULL)
			l->reap_end = &l->reap_first;
		r->destroy(r);
	}
}

void loop_free(struct loop *l)
{
	if (l == NULL)
		return;
	loop_watch_free(l->hangup_watch);
	reap_all(l);
	if (l->hangup_fd >= 0)
		close(l->hangup_fd);
	if (l->wake_timer != NULL)
		event_free(l->wake_timer);
	if (l->wait_timer != NULL)
		event_free(l->wait_timer);
	wheel_free(l->wheel);
	if (l->base != NULL)
		event_base_free(l->base);
	free(l);
}

static void add_timer(struct event *timer, uint64_t wait_ms)
{
	struct timeval tv = {.tv_sec = (time_t)(wait_ms / 1000),
		.tv_usec = (suseconds_t)(wait_ms % 1000 * 1000)};

	(void)event_add(timer, &tv);
}

/* Follows the wheel; true when something is due already, so that the turn must not wait.
 */
static bool arm_wheel(struct loop *l)
{
	uint64_t wake_ms = wheel_wake_ms(l->wheel), now_ms;

	if (wake_ms <= clock_now_ms())
		return true;
	if (wake_ms == l->armed_ms)
		return false;
	l->armed_ms = wake_ms;
	if (wake_ms == NOT_ARMED) {
		event_del(l->wake_timer);
		return false;
	}
	now_ms = clock_update();
	add_timer(l->wake_timer, wake_ms > now_ms ? wake_ms - now_ms : 0);
	return false;
}

static void run_hooks(struct loop *l)
{
	for (struct turn_hook *h = l->hooks; h != NULL; h = l->hook_next) {
		l->hook_next = h->next;
		h->fn(h->arg);
	}
	l->hook_next = NULL;
}

static void run_turn(struct loop *l, bool may_wait)
{
	int flags = EVLOOP_ONCE | EVLOOP_NO_EXIT_ON_EMPTY;
	uint64_t polled_ms = clock_update();

	l->woken_ms = 0;
	if (arm_wheel(l) || l->reap_first != NULL || !may_wait)
		flags |= EVLOOP_NONBLOCK;
	(void)event_base_loop(l->base, flags);
	/* Deadlines count up to the poll, not up to now: what became ready during a long
	 * turn is seen before the deadline that it meets. */
	polled_ms = MAX(polled_ms, l->woken_ms);
	if (wheel_wake_ms(l->wheel) <= polled_ms) {
		/* Timers look at the clock, too: who woke for them alone has read none.
		 */
		(void)clock_update();
		(void)wheel_advance(l->wheel, polled_ms);
	}
	(void)clock_update();
	run_hooks(l);
	reap_all(l);
}

void loop_run(struct loop *l)
{
	while (!l->is_stopped)
		run_turn(l, true);
	l->is_stopped = false;
}

void loop_stop(struct loop *l)
{
	l->is_stopped = true;
}

void loop_turn(struct loop *l, int wait_ms)
{
	if (wait_ms > 0)
		add_timer(l->wait_timer, (uint64_t)wait_ms);
	run_turn(l, wait_ms != 0);
	if (wait_ms > 0)
		event_del(l->wait_timer);
}

void loop_reap(struct loop *l, struct reap *r, void (*destroy)(struct reap *r))
{
	r->next = NULL;
	r->destroy = destroy;
	*l->reap_end = r;
	l->reap_end = &r->next;
}

void loop_turn_hook_add(struct loop *l, struct turn_hook *h)
{
	h->next = l->hooks;
	l->hooks = h;
}

void loop_turn_hook_remove(struct loop *l, struct turn_hook *h)
{
	struct turn_hook **at = &l->hooks;

	while (*at != NULL && *at != h)
		at = &(*at)->next;
	if (*at == NULL)
		return;
	*at = h->next;
	if (l->hook_next == h)
		l->hook_next = h->next;
}

static void on_watched(evutil_socket_t fd, short what, void *arg)
{
	struct loop_watch *w = arg;
	unsigned events = 0;

	clock_update();
	if (what & EV_READ)
		events |= LOOP_READ;
	if (what & EV_WRITE)
		events |= LOOP_WRITE;
	w->fn(w->arg, fd, events);
}

struct loop_watch *loop_watch_new(
	struct loop *l, int fd, unsigned events, loop_watch_fn *fn, void *arg)
{
	struct loop_watch *w = calloc(1, sizeof(*w));
	short what = EV_PERSIST;

	if (w == NULL)
		return NULL;
	if (events & LOOP_READ)
		what |= EV_READ;
	if (events & LOOP_WRITE)
		what |= EV_WRITE;
	*w = (struct loop_watch){.loop = l, .fn = fn, .arg = arg, .is_on = true};
	w->ev = event_new(l->base, fd, what, on_watched, w);
	if (w->ev == NULL || event_add(w->ev, NULL) != 0) {
		if (w->ev != NULL)
			event_free(w->ev);
		free(w);
		return NULL;
	}
	return w;
}

void loop_watch_enable(struct loop_watch *w, bool on)
{
	if (w->is_on == on)
		return;
	if (!on)
		event_del(w->ev);
	else if (event_add(w->ev, NULL) != 0)
		return; /* no memory in the kernel: it stays off, a later call tries again
			 */
	w->is_on = on;
}

static void destroy_watch(struct reap *r)
{
	free(container_of(r, struct loop_watch, reap));
}

void loop_watch_free(struct loop_watch *w)
{
	if (w == NULL)
		return;
	event_free(w->ev); /* deletes it, active or not */
	w->ev = NULL;
	loop_reap(w->loop, &w->reap, destroy_watch);
}

static void on_signal(evutil_socket_t signo, short what, void *arg)
{
	struct loop_signal *s = arg;

	(void)what;
	clock_update();
	s->fn(s->arg, (int)signo);
}

struct loop_signal *loop_signal_new(
	struct loop *l, int signo, void (*fn)(void *arg, int signo), void *arg)
{
	struct loop_signal *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	*s = (struct loop_signal){.loop = l, .fn = fn, .arg = arg};
	s->ev = event_new(l->base, signo, EV_SIGNAL | EV_PERSIST, on_signal, s);
	if (s->ev == NULL || event_add(s->ev, NULL) != 0) {
		if (s->ev != NULL)
			event_free(s->ev);
		free(s);
		return NULL;
	}
	return s;
}

static void destroy_signal(struct reap *r)
{
	free(container_of(r, struct loop_signal, reap));
}

void loop_signal_free(struct loop_signal *s)
{
	if (s == NULL)
		return;
	event_free(s->ev);
	s->ev = NULL;
	loop_reap(s->loop, &s->reap, destroy_signal);
}

int loop_hangup_arm(struct loop *l, struct loop_hangup *h, int fd, bool with_fin)
{
	/* EPOLLERR and EPOLLHUP come unasked */
	struct epoll_event e = {.events = with_fin ? EPOLLRDHUP : 0, .data.ptr = h};

	assert(h->fd < 0);
	if (epoll_ctl(l->hangup_fd, EPOLL_CTL_ADD, fd, &e) != 0)
		return ERR_IO;
	h->fd = fd;
	return 0;
}

void loop_hangup_disarm(struct loop *l, struct loop_hangup *h)
{
	if (h->fd < 0)
		return;
	(void)epoll_ctl(l->hangup_fd, EPOLL_CTL_DEL, h->fd, NULL);
	h->fd = -1;
}

/* One at a time: what a callback disarms must not be in hand already. */
static void on_hangups(void *arg, int fd, unsigned events)
{
	struct loop *l = arg;
	struct epoll_event e;

	(void)events;
	for (int i = 0; i < HANGUPS_A_TURN && epoll_wait(fd, &e, 1, 0) == 1; i++) {
		struct loop_hangup *h = e.data.ptr;

		loop_hangup_disarm(l, h);
		h->fn(h->arg);
	}
}

struct wheel *loop_wheel(struct loop *l)
{
	return l->wheel;
}

struct event_base *loop_base(struct loop *l)
{
	return l->base;
}
