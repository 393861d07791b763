/*
 * The queue's order: first come first served, strict priorities, promotion, removal
 * anywhere; and a random walk against sorting.
 */
#include "pool/queue.h"

#include "base/rng.h"
#include "tests/unit/unit.h"

#include <string.h>

#define MANY 64

static struct queue q;
static struct waiter w[MANY];

static void set_up(void)
{
	queue_init(&q);
	memset(w, 0, sizeof(w));
}

static struct waiter *first(uint64_t now_ms)
{
	struct queue_walk walk;

	queue_walk_start(&walk, &q, now_ms);
	return queue_walk_next(&walk);
}

static void expect_order(uint64_t now_ms, const int *want)
{
	struct queue_walk walk;

	queue_walk_start(&walk, &q, now_ms);
	for (; *want >= 0; want++)
		ck_assert_ptr_eq(queue_walk_next(&walk), &w[*want]);
	ck_assert_ptr_null(queue_walk_next(&walk));
}

START_TEST(first_come_first_served)
{
	int i;

	ck_assert_ptr_null(first(0));
	for (i = 0; i < 4; i++)
		queue_push(&q, &w[i], PRIORITY_NORMAL, 100);
	ck_assert_uint_eq(q.n, 4);
	expect_order(100, (int[]){0, 1, 2, 3, -1});
	queue_remove(&q, &w[0]);
	queue_remove(&q, &w[0]);
	queue_remove(&q, &w[2]);
	expect_order(100, (int[]){1, 3, -1});
	queue_push(&q, &w[0], PRIORITY_NORMAL, 200);
	expect_order(200, (int[]){1, 3, 0, -1});
}
END_TEST

START_TEST(priorities_are_strict)
{
	queue_push(&q, &w[0], PRIORITY_LOW, 100);
	queue_push(&q, &w[1], PRIORITY_NORMAL, 100);
	queue_push(&q, &w[2], PRIORITY_HIGH, 100);
	queue_push(&q, &w[3], PRIORITY_LOW, 100);
	queue_push(&q, &w[4], PRIORITY_HIGH, 100);
	expect_order(100, (int[]){2, 4, 1, 0, 3, -1});
}
END_TEST

/* One step for each QUEUE_PROMOTE_MS; equals go by arrival. */
START_TEST(who_waits_long_rises)
{
	queue_push(&q, &w[0], PRIORITY_LOW, 0);
	queue_push(&q, &w[1], PRIORITY_NORMAL, 5);
	expect_order(QUEUE_PROMOTE_MS - 1, (int[]){1, 0, -1});
	expect_order(QUEUE_PROMOTE_MS, (int[]){0, 1, -1});
	queue_push(&q, &w[2], PRIORITY_HIGH, QUEUE_PROMOTE_MS);
	expect_order(QUEUE_PROMOTE_MS, (int[]){2, 0, 1, -1});
	expect_order(2 * QUEUE_PROMOTE_MS - 1, (int[]){1, 2, 0, -1});
	expect_order(2 * QUEUE_PROMOTE_MS, (int[]){0, 1, 2, -1});
}
END_TEST

/* Whoever has waited however long; and first come, first served among them. */
START_TEST(who_has_begun_is_before_all)
{
	queue_push(&q, &w[0], PRIORITY_HIGH, 0);
	queue_push(&q, &w[1], PRIORITY_LOW, 0);
	queue_push(&q, &w[2], PRIORITY_BEGUN, 9 * QUEUE_PROMOTE_MS);
	queue_push(&q, &w[3], PRIORITY_BEGUN, 9 * QUEUE_PROMOTE_MS);
	expect_order(9 * QUEUE_PROMOTE_MS, (int[]){2, 3, 0, 1, -1});
}
END_TEST

/* Under a stream of high ones a low one is served within twice the promotion time. */
START_TEST(nobody_starves)
{
	uint64_t now_ms;
	unsigned i = 1;

	queue_push(&q, &w[0], PRIORITY_LOW, 0);
	for (now_ms = 0; now_ms <= 2 * QUEUE_PROMOTE_MS; now_ms += 100) {
		struct waiter *next;

		queue_push(&q, &w[i], PRIORITY_HIGH, now_ms);
		next = first(now_ms);
		if (next == &w[0])
			break;
		queue_remove(&q, next);
		i = i % (MANY - 1) + 1;
	}
	ck_assert_uint_eq(now_ms, 2 * QUEUE_PROMOTE_MS);
}
END_TEST

START_TEST(the_waiter_returned_may_go)
{
	struct queue_walk walk;
	struct waiter *next;
	unsigned i, n = 0;

	for (i = 0; i < MANY; i++)
		queue_push(&q, &w[i], (enum priority)(i % PRIORITY_MAX), i);
	queue_walk_start(&walk, &q, 1000);
	while ((next = queue_walk_next(&walk)) != NULL) {
		queue_remove(&q, next);
		n++;
	}
	ck_assert_uint_eq(n, MANY);
	ck_assert_uint_eq(q.n, 0);
}
END_TEST

static unsigned rank_of(const struct waiter *x, uint64_t now_ms)
{
	uint64_t steps = (now_ms - x->since_ms) / QUEUE_PROMOTE_MS;
	int rank = (int)x->priority - (int)MIN(steps, (uint64_t)PRIORITY_MAX);

	if (x->priority == PRIORITY_BEGUN)
		return PRIORITY_BEGUN;
	return (unsigned)MAX(rank, (int)PRIORITY_HIGH);
}

static struct waiter *slow_first(uint64_t now_ms)
{
	struct waiter *best = NULL;
	unsigned i;

	for (i = 0; i < MANY; i++) {
		if (!w[i].is_queued)
			continue;
		if (best == NULL || rank_of(&w[i], now_ms) < rank_of(best, now_ms) ||
			(rank_of(&w[i], now_ms) == rank_of(best, now_ms) &&
				w[i].number < best->number))
			best = &w[i];
	}
	return best;
}

START_TEST(random_walk_against_a_slow_model)
{
	struct rng rng;
	uint64_t now_ms = 0;
	unsigned seed, step, k;

	for (seed = 0; seed < 100; seed++) {
		rng_seed(&rng, seed);
		set_up();
		for (step = 0; step < 2000; step++) {
			now_ms += rng_below(&rng, 400);
			k = (unsigned)rng_below(&rng, MANY);
			if (w[k].is_queued && rng_below(&rng, 2) == 0)
				queue_remove(&q, &w[k]);
			else if (!w[k].is_queued)
				queue_push(&q, &w[k],
					(enum priority)rng_below(&rng, PRIORITY_MAX),
					now_ms);
			if (first(now_ms) != slow_first(now_ms))
				ck_abort_msg("seed %u step %u", seed, step);
			if (rng_below(&rng, 4) == 0 && q.n > 0)
				queue_remove(&q, first(now_ms));
		}
	}
}
END_TEST

static Suite *queue_suite(void)
{
	Suite *s = suite_create("queue");
	TCase *c = tcase_create("queue");

	tcase_add_checked_fixture(c, set_up, NULL);
	tcase_add_test(c, first_come_first_served);
	tcase_add_test(c, priorities_are_strict);
	tcase_add_test(c, who_waits_long_rises);
	tcase_add_test(c, who_has_begun_is_before_all);
	tcase_add_test(c, nobody_starves);
	tcase_add_test(c, the_waiter_returned_may_go);
	tcase_add_test(c, random_walk_against_a_slow_model);
	suite_add_tcase(s, c);
	return s;
}

UNIT_MAIN(queue_suite())
