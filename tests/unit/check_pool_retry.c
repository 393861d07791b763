/*
 * Whether a pool lets a request go to another worker: who counts as another, and the
 * budget, which requests feed and retries empty.
 */
#include "pool/retry.h"
#include "tests/unit/unit_model.h"

static struct pool *pool_of(const char *lines, unsigned n)
{
	char text[4096];

	snprintf(
		text, sizeof(text), "[pool default]\npolicy = least_requests\n%s", lines);
	unit_workers(text, sizeof(text), n, "max_requests = 1\n");
	return unit_pool(text);
}

static uint64_t tried[8];

/* The first n workers were tried. */
static struct pool_ask ask_after(struct pool *p, unsigned n)
{
	size_t all;
	struct worker **list = pool_list(p, &all);

	for (size_t i = 0; i < all; i++) {
		if (i < n)
			tried[i] = list[i]->id;
		worker_unref(list[i]);
	}
	free(list);
	return (struct pool_ask){
		.role = ROLE_UNIFIED, .tried = tried, .n_tried = n, .now_ms = 50000};
}

static void set_health(struct pool *p, const char *name, enum worker_state s)
{
	struct worker *w = pool_find(p, span_str(name));

	atomic_store(&w->health, s);
	worker_unref(w);
}

START_TEST(another_is_one_that_was_not_tried_and_is_fit)
{
	struct pool *p = pool_of("", 2);
	struct pool_ask one = ask_after(p, 1), both;

	ck_assert_int_eq(pool_may_retry(p, &one, false), RETRY_YES);
	set_health(p, "w1", WORKER_UNHEALTHY);
	ck_assert_int_eq(pool_may_retry(p, &one, true), RETRY_NOBODY);
	set_health(p, "w1", WORKER_HEALTHY);
	both = ask_after(p, 2);
	ck_assert_int_eq(pool_may_retry(p, &both, true), RETRY_NOBODY);
	unit_close(p);
}
END_TEST

START_TEST(a_full_one_will_do_for_who_may_queue)
{
	struct pool *p = pool_of("", 2);
	struct pool_ask one = ask_after(p, 1);
	struct guard g = {0};
	struct pool_pick pick;

	ck_assert_int_eq(pool_pick(p, &one, &g, &pick), 0);
	ck_assert_int_eq(pool_may_retry(p, &one, false), RETRY_NOBODY);
	ck_assert_int_eq(pool_may_retry(p, &one, true), RETRY_YES);
	guard_drop(&g);
	ck_assert_int_eq(pool_may_retry(p, &one, false), RETRY_YES);
	unit_close(p);
}
END_TEST

START_TEST(a_pin_allows_no_other)
{
	struct pool *p = pool_of("", 3);
	struct pool_ask one = ask_after(p, 1);

	one.pinned = SPAN_LIT("w0");
	ck_assert_int_eq(pool_may_retry(p, &one, true), RETRY_NOBODY);
	one.pinned = SPAN_LIT("w2");
	ck_assert_int_eq(pool_may_retry(p, &one, true), RETRY_YES);
	one.pinned = SPAN_LIT("nobody");
	ck_assert_int_eq(pool_may_retry(p, &one, true), RETRY_NOBODY);
	/* A rank means nothing where there are none. */
	one.pinned = span_make(NULL, 0);
	one.is_rank_pinned = true;
	one.pinned_rank = 5;
	ck_assert_int_eq(pool_may_retry(p, &one, true), RETRY_YES);
	unit_close(p);
}
END_TEST

START_TEST(first_picks_feed_the_budget)
{
	struct pool *p = pool_of("retry_budget = 50%\n", 2);
	struct pool_ask fresh = ask_after(p, 0), again = ask_after(p, 1);
	unsigned taken = 0;

	for (unsigned i = 0; i < 100; i++) {
		struct guard g = {0};
		struct pool_pick pick;

		ck_assert_int_eq(pool_pick(p, &fresh, &g, &pick), 0);
		guard_drop(&g);
		/* Retries do not. */
		ck_assert_int_eq(pool_pick(p, &again, &g, &pick), 0);
		guard_drop(&g);
	}
	while (pool_may_retry(p, &again, true) == RETRY_YES)
		taken++;
	ck_assert_uint_eq(taken, 50 + RETRY_MIN);
	ck_assert_int_eq(pool_may_retry(p, &again, true), RETRY_SPENT);
	again.now_ms += RETRY_WINDOW_MS;
	ck_assert_int_eq(pool_may_retry(p, &again, true), RETRY_YES);
	unit_close(p);
}
END_TEST

START_TEST(nobody_costs_nothing)
{
	struct pool *p = pool_of("", 1);
	struct pool_ask again = ask_after(p, 1);

	for (unsigned i = 0; i < 100; i++)
		ck_assert_int_eq(pool_may_retry(p, &again, true), RETRY_NOBODY);
	unit_close(p);
	p = pool_of("retry_budget = 0%\n", 2);
	again = ask_after(p, 1);
	ck_assert_int_eq(pool_may_retry(p, &again, true), RETRY_SPENT);
	unit_close(p);
}
END_TEST

static Suite *pool_retry_suite(void)
{
	Suite *s = suite_create("pool_retry");
	TCase *tc = tcase_create("pool_retry");

	tcase_add_test(tc, another_is_one_that_was_not_tried_and_is_fit);
	tcase_add_test(tc, a_full_one_will_do_for_who_may_queue);
	tcase_add_test(tc, a_pin_allows_no_other);
	tcase_add_test(tc, first_picks_feed_the_budget);
	tcase_add_test(tc, nobody_costs_nothing);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(pool_retry_suite())
