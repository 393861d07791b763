/*
 * Connects to a worker: the first ones go ahead, and the others wait for what these
 * bring.
 */
#include "tests/unit/unit.h"
#include "worker/reach.h"

#define NOW 1000

static struct reach reach;

static void set_up(void)
{
	reach = (struct reach){0};
}

static bool dial(const struct reach_seen *seen)
{
	return reach_dial(&reach, seen, NOW);
}

/* REACH_DIALS of them are under way; what was seen before them. */
static struct reach_seen fill(void)
{
	struct reach_seen seen = reach_look(&reach);
	int i;

	for (i = 0; i < REACH_DIALS; i++)
		ck_assert(dial(&seen));
	ck_assert(!dial(&seen));
	ck_assert(!reach_has_failed(&reach, &seen));
	return seen;
}

START_TEST(one_success_frees_those_who_wait)
{
	struct reach_seen before = fill(), after;
	int i;

	ck_assert(!reach_end(&reach, DIAL_OK, NOW));
	for (i = 0; i < 100; i++)
		ck_assert(dial(&before));
	ck_assert(!reach_has_failed(&reach, &before));
	/* Who comes now knows no more than the first ones did. */
	after = reach_look(&reach);
	ck_assert(!dial(&after));
}
END_TEST

START_TEST(one_failure_is_enough_for_those_who_wait)
{
	struct reach_seen before = fill(), after;

	ck_assert(reach_end(&reach, DIAL_FAILED, NOW));
	ck_assert(reach_has_failed(&reach, &before));
	ck_assert(!reach_end(&reach, DIAL_FAILED, NOW)); /* the doubt is told once */
	/* Who dares it all the same waits for a result of its own time. */
	after = reach_look(&reach);
	ck_assert(!reach_has_failed(&reach, &after));
	ck_assert(dial(&after));
}
END_TEST

START_TEST(a_success_after_a_failure_is_a_success)
{
	struct reach_seen before = fill();

	ck_assert(reach_end(&reach, DIAL_FAILED, NOW));
	ck_assert(!reach_end(&reach, DIAL_OK, NOW));
	ck_assert(!reach_has_failed(&reach, &before));
	ck_assert(dial(&before));
}
END_TEST

/* A client that went away before its connect was made says nothing. */
START_TEST(one_that_was_left_makes_room)
{
	struct reach_seen before = fill();

	ck_assert(!reach_end(&reach, DIAL_LEFT, NOW));
	ck_assert(!reach_has_failed(&reach, &before));
	ck_assert(dial(&before));
	ck_assert(!dial(&before));
}
END_TEST

START_TEST(late_is_who_has_brought_nothing_for_long)
{
	struct reach_seen before = fill();

	ck_assert(!reach_is_late(&reach, NOW + REACH_LATE_MS - 1));
	ck_assert(reach_is_late(&reach, NOW + REACH_LATE_MS));
	ck_assert(!reach_end(&reach, DIAL_OK, NOW + REACH_LATE_MS));
	ck_assert(!reach_is_late(&reach, NOW + 2 * REACH_LATE_MS - 1));
	ck_assert(dial(&before));
	ck_assert(reach_is_late(&reach, NOW + 2 * REACH_LATE_MS));
}
END_TEST

static Suite *reach_suite(void)
{
	Suite *s = suite_create("reach");
	TCase *tc = tcase_create("reach");

	tcase_add_checked_fixture(tc, set_up, NULL);
	tcase_add_test(tc, one_success_frees_those_who_wait);
	tcase_add_test(tc, one_failure_is_enough_for_those_who_wait);
	tcase_add_test(tc, a_success_after_a_failure_is_a_success);
	tcase_add_test(tc, one_that_was_left_makes_room);
	tcase_add_test(tc, late_is_who_has_brought_nothing_for_long);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(reach_suite())
