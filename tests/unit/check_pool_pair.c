/*
 * What a pool with prefill and decode workers says of its pairs: whether it is split, a
 * look that changes nothing, groups that never mix, and what is counted once for both
 * legs.
 */
#include "base/err.h"
#include "pool/retry.h"
#include "tests/unit/pool_rig.h"

#define TWO_PAIRS                                         \
	"[worker p0]\nurl = http://a:1\nrole = prefill\n" \
	"bootstrap_port = 9000\ndp_size = 1\n"            \
	"[worker p1]\nurl = http://b:1\nrole = prefill\n" \
	"kv_group = red\n"                                \
	"[worker d0]\nurl = http://c:1\nrole = decode\n"  \
	"[worker d1]\nurl = http://d:1\nrole = decode\n"  \
	"kv_group = red\nmax_requests = 1\n"

static struct pool_ask ask_of(enum role role, uint64_t group)
{
	return (struct pool_ask){.role = role, .kv_group = group, .now_ms = NOW};
}

static bool is_split(const char *text)
{
	struct pool *p = unit_pool(text);
	bool is = pool_is_split(p);

	ck_assert_int_eq(pool_whole_role(p), is ? ROLE_DECODE : ROLE_UNIFIED);
	unit_close(p);
	return is;
}

START_TEST(split_while_there_is_decode)
{
	ck_assert(!is_split("[worker u]\nurl = http://a:1\n"));
	ck_assert(is_split(TWO_PAIRS));
	ck_assert(is_split("[worker d]\nurl = http://a:1\nrole = decode\n"));
	ck_assert(is_split("[worker p]\nurl = http://a:1\nrole = prefill\n"));
	/* Prefill beside unified changes nothing, decode does. */
	ck_assert(!is_split("[worker p]\nurl = http://a:1\nrole = prefill\n"
			    "[worker u]\nurl = http://b:1\n"));
	ck_assert(is_split("[worker d]\nurl = http://a:1\nrole = decode\n"
			   "[worker u]\nurl = http://b:1\n"));
	/* As they come and go. */
	pool = unit_pool(TWO_PAIRS);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("d0")), 0);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("d1")), 0);
	ck_assert(pool_is_split(pool));
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("p0")), 0);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("p1")), 0);
	ck_assert(!pool_is_split(pool));
}
END_TEST

START_TEST(groups_never_mix)
{
	uint64_t plain, red;
	enum role role;

	pool = unit_pool(TWO_PAIRS);
	ck_assert(pool_find_role(pool, SPAN_LIT("d0"), &role, &plain));
	ck_assert_int_eq(role, ROLE_DECODE);
	ck_assert(pool_find_role(pool, SPAN_LIT("p1"), &role, &red));
	ck_assert_int_eq(role, ROLE_PREFILL);
	ck_assert(!pool_find_role(pool, SPAN_LIT("x"), &role, &red));
	ck_assert_uint_ne(plain, red);
	ck_assert_uint_ne(plain, 0);
	for (int i = 0; i < 6; i++) {
		struct pool_ask any = ask_of(ROLE_DECODE, 0), of_red, of_plain;
		struct pool_pick out;
		struct guard g;

		out = pick_with(&any, &g);
		ck_assert_uint_eq(out.kv_group, g.worker->name[1] == '0' ? plain : red);
		guard_drop(&g);
		of_red = ask_of(ROLE_PREFILL, red);
		pick_with(&of_red, &g);
		ck_assert_str_eq(g.worker->name, "p1");
		guard_drop(&g);
		of_plain = ask_of(ROLE_PREFILL, plain);
		out = pick_with(&of_plain, &g);
		ck_assert_str_eq(g.worker->name, "p0");
		ck_assert_uint_eq(out.bootstrap_port, 9000);
		guard_drop(&g);
	}
}
END_TEST

/* The other worker of a group that is full, or out, is no substitute. */
START_TEST(a_look_says_why_nobody_is_there)
{
	struct pool_ask ask = ask_of(ROLE_DECODE, 0);
	struct pool_look seen;
	struct guard g;
	uint64_t red;
	enum role role;

	pool = unit_pool(TWO_PAIRS);
	ck_assert(pool_find_role(pool, SPAN_LIT("d1"), &role, &red));
	ask.kv_group = red;
	ck_assert_int_eq(pool_look(pool, &ask, &seen), 0);
	ck_assert_uint_eq(seen.kv_group, red);
	pick_with(&ask, &g);
	ck_assert_int_eq(pool_look(pool, &ask, &seen), ERR_LIMIT);
	guard_drop(&g);
	atomic_store(&unit_worker(pool, "d1")->health, WORKER_UNHEALTHY);
	ck_assert_int_eq(pool_look(pool, &ask, &seen), ERR_STATE);
	ask.kv_group = 12345;
	ck_assert_int_eq(pool_look(pool, &ask, &seen), ERR_NOENT);
	ask.pinned = SPAN_LIT("nobody");
	ck_assert_int_eq(pool_look(pool, &ask, &seen), ERR_PARSE);
}
END_TEST

/* However often: the next real picks are those of a pool at which nobody looked. */
START_TEST(a_look_changes_nothing)
{
	static const char *const policies[] = {"random", "round_robin", "power_of_two",
		"least_requests", "cache_aware", "sticky_least_loaded"};

	for (size_t p = 0; p < ARRAY_LEN(policies); p++) {
		char order[2][64];

		for (int looks = 0; looks < 2; looks++) {
			char text[1024];

			snprintf(text, sizeof(text), "[pool default]\npolicy = %s\n",
				policies[p]);
			unit_workers(text, sizeof(text), 4, "role = decode\n");
			pool = unit_pool(text);
			pool_seed(pool, 7);
			for (size_t i = 0; i < 63; i++) {
				struct pool_ask ask = ask_of(ROLE_DECODE, 0);
				struct pool_look seen;
				struct pool_pick out;

				for (int k = 0; k < looks * 3; k++)
					ck_assert_int_eq(pool_look(pool, &ask, &seen), 0);
				order[looks][i] = (char)('0' + pick_number(&ask, &out));
			}
			order[looks][63] = '\0';
			unit_close(pool);
			pool = NULL;
		}
		ck_assert_str_eq(order[0], order[1]);
	}
}
END_TEST

static uint64_t uncached(struct route_key *key, uint64_t body_bytes)
{
	struct pool_ask ask = ask_of(ROLE_DECODE, 0);
	struct pool_look seen;

	ask.key = key;
	ask.body_bytes = body_bytes;
	ck_assert_int_eq(pool_look(pool, &ask, &seen), 0);
	return seen.uncached_tokens;
}

/* In tokens, of four bytes each; what decode holds already does not count. */
START_TEST(uncached_tokens_of_the_chosen)
{
	struct route_key key, longer, unread;
	struct pool_ask ask = ask_of(ROLE_DECODE, 0);
	struct guard g;

	pool = unit_pool("[pool default]\n[worker d0]\nurl = http://c:1\nrole = decode\n"
			 "[worker d1]\nurl = http://d:1\nrole = decode\n");
	key = unit_sealed(pool, 1, 10, 0, 10);
	longer = unit_sealed(pool, 1, 10, 2, 13);
	ck_assert_uint_eq(uncached(&key, 5000), 10 * 128 / 4);
	ask.key = &key;
	ck_assert_uint_eq(pick_with(&ask, &g).uncached_tokens, 320);
	guard_drop(&g);
	ck_assert_uint_eq(uncached(&key, 5000), 0);
	ck_assert_uint_eq(uncached(&longer, 5000), 3 * 128 / 4);
	/* Nobody hashed it: as long as its body. */
	route_key_init(&unread);
	ck_assert_uint_eq(uncached(&unread, 4096), 1024);
	unread.readable = true;
	ck_assert_uint_eq(uncached(&unread, 4096), 1024);
	ck_assert_uint_eq(uncached(NULL, 4096), 1024);
	route_key_free(&key);
	route_key_free(&longer);
}
END_TEST

/* The retry budget is a share of requests, not of legs. */
START_TEST(both_legs_are_one_request)
{
	struct pool_ask prefill = ask_of(ROLE_PREFILL, 0),
			decode = ask_of(ROLE_DECODE, 0);
	uint64_t tried = 1;
	struct guard g;
	unsigned n;

	pool = unit_pool("[pool default]\nretry_budget = 100\n" TWO_PAIRS);
	decode.is_further_leg = true;
	for (int i = 0; i < 20; i++) {
		pick_with(&prefill, &g);
		guard_drop(&g);
		pick_with(&decode, &g);
		guard_drop(&g);
	}
	prefill.tried = &tried;
	prefill.n_tried = 0;
	for (n = 0; pool_may_retry(pool, &prefill, true) == RETRY_YES; n++)
		ck_assert_uint_le(n, RETRY_MIN + 20);
	ck_assert_uint_eq(n, RETRY_MIN + 20);
}
END_TEST

START_TEST(news_of_prefill_is_told_once)
{
	pool = unit_pool(TWO_PAIRS);
	ck_assert(!pool_lacks_prefill(pool));
	ck_assert(!pool_note_prefill(pool, false));
	ck_assert(pool_note_prefill(pool, true));
	ck_assert(!pool_note_prefill(pool, true));
	ck_assert(pool_lacks_prefill(pool));
	ck_assert(pool_note_prefill(pool, false));
	ck_assert(!pool_lacks_prefill(pool));
}
END_TEST

/* A slot of the process that goes from one guard to another is taken once. */
START_TEST(a_slot_may_change_guards)
{
	struct pool_ask prefill = ask_of(ROLE_PREFILL, 0),
			decode = ask_of(ROLE_DECODE, 0);
	struct slots slots = {0}, *held;
	struct pool_pick out;
	struct guard a, b;

	pool = unit_pool(TWO_PAIRS);
	prefill.slots = &slots;
	prefill.max_slots = 1;
	pick_with(&prefill, &a);
	held = guard_let_go(&a);
	ck_assert_ptr_eq(held, &slots);
	ck_assert_ptr_null(guard_let_go(&a));
	guard_drop(&a);
	ck_assert_uint_eq(slots.taken, 1);
	ck_assert_int_eq(pool_pick(pool, &prefill, &a, &out), ERR_LIMIT);
	pick_with(&decode, &b);
	guard_hold(&b, held);
	guard_drop(&b);
	ck_assert_uint_eq(slots.taken, 0);
	pick_with(&prefill, &a);
	slots_give(guard_let_go(&a));
	guard_drop(&a);
	ck_assert_uint_eq(slots.taken, 0);
}
END_TEST

static Suite *pool_pair_suite(void)
{
	Suite *s = suite_create("pool_pair");
	TCase *c = tcase_create("pool_pair");

	tcase_add_checked_fixture(c, set_up, tear_down);
	tcase_add_test(c, split_while_there_is_decode);
	tcase_add_test(c, groups_never_mix);
	tcase_add_test(c, a_look_says_why_nobody_is_there);
	tcase_add_test(c, a_look_changes_nothing);
	tcase_add_test(c, uncached_tokens_of_the_chosen);
	tcase_add_test(c, both_legs_are_one_request);
	tcase_add_test(c, news_of_prefill_is_told_once);
	tcase_add_test(c, a_slot_may_change_guards);
	suite_add_tcase(s, c);
	return s;
}

UNIT_MAIN(pool_pair_suite())
