/*
 * Sessions and their workers, against a slow list: bounds, ages, tallies.
 */
#include "base/rng.h"
#include "policy/session_map.h"
#include "tests/unit/unit.h"

#define SESSIONS_MAX 8
#define TTL 100

static struct session_map *map;

static void set_up(void)
{
	map = session_map_new(SESSIONS_MAX, 77);
	ck_assert_ptr_nonnull(map);
}

static void tear_down(void)
{
	session_map_free(map);
	session_map_free(NULL);
}

static bool lives_on(uint64_t session, uint64_t worker, uint64_t now_ms)
{
	uint64_t found = 0;

	return session_map_find(map, session, now_ms, TTL, &found) && found == worker;
}

/* Of the workers below n. */
static uint64_t sessions_of(uint64_t n)
{
	uint64_t total = 0;

	for (uint64_t worker = 0; worker < n; worker++)
		total += session_map_of(map, worker);
	return total;
}

START_TEST(a_session_stays)
{
	uint64_t untouched = 5;

	ck_assert(!session_map_find(map, 1, 0, TTL, &untouched));
	ck_assert_uint_eq(untouched, 5);
	session_map_put(map, 1, 10, 0);
	session_map_put(map, 2, 20, 0);
	ck_assert(lives_on(1, 10, 50));
	ck_assert(lives_on(2, 20, 50));
	session_map_put(map, 1, 20, 60); /* placed anew */
	ck_assert(lives_on(1, 20, 60));
	ck_assert_uint_eq(session_map_of(map, 10), 0);
	ck_assert_uint_eq(session_map_of(map, 20), 2);
	ck_assert_uint_eq(sessions_of(100), 2);
}
END_TEST

START_TEST(it_ends)
{
	ck_assert(!session_map_end(map, 1));
	session_map_put(map, 1, 10, 0);
	ck_assert(session_map_end(map, 1));
	ck_assert(!session_map_end(map, 1));
	ck_assert(!lives_on(1, 10, 0));
	ck_assert_uint_eq(session_map_of(map, 10), 0);
}
END_TEST

START_TEST(age_counts_from_the_last_use)
{
	uint64_t worker;

	session_map_put(map, 1, 10, 0);
	session_map_put(map, 1, 10, 50);
	ck_assert(lives_on(1, 10, 149));
	ck_assert(!lives_on(1, 10, 150));
	ck_assert(session_map_find(map, 1, 1u << 30, 0, &worker)); /* no end */
	ck_assert_uint_eq(session_map_sweep(map, 149, TTL, 10), 0);
	ck_assert_uint_eq(session_map_sweep(map, 150, TTL, 10), 1);
	ck_assert_uint_eq(sessions_of(100), 0);
}
END_TEST

START_TEST(sweeps_are_bounded_and_stop_at_the_first_that_lives)
{
	for (uint64_t s = 1; s <= 6; s++)
		session_map_put(map, s, 10, s * 10);
	session_map_put(map, 1, 10, 70);
	ck_assert_uint_eq(session_map_sweep(map, 150, TTL, 2), 2);  /* 2, 3 */
	ck_assert_uint_eq(session_map_sweep(map, 150, TTL, 10), 2); /* 4, 5 */
	ck_assert(lives_on(6, 10, 150));
	ck_assert(lives_on(1, 10, 150));
	ck_assert_uint_eq(session_map_of(map, 10), 2);
}
END_TEST

START_TEST(the_least_recently_used_goes)
{
	for (uint64_t s = 1; s <= SESSIONS_MAX; s++)
		session_map_put(map, s, s, 0);
	session_map_put(map, 1, 1, 1);
	session_map_put(map, SESSIONS_MAX + 1, 1, 1);
	ck_assert_uint_eq(sessions_of(SESSIONS_MAX + 1), SESSIONS_MAX);
	ck_assert(lives_on(1, 1, 1));
	ck_assert(!lives_on(2, 2, 1));
	ck_assert(lives_on(SESSIONS_MAX + 1, 1, 1));
	ck_assert_uint_eq(session_map_of(map, 1), 2);
	ck_assert_uint_eq(session_map_of(map, 2), 0);
}
END_TEST

/* A worker that left and one with its name that comes later have no sessions in common. */
START_TEST(a_worker_is_forgotten_with_its_sessions)
{
	session_map_put(map, 1, 10, 0);
	session_map_put(map, 2, 10, 0);
	session_map_put(map, 3, 20, 0);
	session_map_forget(map, 10);
	session_map_forget(map, 30);
	ck_assert(!lives_on(1, 10, 0));
	ck_assert_uint_eq(session_map_of(map, 10), 0);
	ck_assert(!session_map_end(map, 1));
	session_map_put(map, 4, 10, 1);
	ck_assert(lives_on(4, 10, 1));
	ck_assert(!lives_on(2, 10, 1));
	ck_assert_uint_eq(session_map_of(map, 10), 1);
	session_map_put(map, 2, 20, 1); /* placed anew */
	ck_assert(lives_on(2, 20, 1));
	ck_assert_uint_eq(session_map_of(map, 10), 1);
	ck_assert_uint_eq(session_map_of(map, 20), 2);
}
END_TEST

/* ---- against a list ---- */

#define WORKERS 300       /* tallies grow, and forget those without sessions */
#define NOBODY UINT64_MAX /* where a session lives whose worker was forgotten */

struct slow {
	uint64_t session, worker, used_ms;
	uint64_t turn;
} slow[64];
static unsigned n_slow;

static struct slow *slow_find(uint64_t session)
{
	for (unsigned i = 0; i < n_slow; i++) {
		if (slow[i].session == session)
			return &slow[i];
	}
	return NULL;
}

static void slow_remove(struct slow *s)
{
	*s = slow[--n_slow];
}

static struct slow *slow_oldest(void)
{
	struct slow *oldest = &slow[0];

	for (unsigned i = 1; i < n_slow; i++) {
		if (slow[i].turn < oldest->turn)
			oldest = &slow[i];
	}
	return oldest;
}

static void slow_put(
	uint64_t session, uint64_t worker, uint64_t now_ms, uint64_t turn, unsigned max)
{
	struct slow *s = slow_find(session);

	if (s == NULL && n_slow == max)
		slow_remove(slow_oldest());
	if (s == NULL)
		s = &slow[n_slow++];
	*s = (struct slow){session, worker, now_ms, turn};
}

static void compare(uint64_t now_ms)
{
	for (uint64_t s = 0; s < 100; s++) {
		struct slow *want = slow_find(s);
		uint64_t worker = 0;
		bool found = session_map_find(map, s, now_ms, TTL, &worker);

		ck_assert(found == (want != NULL && want->worker != NOBODY &&
					   now_ms - want->used_ms < TTL));
		ck_assert(!found || worker == want->worker);
	}
	for (uint64_t w = 0; w < WORKERS; w++) {
		unsigned n = 0;

		for (unsigned i = 0; i < n_slow; i++)
			n += slow[i].worker == w;
		ck_assert_uint_eq(session_map_of(map, w), n);
	}
}

START_TEST(as_a_list_would)
{
	struct rng rng;
	uint64_t now_ms = 1;
	unsigned max = 1 + (unsigned)_i * 13;

	session_map_free(map);
	map = session_map_new(max, (uint64_t)_i);
	n_slow = 0;
	rng_seed(&rng, (uint64_t)_i + 5);
	for (uint64_t turn = 0; turn < 3000; turn++) {
		uint64_t session = rng_below(&rng, 100);

		now_ms += rng_below(&rng, 8);
		if (rng_below(&rng, 5) == 0) {
			struct slow *s = slow_find(session);

			ck_assert(session_map_end(map, session) ==
				  (s != NULL && s->worker != NOBODY));
			if (s != NULL)
				slow_remove(s);
		} else if (rng_below(&rng, 10) == 0) {
			uint64_t worker = rng_below(&rng, WORKERS);

			session_map_forget(map, worker);
			for (unsigned i = 0; i < n_slow; i++)
				if (slow[i].worker == worker)
					slow[i].worker = NOBODY;
		} else {
			uint64_t worker = rng_below(&rng, WORKERS);

			session_map_put(map, session, worker, now_ms);
			slow_put(session, worker, now_ms, turn, max);
		}
		while (rng_below(&rng, 4) == 0 && n_slow > 0) {
			struct slow *s = slow_oldest();
			bool is_over = now_ms - s->used_ms >= TTL;

			ck_assert(session_map_sweep(map, now_ms, TTL, 1) == is_over);
			if (is_over)
				slow_remove(s);
		}
		if (turn % 50 == 0)
			compare(now_ms);
	}
	compare(now_ms);
}
END_TEST

static Suite *session_map_suite(void)
{
	Suite *s = suite_create("session_map");
	TCase *tc = tcase_create("session_map");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, a_session_stays);
	tcase_add_test(tc, it_ends);
	tcase_add_test(tc, age_counts_from_the_last_use);
	tcase_add_test(tc, sweeps_are_bounded_and_stop_at_the_first_that_lives);
	tcase_add_test(tc, the_least_recently_used_goes);
	tcase_add_test(tc, a_worker_is_forgotten_with_its_sessions);
	tcase_add_loop_test(tc, as_a_list_would, 0, 4);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(session_map_suite())
