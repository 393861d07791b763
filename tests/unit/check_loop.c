/*
 * Turns of the loop: order of timers, hooks and reaping, watches freed inside their
 * callback, signals, hang-ups, sleep.
 */
#include "base/err.h"
#include "io/wheel.h"
#include "tests/unit/unit_loop.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

static struct loop *loop;
static char order[64];

static void setup(void)
{
	memset(order, 0, sizeof(order));
	loop = loop_new();
	ck_assert_ptr_nonnull(loop);
}

static void teardown(void)
{
	loop_free(loop);
}

static void note(char what)
{
	size_t n = strlen(order);

	ck_assert_uint_lt(n + 1, sizeof(order));
	order[n] = what;
}

struct thing {
	struct reap reap;
	struct turn_hook hook;
	struct wheel_timer timer;
	struct thing *next;
	char name;
};

static void destroy_thing(struct reap *r)
{
	struct thing *t = container_of(r, struct thing, reap);

	note(t->name);
	if (t->next != NULL)
		loop_reap(loop, &t->next->reap, destroy_thing);
	free(t);
}

static struct thing *new_thing(char name)
{
	struct thing *t = calloc(1, sizeof(*t));

	ck_assert_ptr_nonnull(t);
	t->name = name;
	return t;
}

START_TEST(reaps_in_order_and_what_reaping_adds)
{
	struct thing *a = new_thing('a'), *b = new_thing('b');

	b->next = new_thing('c');
	loop_reap(loop, &b->reap, destroy_thing);
	loop_reap(loop, &a->reap, destroy_thing);
	ck_assert_str_eq(order, "");
	loop_turn(loop, -1); /* does not wait: there is something to reap */
	ck_assert_str_eq(order, "bac");
	loop_turn(loop, 0);
	ck_assert_str_eq(order, "bac");
}
END_TEST

START_TEST(freeing_the_loop_reaps)
{
	struct loop *l = loop_new();
	struct thing *a = new_thing('a');

	loop_reap(l, &a->reap, destroy_thing);
	loop_free(l);
	loop_free(NULL);
	ck_assert_str_eq(order, "a");
}
END_TEST

static void on_timer(void *arg)
{
	struct thing *t = arg;

	note('T');
	loop_reap(loop, &t->reap, destroy_thing);
}

static void on_hook(void *arg)
{
	(void)arg;
	note('H');
}

START_TEST(timers_then_hooks_then_reaping)
{
	struct thing *t = new_thing('r');
	struct turn_hook hook = {.fn = on_hook};

	wheel_timer_init(&t->timer, on_timer, t);
	wheel_set(loop_wheel(loop), &t->timer, clock_update());
	loop_turn_hook_add(loop, &hook);
	TURN_UNTIL(loop, strchr(order, 'T') != NULL);
	loop_turn_hook_remove(loop, &hook);
	ck_assert_ptr_nonnull(strstr(order, "THr"));
}
END_TEST

static struct turn_hook hooks[3];

static void on_removing_hook(void *arg)
{
	note(*(const char *)arg);
	for (unsigned i = 0; i < ARRAY_LEN(hooks); i++)
		loop_turn_hook_remove(loop, &hooks[i]);
}

START_TEST(hooks_removed_inside_a_hook)
{
	for (unsigned i = 0; i < ARRAY_LEN(hooks); i++) {
		hooks[i] = (struct turn_hook){.fn = on_removing_hook, .arg = "x"};
		loop_turn_hook_add(loop, &hooks[i]);
	}
	loop_turn(loop, 0);
	loop_turn(loop, 0);
	ck_assert_str_eq(order, "x");
	loop_turn_hook_remove(loop, &hooks[0]);
}
END_TEST

static void on_stop(void *arg)
{
	note('s');
	loop_stop(arg);
}

START_TEST(run_ends_by_stop)
{
	struct wheel_timer t;

	wheel_timer_init(&t, on_stop, loop);
	wheel_set(loop_wheel(loop), &t, clock_update() + 5);
	loop_run(loop);
	ck_assert_str_eq(order, "s");
	loop_stop(loop); /* before it runs: it does not run */
	loop_run(loop);
	wheel_set(loop_wheel(loop), &t, clock_update() + 5);
	loop_run(loop);
	ck_assert_str_eq(order, "ss");
}
END_TEST

/* A timer that a frozen clock makes due fires at once, not when the kernel's time comes.
 */
START_TEST(a_frozen_clock_drives_the_timers)
{
	struct wheel_timer t;
	uint64_t start_us = clock_us();

	clock_set(5000000);
	wheel_advance(loop_wheel(loop), 5000000);
	wheel_timer_init(&t, on_stop, loop);
	wheel_set(loop_wheel(loop), &t, 5000000 + 30000);
	loop_turn(loop, 0);
	clock_set(5000000 + 29000);
	loop_turn(loop, 0);
	ck_assert_str_eq(order, "");
	clock_set(5000000 + 31000);
	loop_turn(loop, -1);
	ck_assert_str_eq(order, "s");
	ck_assert_uint_lt(clock_us() - start_us, UNIT_DEADLINE_US);
	clock_set(0);
	loop_turn(loop, 0);
}
END_TEST

static unsigned turns;

static void count_turn(void *arg)
{
	(void)arg;
	turns++;
}

struct clocked {
	struct wheel_timer timer;
	struct loop *loop;
	uint64_t due_ms;
};

static void on_clocked(void *arg)
{
	struct clocked *c = arg;

	ck_assert_uint_ge(clock_now_ms(), c->due_ms);
	loop_stop(c->loop);
}

/* A loop that wakes for a timer alone shows it the time, not that of before the wait. */
START_TEST(a_timer_sees_that_its_time_has_come)
{
	struct clocked c;
	unsigned i;

	c.loop = loop;
	wheel_timer_init(&c.timer, on_clocked, &c);
	for (i = 0; i < 5; i++) {
		c.due_ms = clock_update() + 30 + 7 * i;
		wheel_set(loop_wheel(c.loop), &c.timer, c.due_ms);
		loop_run(c.loop);
	}
}
END_TEST

/* What sleeps takes few turns, whatever the time they take: a spinning loop takes
 * thousands. */
START_TEST(an_idle_loop_with_a_timer_sleeps)
{
	struct turn_hook hook = {.fn = count_turn};
	struct wheel_timer t, far;

	turns = 0;
	wheel_timer_init(&far, on_stop, loop);
	wheel_set(loop_wheel(loop), &far, clock_update() + 3600000);
	wheel_timer_init(&t, on_stop, loop);
	wheel_set(loop_wheel(loop), &t, clock_update() + 300);
	loop_turn_hook_add(loop, &hook);
	loop_run(loop);
	ck_assert_str_eq(order, "s");
	ck_assert_uint_lt(turns, 20);
	loop_turn_hook_remove(loop, &hook);
	wheel_stop(loop_wheel(loop), &far);
}
END_TEST

struct pipe_end {
	int fds[2];
	struct loop_watch *watch, *other;
	unsigned calls, events;
};

static void open_pipe(struct pipe_end *p)
{
	memset(p, 0, sizeof(*p));
	ck_assert_int_eq(pipe2(p->fds, O_NONBLOCK | O_CLOEXEC), 0);
}

static void close_pipe(struct pipe_end *p)
{
	close(p->fds[0]);
	close(p->fds[1]);
}

static void on_pipe(void *arg, int fd, unsigned events)
{
	struct pipe_end *p = arg;
	char byte;

	ck_assert_uint_gt(clock_now_ms(), 0);
	p->calls++;
	p->events = events;
	if (events & LOOP_READ)
		ck_assert_int_eq(read(fd, &byte, 1), 1);
}

START_TEST(a_watch_is_switched_off_and_on)
{
	struct pipe_end p;

	open_pipe(&p);
	p.watch = loop_watch_new(loop, p.fds[0], LOOP_READ, on_pipe, &p);
	ck_assert_ptr_nonnull(p.watch);
	loop_watch_enable(p.watch, true);
	loop_watch_enable(p.watch, false);
	loop_watch_enable(p.watch, false);
	ck_assert_int_eq(write(p.fds[1], "x", 1), 1);
	turn_idle(loop, 3);
	ck_assert_uint_eq(p.calls, 0);
	loop_watch_enable(p.watch, true);
	TURN_UNTIL(loop, p.calls == 1);
	ck_assert_uint_eq(p.events, LOOP_READ);
	loop_watch_free(p.watch);
	close_pipe(&p);
}
END_TEST

START_TEST(a_watch_for_writing)
{
	struct pipe_end p;

	open_pipe(&p);
	p.watch = loop_watch_new(loop, p.fds[1], LOOP_WRITE, on_pipe, &p);
	TURN_UNTIL(loop, p.calls >= 2);
	ck_assert_uint_eq(p.events, LOOP_WRITE);
	loop_watch_free(p.watch);
	loop_watch_free(NULL);
	close_pipe(&p);
}
END_TEST

START_TEST(no_watch_on_what_is_no_descriptor)
{
	ck_assert_ptr_null(loop_watch_new(loop, 1000000, LOOP_READ, on_pipe, NULL));
}
END_TEST

static void on_free_both(void *arg, int fd, unsigned events)
{
	struct pipe_end *p = arg;

	(void)fd;
	(void)events;
	note('f');
	loop_watch_free(p->watch);
	loop_watch_free(p->other);
}

START_TEST(watches_freed_inside_a_callback_of_the_same_turn)
{
	struct pipe_end p, q;

	open_pipe(&p);
	open_pipe(&q);
	p.watch = loop_watch_new(loop, p.fds[0], LOOP_READ, on_free_both, &p);
	q.watch = loop_watch_new(loop, q.fds[0], LOOP_READ, on_free_both, &q);
	p.other = q.watch;
	q.other = p.watch;
	ck_assert_int_eq(write(p.fds[1], "x", 1), 1);
	ck_assert_int_eq(write(q.fds[1], "x", 1), 1);
	TURN_UNTIL(loop, order[0] != '\0');
	turn_idle(loop, 3);
	ck_assert_str_eq(order, "f");
	close_pipe(&p);
	close_pipe(&q);
}
END_TEST

static struct loop_signal *watched_signal;

static void on_usr1(void *arg, int signo)
{
	ck_assert_ptr_eq(arg, order);
	ck_assert_int_eq(signo, SIGUSR1);
	note('u');
	loop_signal_free(watched_signal);
}

START_TEST(a_signal_is_a_callback)
{
	watched_signal = loop_signal_new(loop, SIGUSR1, on_usr1, order);
	ck_assert_ptr_nonnull(watched_signal);
	raise(SIGUSR1);
	TURN_UNTIL(loop, order[0] != '\0');
	ck_assert_str_eq(order, "u");
}
END_TEST

static void on_hung_up(void *arg)
{
	note(*(const char *)arg);
}

START_TEST(hangups_are_told_once)
{
	struct loop_hangup fin = {.fd = -1, .fn = on_hung_up, .arg = "f"};
	struct loop_hangup full = {.fd = -1, .fn = on_hung_up, .arg = "b"};
	int a[2], b[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, a), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b), 0);
	ck_assert_int_eq(loop_hangup_arm(loop, &fin, a[0], true), 0);
	ck_assert_int_eq(loop_hangup_arm(loop, &full, b[0], false), 0);
	ck_assert_int_eq(write(a[1], "x", 1), 1);
	turn_idle(loop, 3);
	ck_assert_str_eq(order, "");
	ck_assert_int_eq(shutdown(a[1], SHUT_WR), 0);
	ck_assert_int_eq(shutdown(b[1], SHUT_WR), 0);
	TURN_UNTIL(loop, order[0] != '\0');
	turn_idle(loop, 5);
	ck_assert_str_eq(order, "f"); /* a FIN is no hang-up for b */
	ck_assert_int_eq(fin.fd, -1);
	close(b[1]);
	TURN_UNTIL(loop, order[1] != '\0');
	turn_idle(loop, 5);
	ck_assert_str_eq(order, "fb");
	ck_assert_int_eq(loop_hangup_arm(loop, &fin, a[0], true), 0);
	loop_hangup_disarm(loop, &fin);
	loop_hangup_disarm(loop, &fin);
	turn_idle(loop, 3);
	ck_assert_str_eq(order, "fb");
	ck_assert_int_eq(loop_hangup_arm(loop, &fin, 1000000, true), ERR_IO);
	close(a[0]);
	close(a[1]);
	close(b[0]);
}
END_TEST

static struct loop_hangup pair_of_hangups[2];

static void on_disarm_other(void *arg)
{
	note('d');
	loop_hangup_disarm(loop, arg);
}

START_TEST(a_hangup_disarmed_in_anothers_callback)
{
	int a[2], b[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, a), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b), 0);
	for (int i = 0; i < 2; i++) {
		pair_of_hangups[i] = (struct loop_hangup){
			.fd = -1, .fn = on_disarm_other, .arg = &pair_of_hangups[1 - i]};
		ck_assert_int_eq(loop_hangup_arm(loop, &pair_of_hangups[i],
					 i == 0 ? a[0] : b[0], true),
			0);
	}
	close(a[1]);
	close(b[1]);
	TURN_UNTIL(loop, order[0] != '\0');
	turn_idle(loop, 3);
	ck_assert_str_eq(order, "d");
	close(a[0]);
	close(b[0]);
}
END_TEST

static Suite *loop_suite(void)
{
	Suite *s = suite_create("loop");
	TCase *t = tcase_create("loop");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, reaps_in_order_and_what_reaping_adds);
	tcase_add_test(t, freeing_the_loop_reaps);
	tcase_add_test(t, timers_then_hooks_then_reaping);
	tcase_add_test(t, hooks_removed_inside_a_hook);
	tcase_add_test(t, run_ends_by_stop);
	tcase_add_test(t, a_frozen_clock_drives_the_timers);
	tcase_add_test(t, a_timer_sees_that_its_time_has_come);
	tcase_add_test(t, an_idle_loop_with_a_timer_sleeps);
	tcase_add_test(t, a_watch_is_switched_off_and_on);
	tcase_add_test(t, a_watch_for_writing);
	tcase_add_test(t, no_watch_on_what_is_no_descriptor);
	tcase_add_test(t, watches_freed_inside_a_callback_of_the_same_turn);
	tcase_add_test(t, a_signal_is_a_callback);
	tcase_add_test(t, hangups_are_told_once);
	tcase_add_test(t, a_hangup_disarmed_in_anothers_callback);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(loop_suite())
