/*
 * The prefix index by hand: one worker or two, prompts written as letters. The order of
 * eviction, withdrawal, age, the clock that tells all three, and slots. See
 * check_prefix_oracle.c for random histories, check_prefix_memory.c for the memory bound.
 */
#include <check.h>
#include <string.h>

#include "base/err.h"
#include "prefix/prefix_index.h"
#include "prefix/prefix_tree.h"
#include "prefix_rig.h"
#include "unit.h"

START_TEST(matches_prefixes_only)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;
	uint32_t depth[2] = {9, 9};

	insert(ix, a, "abcdef", 1, &from);
	insert(ix, b, "xyz", 1, &from);
	insert(ix, b, "abc", 1, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 1), 6);
	ck_assert_uint_eq(depth_at(ix, b, "abcdef", 1), 3);
	ck_assert_uint_eq(depth_at(ix, a, "abcdefgh", 1), 6);
	ck_assert_uint_eq(depth_at(ix, a, "abcdxf", 1), 4);
	ck_assert_uint_eq(depth_at(ix, a, "Abcdef", 1), 0);
	/* B64: what comes first decides, not what occurs. */
	ck_assert_uint_eq(depth_at(ix, b, "xyzabcdef", 1), 3);
	ck_assert_uint_eq(depth_at(ix, a, "xyzabcdef", 1), 0);
	/* An empty prompt matches nothing; the depths are zeroed all the same. */
	ck_assert_uint_eq(prefix_index_match(ix, NULL, 0, 1, depth, 2), 0);
	ck_assert_uint_eq(depth[0] + depth[1], 0);
	ck_assert_uint_eq(prefix_index_match(ix, NULL, 0, 1, NULL, 0), 0);
	insert(ix, a, "", 1, &from);
	ck_assert_uint_eq(from, 0);
	prefix_index_free(ix);
	prefix_index_free(NULL);
}
END_TEST

START_TEST(matching_is_no_use)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 4), from;

	insert(ix, a, "ab", 1, &from);
	insert(ix, a, "cd", 1, &from);
	depth_at(ix, a, "ab", 1);
	insert(ix, a, "e", 1, &from);
	ck_assert_uint_eq(depth_at(ix, a, "ab", 1), 1);
	ck_assert_uint_eq(depth_at(ix, a, "cd", 1), 2);
	prefix_index_free(ix);
}
END_TEST

START_TEST(capacity_takes_the_oldest_leaf_block_by_block)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 10), from;

	/* The clock stands still: the order is that of the calls. */
	insert(ix, a, "abcd", 5, &from);
	insert(ix, a, "abxy", 5, &from);
	insert(ix, a, "mnop", 5, &from);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 10);
	insert(ix, a, "q", 5, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 5), 3);
	insert(ix, a, "qr", 5, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 5), 2);
	/* "ab" was used with "abxy": that is next, from its end. */
	insert(ix, a, "qrst", 5, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abxy", 5), 2);
	ck_assert_uint_eq(depth_at(ix, a, "mnop", 5), 4);
	/* Used again: now "mnop" is the oldest. */
	insert(ix, a, "ab", 5, &from);
	ck_assert_uint_eq(from, 2);
	insert(ix, a, "uvw", 5, &from);
	ck_assert_uint_eq(depth_at(ix, a, "mnop", 5), 1);
	ck_assert_uint_eq(depth_at(ix, a, "ab", 5), 2);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 10);
	ck_assert_uint_eq(stats_of(ix).evicted[PREFIX_EVICT_CAPACITY], 7);
	prefix_index_worker_capacity(ix, a, 3);
	ck_assert_uint_eq(depth_at(ix, a, "uvw", 5), 3);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 3);
	prefix_index_free(ix);
}
END_TEST

START_TEST(a_prompt_over_the_capacity_keeps_its_beginning)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 4), from;
	uint64_t stamp;

	insert(ix, a, "xy", 1, &from);
	stamp = insert(ix, a, "abcdefgh", 1, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcdefgh", 1), 4);
	ck_assert_uint_eq(depth_at(ix, a, "xy", 1), 0);
	ck_assert_uint_ne(stamp, 0);
	/* All that can be kept is there: nothing was new. */
	ck_assert_uint_eq(insert(ix, a, "abcdefgh", 1, &from), 0);
	ck_assert_uint_eq(from, 4);
	prefix_index_free(ix);
}
END_TEST

START_TEST(withdrawal_takes_back_its_own)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from1, from2, from;
	uint64_t first, second;

	insert(ix, a, "ab", 1, &from);
	insert(ix, b, "abcdef", 1, &from);
	first = insert(ix, a, "abcdef", 1, &from1);
	ck_assert_uint_eq(from1, 2);
	withdraw(ix, a, "abcdef", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 1), 2);
	ck_assert_uint_eq(depth_at(ix, b, "abcdef", 1), 6);
	/* Twice is harmless. */
	withdraw(ix, a, "abcdef", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 1), 2);

	/* A later use of some of them keeps those, and what it added. */
	first = insert(ix, a, "abcdef", 1, &from1);
	second = insert(ix, a, "abcdxy", 1, &from2);
	ck_assert_uint_ne(first, second);
	ck_assert_uint_eq(from2, 4);
	withdraw(ix, a, "abcdef", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 1), 4);
	ck_assert_uint_eq(depth_at(ix, a, "abcdxy", 1), 6);
	withdraw(ix, a, "abcdxy", from2, second);
	ck_assert_uint_eq(depth_at(ix, a, "abcdxy", 1), 4);

	/* A use that adds nothing keeps all the same. */
	first = insert(ix, a, "mnop", 1, &from1);
	ck_assert_uint_eq(insert(ix, a, "mno", 1, &from), 0);
	withdraw(ix, a, "mnop", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "mnop", 1), 3);

	/* The worker restarted in between. */
	first = insert(ix, a, "stuv", 1, &from1);
	prefix_index_worker_clear(ix, a);
	insert(ix, a, "st", 1, &from);
	withdraw(ix, a, "stuv", from1, first);
	ck_assert_uint_eq(depth_at(ix, a, "stuv", 1), 2);
	prefix_index_free(ix);
}
END_TEST

START_TEST(age_is_counted_from_the_last_use)
{
	struct prefix_index *ix = new_index(1 << 20, 100);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;

	insert(ix, a, "abcd", 0, &from);
	insert(ix, b, "abcd", 50, &from);
	insert(ix, a, "ab", 60, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 100), 4);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 101), 2);
	ck_assert_uint_eq(depth_at(ix, b, "abcd", 150), 4);
	ck_assert_uint_eq(depth_at(ix, b, "abcd", 151), 0);
	/* Of each worker the oldest first, and no further than its first live one. */
	ck_assert_uint_eq(prefix_index_sweep(ix, 100, 10), 0);
	ck_assert_uint_eq(prefix_index_sweep(ix, 101, 0), 0);
	ck_assert_uint_eq(prefix_index_sweep(ix, 101, 10), 1);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 2);
	ck_assert_uint_eq(prefix_index_sweep(ix, 161, 1), 1);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 0);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, b), 4);
	ck_assert_uint_eq(prefix_index_sweep(ix, 161, 10), 1);
	ck_assert_uint_eq(stats_of(ix).blocks, 0);
	ck_assert_uint_eq(stats_of(ix).evicted[PREFIX_EVICT_TTL], 8);
	/* A clock that goes back is not believed. */
	insert(ix, a, "x", 10, &from);
	ck_assert_uint_eq(depth_at(ix, a, "x", 261), 1);
	prefix_index_free(ix);
}
END_TEST

START_TEST(an_expired_prefix_counts_as_absent_when_it_is_used_again)
{
	struct prefix_index *ix = new_index(1 << 20, 100);
	uint32_t a = add_worker(ix, 0), from;
	uint64_t stamp;

	insert(ix, a, "abcdef", 0, &from);
	insert(ix, a, "abc", 90, &from);
	stamp = insert(ix, a, "abcde", 150, &from);
	ck_assert_uint_eq(from, 3);
	ck_assert_uint_ne(stamp, 0);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 150), 5);
	withdraw(ix, a, "abcde", from, stamp);
	ck_assert_uint_eq(depth_at(ix, a, "abcdef", 150), 3);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 3);
	prefix_index_free(ix);
}
END_TEST

START_TEST(slots_are_small_and_used_again)
{
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;

	ck_assert_uint_eq(a, 0);
	ck_assert_uint_eq(b, 1);
	insert(ix, a, "ab", 1, &from);
	prefix_index_worker_drop(ix, a);
	ck_assert_uint_eq(depth_at(ix, a, "ab", 1), 0);
	ck_assert_uint_eq(prefix_index_slots(ix), 2);
	ck_assert_uint_eq(add_worker(ix, 0), 0);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, 0), 0);
	ck_assert_uint_eq(depth_at(ix, 0, "ab", 1), 0);
	prefix_index_free(ix);
}
END_TEST

START_TEST(slots_end_at_a_bound)
{
	struct prefix_index *ix = new_index((size_t)256 << 20, 0);
	uint32_t slot = 7;

	for (uint32_t i = 0; i < 65535; i++)
		ck_assert_uint_eq(add_worker(ix, 0), i);
	ck_assert_int_eq(prefix_index_worker_add(ix, 0, &slot), ERR_LIMIT);
	ck_assert_uint_eq(slot, 7);
	prefix_index_free(ix);
	/* A table of workers larger than its share of a small index. */
	ix = new_index(64 << 10, 0);
	for (uint32_t i = 0; i < 50; i++)
		add_worker(ix, 0);
	while (prefix_index_worker_add(ix, 0, &slot) == 0)
		;
	ck_assert_int_eq(prefix_index_worker_add(ix, 0, &slot), ERR_NOMEM);
	ck_assert_uint_le(stats_of(ix).bytes, 64 << 10);
	prefix_index_free(ix);
}
END_TEST

/* By which insertion something was used, and when. */

/* More insertions in one millisecond than a clock has counts for. */
START_TEST(many_insertions_of_one_millisecond_keep_their_order)
{
	enum { N = 10000, KEPT = 100 };
	struct prefix_index *ix = new_index(4 << 20, 100);
	uint32_t a = add_worker(ix, KEPT), b = add_worker(ix, 0), from, depth[2];
	uint64_t last = 0, stamp, late;

	for (uint64_t key = 0; key < N; key++) {
		prefix_index_insert(ix, key % 2 ? a : b, &key, 1, 7, &from, &stamp);
		ck_assert_uint_gt(stamp, last);
		last = stamp;
	}
	prefix_index_check(ix);
	for (uint64_t key = 1; key < N; key += 2) {
		prefix_index_match(ix, &key, 1, 7, depth, 2);
		WANT((depth[a] > 0) == (key > N - 2 * KEPT));
	}
	/* Withdrawn by their own stamps only. */
	prefix_index_withdraw(ix, a, &(uint64_t){N - 1}, 1, 0, last - 2);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), KEPT);
	prefix_index_withdraw(ix, a, &(uint64_t){N - 1}, 1, 0, last);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), KEPT - 1);
	/* The first 2,048 aged from when they came; the last, at worst, a millisecond for
	 * each 2,048 later. */
	prefix_index_sweep(ix, 107, SIZE_MAX);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, b), N / 2);
	prefix_index_sweep(ix, 108, SIZE_MAX);
	ck_assert_uint_le(prefix_index_worker_blocks(ix, b), N / 2 - 1023);
	prefix_index_insert(ix, b, &(uint64_t){N}, 1, 108, &from, &late);
	prefix_index_sweep(ix, 108 + N / 2048, SIZE_MAX);
	/* Age is nothing to a worker whose capacity is known. */
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), KEPT - 1);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, b), 1);
	/* Time has caught up: to the millisecond again. */
	ck_assert_uint_eq(prefix_index_sweep(ix, 208, SIZE_MAX), 0);
	ck_assert_uint_eq(prefix_index_sweep(ix, 209, SIZE_MAX), 1);
	prefix_index_free(ix);
}
END_TEST

static void assert_all_forgotten(
	struct prefix_index *ix, uint32_t a, uint32_t b, uint64_t now_ms, uint64_t stamp)
{
	uint32_t from;

	ck_assert_uint_eq(depth_at(ix, a, "abcd", now_ms), 0);
	ck_assert_uint_eq(prefix_index_worker_blocks(ix, a), 0);
	ck_assert_uint_eq(depth_at(ix, b, "xyz", now_ms), 3);
	ck_assert_uint_eq(stats_of(ix).blocks, 3);
	ck_assert_uint_eq(stats_of(ix).nodes, 1);
	ck_assert_uint_eq(stats_of(ix).evicted[PREFIX_EVICT_TTL], 9);
	/* Who is told of the old times asks in vain. */
	withdraw(ix, a, "k", 0, stamp);
	withdraw(ix, b, "xyz", 0, stamp);
	ck_assert_uint_eq(stats_of(ix).blocks, 3);
	insert(ix, a, "abcd", now_ms, &from);
	ck_assert_uint_eq(from, 0);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", now_ms), 4);
}

/* After 2.18 years all is forgotten, and goes on. */
START_TEST(clocks_begin_anew_at_their_end)
{
	const uint64_t start_ms = 1000, end_ms = start_ms + (UINT64_C(1) << 36);
	struct prefix_index *ix = new_index(1 << 20, 0);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 5), c = add_worker(ix, 0);
	uint32_t from;
	uint64_t stamp;

	insert(ix, a, "abcd", start_ms, &from);
	insert(ix, b, "abx", start_ms, &from);
	stamp = insert(ix, a, "k", end_ms - 1, &from);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", end_ms - 1), 4);
	insert(ix, b, "k", end_ms - 1, &from);
	prefix_index_worker_drop(ix, c);
	insert(ix, b, "xyz", end_ms, &from);
	assert_all_forgotten(ix, a, b, end_ms, stamp);
	ck_assert_uint_eq(add_worker(ix, 0), c);
	prefix_index_free(ix);
}
END_TEST

/* The same by counting beyond the last millisecond. */
START_TEST(clocks_begin_anew_when_they_are_used_up)
{
	struct prefix_index *ix = new_index(1 << 20, 100);
	uint32_t a = add_worker(ix, 0), b = add_worker(ix, 0), from;
	uint64_t stamp;

	insert(ix, a, "abcd", 5, &from);
	insert(ix, b, "abx", 5, &from);
	ix->last_clock = PREFIX_MAX_CLOCK - 1;
	stamp = insert(ix, a, "k", 5, &from);
	ck_assert_uint_eq(stamp, PREFIX_MAX_CLOCK);
	insert(ix, b, "abx", 5, &from);
	ck_assert_uint_eq(from, 0);
	prefix_index_withdraw(ix, b, NULL, 0, 0, stamp);
	prefix_index_worker_clear(ix, b);
	insert(ix, b, "xyz", 5, &from);
	ck_assert_uint_eq(stats_of(ix).blocks, 3);
	ck_assert_uint_eq(depth_at(ix, a, "abcd", 5), 0);
	ck_assert_uint_eq(depth_at(ix, b, "xyz", 105), 3);
	ck_assert_uint_eq(depth_at(ix, b, "xyz", 106), 0);
	prefix_index_free(ix);
}
END_TEST

static Suite *prefix_index_suite(void)
{
	Suite *suite = suite_create("prefix_index");
	TCase *by_hand = tcase_create("by hand");
	TCase *clock = tcase_create("clock");

	tcase_add_test(by_hand, matches_prefixes_only);
	tcase_add_test(by_hand, matching_is_no_use);
	tcase_add_test(by_hand, capacity_takes_the_oldest_leaf_block_by_block);
	tcase_add_test(by_hand, a_prompt_over_the_capacity_keeps_its_beginning);
	tcase_add_test(by_hand, withdrawal_takes_back_its_own);
	tcase_add_test(by_hand, age_is_counted_from_the_last_use);
	tcase_add_test(by_hand, an_expired_prefix_counts_as_absent_when_it_is_used_again);
	tcase_add_test(by_hand, slots_are_small_and_used_again);
	tcase_add_test(by_hand, slots_end_at_a_bound);
	tcase_add_test(clock, many_insertions_of_one_millisecond_keep_their_order);
	tcase_add_test(clock, clocks_begin_anew_at_their_end);
	tcase_add_test(clock, clocks_begin_anew_when_they_are_used_up);
	suite_add_tcase(suite, by_hand);
	suite_add_tcase(suite, clock);
	return suite;
}

UNIT_MAIN(prefix_index_suite())
