/*
 * The I/O threads' end: what they say last, on the way to being joined, comes while they
 * are there, and moves nobody any more.
 */
#include "control/threads.h"
#include "io/mailbox.h"
#include "proxy/io_thread.h"
#include "tests/unit/site_rig.h"
#include "tests/unit/unit_loop.h"

enum { THREADS = 3 };

static struct loop *loop;
static struct mailbox *home;
static struct site *site;
static struct process process;
static struct threads *threads;
static unsigned n_empty;

static void set_up(void)
{
	loop = loop_new();
	home = mailbox_new(loop);
	site = rig_site("[worker w]\nurl = http://127.0.0.1:1\n", NULL);
	process = (struct process){.max_connections = 1};
	n_empty = 0;
	threads = threads_start(THREADS, &process, site);
	ck_assert(home != NULL && threads != NULL);
}

/* As the daemon's end: the mailbox goes last. */
static void tear_down(void)
{
	threads_stop(threads);
	rig_close(site);
	mailbox_free(home);
	loop_free(loop);
}

static void on_empty(void *arg)
{
	ck_assert_ptr_eq(arg, &process);
	n_empty++;
}

START_TEST(a_drain_is_told_once)
{
	threads_drain(threads, DRAIN_ALL, home, on_empty, &process);
	TURN_UNTIL(loop, n_empty > 0);
	turn_idle(loop, 3);
	tear_down();
	ck_assert_uint_eq(n_empty, 1);
}
END_TEST

START_TEST(a_late_drain_is_told_again)
{
	threads_drain(threads, DRAIN_KEEPS_LISTENING, home, on_empty, &process);
	TURN_UNTIL(loop, n_empty == 1);
	threads_drain_late(threads);
	TURN_UNTIL(loop, n_empty == 2);
	tear_down();
	ck_assert_uint_eq(n_empty, 2);
}
END_TEST

/* A second signal ends the daemon while its threads still have to say that they are
 * done. */
START_TEST(an_end_amid_a_drain)
{
	threads_drain(threads, _i == 0 ? DRAIN_ALL : DRAIN_KEEPS_LISTENING, home,
		on_empty, &process);
	if (_i > 1) {
		TURN_UNTIL(loop, n_empty == 1);
		threads_drain_late(threads);
	}
	threads_cut(threads);
	tear_down();
	ck_assert_uint_eq(n_empty, _i > 1);
}
END_TEST

static Suite *threads_suite(void)
{
	Suite *s = suite_create("threads");
	TCase *t = tcase_create("threads");

	tcase_add_checked_fixture(t, set_up, NULL);
	tcase_add_test(t, a_drain_is_told_once);
	tcase_add_test(t, a_late_drain_is_told_again);
	tcase_add_loop_test(t, an_end_amid_a_drain, 0, 3);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(threads_suite())
