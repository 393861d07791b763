/*
 * The load guard: what is taken is dropped, a worker lives while it is held, and the
 * count of one that was removed never mixes with that of another of its name (origin
 * systems A3, A4).
 */
#include "base/rng.h"
#include "tests/unit/unit_model.h"

#include <signal.h>

static struct conf *conf;
static int64_t taken, dropped; /* at the test's start */

static void set_up(void)
{
	conf = unit_conf("[worker a]\nurl = http://10.0.0.1:8000\n"
			 "[worker b]\nurl = http://10.0.0.2:8000\n"
			 "[worker c]\nurl = http://10.0.0.3:8000\n");
	taken = metric_total(METRIC_GUARDS_TAKEN);
	dropped = metric_total(METRIC_GUARDS_DROPPED);
}

static void tear_down(void)
{
	conf_unref(conf);
	ck_assert_int_eq(metric_total(METRIC_GUARDS_TAKEN) - taken,
		metric_total(METRIC_GUARDS_DROPPED) - dropped);
}

START_TEST(one_slot)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {NULL};

	guard_take(&g, w);
	ck_assert_ptr_eq(g.worker, w);
	ck_assert_uint_eq(worker_load(w), 1);
	ck_assert_int_eq(metric_total(METRIC_GUARDS_TAKEN), taken + 1);
	ck_assert_int_eq(metric_total(METRIC_GUARDS_DROPPED), dropped);
	guard_drop(&g);
	ck_assert_ptr_null(g.worker);
	ck_assert_uint_eq(worker_load(w), 0);
	ck_assert_int_eq(metric_total(METRIC_GUARDS_DROPPED), dropped + 1);
	worker_unref(w);
}
END_TEST

START_TEST(dropping_twice_is_harmless)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {NULL}, other = {NULL};

	guard_drop(&g);
	guard_take(&g, w);
	guard_take(&other, w);
	guard_drop(&g);
	guard_drop(&g);
	ck_assert_uint_eq(worker_load(w), 1);
	ck_assert_int_eq(metric_total(METRIC_GUARDS_DROPPED), dropped + 1);
	guard_drop(&other);
	worker_unref(w);
}
END_TEST

/* The last reference may be the guard's. */
START_TEST(a_held_worker_outlives_its_owner)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {NULL};

	guard_take(&g, w);
	worker_unref(w);
	ck_assert_uint_eq(worker_load(g.worker), 1);
	ck_assert_str_eq(g.worker->name, "a");
	guard_drop(&g);
}
END_TEST

/* Removed while held, added again under the same name: two workers, two counts. */
START_TEST(counts_of_a_removed_and_a_re_added_worker_do_not_mix)
{
	struct pool *p = unit_pool_of(2, "");
	struct pool_ask ask = {.role = ROLE_UNIFIED, .pinned = SPAN_LIT("w0")};
	struct pool_pick pick;
	struct guard old = {NULL}, new = {NULL};
	struct worker_conf again;

	ck_assert_int_eq(pool_pick(p, &ask, &old, &pick), 0);
	ck_assert_int_eq(pool_worker_conf(p, old.worker, &again), 0);
	ck_assert_int_eq(pool_remove_worker(p, SPAN_LIT("w0")), 0);
	ck_assert_int_eq(worker_state(old.worker), WORKER_DRAINING);
	ck_assert(atomic_load(&old.worker->is_removed));
	ck_assert_int_eq(pool_add_worker(p, &again), 0);
	worker_conf_free(&again);
	unit_make_healthy(p);
	ck_assert_ptr_ne(unit_worker(p, "w0"), old.worker);
	ck_assert_uint_ne(unit_worker(p, "w0")->id, old.worker->id);
	ck_assert_uint_eq(worker_load(unit_worker(p, "w0")), 0);
	ck_assert_int_eq(pool_pick(p, &ask, &new, &pick), 0);
	ck_assert_ptr_eq(new.worker, unit_worker(p, "w0"));
	ck_assert_uint_eq(worker_load(old.worker), 1);
	guard_drop(&old);
	ck_assert_uint_eq(worker_load(new.worker), 1);
	guard_drop(&new);
	unit_close(p);
}
END_TEST

/* Any order of takes and drops; the load is the number of guards that hold it. */
START_TEST(random_takes_and_drops_balance)
{
	enum { GUARDS = 64, WORKERS = 3 };
	struct worker *workers[WORKERS];
	struct guard guards[GUARDS] = {0};
	unsigned held[WORKERS] = {0};
	unsigned of[GUARDS] = {0};
	struct rng rng;

	rng_seed(&rng, (uint64_t)_i + 1);
	for (unsigned i = 0; i < WORKERS; i++)
		workers[i] = worker_new(&conf->workers[i]);
	for (int step = 0; step < 5000; step++) {
		unsigned g = (unsigned)rng_below(&rng, GUARDS);
		unsigned w = (unsigned)rng_below(&rng, WORKERS);

		if (guards[g].worker == NULL && rng_below(&rng, 3) > 0) {
			guard_take(&guards[g], workers[w]);
			of[g] = w;
			held[w]++;
		} else {
			held[of[g]] -= guards[g].worker != NULL;
			guard_drop(&guards[g]);
		}
		for (w = 0; w < WORKERS; w++)
			WANT(worker_load(workers[w]) == held[w]);
	}
	for (unsigned g = 0; g < GUARDS; g++)
		guard_drop(&guards[g]);
	for (unsigned i = 0; i < WORKERS; i++) {
		ck_assert_uint_eq(worker_load(workers[i]), 0);
		worker_unref(workers[i]);
	}
}
END_TEST

START_TEST(taking_into_a_full_guard_is_a_bug)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {NULL};

	guard_take(&g, w);
	guard_take(&g, w);
}
END_TEST

START_TEST(underflow_is_a_bug)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {w};

	guard_drop(&g);
}
END_TEST

static Suite *guard_suite(void)
{
	Suite *s = suite_create("guard");
	TCase *tc = tcase_create("guard");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, one_slot);
	tcase_add_test(tc, dropping_twice_is_harmless);
	tcase_add_test(tc, a_held_worker_outlives_its_owner);
	tcase_add_test(tc, counts_of_a_removed_and_a_re_added_worker_do_not_mix);
	tcase_add_loop_test(tc, random_takes_and_drops_balance, 0, 8);
	if (unit_can_fork()) {
		tcase_add_test_raise_signal(
			tc, taking_into_a_full_guard_is_a_bug, SIGABRT);
		tcase_add_test_raise_signal(tc, underflow_is_a_bug, SIGABRT);
	}
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(guard_suite())
