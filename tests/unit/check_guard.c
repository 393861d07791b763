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
	struct guard g = {0};

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
	struct guard g = {0}, other = {0};

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
	struct guard g = {0};

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
	struct guard old = {0}, new = {0};
	struct worker_conf again;

	ck_assert_int_eq(pool_pick(p, &ask, &old, &pick), 0);
	ck_assert_int_eq(worker_conf_copy(old.worker->conf, &again), 0);
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
	struct guard g = {0};

	guard_take(&g, w);
	guard_take(&g, w);
}
END_TEST

START_TEST(underflow_is_a_bug)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {.worker = w};

	guard_drop(&g);
}
END_TEST

/* ---- what waits for its prefill, and what streams ---- */

static void want_counts(
	const struct worker *w, unsigned load, uint64_t queued, unsigned n)
{
	ck_assert_uint_eq(worker_load(w), load);
	ck_assert_uint_eq(worker_queued_blocks(w), queued);
	ck_assert_uint_eq(worker_streams(w), n);
}

START_TEST(a_life_is_prefill_then_stream)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {0}, other = {0};

	guard_take(&g, w);
	guard_queue(&g, 100);
	guard_take(&other, w);
	guard_queue(&other, 30);
	want_counts(w, 2, 130, 0);
	guard_prefilled(&g);
	want_counts(w, 2, 30, 1);
	guard_prefilled(&g);
	want_counts(w, 2, 30, 1);
	guard_drop(&g);
	want_counts(w, 1, 30, 0);
	/* Ended before its first byte: a retry, a client that left. */
	guard_drop(&other);
	want_counts(w, 0, 0, 0);
	/* The same guard again, as a retry takes it. */
	guard_take(&g, w);
	want_counts(w, 1, 0, 0);
	guard_queue(&g, 7);
	guard_drop(&g);
	guard_drop(&g);
	guard_prefilled(&g);
	want_counts(w, 0, 0, 0);
	worker_unref(w);
}
END_TEST

START_TEST(nothing_to_compute_is_a_request_all_the_same)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {0};

	guard_take(&g, w);
	guard_queue(&g, 0);
	want_counts(w, 1, 0, 0);
	guard_prefilled(&g);
	want_counts(w, 1, 0, 1);
	guard_drop(&g);
	/* The largest sizes, many times: the sum is wider than a part. */
	for (int i = 0; i < 3; i++) {
		struct guard big[4] = {0};

		for (int k = 0; k < 4; k++) {
			guard_take(&big[k], w);
			guard_queue(&big[k], UINT32_MAX);
		}
		want_counts(w, 4, 4 * (uint64_t)UINT32_MAX, 0);
		for (int k = 0; k < 4; k++)
			guard_drop(&big[k]);
	}
	want_counts(w, 0, 0, 0);
	worker_unref(w);
}
END_TEST

/* Any order of events on any guards; the sums are what the guards say. */
START_TEST(random_lives_balance)
{
	enum { GUARDS = 24 };
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard guards[GUARDS] = {0};
	struct rng rng;

	rng_seed(&rng, (uint64_t)_i + 77);
	for (int step = 0; step < 5000; step++) {
		struct guard *g = &guards[rng_below(&rng, GUARDS)];
		uint64_t queued = 0;
		unsigned load = 0, streams = 0;

		if (g->worker == NULL) {
			guard_take(g, w);
			if (rng_below(&rng, 4) > 0)
				guard_queue(g, (uint32_t)rng_below(&rng, 3000));
		} else if (rng_below(&rng, 2) > 0) {
			guard_prefilled(g);
		} else {
			guard_drop(g);
		}
		for (unsigned i = 0; i < GUARDS; i++) {
			load += guards[i].worker != NULL;
			queued += guards[i].worker != NULL ? guards[i].queued : 0;
			streams += guards[i].worker != NULL && guards[i].is_stream;
		}
		WANT(worker_load(w) == load);
		WANT(worker_queued_blocks(w) == queued);
		WANT(worker_streams(w) == streams);
	}
	for (unsigned i = 0; i < GUARDS; i++)
		guard_drop(&guards[i]);
	want_counts(w, 0, 0, 0);
	worker_unref(w);
}
END_TEST

START_TEST(queueing_twice_is_a_bug)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard g = {0};

	guard_take(&g, w);
	guard_queue(&g, 1);
	guard_queue(&g, 1);
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
	tcase_add_test(tc, a_life_is_prefill_then_stream);
	tcase_add_test(tc, nothing_to_compute_is_a_request_all_the_same);
	tcase_add_loop_test(tc, random_lives_balance, 0, 4);
	if (unit_can_fork()) {
		tcase_add_test_raise_signal(tc, queueing_twice_is_a_bug, SIGABRT);
		tcase_add_test_raise_signal(
			tc, taking_into_a_full_guard_is_a_bug, SIGABRT);
		tcase_add_test_raise_signal(tc, underflow_is_a_bug, SIGABRT);
	}
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(guard_suite())
