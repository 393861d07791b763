/*
 * Who stands out among its peers: by 4xx, by requests that take no time; and who does not.
 */
#include "tests/unit/unit.h"
#include "worker/outlier.h"

#include <string.h>

#define SECONDS 60

struct life {
	struct outlier_stats stats;
	uint64_t ended, refused;
};

/* A minute of so many answers a second, with so many in flight. */
static void live(struct life *l, unsigned ended, unsigned refused, unsigned load)
{
	unsigned i;

	for (i = 0; i < SECONDS; i++) {
		l->ended += ended;
		l->refused += refused;
		outlier_observe(&l->stats, l->ended, l->refused, load);
	}
}

static const struct {
	unsigned ended, refused, load;       /* of the one */
	unsigned p_ended, p_refused, p_load; /* of each of two peers */
	enum outlier want;
} rows[] = {
	{20, 20, 0, 10, 0, 10, OUTLIER_REFUSES},
	{20, 11, 0, 10, 1, 10, OUTLIER_REFUSES},
	{20, 9, 1, 10, 1, 10, OUTLIER_NONE},  /* not half */
	{20, 20, 1, 10, 5, 10, OUTLIER_NONE}, /* clients that make mistakes */
	{20, 20, 1, 20, 20, 1, OUTLIER_NONE},
	{40, 0, 0, 10, 0, 10, OUTLIER_INSTANT},
	{40, 0, 1, 10, 0, 10, OUTLIER_INSTANT}, /* 25 ms against 1 s */
	{40, 0, 4, 10, 0, 10, OUTLIER_NONE},    /* 100 ms: a better machine */
	{12, 0, 0, 10, 0, 10, OUTLIER_NONE},    /* it has not more to do */
	{400, 0, 0, 100, 0, 10, OUTLIER_NONE},  /* nobody takes long */
	{20, 20, 0, 0, 0, 0, OUTLIER_NONE},     /* nothing is known of peers */
	{0, 0, 0, 10, 0, 10, OUTLIER_NONE},
};

START_TEST(who_stands_out)
{
	struct life one = {0}, peers[2];
	struct outlier_stats sum = {0};
	unsigned i;

	memset(peers, 0, sizeof(peers));
	live(&one, rows[_i].ended, rows[_i].refused, rows[_i].load);
	for (i = 0; i < 2; i++) {
		live(&peers[i], rows[_i].p_ended, rows[_i].p_refused, rows[_i].p_load);
		outlier_add(&sum, &peers[i].stats);
	}
	ck_assert_int_eq(outlier_judge(&one.stats, &sum, 2, OUTLIER_NONE), rows[_i].want);
	outlier_add(&sum, &one.stats);
	outlier_subtract(&sum, &one.stats);
	ck_assert_int_eq(outlier_judge(&one.stats, &sum, 2, OUTLIER_NONE), rows[_i].want);
	ck_assert_int_eq(outlier_judge(&one.stats, &sum, 0, OUTLIER_NONE), OUTLIER_NONE);
}
END_TEST

/* It is over at half the bound, or when it is not asked any more. */
START_TEST(it_ends_later_than_it_begins)
{
	struct life one = {0}, peer = {0};

	live(&peer, 20, 0, 10);
	live(&one, 20, 8, 1);
	ck_assert_int_eq(
		outlier_judge(&one.stats, &peer.stats, 1, OUTLIER_NONE), OUTLIER_NONE);
	ck_assert_int_eq(outlier_judge(&one.stats, &peer.stats, 1, OUTLIER_REFUSES),
		OUTLIER_REFUSES);
	live(&one, 20, 2, 1);
	live(&one, 20, 2, 1);
	ck_assert_int_eq(
		outlier_judge(&one.stats, &peer.stats, 1, OUTLIER_REFUSES), OUTLIER_NONE);
	live(&one, 20, 20, 0);
	live(&one, 20, 20, 0);
	ck_assert_int_eq(
		outlier_judge(&one.stats, &peer.stats, 1, OUTLIER_NONE), OUTLIER_REFUSES);
	while (one.stats.ended >= OUTLIER_ENDED_MIN)
		live(&one, 0, 0, 0);
	ck_assert_int_eq(
		outlier_judge(&one.stats, &peer.stats, 1, OUTLIER_REFUSES), OUTLIER_NONE);
}
END_TEST

START_TEST(figures_are_those_of_the_last_time)
{
	struct life l = {0};

	live(&l, 10, 5, 20);
	ck_assert(outlier_rate(&l.stats) > 9.99 && outlier_rate(&l.stats) < 10.01);
	ck_assert(outlier_load(&l.stats) > 19.99 && outlier_load(&l.stats) < 20.01);
	ck_assert(outlier_share(&l.stats) > 0.49 && outlier_share(&l.stats) < 0.51);
	ck_assert(outlier_time(&l.stats) > 1.99 && outlier_time(&l.stats) < 2.01);
	ck_assert_str_eq(outlier_name(OUTLIER_REFUSES), "4xx");
	ck_assert_str_eq(outlier_name(OUTLIER_INSTANT), "instant");
}
END_TEST

static Suite *outlier_suite(void)
{
	Suite *s = suite_create("outlier");
	TCase *tc = tcase_create("outlier");

	tcase_add_loop_test(tc, who_stands_out, 0, ARRAY_LEN(rows));
	tcase_add_test(tc, it_ends_later_than_it_begins);
	tcase_add_test(tc, figures_are_those_of_the_last_time);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(outlier_suite())
