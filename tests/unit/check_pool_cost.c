/*
 * The costs of cache_aware in a pool, with its own counters, index and clock: what is
 * queued and when it is not, cold starts and idle fleets that rotate, paced traffic that
 * spreads, conversations that stay, roles that have thresholds of their own (A5), and an
 * index that is not built where nobody reads it.
 */
#include "base/err.h"
#include "base/rng.h"
#include "tests/unit/unit_model.h"

#define NOW 1000000

static struct pool *pool;
static uint64_t now_ms;

static void set_up(void)
{
	pool = NULL;
	now_ms = NOW;
}

static void tear_down(void)
{
	if (pool != NULL)
		unit_close(pool);
}

static struct pool_pick pick_of(
	enum role role, struct route_key *key, uint64_t body_bytes, struct guard *g)
{
	struct pool_ask ask = {
		.role = role, .key = key, .body_bytes = body_bytes, .now_ms = now_ms};
	struct pool_pick out;

	g->worker = NULL;
	ck_assert_int_eq(pool_pick(pool, &ask, g, &out), 0);
	return out;
}

static unsigned number_of(const struct guard *g)
{
	ck_assert_int_eq(g->worker->name[0], 'w');
	return (unsigned)atoi(g->worker->name + 1);
}

/* A prompt of `shared` blocks of family a and then its own; answered before the next. */
static unsigned send_one(
	uint64_t a, size_t shared, uint64_t own, size_t n, struct pool_pick *out)
{
	struct route_key key = unit_sealed(pool, a, shared, own, n);
	struct guard g;
	unsigned number;

	*out = pick_of(ROLE_UNIFIED, &key, 0, &g);
	number = number_of(&g);
	guard_prefilled(&g);
	guard_drop(&g);
	route_key_free(&key);
	return number;
}

static uint64_t queued_of(const char *worker)
{
	return worker_queued_blocks(unit_worker(pool, worker));
}

/* ---- what is queued ---- */

START_TEST(uncached_blocks_queue_until_the_first_byte)
{
	struct route_key first, longer;
	struct pool_pick out;
	struct guard g, h;

	pool = unit_pool_of(1, "cost = prefill_cost\n");
	first = unit_sealed(pool, 1, 40, 0, 40);
	longer = unit_sealed(pool, 1, 40, 2, 55);
	pick_of(ROLE_UNIFIED, &first, 9999, &g);
	ck_assert_uint_eq(queued_of("w0"), 40);
	/* What the first will have computed by then is not computed twice. */
	out = pick_of(ROLE_UNIFIED, &longer, 9999, &h);
	ck_assert_uint_eq(out.matched, 40);
	ck_assert_uint_eq(queued_of("w0"), 55);
	guard_prefilled(&g);
	ck_assert_uint_eq(queued_of("w0"), 15);
	ck_assert_uint_eq(worker_streams(unit_worker(pool, "w0")), 1);
	guard_drop(&h);
	ck_assert_uint_eq(queued_of("w0"), 0);
	guard_drop(&g);
	route_key_free(&first);
	route_key_free(&longer);
}
END_TEST

/* Whatever the policy and the unit of the key: blocks of the pool. */
START_TEST(sizes_in_blocks_of_the_pool)
{
	static const struct {
		const char *lines;
		char unit;
		uint32_t block;
		size_t n_blocks;
		uint64_t prompt_units, body_bytes, queued;
		bool readable, hashes_sent;
	} rows[] = {
		{"cost = prefill_cost\n", 'b', 128, 10, 1300, 5000, 10, true, false},
		{"", 'b', 128, 10, 1300, 5000, 10, true, false},
		{"prefix_block = 256\n", 'b', 256, 10, 2560, 5000, 10, true, false},
		/* sixteen of ours each */
		{"", 'b', 2048, 10, 20480, 5000, 160, true, true},
		/* a token is four bytes */
		{"", 't', 32, 10, 330, 5000, 10, true, false},
		{"", 't', 64, 10, 640, 5000, 20, true, false},
		/* a prompt shorter than a block, read: nothing worth counting */
		{"", 'b', 128, 0, 100, 5000, 0, true, false},
		/* not read, or hashed elsewhere without a whole block: the body says it
		 */
		{"", 'b', 128, 0, 0, 5000, 39, false, false},
		{"", 'b', 128, 0, 0, 5000, 39, true, true},
		{"", 'b', 128, 0, 0, UINT64_MAX, UINT32_MAX, false, false},
		{"policy = least_requests\n", 'b', 128, 0, 0, 5000, 39, false, false},
		{"", 'b', 128, 0, 0, 0, 0, false, false},
	};
	struct route_key key;
	struct guard g;

	pool = unit_pool_of(1, rows[_i].lines);
	key = unit_key(1, rows[_i].n_blocks, 0, rows[_i].n_blocks);
	key.unit = rows[_i].unit;
	key.block = rows[_i].block;
	key.prompt_units = rows[_i].prompt_units;
	key.readable = rows[_i].readable;
	key.hashes_sent = rows[_i].hashes_sent;
	pool_seal_key(pool, &key, SPAN_LIT(""));
	pick_of(ROLE_UNIFIED, &key, rows[_i].body_bytes, &g);
	ck_assert_uint_eq(queued_of("w0"), rows[_i].queued);
	guard_drop(&g);
	/* Nothing known of it but the body. */
	pick_of(ROLE_UNIFIED, NULL, rows[_i].body_bytes, &g);
	if (strstr(rows[_i].lines, "256") == NULL)
		ck_assert_uint_eq(queued_of("w0"),
			MIN(rows[_i].body_bytes / 128, (uint64_t)UINT32_MAX));
	guard_drop(&g);
	/* The second time all of it is cached. */
	pick_of(ROLE_UNIFIED, &key, rows[_i].body_bytes, &g);
	if (rows[_i].n_blocks > 0)
		ck_assert_uint_eq(queued_of("w0"), 0);
	guard_drop(&g);
	route_key_free(&key);
}
END_TEST

/* A long prompt that nobody keyed keeps short ones away until they outweigh it. */
START_TEST(long_unkeyed_prompts_count)
{
	struct guard big, small[12];

	pool = unit_pool_of(2, "cost = prefill_cost\n");
	pick_of(ROLE_UNIFIED, NULL, 12800, &big); /* 100 blocks */
	ck_assert_uint_eq(number_of(&big), 0);
	for (unsigned i = 0; i < 10; i++) {
		pick_of(ROLE_UNIFIED, NULL, 1280, &small[i]);
		ck_assert_uint_eq(number_of(&small[i]), 1);
	}
	/* 100 on each; w0 has fewer requests. */
	pick_of(ROLE_UNIFIED, NULL, 1280, &small[10]);
	ck_assert_uint_eq(number_of(&small[10]), 0);
	pick_of(ROLE_UNIFIED, NULL, 1280, &small[11]);
	ck_assert_uint_eq(number_of(&small[11]), 1);
	guard_drop(&big);
	unit_drop(small, 12);
}
END_TEST

/* Its own prefix waits behind 85,000 tokens: computing 13,700 elsewhere is sooner. */
START_TEST(a_queue_outweighs_a_prefix_and_not_for_longer_than_it_lasts)
{
	struct pool_pick out;
	struct route_key huge;
	struct guard g;

	pool = unit_pool_of(2, "cost = prefill_cost\n");
	huge = unit_sealed(pool, 7, 2656, 0, 2656);
	ck_assert_uint_eq(send_one(1, 428, 0, 428, &out), 0);
	ck_assert_uint_eq(send_one(2, 428, 0, 428, &out), 1);
	pick_of(ROLE_UNIFIED, &huge, 0, &g);
	ck_assert_uint_eq(number_of(&g), 0);
	ck_assert_uint_eq(send_one(1, 428, 11, 440, &out), 1);
	ck_assert_int_eq(out.reason, PICK_OVERLOAD_SHED);
	/* The other conversation is no business of it. */
	ck_assert_uint_eq(send_one(2, 428, 12, 440, &out), 1);
	ck_assert_int_eq(out.reason, PICK_PREFIX_HIT);
	guard_prefilled(&g);
	now_ms += 17000;
	ck_assert_uint_eq(send_one(7, 2656, 13, 2700, &out), 0);
	ck_assert_int_eq(out.reason, PICK_PREFIX_HIT);
	guard_drop(&g);
	route_key_free(&huge);
}
END_TEST

/* ---- cold starts, idle fleets, paced traffic ---- */

static const char *const costs[] = {"cost = overload_check\n", "cost = relative_load\n",
	"cost = free_capacity\n", "cost = prefill_cost\n"};
static const char *const signals[] = {
	"signal = longest_prefix\n", "signal = first_block\n", "signal = none\n"};
#define COMBINATIONS (ARRAY_LEN(costs) * ARRAY_LEN(signals))

static void make_pool(unsigned n, int which, const char *more)
{
	char lines[256];

	snprintf(lines, sizeof(lines), "%s%s%s", costs[(size_t)which % ARRAY_LEN(costs)],
		signals[(size_t)which / ARRAY_LEN(costs) % ARRAY_LEN(signals)], more);
	pool = unit_pool_of(n, lines);
}

/* B10, for each combination: one after another, each answered before the next. */
/* A prompt of that many blocks, unread, to whoever is chosen. */
static unsigned queue_blocks(uint64_t blocks, struct guard *g)
{
	pick_of(ROLE_UNIFIED, NULL, blocks * 128, g);
	return number_of(g);
}

/*
 * Both workers compute 100 blocks a second, as their streams have shown. What one has
 * done of a long prompt meanwhile counts no more; but when it is late, all of it does.
 */
START_TEST(what_is_computed_meanwhile_does_not_count)
{
	struct guard g[2], longer, shorter, probe;
	unsigned first, second;

	pool = unit_pool_of(2, "cost = prefill_cost\n");
	ck_assert_uint_ne(queue_blocks(1000, &g[0]), queue_blocks(1000, &g[1]));
	now_ms += 10000;
	for (unsigned i = 0; i < 2; i++) {
		guard_streams(&g[i], now_ms);
		guard_drop(&g[i]);
	}
	first = queue_blocks(1000, &longer);
	now_ms += 8000; /* 200 are left */
	second = queue_blocks(600, &shorter);
	ck_assert_uint_ne(second, first);
	ck_assert_uint_eq(queue_blocks(10, &probe), first);
	guard_drop(&probe);
	now_ms += 13000;
	ck_assert_uint_ne(queue_blocks(10, &probe), first);
	guard_drop(&probe);
	guard_drop(&shorter);
	guard_drop(&longer);
}
END_TEST

START_TEST(an_idle_fleet_rotates)
{
	unsigned count[4] = {0};

	make_pool(4, _i, "");
	for (uint64_t i = 0; i < 80; i++) {
		struct pool_pick out;

		count[send_one(100 + i, 16, 0, 16, &out)]++;
		now_ms += 700;
	}
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(count[i], 20);
}
END_TEST

/* All begin with the same few words, a quarter of each: that is no match for those costs
 * that weigh fractions, and little work for the one that counts blocks. */
START_TEST(common_words_bind_nobody)
{
	unsigned count[4] = {0};

	make_pool(4, _i, "");
	for (uint64_t i = 0; i < 80; i++) {
		struct pool_pick out;

		count[send_one(1, 4, 100 + i, 16, &out)]++;
		now_ms += 700;
	}
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_uint_ge(count[i], _i == 3 ? 10 : 20);
		ck_assert_uint_le(count[i], _i == 3 ? 30 : 20);
	}
}
END_TEST

/* All at once. */
START_TEST(a_cold_start_spreads)
{
	struct guard guards[40];
	unsigned count[4] = {0};

	make_pool(4, _i, "");
	for (uint64_t i = 0; i < 40; i++) {
		struct route_key key = unit_sealed(pool, 100 + i, 16, 0, 16);

		pick_of(ROLE_UNIFIED, &key, 0, &guards[i]);
		count[number_of(&guards[i])]++;
		route_key_free(&key);
	}
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(count[i], 10);
	unit_drop(guards, 40);
}
END_TEST

/* A system prompt of 250 blocks before 50 of each one's own, one request at a time: load
 * is zero at each pick, and yet not one worker gets them all. */
START_TEST(paced_traffic_spreads_under_prefill_cost)
{
	static const uint64_t pace_ms[] = {0, 100, 1000, 5000};
	static const unsigned fleets[] = {2, 4, 8};
	unsigned n = fleets[_i / 4], count[8] = {0}, served = 0;
	char lines[] = "cost = prefill_cost\n";

	pool = unit_pool_of(n, lines);
	for (uint64_t i = 0; i < 400; i++) {
		struct pool_pick out;

		count[send_one(1, 250, 1000 + i, 300, &out)]++;
		now_ms += pace_ms[_i % 4];
	}
	for (unsigned i = 0; i < n; i++) {
		served += count[i] >= 400 / n / 2;
		ck_assert_uint_le(count[i], 250);
	}
	ck_assert_uint_ge(served, 2);
}
END_TEST

/* Prompts of very different sizes: what is even is the work, not the count. */
START_TEST(paced_work_is_even_under_prefill_cost)
{
	uint64_t work[4] = {0}, total = 0;
	struct rng rng;

	rng_seed(&rng, 5);
	pool = unit_pool_of(4, "cost = prefill_cost\n");
	for (uint64_t i = 0; i < 400; i++) {
		size_t n = rng_below(&rng, 10) == 0 ? 2656 : 100 + rng_below(&rng, 400);
		struct pool_pick out;

		work[send_one(100 + i, n, 0, n, &out)] += n;
		total += n;
		now_ms += 2000;
	}
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_uint_ge(work[i], total / 4 * 9 / 10);
		ck_assert_uint_le(work[i], total / 4 * 11 / 10);
	}
}
END_TEST

/* Agents that talk on: each turn goes where the last one went, at any pace, although
 * that worker is the one that computed most of late. */
START_TEST(paced_conversations_stay)
{
	static const uint64_t pace_ms[] = {0, 100, 1000, 5000};
	unsigned home[8];

	pool = unit_pool_of(4, "cost = prefill_cost\n");
	for (uint64_t turn = 0; turn < 12; turn++) {
		for (uint64_t k = 0; k < ARRAY_LEN(home); k++) {
			size_t n = 400 + 20 * turn;
			struct pool_pick out;
			unsigned to = send_one(k + 1, n, 0, n, &out);

			if (turn == 0)
				home[k] = to;
			ck_assert_uint_eq(to, home[k]);
			ck_assert_uint_eq(out.matched, turn == 0 ? 0 : n - 20);
			now_ms += pace_ms[_i];
		}
	}
	for (unsigned w = 0; w < 4; w++) {
		unsigned homes = 0;

		for (unsigned k = 0; k < ARRAY_LEN(home); k++)
			homes += home[k] == w;
		ck_assert_uint_eq(homes, 2);
	}
}
END_TEST

/* ---- the index ---- */

START_TEST(none_builds_no_index)
{
	struct conf *follow =
		unit_conf("[pool default]\n[worker w0]\nurl = http://10.0.0.1:8000\n");
	struct conf *none = unit_conf("[pool default]\nsignal = none\n"
				      "[worker w0]\nurl = http://10.0.0.1:8000\n");
	struct prefix_index_stats stats;
	struct pool_pick out;

	pool = unit_pool_of(1, "signal = none\n");
	ck_assert(!pool_needs_key(pool, ROLE_UNIFIED));
	send_one(1, 16, 0, 16, &out);
	ck_assert_uint_eq(out.blocks, 0);
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.bytes, 0);
	/* A reload builds it, and takes it away. */
	ck_assert_int_eq(pool_update(pool, &follow->pools[0], follow, NOW), 0);
	ck_assert(pool_needs_key(pool, ROLE_UNIFIED));
	send_one(1, 16, 0, 16, &out);
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.blocks, 16);
	ck_assert_int_eq(pool_update(pool, &none->pools[0], none, NOW), 0);
	ck_assert(!pool_needs_key(pool, ROLE_UNIFIED));
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.bytes, 0);
	conf_unref(follow);
	conf_unref(none);
}
END_TEST

/* Depth beyond the first block is known to the index all the same. */
START_TEST(first_block_queues_what_is_missing)
{
	struct route_key key;
	struct pool_pick out;
	struct guard g;

	pool = unit_pool_of(2, "signal = first_block\ncost = prefill_cost\n");
	ck_assert_uint_eq(send_one(1, 10, 0, 10, &out), 0);
	key = unit_sealed(pool, 1, 1, 5, 30);
	out = pick_of(ROLE_UNIFIED, &key, 0, &g);
	ck_assert_uint_eq(number_of(&g), 0);
	ck_assert_uint_eq(out.matched, 1);
	ck_assert_int_eq(out.reason, PICK_PREFIX_HIT);
	ck_assert_uint_eq(queued_of("w0"), 29);
	guard_drop(&g);
	route_key_free(&key);
}
END_TEST

/* ---- A5: per role ---- */

/* w0 holds the prompt and has `load` requests more than w1: does it keep it? */
static bool role_keeps(enum role role, const char *w0, const char *w1, unsigned load)
{
	struct route_key key = unit_sealed(pool, 1, 16, 0, 16);
	struct pool_ask ask = {
		.role = role, .key = &key, .pinned = span_str(w0), .now_ms = now_ms};
	struct guard g = {0}, held[64];
	struct pool_pick out;
	bool keeps;

	pool_clear_worker(pool, unit_worker(pool, w1));
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
	guard_drop(&g);
	unit_hold(unit_worker(pool, w0), held, load);
	ask.pinned = SPAN_LIT("");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
	keeps = strcmp(g.worker->name, w0) == 0;
	ck_assert_int_eq(out.reason, keeps ? PICK_PREFIX_HIT : PICK_OVERLOAD_SHED);
	guard_drop(&g);
	unit_drop(held, load);
	route_key_free(&key);
	return keeps;
}

#define ROLE_WORKERS                                                     \
	"[worker u0]\nurl = http://a:1\n[worker u1]\nurl = http://b:1\n" \
	"[worker p0]\nurl = http://c:1\nrole = prefill\n"                \
	"[worker p1]\nurl = http://d:1\nrole = prefill\n"                \
	"[worker d0]\nurl = http://e:1\nrole = decode\n"                 \
	"[worker d1]\nurl = http://f:1\nrole = decode\n"

/* The roles say no word of a policy; their thresholds hold. */
START_TEST(a5_thresholds_of_a_role_that_inherits_its_policy)
{
	pool = unit_pool("[pool default]\npolicy = cache_aware\n"
			 "[pool default prefill]\nbalance_abs_threshold = 4\n"
			 "[pool default decode]\nbalance_rel_threshold = 50\n"
			 "balance_abs_threshold = 1\n" ROLE_WORKERS);
	ck_assert(role_keeps(ROLE_UNIFIED, "u0", "u1", 32));
	ck_assert(!role_keeps(ROLE_UNIFIED, "u0", "u1", 33));
	ck_assert(role_keeps(ROLE_PREFILL, "p0", "p1", 4));
	ck_assert(!role_keeps(ROLE_PREFILL, "p0", "p1", 5));
	ck_assert(role_keeps(ROLE_DECODE, "d0", "d1", 1));
	ck_assert(!role_keeps(ROLE_DECODE, "d0", "d1", 2));
}
END_TEST

/* So do another cost, signal and weight, and nothing of them leaks into another role. */
START_TEST(a5_costs_of_a_role)
{
	pool = unit_pool("[pool default]\nbeta = 0.1\n"
			 "[pool default prefill]\ncost = relative_load\n"
			 "[pool default decode]\nsignal = none\n" ROLE_WORKERS);
	ck_assert(role_keeps(ROLE_UNIFIED, "u0", "u1", 30));
	/* 1 - 0.1 x (load - mean) / mean, mean load/2: 0.9 against 0.1 */
	ck_assert(role_keeps(ROLE_PREFILL, "p0", "p1", 30));
	ck_assert(pool_needs_key(pool, ROLE_UNIFIED));
	ck_assert(pool_needs_key(pool, ROLE_PREFILL));
	ck_assert(!pool_needs_key(pool, ROLE_DECODE));
	unit_close(pool);
	pool = unit_pool("[pool default prefill]\ncost = relative_load\nbeta = "
			 "0.51\n" ROLE_WORKERS);
	ck_assert(role_keeps(ROLE_UNIFIED, "u0", "u1", 30));
	ck_assert(!role_keeps(ROLE_PREFILL, "p0", "p1", 30));
	ck_assert(role_keeps(ROLE_DECODE, "d0", "d1", 30));
}
END_TEST

/* ---- explain ---- */

START_TEST(explain_tells_the_terms)
{
	static const double wanted[][TERM_MAX] = {
		{[TERM_UNCACHED] = -60, [TERM_QUEUED] = -7, [TERM_DECODE] = -1},
		{[TERM_UNCACHED] = -360},
	};
	struct guard waiting = {0}, stream = {0};
	struct route_key key;
	struct pool_pick out;
	struct pool_ask ask;
	struct explain e;

	pool = unit_pool_of(2, "cost = prefill_cost\n");
	ck_assert_uint_eq(send_one(1, 100, 0, 100, &out), 0);
	now_ms += 3600001; /* what was computed is long ago; so is the prefix: again */
	pool_sweep(pool, now_ms);
	key = unit_sealed(pool, 1, 100, 3, 120);
	ask = (struct pool_ask){.key = &key, .pinned = SPAN_LIT("w0"), .now_ms = now_ms};
	key.n_blocks = 100;
	ck_assert_int_eq(pool_pick(pool, &ask, &stream, &out), 0);
	guard_prefilled(&stream);
	key.n_blocks = 120;
	guard_take(&waiting, unit_worker(pool, "w0"));
	guard_queue(&waiting, 7);
	ask.pinned = SPAN_LIT("");
	ask.now_ms = now_ms += 60000;
	ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
	ck_assert_uint_eq(e.n, 2);
	ck_assert_uint_eq(e.blocks, 120);
	ck_assert_uint_eq(e.candidates[0].depth, 100);
	for (size_t i = 0; i < 2; i++) {
		double sum = 0;

		for (int t = 0; t < TERM_MAX; t++) {
			if (t != TERM_RECENT)
				ck_assert_double_eq(
					e.candidates[i].terms[t], wanted[i][t]);
			sum += e.candidates[i].terms[t];
		}
		ck_assert_double_eq_tol(e.candidates[i].score, sum, 1e-5);
	}
	/* 100 blocks a minute ago; after 75 s half of them count; 7 wait. */
	ck_assert_double_eq_tol(
		e.candidates[0].terms[TERM_RECENT], -1.5 * (57.43 - 7) / 2, 0.01);
	ck_assert_double_eq_tol(
		e.candidates[1].terms[TERM_RECENT], 1.5 * (57.43 - 7) / 2, 0.01);
	ck_assert_int_eq(e.chosen, 0);
	ck_assert_int_eq(e.reason, PICK_PREFIX_HIT);
	free(e.candidates);
	guard_drop(&waiting);
	guard_drop(&stream);
	route_key_free(&key);
}
END_TEST

static Suite *pool_cost_suite(void)
{
	Suite *s = suite_create("pool_cost");
	TCase *tc = tcase_create("pool_cost");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, uncached_blocks_queue_until_the_first_byte);
	tcase_add_loop_test(tc, sizes_in_blocks_of_the_pool, 0, 12);
	tcase_add_test(tc, long_unkeyed_prompts_count);
	tcase_add_test(tc, a_queue_outweighs_a_prefix_and_not_for_longer_than_it_lasts);
	tcase_add_test(tc, what_is_computed_meanwhile_does_not_count);
	tcase_add_loop_test(tc, an_idle_fleet_rotates, 0, COMBINATIONS);
	tcase_add_loop_test(tc, common_words_bind_nobody, 0, ARRAY_LEN(costs));
	tcase_add_loop_test(tc, a_cold_start_spreads, 0, COMBINATIONS);
	tcase_add_loop_test(tc, paced_traffic_spreads_under_prefill_cost, 0, 12);
	tcase_add_test(tc, paced_work_is_even_under_prefill_cost);
	tcase_add_loop_test(tc, paced_conversations_stay, 0, 4);
	tcase_add_test(tc, none_builds_no_index);
	tcase_add_test(tc, first_block_queues_what_is_missing);
	tcase_add_test(tc, a5_thresholds_of_a_role_that_inherits_its_policy);
	tcase_add_test(tc, a5_costs_of_a_role);
	tcase_add_test(tc, explain_tells_the_terms);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(pool_cost_suite())
