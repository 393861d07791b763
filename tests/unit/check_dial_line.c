/*
 * The line of those that wait for the connects of others, over two threads' lines that
 * share one loop here.
 */
#include "io/mailbox.h"
#include "proxy/dial_line.h"
#include "proxy/io_thread.h"
#include "tests/unit/unit_loop.h"
#include "tests/unit/unit_model.h"

static struct process process;
static struct io_thread threads[2];
static struct loop *loop;
static struct conf *conf;
static struct worker *a, *b;

struct looker {
	struct dial_place place;
	unsigned looks;
	struct looker *takes_along; /* leaves when this one looks */
	bool leaves;
};
static struct looker lookers[4];

static void look(void *arg)
{
	struct looker *w = arg;

	w->looks++;
	if (w->leaves)
		dial_line_leave(&w->place);
	if (w->takes_along != NULL)
		dial_line_leave(&w->takes_along->place);
}

static void join(unsigned looker, unsigned thread, struct worker *w)
{
	lookers[looker].place.look = look;
	lookers[looker].place.arg = &lookers[looker];
	dial_line_join(threads[thread].dial_line, &lookers[looker].place, w);
}

static void set_up(void)
{
	unsigned i;

	conf = unit_conf("[worker a]\nurl = http://10.0.0.1:8000\n"
			 "[worker b]\nurl = http://10.0.0.2:8000\n");
	a = worker_new(&conf->workers[0]);
	b = worker_new(&conf->workers[1]);
	loop = loop_new();
	process = (struct process){0};
	memset(lookers, 0, sizeof(lookers));
	for (i = 0; i < 2; i++) {
		threads[i] = (struct io_thread){.process = &process, .loop = loop};
		threads[i].mailbox = mailbox_new(loop);
		threads[i].dial_line = dial_line_new(&threads[i]);
		ck_assert_ptr_nonnull(threads[i].dial_line);
	}
}

static void tear_down(void)
{
	unsigned i;

	for (i = 0; i < ARRAY_LEN(lookers); i++)
		dial_line_leave(&lookers[i].place);
	for (i = 0; i < 2; i++) {
		mailbox_free(threads[i].mailbox);
		dial_line_free(threads[i].dial_line);
	}
	ck_assert(LIST_EMPTY(&process.dial_lines));
	ck_assert_uint_eq(atomic_load(&a->reach.waiting), 0);
	loop_free(loop);
	worker_unref(a);
	worker_unref(b);
	conf_unref(conf);
}

START_TEST(all_threads_look_at_each_end_of_a_connect)
{
	join(0, 0, a);
	join(1, 0, a);
	join(2, 1, a);
	join(2, 1, a);
	ck_assert_uint_eq(atomic_load(&a->reach.waiting), 3);
	dial_line_call(&process, a);
	dial_line_call(&process, a);            /* one look is enough for both */
	ck_assert_uint_eq(lookers[0].looks, 0); /* not inside the call */
	TURN_UNTIL(loop, lookers[0].looks > 0 && lookers[2].looks > 0);
	ck_assert_uint_eq(lookers[0].looks, 1);
	ck_assert_uint_eq(lookers[1].looks, 1);
	ck_assert_uint_eq(lookers[2].looks, 1);
	dial_line_call(&process, a);
	TURN_UNTIL(loop, lookers[1].looks > 1 && lookers[2].looks > 1);
}
END_TEST

START_TEST(nobody_is_called_for_a_worker_that_nobody_waits_for)
{
	join(0, 0, b);
	dial_line_call(&process, a);
	loop_turn(loop, 0);
	ck_assert_uint_eq(lookers[0].looks, 0);
}
END_TEST

/* Its own place, or that of one that was to look after it. */
START_TEST(who_looks_may_leave_and_take_others_along)
{
	unsigned i;

	for (i = 0; i < 3; i++)
		join(i, 0, a);
	for (i = 0; i < 3; i++) {
		lookers[i].leaves = true;
		lookers[i].takes_along = &lookers[(i + 1) % 3];
	}
	dial_line_call(&process, a);
	TURN_UNTIL(loop, atomic_load(&a->reach.waiting) == 0);
	ck_assert_uint_eq(lookers[0].looks + lookers[1].looks + lookers[2].looks, 2);
	ck_assert(LIST_EMPTY(&process.dial_lines));
}
END_TEST

/* A call may be under way when the last one leaves, and when the thread ends. */
START_TEST(a_call_that_comes_late_finds_nobody)
{
	join(0, 0, a);
	dial_line_call(&process, a);
	dial_line_leave(&lookers[0].place);
	dial_line_leave(&lookers[0].place);
	join(1, 1, a);
	mailbox_deliver(threads[0].mailbox);
	ck_assert_uint_eq(lookers[0].looks, 0);
	dial_line_call(&process, a);
	TURN_UNTIL(loop, lookers[1].looks > 0);
}
END_TEST

static Suite *dial_line_suite(void)
{
	Suite *s = suite_create("dial_line");
	TCase *tc = tcase_create("dial_line");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, all_threads_look_at_each_end_of_a_connect);
	tcase_add_test(tc, nobody_is_called_for_a_worker_that_nobody_waits_for);
	tcase_add_test(tc, who_looks_may_leave_and_take_others_along);
	tcase_add_test(tc, a_call_that_comes_late_finds_nobody);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(dial_line_suite())
