/*
 * What one pool believes its workers to hold: what a withdrawal takes back, generations,
 * capacity and age.
 */
#include "tests/unit/pool_rig.h"

/* ---- withdrawal and generation ---- */

START_TEST(withdraw_takes_back_what_was_inserted)
{
	struct route_key shorter, longer, other;
	struct pool_pick out;
	struct pool_ask ask;
	struct guard g;

	pool = unit_pool_of(1, "");
	shorter = unit_sealed(pool, 1, 10, 0, 10);
	longer = unit_sealed(pool, 1, 16, 0, 16);
	other = unit_sealed(pool, 1, 12, 9, 20);
	ask = ask_for(&shorter);
	out = pick_with(&ask, &g);
	guard_drop(&g);
	ck_assert_uint_eq(blocks_of("w0"), 10);
	/* Six more, refused: ten stay. */
	ask = ask_for(&longer);
	out = pick_with(&ask, &g);
	guard_drop(&g);
	ck_assert_uint_eq(out.matched, 10);
	ck_assert_uint_eq(blocks_of("w0"), 16);
	pool_withdraw(pool, &longer, &out.insertion);
	ck_assert_uint_eq(blocks_of("w0"), 10);
	pool_withdraw(pool, &longer, &out.insertion);
	ck_assert_uint_eq(blocks_of("w0"), 10);
	/* Two of the six were used again meanwhile: they stay as well. */
	out = pick_with(&ask, &g);
	guard_drop(&g);
	ask = ask_for(&other);
	pick_with(&ask, &g);
	guard_drop(&g);
	ck_assert_uint_eq(blocks_of("w0"), 16 + 8);
	pool_withdraw(pool, &longer, &out.insertion);
	ck_assert_uint_eq(blocks_of("w0"), 12 + 8);
	/* Nothing new, nothing to take back. */
	ask = ask_for(&shorter);
	out = pick_with(&ask, &g);
	guard_drop(&g);
	ck_assert_uint_eq(out.matched, 10);
	pool_withdraw(pool, &shorter, &out.insertion);
	ck_assert_uint_eq(blocks_of("w0"), 12 + 8);
	route_key_free(&shorter);
	route_key_free(&longer);
	route_key_free(&other);
}
END_TEST

/* The slot is another's by then, whose entry of the same prompt must stay. */
START_TEST(withdraw_spares_the_next_owner_of_a_slot)
{
	struct conf *conf = unit_conf("[worker new]\nurl = http://new:1\n");
	struct route_key key;
	struct pool_pick old, new;
	struct pool_ask ask;
	struct guard g, h;

	pool = unit_pool_of(1, "");
	key = unit_sealed(pool, 1, 16, 0, 16);
	ask = ask_for(&key);
	old = pick_with(&ask, &g);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("w0")), 0);
	ck_assert_int_eq(pool_add_worker(pool, &conf->workers[0]), 0);
	conf_unref(conf);
	unit_make_healthy(pool);
	new = pick_with(&ask, &h);
	ck_assert_uint_eq(new.insertion.slot, old.insertion.slot);
	ck_assert_uint_eq(blocks_of("new"), 16);
	pool_withdraw(pool, &key, &old.insertion);
	ck_assert_uint_eq(blocks_of("new"), 16);
	pool_withdraw(pool, &key, &new.insertion);
	ck_assert_uint_eq(blocks_of("new"), 0);
	guard_drop(&g);
	guard_drop(&h);
	/* Nobody has it any more. */
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("new")), 0);
	pool_withdraw(pool, &key, &new.insertion);
	route_key_free(&key);
}
END_TEST

/* A reload that makes the index anew: an older insertion means nothing in it. */
START_TEST(withdraw_after_the_index_was_made_anew)
{
	struct conf *plain = unit_conf("[pool default]\npolicy = least_requests\n"
				       "[worker w0]\nurl = http://10.0.0.1:8000\n");
	struct conf *aware = unit_conf("[pool default]\npolicy = cache_aware\n"
				       "[worker w0]\nurl = http://10.0.0.1:8000\n");
	struct route_key key;
	struct pool_pick old, new;
	struct pool_ask ask;
	struct guard g;

	pool = unit_pool_of(1, "");
	key = unit_sealed(pool, 1, 16, 0, 16);
	ask = ask_for(&key);
	old = pick_with(&ask, &g);
	guard_drop(&g);
	ck_assert(pool_needs_key(pool, ROLE_UNIFIED));
	ck_assert_int_eq(pool_update(pool, &plain->pools[0], plain, NOW), 0);
	ck_assert(!pool_needs_key(pool, ROLE_UNIFIED));
	ck_assert_uint_eq(blocks_of("w0"), 0);
	pool_withdraw(pool, &key, &old.insertion);
	ck_assert_int_eq(pool_update(pool, &aware->pools[0], aware, NOW), 0);
	new = pick_with(&ask, &g);
	guard_drop(&g);
	ck_assert_uint_eq(new.matched, 0);
	ck_assert_uint_eq(blocks_of("w0"), 16);
	pool_withdraw(pool, &key, &old.insertion);
	ck_assert_uint_eq(blocks_of("w0"), 16);
	route_key_free(&key);
	conf_unref(plain);
	conf_unref(aware);
}
END_TEST

START_TEST(a_bump_stops_matches_at_once)
{
	struct route_key before, after;
	struct pool_pick out;

	pool = unit_pool_of(2, "");
	before = unit_sealed(pool, 1, 16, 0, 16);
	send_to(&before, &out);
	ck_assert_uint_eq(pool_generation(pool), 0);
	ck_assert_uint_eq(pool_bump_generation(pool), 1);
	/* Sealed before: it neither matches nor inserts. */
	send_to(&before, &out);
	ck_assert_uint_eq(out.blocks, 0);
	ck_assert_uint_eq(out.matched, 0);
	ck_assert_uint_eq(out.insertion.stamp, 0);
	ck_assert_uint_eq(blocks_of("w0") + blocks_of("w1"), 16);
	pool_withdraw(pool, &before, &out.insertion);
	ck_assert_uint_eq(blocks_of("w0") + blocks_of("w1"), 16);
	/* Sealed after: no match at first, and then its own. */
	after = unit_sealed(pool, 1, 16, 0, 16);
	send_to(&after, &out);
	ck_assert_uint_eq(out.blocks, 16);
	ck_assert_uint_eq(out.matched, 0);
	send_to(&after, &out);
	ck_assert_uint_eq(out.matched, 16);
	pool_set_generation(pool, 9);
	ck_assert_uint_eq(pool_generation(pool), 9);
	send_to(&after, &out);
	ck_assert_uint_eq(out.blocks, 0);
	route_key_free(&before);
	route_key_free(&after);
}
END_TEST

/* Generation 0 is where a pool begins: what was keyed in it is keyed the same again, and
 * differently in every other. */
START_TEST(d3_generation_0_is_the_beginning)
{
	struct route_key first, bumped, again;

	pool = unit_pool_of(1, "");
	first = unit_sealed(pool, 1, 16, 0, 16);
	ck_assert_uint_eq(first.sealed_generation, 0);
	pool_bump_generation(pool);
	bumped = unit_sealed(pool, 1, 16, 0, 16);
	pool_set_generation(pool, 0);
	again = unit_sealed(pool, 1, 16, 0, 16);
	for (size_t i = 0; i < 16; i++) {
		ck_assert_uint_eq(first.hashes[i], again.hashes[i]);
		ck_assert_uint_ne(first.hashes[i], bumped.hashes[i]);
	}
	route_key_free(&first);
	route_key_free(&bumped);
	route_key_free(&again);
}
END_TEST

/* What was made before a bump goes first where room is needed: it takes none from what is
 * made after. */
START_TEST(d3_old_generations_make_room)
{
	struct pool_pick out;
	struct prefix_index_stats stats;

	/* 512 tokens are 16 blocks. */
	pool = unit_pool("[worker w0]\nurl = http://a:1\n");
	pool_worker_capacity(pool, unit_worker(pool, "w0"), 512);
	warm("w0", 1, 16);
	pool_bump_generation(pool);
	for (uint64_t family = 2; family < 4; family++) {
		struct route_key key = unit_sealed(pool, family, 8, 0, 8);

		send_to(&key, &out);
		route_key_free(&key);
	}
	for (uint64_t family = 2; family < 4; family++) {
		struct route_key key = unit_sealed(pool, family, 8, 0, 8);

		send_to(&key, &out);
		ck_assert_uint_eq(out.matched, 8);
		route_key_free(&key);
	}
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.blocks, 16);
	/* And the sweep takes the rest by its age, where no capacity does. */
	pool_bump_generation(pool);
	pool_sweep(pool, NOW + 3600001);
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.blocks, 16);
	pool_worker_capacity(pool, unit_worker(pool, "w0"), 0);
	pool_sweep(pool, NOW + 3600001);
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.blocks, 0);
}
END_TEST

/* The pick that was under way at the bump takes back what it inserted. */
START_TEST(withdraw_across_a_bump)
{
	struct route_key key;
	struct pool_pick out;

	pool = unit_pool_of(1, "");
	key = unit_sealed(pool, 1, 16, 0, 16);
	send_to(&key, &out);
	pool_bump_generation(pool);
	pool_withdraw(pool, &key, &out.insertion);
	ck_assert_uint_eq(blocks_of("w0"), 0);
	route_key_free(&key);
}
END_TEST

/* ---- capacity, age ---- */

START_TEST(capacity_bounds_what_is_believed)
{
	struct route_key key;
	struct pool_pick out;

	/* 320 tokens are ten blocks of 128 bytes. */
	pool = unit_pool("[worker w0]\nurl = http://a:1\ncapacity = 320\n"
			 "[worker w1]\nurl = http://b:1\n");
	warm("w0", 1, 16);
	ck_assert_uint_eq(blocks_of("w0"), 10);
	warm("w1", 2, 16);
	ck_assert_uint_eq(blocks_of("w1"), 16);
	/* Learned; the configured one wins. */
	pool_worker_capacity(pool, unit_worker(pool, "w0"), 3200);
	pool_worker_capacity(pool, unit_worker(pool, "w1"), 160);
	warm("w0", 1, 16);
	warm("w1", 2, 16);
	ck_assert_uint_eq(blocks_of("w0"), 10);
	ck_assert_uint_eq(blocks_of("w1"), 5);
	key = unit_sealed(pool, 1, 16, 0, 16);
	ck_assert_uint_eq(send_to(&key, &out), 0);
	ck_assert_uint_eq(out.matched, 10);
	route_key_free(&key);
}
END_TEST

/* A reload that says nothing of capacity forgets nothing of it. */
START_TEST(learned_capacity_survives_a_reload)
{
	struct conf *same = unit_conf("[worker w0]\nurl = http://10.0.0.1:8000\n");

	pool = unit_pool_of(1, "");
	pool_worker_capacity(pool, unit_worker(pool, "w0"), 160);
	ck_assert_int_eq(pool_update(pool, &same->pools[0], same, NOW), 0);
	warm("w0", 1, 16);
	ck_assert_uint_eq(blocks_of("w0"), 5);
	conf_unref(same);
}
END_TEST

/* What the worker said outlives the index that it sized, and a configured size. */
START_TEST(learned_capacity_survives_what_it_sized)
{
	static const char *const texts[] = {
		"[pool default]\npolicy = least_requests\n",
		"[pool default]\nprefix_block = 64\n",
		"[pool default]\n",
	};
	static const char w0[] = "[worker w0]\nurl = http://10.0.0.1:8000\n";
	static const char sized[] = "[worker w0]\nurl = http://10.0.0.1:8000\n"
				    "capacity = 320\n";
	char text[256];

	pool = unit_pool_of(1, "");
	pool_worker_capacity(pool, unit_worker(pool, "w0"), 160);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct conf *conf;

		snprintf(text, sizeof(text), "%s%s", texts[i], w0);
		conf = unit_conf(text);
		ck_assert_int_eq(pool_update(pool, &conf->pools[0], conf, NOW), 0);
		conf_unref(conf);
	}
	warm("w0", 1, 16);
	ck_assert_uint_eq(blocks_of("w0"), 5);
	for (size_t i = 0; i < 2; i++) {
		struct conf *conf = unit_conf(i == 0 ? sized : w0);

		ck_assert_int_eq(pool_update(pool, &conf->pools[0], conf, NOW), 0);
		warm("w0", 1, 16);
		ck_assert_uint_eq(blocks_of("w0"), i == 0 ? 10 : 5);
		conf_unref(conf);
	}
	/* 0: nothing is said any more; what was believed has no bound then. */
	pool_worker_capacity(pool, unit_worker(pool, "w0"), 0);
	warm("w0", 1, 16);
	ck_assert_uint_eq(blocks_of("w0"), 16);
}
END_TEST

START_TEST(age_bounds_what_is_believed)
{
	struct route_key key;
	struct pool_pick out;
	struct pool_ask ask;
	struct prefix_index_stats stats;

	pool = unit_pool_of(2, "prefix_ttl = 10s\n");
	key = unit_sealed(pool, 1, 16, 0, 16);
	send_to(&key, &out);
	ask = ask_for(&key);
	ask.now_ms = NOW + 10001;
	pool_sweep(pool, ask.now_ms);
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.blocks, 0);
	ck_assert_uint_eq(stats.evicted[PREFIX_EVICT_TTL], 16);
	pick_number(&ask, &out);
	ck_assert_uint_eq(out.matched, 0);
	route_key_free(&key);
}
END_TEST

START_TEST(a_pick_carries_the_options_in_force)
{
	struct conf *next =
		unit_conf("[worker w0]\nurl = http://a:1\nconnect_timeout = 5s\n");
	struct pool_ask ask = ask_for(NULL);
	struct pool_pick out;

	pool = unit_pool(
		"[worker w0]\nurl = http://a:1\nconnect_timeout = 3s\n"
		"first_byte_timeout = 4s\nstream_idle_timeout = 5s\n"
		"total_timeout = 6s\nupstream_idle = 7s\nretry_max_retries = 2\n");
	pick_number(&ask, &out);
	ck_assert_uint_eq(out.connect_timeout_ms, 3000);
	ck_assert_uint_eq(out.first_byte_timeout_ms, 4000);
	ck_assert_uint_eq(out.stream_idle_timeout_ms, 5000);
	ck_assert_uint_eq(out.total_timeout_ms, 6000);
	ck_assert_uint_eq(out.upstream_idle_ms, 7000);
	ck_assert_uint_eq(out.max_retries, 2);
	ck_assert_int_eq(pool_update(pool, &next->pools[0], next, NOW), 0);
	pick_number(&ask, &out);
	ck_assert_uint_eq(out.connect_timeout_ms, 5000);
	conf_unref(next);
}
END_TEST

static TCase *index_case(void)
{
	TCase *tc = tcase_create("index");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, withdraw_takes_back_what_was_inserted);
	tcase_add_test(tc, withdraw_spares_the_next_owner_of_a_slot);
	tcase_add_test(tc, withdraw_after_the_index_was_made_anew);
	tcase_add_test(tc, a_bump_stops_matches_at_once);
	tcase_add_test(tc, withdraw_across_a_bump);
	tcase_add_test(tc, d3_generation_0_is_the_beginning);
	tcase_add_test(tc, d3_old_generations_make_room);
	tcase_add_test(tc, capacity_bounds_what_is_believed);
	tcase_add_test(tc, learned_capacity_survives_a_reload);
	tcase_add_test(tc, learned_capacity_survives_what_it_sized);
	tcase_add_test(tc, age_bounds_what_is_believed);
	tcase_add_test(tc, a_pick_carries_the_options_in_force);
	return tc;
}

static Suite *pool_index_suite(void)
{
	Suite *suite = suite_create("pool_index");

	suite_add_tcase(suite, index_case());
	return suite;
}

UNIT_MAIN(pool_index_suite())
