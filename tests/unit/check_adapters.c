/*
 * The adapters that a worker holds ready: those sent last, within the engine's places, and
 * what the engine says; and what each state of one makes of a candidate.
 */
#include "policy/policy.h"
#include "pool/adapter_cost.h"
#include "tests/unit/unit.h"
#include "worker/worker.h"

#include <limits.h>
#include <string.h>

static struct adapters a;

static void set_up(void)
{
	a = (struct adapters){.n_sent = 0};
}

START_TEST(those_sent_last_are_ready)
{
	for (uint64_t i = 1; i <= 8; i++) {
		ck_assert_int_eq(adapters_state(&a, i), ADAPTER_FREE);
		adapters_sent(&a, i);
	}
	adapters_sent(&a, 1);
	ck_assert_int_eq(adapters_state(&a, 9), ADAPTER_CROWDED);
	adapters_sent(&a, 9);
	ck_assert_int_eq(adapters_state(&a, 2), ADAPTER_CROWDED);
	for (uint64_t i = 3; i <= 9; i++)
		ck_assert_int_eq(adapters_state(&a, i), ADAPTER_READY);
	ck_assert_int_eq(adapters_state(&a, 1), ADAPTER_READY);
	adapters_forget(&a);
	ck_assert_int_eq(adapters_state(&a, 1), ADAPTER_FREE);
}
END_TEST

START_TEST(the_engine_knows_its_places)
{
	struct adapters_report r = {
		.names = {1, 2, 3}, .n_running = 2, .n = 3, .slots = 2};

	for (uint64_t i = 11; i <= 14; i++)
		adapters_sent(&a, i);
	adapters_reported(&a, &r);
	ck_assert_int_eq(adapters_state(&a, 1), ADAPTER_READY);
	ck_assert_int_eq(adapters_state(&a, 2), ADAPTER_READY);
	ck_assert_int_eq(adapters_state(&a, 3), ADAPTER_WAITS);
	ck_assert_int_eq(adapters_state(&a, 4), ADAPTER_CROWDED);
	ck_assert_int_eq(adapters_state(&a, 14), ADAPTER_READY);
	ck_assert_int_eq(adapters_state(&a, 13), ADAPTER_READY);
	ck_assert_int_eq(adapters_state(&a, 12), ADAPTER_CROWDED);
	adapters_sent(&a, 3);
	ck_assert_int_eq(adapters_state(&a, 3), ADAPTER_READY);
	ck_assert_int_eq(adapters_state(&a, 13), ADAPTER_CROWDED);
	/* More than are noted. */
	r.slots = 1000;
	adapters_reported(&a, &r);
	for (uint64_t i = 100; i < 200; i++)
		adapters_sent(&a, i);
	ck_assert_int_eq(adapters_state(&a, 199), ADAPTER_READY);
	ck_assert_int_eq(adapters_state(&a, 200 - ADAPTERS_MAX), ADAPTER_READY);
	ck_assert_int_eq(adapters_state(&a, 199 - ADAPTERS_MAX), ADAPTER_CROWDED);
}
END_TEST

START_TEST(each_state_has_its_price)
{
	static struct worker workers[4];
	struct candidate all[4];
	struct pick_input in = {.candidates = all, .n = 4};
	const struct adapters_report full = {
		.names = {7, 8}, .n_running = 1, .n = 2, .slots = 1};

	memset(workers, 0, sizeof(workers));
	memset(all, 0, sizeof(all));
	for (unsigned i = 0; i < 4; i++) {
		all[i].worker = &workers[i];
		all[i].load = i;
		all[i].queued = 100 * i;
	}
	adapters_sent(&workers[0].pool.adapters, 8);
	adapters_reported(&workers[2].pool.adapters, &full);
	adapters_reported(&workers[3].pool.adapters, &full);
	adapter_cost(&in, 8, 128);
	ck_assert_uint_eq(all[0].load, 0);
	ck_assert_uint_eq(all[1].load, 1 + 2);
	ck_assert_uint_eq(all[2].load, 2 + 3);
	ck_assert_uint_eq(all[0].queued, 0);
	ck_assert_uint_eq(all[1].queued, 100 + 2 * 1024 * 4 / 128);
	adapter_cost(&in, 9, 4096);
	ck_assert_uint_eq(all[0].load, 2);
	ck_assert_uint_eq(all[3].load, 3 + 3 + 4);
	ck_assert_uint_eq(all[0].queued, 2);
	all[0].load = UINT_MAX - 1;
	adapter_cost(&in, 9, 0);
	ck_assert_uint_eq(all[0].load, UINT_MAX);
}
END_TEST

static Suite *adapters_suite(void)
{
	Suite *suite = suite_create("adapters");
	TCase *tc = tcase_create("adapters");

	tcase_add_checked_fixture(tc, set_up, NULL);
	tcase_add_test(tc, those_sent_last_are_ready);
	tcase_add_test(tc, the_engine_knows_its_places);
	tcase_add_test(tc, each_state_has_its_price);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(adapters_suite())
