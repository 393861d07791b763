/*
 * Exchanges that outlive their request: a drain that cannot begin gives its slot back, and
 * whoever waits for the slot has it at once, in its own pool and in others.
 */
#include "base/err.h"
#include "io/mailbox.h"
#include "pool/site.h"
#include "proxy/admission.h"
#include "proxy/cleanup.h"
#include "proxy/io_thread.h"
#include "proxy/placement.h"
#include "tests/unit/site_rig.h"
#include "tests/unit/unit_loop.h"

static struct loop *loop;
static struct site *site;
static struct process process;
static struct io_thread *t;
static struct ticket *ticket;
static struct placement held, waiting;
static bool is_memory_short;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

void *__wrap_calloc(size_t n, size_t size)
{
	return is_memory_short ? NULL : __real_calloc(n, size);
}

static void set_up(void)
{
	site = rig_site("[pool one]\nmodels = one\n[pool two]\nmodels = two\n"
			"[worker a]\nurl = http://127.0.0.1:1\npool = one\n"
			"max_requests = 1\n"
			"[worker b]\nurl = http://127.0.0.1:2\npool = two\n",
		NULL);
	loop = loop_new();
	process = (struct process){0};
	t = io_thread_new(0, loop, &process, site);
	t->mailbox = mailbox_new(loop);
	ck_assert_ptr_nonnull(t->mailbox);
	ticket = NULL;
	held = waiting = (struct placement){0};
}

static void tear_down(void)
{
	admission_leave(&ticket);
	placement_drop(&held, t, site->pools[0]);
	placement_drop(&waiting, t, site->pools[1]);
	ck_assert_uint_eq(
		metric_total(METRIC_GUARDS_TAKEN), metric_total(METRIC_GUARDS_DROPPED));
	ck_assert_uint_eq(atomic_load(&process.slots.taken), 0);
	ck_assert_uint_eq(atomic_load(&process.queued), 0);
	mailbox_free(t->mailbox);
	io_thread_free(t);
	rig_close(site);
	loop_free(loop);
}

static void on_wake(void *arg)
{
	++*(unsigned *)arg;
}

static struct pool_ask ask_for_slot(void)
{
	return (struct pool_ask){.role = ROLE_UNIFIED,
		.slots = &process.slots,
		.max_slots = 1,
		.now_ms = clock_now_ms()};
}

/* 0 and 1: a waiter of the same pool, whose one worker is full; 2 and 3: one of the other
 * pool, which lacks a slot of the process. Even: 256 are under way; odd: no memory. */
START_TEST(a_drain_that_cannot_begin_frees_its_slot)
{
	struct pool *own = site->pools[0], *others = site->pools[_i / 2];
	struct pool_ask ask = ask_for_slot();
	unsigned n_wakes = 0;
	struct admission_wait wait = {
		.t = t,
		.pool = others,
		.opts = &site->conf->router,
		.guard = &waiting.guard,
		.pick = &waiting.pick,
		.wake = on_wake,
		.arg = &n_wakes,
		.priority = PRIORITY_NORMAL,
	};

	ck_assert_int_eq(admission_pick(own, &ask, &held.guard, &held.pick), 0);
	ck_assert_int_eq(admission_wait(&ticket, &wait, &ask), ERR_AGAIN);
	if (_i % 2 == 0)
		t->n_cleanups = CLEANUPS_MAX;
	is_memory_short = _i % 2 == 1;
	cleanup_drain(t, own, &held, malloc(8));
	is_memory_short = false;
	t->n_cleanups = 0;
	ck_assert_ptr_null(held.guard.worker);
	ck_assert_ptr_nonnull(waiting.guard.worker);
	TURN_UNTIL(loop, n_wakes == 1);
	ck_assert_int_eq(admission_resume(&ticket), 0);
	ck_assert_ptr_null(ticket);
}
END_TEST

static Suite *cleanup_suite(void)
{
	Suite *s = suite_create("cleanup");
	TCase *c = tcase_create("cleanup");

	tcase_add_checked_fixture(c, set_up, tear_down);
	tcase_add_loop_test(c, a_drain_that_cannot_begin_frees_its_slot, 0, 4);
	suite_add_tcase(s, c);
	return s;
}

UNIT_MAIN(cleanup_suite())
