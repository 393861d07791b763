/*
 * Limits: the cap, the bucket to the microsecond, changed rates, and both under threads.
 */
#include "base/limit.h"

#include "base/err.h"
#include "base/rng.h"
#include "tests/unit/unit.h"

#include <pthread.h>

#define SECOND UINT64_C(1000000)

START_TEST(so_many_at_a_time)
{
	struct limit l = {0};

	ck_assert_int_eq(limit_enter(&l, 2), 0);
	ck_assert_int_eq(limit_enter(&l, 2), 0);
	ck_assert_int_eq(limit_enter(&l, 2), ERR_LIMIT);
	ck_assert_int_eq(limit_enter(&l, 0), 0); /* no cap */
	limit_leave(&l);
	limit_leave(&l);
	ck_assert_int_eq(limit_enter(&l, 2), 0);
	limit_leave(&l);
	limit_leave(&l);
	ck_assert_uint_eq(l.active, 0);
}
END_TEST

/* All at once, then one each period/n, told to the microsecond. */
START_TEST(so_many_in_a_time)
{
	static const struct {
		struct limit_rate rate;
		uint64_t one_us;
	} rows[] = {
		{{1, 1000}, SECOND},
		{{10, 1000}, SECOND / 10},
		{{60, 60000}, SECOND},
		{{1, 60000}, 60 * SECOND},
		{{LIMIT_RATE_MAX, 1000}, 1},
	};
	size_t i;
	unsigned k;

	for (i = 0; i < ARRAY_LEN(rows); i++) {
		struct limit l = {0};
		uint64_t now = 7 * SECOND, wait = 0;

		for (k = 0; k < rows[i].rate.n; k++)
			ck_assert_int_eq(limit_spend(&l, &rows[i].rate, now, &wait), 0);
		for (k = 0; k < 5; k++) {
			ck_assert_int_eq(
				limit_spend(&l, &rows[i].rate, now, &wait), ERR_LIMIT);
			ck_assert_uint_eq(wait, rows[i].one_us);
			ck_assert_int_eq(
				limit_spend(&l, &rows[i].rate, now + wait - 1, &wait),
				ERR_LIMIT);
			ck_assert_uint_eq(wait, 1);
			now += rows[i].one_us;
			ck_assert_int_eq(limit_spend(&l, &rows[i].rate, now, &wait), 0);
		}
	}
}
END_TEST

/* Against a bucket that is counted: never more than n + elapsed * rate. */
START_TEST(a_random_walk_gives_no_more)
{
	struct limit_rate rate = {7, 60000};
	struct limit l = {0};
	struct rng rng;
	uint64_t now = 1, begun = 1, passed = 0, wait = 0;
	int i;

	rng_seed(&rng, 5);
	for (i = 0; i < 20000; i++) {
		double most = 7 + 7 * (double)(now - begun) / (60 * SECOND);

		if (limit_spend(&l, &rate, now, &wait) == 0)
			passed++;
		else
			ck_assert(wait > 0 && wait <= 60 * SECOND / 7 + 1);
		ck_assert_double_le((double)passed, most + 1e-6);
		now += rng_next(&rng) % (10 * SECOND);
	}
	ck_assert_uint_gt(passed, 1000);
}
END_TEST

START_TEST(a_new_rate_counts_at_once)
{
	struct limit_rate slow = {1, 60000}, quick = {10, 1000}, none = {0, 0};
	struct limit l = {0};
	uint64_t wait = 0;

	ck_assert_int_eq(limit_spend(&l, &slow, SECOND, &wait), 0);
	ck_assert_int_eq(limit_spend(&l, &slow, SECOND, &wait), ERR_LIMIT);
	ck_assert_uint_eq(wait, 60 * SECOND);
	/* No more than empty: not a minute in debt. */
	ck_assert_int_eq(limit_spend(&l, &quick, SECOND, &wait), ERR_LIMIT);
	ck_assert_uint_eq(wait, SECOND / 10);
	ck_assert_int_eq(limit_spend(&l, &quick, SECOND + wait, &wait), 0);
	ck_assert_int_eq(limit_spend(&l, &none, SECOND, &wait), 0);
}
END_TEST

#define THREADS 4
#define ROUNDS 20000

struct shared {
	struct limit l;
	_Atomic unsigned most, inside, passed;
};

static void *hammer(void *arg)
{
	struct shared *s = arg;
	struct limit_rate rate = {1000, 60000};
	uint64_t wait;
	unsigned i;

	for (i = 0; i < ROUNDS; i++) {
		if (limit_spend(&s->l, &rate, SECOND, &wait) == 0)
			s->passed++;
		if (limit_enter(&s->l, 2) != 0)
			continue;
		if (++s->inside > 2)
			s->most = s->inside;
		s->inside--;
		limit_leave(&s->l);
	}
	return NULL;
}

START_TEST(threads_share_both)
{
	static struct shared s;
	pthread_t threads[THREADS];
	size_t i;

	for (i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, &s), 0);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(s.passed, 1000);
	ck_assert_uint_eq(s.most, 0);
	ck_assert_uint_eq(s.l.active, 0);
}
END_TEST

static Suite *limit_suite(void)
{
	Suite *s = suite_create("limit");
	TCase *t = tcase_create("limit");

	tcase_add_test(t, so_many_at_a_time);
	tcase_add_test(t, so_many_in_a_time);
	tcase_add_test(t, a_random_walk_gives_no_more);
	tcase_add_test(t, a_new_rate_counts_at_once);
	tcase_add_test(t, threads_share_both);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(limit_suite())
