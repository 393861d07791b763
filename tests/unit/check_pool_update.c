/*
 * One pool that changes: what an update keeps, who is told of it, and four threads at
 * once.
 */
#include "base/err.h"
#include "base/rng.h"
#include "tests/unit/pool_rig.h"

#include <pthread.h>

/* ---- updates ---- */

static unsigned n_added, n_removed;

static void count_added(void *arg, struct pool *p, struct worker *w)
{
	ck_assert_ptr_eq(arg, &n_added);
	/* Outside the lock: the pool may be asked. */
	ck_assert_uint_ge(pool_workers(p, w->role), 1);
	n_added++;
}

static void count_removed(void *arg, struct pool *p, struct worker *w)
{
	(void)arg;
	ck_assert_ptr_null(pool_find(p, SPAN_LIT("nobody")));
	ck_assert(atomic_load(&w->is_removed));
	n_removed++;
}

START_TEST(changes_are_told_outside_the_lock)
{
	static const struct pool_ops ops = {NULL, count_added, count_removed};
	struct conf *two = unit_conf("[worker a]\nurl = http://a:1\n"
				     "[worker b]\nurl = http://b:1\n");
	struct conf *one = unit_conf("[worker b]\nurl = http://b:1\n");

	n_added = n_removed = 0;
	pool = pool_new("default", unit_secret, &ops, &n_added);
	ck_assert_str_eq(pool_name(pool), "default");
	ck_assert_int_eq(pool_update(pool, &two->pools[0], two, NOW), 0);
	ck_assert_uint_eq(n_added, 2);
	ck_assert_int_eq(pool_update(pool, &one->pools[0], one, NOW), 0);
	ck_assert_uint_eq(n_removed, 1);
	ck_assert_int_eq(pool_add_worker(pool, &two->workers[0]), 0);
	ck_assert_int_eq(pool_add_worker(pool, &two->workers[0]), ERR_EXISTS);
	ck_assert_uint_eq(n_added, 3);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("a")), 0);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("a")), ERR_NOENT);
	ck_assert_uint_eq(n_removed, 2);
	unit_close(pool_ref(pool));
	ck_assert_uint_eq(n_removed, 3);
	ck_assert_uint_eq(pool_workers(pool, ROLE_UNIFIED), 0);
	pool_unref(pool);
	pool = NULL;
	conf_unref(two);
	conf_unref(one);
}
END_TEST

/* A hundred random reloads: who is kept is the same, with load, slot and residency. */
START_TEST(updates_keep_identity_load_and_residency)
{
	enum { NAMES = 6 };
	struct worker *was[NAMES] = {0};
	struct guard held[NAMES] = {0};
	struct conf *api = unit_conf("[worker api]\nurl = http://api:1\n");
	struct worker_conf api_worker;
	struct worker *api_was;
	struct conf_errors errors = {0};
	struct conf_pair pair = {"url", "http://api:1"};
	struct rng rng;

	rng_seed(&rng, (uint64_t)_i + 1);
	pool = unit_pool_of(0, "");
	ck_assert_int_eq(conf_worker_make(api, "api", &pair, 1, &errors, &api_worker), 0);
	ck_assert_int_eq(pool_add_worker(pool, &api_worker), 0);
	unit_make_healthy(pool);
	api_was = unit_worker(pool, "api");
	warm("api", 99, 7);
	for (int step = 0; step < 100; step++) {
		char text[1024] = "[pool default]\n";
		bool is_in[NAMES];
		struct conf *conf;
		size_t len = strlen(text);

		for (unsigned k = 0; k < NAMES; k++) {
			/* Rotated, so that the order changes too. */
			unsigned i = (k + (unsigned)step) % NAMES;

			is_in[i] = rng_below(&rng, 5) > 0;
			if (is_in[i])
				len += (size_t)snprintf(text + len, sizeof(text) - len,
					"[worker w%u]\nurl = http://w%u:1\n"
					"max_requests = %u\n",
					i, i, 100 + (unsigned)step);
		}
		conf = unit_conf(text);
		ck_assert_int_eq(pool_update(pool, &conf->pools[0], conf, NOW), 0);
		conf_unref(conf);
		unit_make_healthy(pool);
		for (unsigned i = 0; i < NAMES; i++) {
			char name[8];
			struct worker *w;

			snprintf(name, sizeof(name), "w%u", i);
			w = pool_find(pool, span_str(name));
			worker_unref(w);
			ck_assert_int_eq(w != NULL, is_in[i]);
			if (w != NULL && was[i] != NULL) {
				ck_assert_ptr_eq(w, was[i]);
				ck_assert_uint_eq(worker_load(w), 1);
				ck_assert_uint_eq(blocks_of(name), 3 + i);
				ck_assert_uint_eq(
					w->conf->max_requests, 100 + (unsigned)step);
			} else if (w != NULL) {
				ck_assert_uint_eq(worker_load(w), 0);
				ck_assert_uint_eq(blocks_of(name), 0);
				warm(name, i + 1, 3 + i);
				guard_drop(&held[i]);
				guard_take(&held[i], w);
			}
			was[i] = w;
		}
		ck_assert_ptr_eq(unit_worker(pool, "api"), api_was);
		ck_assert_uint_eq(blocks_of("api"), 7);
	}
	unit_drop(held, NAMES);
	worker_conf_free(&api_worker);
	conf_errors_free(&errors);
	conf_unref(api);
}
END_TEST

/* Every worker goes and as many others come: there is room to tell of all. */
START_TEST(a_whole_fleet_is_replaced)
{
	enum { FLEET = 100 };
	char text[FLEET * 64] = "";
	struct pool_ask ask = ask_for(NULL);
	struct pool_pick out;
	struct conf *next;

	pool = unit_pool_of(FLEET, "");
	for (unsigned i = 0; i < FLEET; i++)
		sprintf(text + strlen(text), "[worker w%u]\nurl = http://next%u:1\n", i,
			i);
	next = unit_conf(text);
	ck_assert_int_eq(pool_update(pool, &next->pools[0], next, NOW), 0);
	conf_unref(next);
	ck_assert_uint_eq(pool_workers(pool, ROLE_UNIFIED), FLEET);
	ck_assert_uint_eq(pool_usable(pool, ROLE_UNIFIED), 0);
	unit_make_healthy(pool);
	for (unsigned i = 0; i < FLEET; i++)
		ck_assert_uint_eq(pick_number(&ask, &out), i);
}
END_TEST

START_TEST(another_block_size_is_another_index)
{
	struct conf *bigger = unit_conf("[pool default]\nprefix_block = 256\n"
					"[worker w0]\nurl = http://10.0.0.1:8000\n");
	struct route_key_opts opts;

	pool = unit_pool_of(1, "");
	warm("w0", 1, 16);
	pool_key_opts(pool, ROLE_UNIFIED, &opts);
	ck_assert_uint_eq(opts.block_bytes, 128);
	ck_assert_uint_eq(opts.block_tokens, 32);
	ck_assert_int_eq(pool_update(pool, &bigger->pools[0], bigger, NOW), 0);
	pool_key_opts(pool, ROLE_UNIFIED, &opts);
	ck_assert_uint_eq(opts.block_bytes, 256);
	ck_assert_uint_eq(blocks_of("w0"), 0);
	warm("w0", 1, 16);
	ck_assert_uint_eq(blocks_of("w0"), 16);
	conf_unref(bigger);
}
END_TEST

/* ---- threads ---- */

enum { PICKERS = 3, PICKS = 3000, HELD = 8 };

struct picker {
	pthread_t thread;
	uint64_t seed;
	unsigned picked;
};

static void *pick_and_drop(void *arg)
{
	struct picker *me = arg;
	struct guard guards[HELD] = {0};
	struct rng rng;

	rng_seed(&rng, me->seed);
	for (int i = 0; i < PICKS; i++) {
		struct guard *g = &guards[rng_below(&rng, HELD)];
		struct route_key key = unit_key(
			1 + rng_below(&rng, 16), 4, me->seed * 100000 + (uint64_t)i, 6);
		struct pool_ask ask = ask_for(&key);
		struct pool_pick out;

		guard_drop(g);
		if (pool_needs_key(pool, ROLE_UNIFIED))
			pool_seal_key(pool, &key, SPAN_LIT(""));
		if (pool_pick(pool, &ask, g, &out) == 0) {
			me->picked++;
			if (rng_below(&rng, 3) == 0)
				pool_withdraw(pool, &key, &out.insertion);
			if (rng_below(&rng, 2) == 0)
				guard_prefilled(g);
		}
		route_key_free(&key);
	}
	unit_drop(guards, HELD);
	return NULL;
}

/* The control thread's part: reloads, the API, generations, sweeps, what admin asks. */
static void update_meanwhile(struct conf *const confs[2])
{
	struct worker_conf w;

	ck_assert_int_eq(worker_conf_copy(&confs[1]->workers[0], &w), 0);
	free(w.name);
	w.name = strdup("extra");
	for (unsigned i = 0; i < 150; i++) {
		struct pool_ask ask = ask_for(NULL);
		struct conf *c = confs[i % 2];
		struct prefix_index_stats stats;
		struct explain e;

		WANT(pool_update(pool, &c->pools[0], c, NOW) == 0);
		WANT(pool_add_worker(pool, &w) == 0);
		unit_make_healthy(pool);
		pool_index_stats(pool, ROLE_UNIFIED, &stats);
		pool_sweep(pool, NOW);
		WANT(pool_explain(pool, &ask, &e) == 0);
		free(e.candidates);
		pool_usable(pool, ROLE_UNIFIED);
		if (i % 5 == 0)
			pool_bump_generation(pool);
		pool_clear_worker(pool, unit_worker(pool, "extra"));
		WANT(pool_remove_worker(pool, SPAN_LIT("extra")) == 0);
	}
	worker_conf_free(&w);
}

/* Under -fsanitize=thread this says whether anything is shared without its lock. */
START_TEST(four_threads_at_once)
{
	struct conf *const confs[2] = {
		unit_conf("[pool default]\npolicy = cache_aware\ncost = prefill_cost\n"
			  "[worker w0]\nurl = http://a:1\nmax_requests = 6\n"
			  "worker_key = one-of-twenty-letters\n"
			  "[worker w1]\nurl = http://b:1\n"
			  "[worker w2]\nurl = http://c:1\n"),
		unit_conf("[pool default]\npolicy = least_requests\n"
			  "[worker w2]\nurl = http://c:1\nmax_requests = 9\n"
			  "[worker w0]\nurl = http://a:1\n"
			  "worker_key = two-of-twenty-letters\n"),
	};
	struct picker pickers[PICKERS] = {0};
	unsigned picked = 0;

	pool = unit_pool_of(0, "");
	ck_assert_int_eq(pool_update(pool, &confs[0]->pools[0], confs[0], NOW), 0);
	unit_make_healthy(pool);
	for (unsigned i = 0; i < PICKERS; i++) {
		pickers[i].seed = i + 1;
		ck_assert_int_eq(pthread_create(&pickers[i].thread, NULL, pick_and_drop,
					 &pickers[i]),
			0);
	}
	update_meanwhile(confs);
	for (unsigned i = 0; i < PICKERS; i++) {
		ck_assert_int_eq(pthread_join(pickers[i].thread, NULL), 0);
		picked += pickers[i].picked;
	}
	ck_assert_uint_gt(picked, 0);
	conf_unref(confs[0]);
	conf_unref(confs[1]);
}
END_TEST

static TCase *update_case(void)
{
	TCase *tc = tcase_create("update");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, changes_are_told_outside_the_lock);
	tcase_add_loop_test(tc, updates_keep_identity_load_and_residency, 0, 2);
	tcase_add_test(tc, a_whole_fleet_is_replaced);
	tcase_add_test(tc, another_block_size_is_another_index);
	tcase_add_test(tc, four_threads_at_once);
	return tc;
}

static Suite *pool_update_suite(void)
{
	Suite *suite = suite_create("pool_update");

	suite_add_tcase(suite, update_case());
	return suite;
}

UNIT_MAIN(pool_update_suite())
