/*
 * One pool: who may be picked, in what turn, what a pick believes and inserts, and that
 * explain is the next pick. Reports B10, B18, B28, B33, B64, B66 of the cases are here as
 * far as a pool alone can show them.
 */
#include "base/err.h"
#include "base/rng.h"
#include "tests/unit/pool_rig.h"

/* ---- turns ---- */

/* B10 (a): three idle workers, one prompt after another. */
START_TEST(cold_prompts_rotate)
{
	unsigned count[3] = {0};

	pool = unit_pool_of(3, "");
	for (uint64_t i = 0; i < 60; i++) {
		struct route_key key = unit_sealed(pool, 100 + i, 16, 0, 16);
		struct pool_pick out;

		count[send_to(&key, &out)]++;
		ck_assert_int_eq(out.reason, PICK_NO_MATCH);
		route_key_free(&key);
	}
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_eq(count[i], 20);
}
END_TEST

/* B10 (b), B28: load counts from the pick on, so that a burst spreads. */
START_TEST(held_picks_spread)
{
	struct guard guards[30];
	unsigned i;

	pool = unit_pool_of(3, "");
	for (i = 0; i < 30; i++) {
		struct route_key key = unit_sealed(pool, 100 + i, 16, 0, 16);
		struct pool_ask ask = ask_for(&key);

		pick_with(&ask, &guards[i]);
		route_key_free(&key);
	}
	ck_assert_uint_eq(worker_load(unit_worker(pool, "w0")), 10);
	ck_assert_uint_eq(worker_load(unit_worker(pool, "w1")), 10);
	ck_assert_uint_eq(worker_load(unit_worker(pool, "w2")), 10);
	unit_drop(guards, 30);
}
END_TEST

/* Warm requests between them do not turn the cold ones towards one worker. */
START_TEST(cold_turns_are_their_own)
{
	unsigned count[3] = {0};

	pool = unit_pool_of(3, "");
	warm("w0", 1, 16);
	warm("w1", 2, 16);
	for (uint64_t i = 0; i < 30; i++) {
		struct route_key cold = unit_sealed(pool, 100 + i, 16, 0, 16);
		struct route_key kept = unit_sealed(pool, 1 + i % 2, 16, 0, 16);
		struct pool_pick out;

		count[send_to(&cold, &out)]++;
		ck_assert_uint_eq(send_to(&kept, &out), i % 2);
		ck_assert_int_eq(out.reason, PICK_PREFIX_HIT);
		route_key_free(&cold);
		route_key_free(&kept);
	}
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_eq(count[i], 10);
}
END_TEST

/* Each policy that rotates: the turn of the others does not shift when one drains. */
START_TEST(one_that_leaves_shifts_no_turn)
{
	static const char *const policies[] = {"policy = cache_aware\n",
		"policy = least_requests\n", "policy = round_robin\n"};
	static const unsigned before[] = {0, 1, 2, 3, 0}, after[] = {2, 3, 0, 2, 3, 0};
	struct pool_ask ask = ask_for(NULL);
	struct pool_pick out;

	pool = unit_pool_of(4, policies[_i]);
	for (size_t i = 0; i < ARRAY_LEN(before); i++)
		ck_assert_uint_eq(pick_number(&ask, &out), before[i]);
	atomic_store(&unit_worker(pool, "w1")->is_draining, true);
	for (size_t i = 0; i < ARRAY_LEN(after); i++)
		ck_assert_uint_eq(pick_number(&ask, &out), after[i]);
	/* Back again, it is the one that waited longest. */
	atomic_store(&unit_worker(pool, "w1")->is_draining, false);
	ck_assert_uint_eq(pick_number(&ask, &out), 1);
}
END_TEST

/* What a pick believed is counted with its worker, and nothing where prompts do not
 * matter. */
START_TEST(picks_count_hits)
{
	struct route_key key;
	struct pool_pick out;
	const struct hit_count *h;

	pool = unit_pool_of(2, "");
	warm("w1", 1, 16);
	key = unit_sealed(pool, 1, 16, 0, 20);
	h = &unit_worker(pool, "w1")->pool.hits;
	ck_assert_uint_eq(atomic_load(&h->blocks), 16);
	ck_assert_uint_eq(atomic_load(&h->matched), 0);
	ck_assert_uint_eq(send_to(&key, &out), 1);
	ck_assert_uint_eq(atomic_load(&h->blocks), 36);
	ck_assert_uint_eq(atomic_load(&h->matched), 16);
	ck_assert_uint_eq(atomic_load(&h->recent_blocks), 36);
	ck_assert_uint_eq(atomic_load(&h->recent_matched), 16);
	h = &unit_worker(pool, "w0")->pool.hits;
	ck_assert_uint_eq(atomic_load(&h->blocks), 0);
	route_key_free(&key);
}
END_TEST

/* B33: what counts is what is in flight now; neither history nor what is cached. */
START_TEST(load_is_requests_in_flight_now)
{
	struct guard held[6];
	struct pool_pick out;

	pool = unit_pool_of(2, "");
	unit_hold(unit_worker(pool, "w0"), held, 6);
	for (uint64_t i = 0; i < 300; i++) {
		struct route_key key = unit_sealed(pool, 1000 + i, 4, 0, 4);

		ck_assert_uint_eq(send_to(&key, &out), 1);
		route_key_free(&key);
	}
	ck_assert_uint_eq(blocks_of("w1"), 1200);
	unit_drop(held, 6);
	for (uint64_t i = 0, to_w0 = 0; i < 40; i++) {
		struct route_key key = unit_sealed(pool, 2000 + i, 4, 0, 4);

		to_w0 += send_to(&key, &out) == 0;
		route_key_free(&key);
		/* Its turns were not counted up while it was busy either. */
		ck_assert_uint_le(to_w0, i / 2 + 1);
		ck_assert_uint_ge(to_w0, (i + 1) / 2);
	}
}
END_TEST

/* ---- affinity ---- */

/* B18 with the pool's own counters: K is warm on w2, 60 are held on w0. */
START_TEST(b18_hot_workers)
{
	struct guard held[60];
	struct route_key k, next;
	struct pool_pick out;

	pool = unit_pool_of(
		4, "balance_abs_threshold = 10\nbalance_rel_threshold = 1.5\n");
	warm("w2", 7, 20);
	k = unit_sealed(pool, 7, 20, 8, 22);
	unit_hold(unit_worker(pool, "w0"), held, 60);
	for (int i = 0; i < 10; i++) {
		ck_assert_uint_eq(send_to(&k, &out), 2);
		ck_assert_int_eq(out.reason, PICK_PREFIX_HIT);
	}
	route_key_free(&k);
	/* (b) warm on the hot one, one turn behind on w3 */
	warm("w0", 9, 20);
	warm("w3", 9, 16);
	next = unit_sealed(pool, 9, 20, 10, 22);
	ck_assert_uint_eq(send_to(&next, &out), 3);
	ck_assert_int_eq(out.reason, PICK_PREFIX_NEXT);
	ck_assert_uint_eq(out.matched, 16);
	ck_assert_uint_eq(out.blocks, 22);
	route_key_free(&next);
	unit_drop(held, 60);
}
END_TEST

/* B64: a match is from the first block on, and nothing else. */
START_TEST(b64_only_a_prefix_matches)
{
	struct route_key key;
	struct pool_pick out;

	pool = unit_pool_of(4, "");
	warm("w0", 1, 32);
	warm("w1", 2, 32);
	/* (b) P2 + P1 */
	key = unit_sealed(pool, 2, 32, 1, 64);
	/* half of it, and the threshold is strict: warm one block more */
	warm("w1", 2, 33);
	key.n_blocks = 48;
	ck_assert_uint_eq(send_to(&key, &out), 1);
	ck_assert_uint_eq(out.matched, 32);
	route_key_free(&key);
	/* (c) the first block differs: no hash after it is the same */
	key = unit_sealed(pool, 3, 32, 0, 32);
	send_to(&key, &out);
	ck_assert_int_eq(out.reason, PICK_NO_MATCH);
	ck_assert_uint_eq(out.matched, 0);
	route_key_free(&key);
	/* (d) a strict prefix of what w0 holds */
	key = unit_sealed(pool, 1, 8, 0, 8);
	ck_assert_uint_eq(send_to(&key, &out), 0);
	ck_assert_uint_eq(out.matched, 8);
	route_key_free(&key);
}
END_TEST

static struct route_key salted(const char *model, const char *lora, const char *salt,
	const char *tenant, unsigned block)
{
	struct route_key k = unit_key(5, 16, 0, 16);

	k.model = span_str(model);
	k.lora = span_str(lora);
	k.cache_salt = span_str(salt);
	k.block = block;
	pool_seal_key(pool, &k, span_str(tenant));
	return k;
}

/* B66: one text, six partitions; each finds its own home and no other's. */
/* Origin systems D4: what is held from the first block on is graded; a block further
 * behind whose beginning is not held earns nothing; at the same depth the load decides.
 */
START_TEST(d4_depth_is_graded_and_contiguous)
{
	struct route_key ten, eight;
	struct guard held[3];
	struct pool_pick out;
	struct pool_ask ask;
	struct explain e;

	pool = unit_pool_of(3, "");
	warm("w1", 1, 8);
	ten = unit_sealed(pool, 1, 10, 1, 10);
	ask = ask_for(&ten);
	ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
	ck_assert_uint_eq(e.candidates[0].depth, 0);
	ck_assert_double_eq(e.candidates[0].fraction, 0);
	ck_assert_uint_eq(e.candidates[1].depth, 8);
	ck_assert_double_eq(e.candidates[1].fraction, 0.8);
	ck_assert_int_eq(e.chosen, 1);
	free(e.candidates);
	/* The same blocks behind another first one. */
	ten.hashes[0] ^= 1;
	ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
	ck_assert_uint_eq(e.candidates[1].depth, 0);
	ck_assert_int_eq(e.reason, PICK_NO_MATCH);
	free(e.candidates);
	/* Equal holders: the one with less to do. */
	warm("w2", 1, 8);
	eight = unit_sealed(pool, 1, 8, 1, 8);
	ask = ask_for(&eight);
	unit_hold(unit_worker(pool, "w1"), held, 3);
	ck_assert_uint_eq(pick_number(&ask, &out), 2);
	unit_drop(held, 3);
	unit_hold(unit_worker(pool, "w2"), held, 3);
	ck_assert_uint_eq(pick_number(&ask, &out), 1);
	unit_drop(held, 3);
	route_key_free(&ten);
	route_key_free(&eight);
}
END_TEST

START_TEST(b66_partitions_never_meet)
{
	static const struct {
		const char *model, *lora, *salt, *tenant;
		unsigned block;
	} rows[] = {
		{"m", "", "", "", 128},
		{"m", "", "t1", "", 128},
		{"m", "", "t2", "", 128},
		{"m", "a", "", "", 128},
		{"m2", "", "", "", 128},
		{"m", "", "", "x", 128},
		{"m", "", "", "", 256},
		/* fields do not run into each other */
		{"mt1", "", "", "", 128},
		{"m", "t1", "", "", 128},
		{"m", "", "", "t1", 128},
	};
	unsigned home[ARRAY_LEN(rows)];
	struct pool_pick out;

	pool = unit_pool_of(3, "");
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
			struct route_key k = salted(rows[i].model, rows[i].lora,
				rows[i].salt, rows[i].tenant, rows[i].block);
			unsigned to = send_to(&k, &out);

			ck_assert_uint_eq(out.matched, round == 0 ? 0 : 16);
			if (round > 0)
				ck_assert_uint_eq(to, home[i]);
			home[i] = to;
			route_key_free(&k);
		}
	}
}
END_TEST

START_TEST(hashes_that_the_client_sent)
{
	struct route_key k = unit_key(0, 0, 0, 0);
	struct pool_pick out;

	pool = unit_pool_of(2, "");
	k.hashes_sent = true;
	pool_seal_key(pool, &k, SPAN_LIT(""));
	send_to(&k, &out);
	ck_assert_int_eq(out.reason, PICK_HASHES_SENT);
	ck_assert_uint_eq(out.blocks, 0);
	ck_assert_uint_eq(pool_decisions(pool, ROLE_UNIFIED, PICK_HASHES_SENT), 1);
	route_key_free(&k);
}
END_TEST

/* Residency survives a trip of its worker's health; the worker gets nothing meanwhile. */
START_TEST(residency_survives_a_health_trip)
{
	struct route_key k;
	struct pool_pick out;

	pool = unit_pool_of(2, "");
	warm("w1", 1, 16);
	k = unit_sealed(pool, 1, 16, 0, 16);
	atomic_store(&unit_worker(pool, "w1")->health, WORKER_UNHEALTHY);
	ck_assert_uint_eq(blocks_of("w1"), 16);
	atomic_store(&unit_worker(pool, "w1")->health, WORKER_HEALTHY);
	ck_assert_uint_eq(send_to(&k, &out), 1);
	pool_clear_worker(pool, unit_worker(pool, "w1"));
	ck_assert_uint_eq(blocks_of("w1"), 0);
	send_to(&k, &out);
	ck_assert_int_eq(out.reason, PICK_NO_MATCH);
	route_key_free(&k);
}
END_TEST

/* ---- who may be picked ---- */

START_TEST(a_single_candidate_is_no_decision)
{
	struct route_key k;
	struct pool_pick out;

	pool = unit_pool_of(2, "");
	k = unit_sealed(pool, 1, 16, 0, 16);
	warm("w0", 1, 16);
	atomic_store(&unit_worker(pool, "w0")->is_draining, true);
	ck_assert_uint_eq(send_to(&k, &out), 1);
	ck_assert_int_eq(out.reason, PICK_ONLY_CANDIDATE);
	ck_assert_uint_eq(out.matched, 0);
	/* It learns all the same. */
	ck_assert_uint_eq(blocks_of("w1"), 16);
	route_key_free(&k);
}
END_TEST

START_TEST(pinned_goes_where_it_says)
{
	struct pool_ask ask = ask_for(NULL);
	struct guard g = {0}, held[50];
	struct pool_pick out = {.matched = 77};

	pool = unit_pool_of(3, "");
	unit_hold(unit_worker(pool, "w1"), held, 50);
	ask.pinned = SPAN_LIT("w1");
	ck_assert_uint_eq(pick_number(&ask, &out), 1);
	ck_assert_int_eq(out.reason, PICK_PINNED);
	unit_drop(held, 50);
	/* Unusable: no worker. Unknown: the client's mistake. Nothing is touched. */
	out.matched = 77;
	atomic_store(&unit_worker(pool, "w1")->health, WORKER_UNHEALTHY);
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_STATE);
	ask.pinned = SPAN_LIT("w");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_PARSE);
	ask.pinned = SPAN_LIT("w11");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_PARSE);
	ck_assert_uint_eq(out.matched, 77);
	ck_assert_ptr_null(g.worker);
}
END_TEST

START_TEST(tried_workers_are_left_out)
{
	struct pool_ask ask = ask_for(NULL);
	struct pool_pick out;
	struct guard g = {0};
	uint64_t tried[3];

	pool = unit_pool_of(3, "");
	ask.tried = tried;
	tried[0] = unit_worker(pool, "w0")->id;
	ask.n_tried = 1;
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(pick_number(&ask, &out), 1 + i % 2);
	tried[1] = unit_worker(pool, "w1")->id;
	ask.n_tried = 2;
	ck_assert_uint_eq(pick_number(&ask, &out), 2);
	ck_assert_int_eq(out.reason, PICK_ONLY_CANDIDATE);
	tried[2] = unit_worker(pool, "w2")->id;
	ask.n_tried = 3;
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_NOENT);
	/* Pinned and tried: no other will do. */
	ask.pinned = SPAN_LIT("w1");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_NOENT);
}
END_TEST

START_TEST(max_requests_is_a_cap)
{
	struct pool_ask ask = ask_for(NULL);
	struct guard guards[5];
	struct guard g = {0};
	struct pool_pick out;

	pool = unit_pool("[worker w0]\nurl = http://a:1\nmax_requests = 2\n"
			 "[worker w1]\nurl = http://b:1\nmax_requests = 3\n");
	for (int i = 0; i < 5; i++)
		pick_with(&ask, &guards[i]);
	ck_assert_uint_eq(worker_load(unit_worker(pool, "w0")), 2);
	ck_assert_uint_eq(worker_load(unit_worker(pool, "w1")), 3);
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_LIMIT);
	ck_assert_uint_eq(pool_usable(pool, ROLE_UNIFIED), 0);
	guard_drop(&guards[0]);
	pick_with(&ask, &guards[0]);
	unit_drop(guards, 5);
	ck_assert_uint_eq(pool_usable(pool, ROLE_UNIFIED), 2);
}
END_TEST

START_TEST(models_of_workers)
{
	static const struct {
		const char *model, *workers; /* those that may get it */
	} rows[] = {
		{"llama-8b", "w0 w2"},
		{"llama-70", "w0 w2"},
		{"llama-70b", "w0 w1 w2"},
		{"x", "w1 w2"},
		{"qwen", "w2"},
		{"", "w0 w1 w2"},
	};
	struct pool_ask ask = ask_for(NULL);

	pool = unit_pool("[worker w0]\nurl = http://a:1\nmodels = llama*\n"
			 "[worker w1]\nurl = http://b:1\nmodels = x llama-70?\n"
			 "[worker w2]\nurl = http://c:1\n");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		bool seen[3] = {0};

		ask.model = span_str(rows[i].model);
		for (int k = 0; k < 12; k++) {
			struct pool_pick out;

			seen[pick_number(&ask, &out)] = true;
		}
		for (unsigned w = 0; w < 3; w++) {
			char name[8];

			snprintf(name, sizeof(name), "w%u", w);
			ck_assert_msg(seen[w] == (strstr(rows[i].workers, name) != NULL),
				"%s: w%u", rows[i].model, w);
		}
	}
}
END_TEST

START_TEST(roles_are_apart)
{
	struct pool_ask ask = ask_for(NULL);
	struct guard g = {0};
	struct pool_pick out;

	pool = unit_pool("[worker w0]\nurl = http://a:1\nrole = prefill\n"
			 "[worker w1]\nurl = http://b:1\nrole = decode\n"
			 "[worker w2]\nurl = http://c:1\nrole = decode\n");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_NOENT);
	ask.role = ROLE_PREFILL;
	for (int i = 0; i < 4; i++)
		ck_assert_uint_eq(pick_number(&ask, &out), 0);
	ask.role = ROLE_DECODE;
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(pick_number(&ask, &out), 1 + i % 2);
	ck_assert_uint_eq(pool_workers(pool, ROLE_UNIFIED), 0);
	ck_assert_uint_eq(pool_workers(pool, ROLE_PREFILL), 1);
	ck_assert_uint_eq(pool_workers(pool, ROLE_DECODE), 2);
	ck_assert_uint_eq(pool_decisions(pool, ROLE_DECODE, PICK_NO_MATCH), 4);
	/* A pin of the other role is known, and cannot serve. */
	ask.pinned = SPAN_LIT("w0");
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), ERR_NOENT);
}
END_TEST

static const char *const policy_lines[] = {"policy = cache_aware\ncache_threshold = 0.2\n"
					   "balance_abs_threshold = 2\n",
	"policy = least_requests\n", "policy = round_robin\n", "policy = random\n",
	"cost = relative_load\nbeta = 0.3\n", "cost = free_capacity\n",
	"cost = prefill_cost\n", "cost = prefill_cost\nsignal = first_block\n",
	"cost = prefill_cost\nsignal = none\n", "signal = none\n",
	"cost = relative_load\nsignal = first_block\n"};

/* Some worker's state, drain or cap changes. */
static void shake_worker(struct rng *rng, unsigned n)
{
	char name[8];
	struct worker *w;

	snprintf(name, sizeof(name), "w%u", (unsigned)rng_below(rng, n));
	w = unit_worker(pool, name);
	atomic_store(&w->health, (int)rng_below(rng, WORKER_DRAINING));
	if (rng_below(rng, 2) > 0)
		atomic_store(&w->health, WORKER_HEALTHY);
	atomic_store(&w->is_draining, rng_below(rng, 4) == 0);
	w->conf->max_requests = (unsigned)rng_below(rng, 5);
}

static bool may_serve(const struct worker *w, const struct pool_ask *ask)
{
	bool is_up = atomic_load(&w->health) == WORKER_HEALTHY ||
		     atomic_load(&w->health) == WORKER_SUSPECT;

	for (unsigned i = 0; i < ask->n_tried; i++)
		if (ask->tried[i] == w->id)
			return false;
	return is_up && !atomic_load(&w->is_draining) &&
	       (w->conf->max_requests == 0 || worker_load(w) < w->conf->max_requests) &&
	       (ask->pinned.n == 0 || span_is(ask->pinned, w->name));
}

/* What adds up to a score is told with it. */
static void check_terms(const struct explain_candidate *c)
{
	double sum = 0;

	if (c->has_terms == 0 || c->has_terms == 1u << TERM_FRACTION)
		return; /* a policy of another kind, or overload_check */
	for (int t = 0; t < TERM_MAX; t++) {
		WANT((c->has_terms & 1u << t) != 0 || c->terms[t] == 0);
		sum += c->terms[t];
	}
	WANT(sum - c->score < 1e-5 && c->score - sum < 1e-5);
}

static void check_explained(const struct explain *e, const struct pool_ask *ask, int err,
	const struct guard *g, const struct pool_pick *out)
{
	for (size_t i = 0; i < e->n; i++) {
		struct worker *w = unit_worker(pool, e->candidates[i].worker);
		unsigned load = worker_load(w) - (g->worker == w);

		WANT(e->candidates[i].load == load);
		WANT(strcmp(e->candidates[i].state, worker_state_name(worker_state(w))) ==
			0);
	}
	if (err != 0) {
		WANT(e->chosen == -1 && e->reason == PICK_NONE);
		return;
	}
	WANT(e->chosen >= 0 && (size_t)e->chosen < e->n);
	WANT(strcmp(e->candidates[e->chosen].worker, g->worker->name) == 0);
	WANT(e->candidates[e->chosen].out_of_play == NULL);
	WANT(e->candidates[e->chosen].depth == out->matched);
	WANT(e->reason == out->reason);
	check_terms(&e->candidates[e->chosen]);
	WANT(e->blocks == out->blocks);
	(void)ask;
}

/*
 * Two properties at once, for every policy, over random states, loads, prompts, pins and
 * retries: only usable workers are picked, some one whenever there is one; and explain
 * said before what the pick then did, and itself changed nothing (asked twice it says the
 * same).
 */
START_TEST(picks_are_usable_and_as_explained)
{
	enum { WORKERS = 5, GUARDS = 12 };
	struct guard guards[GUARDS] = {0};
	struct rng rng;

	rng_seed(&rng, (uint64_t)_i + 1);
	pool = unit_pool_of(WORKERS, policy_lines[(size_t)_i % ARRAY_LEN(policy_lines)]);
	for (int step = 0; step < 1500; step++) {
		struct guard *g = &guards[rng_below(&rng, GUARDS)];
		size_t shared = 1 + rng_below(&rng, 8);
		struct route_key key = unit_sealed(pool, 1 + rng_below(&rng, 4), shared,
			100 + (uint64_t)step, shared + rng_below(&rng, 4));
		struct pool_ask ask = ask_for(rng_below(&rng, 5) > 0 ? &key : NULL);
		struct explain first, second;
		struct prefix_index_stats before, after;
		struct pool_pick out;
		uint64_t tried[1];
		unsigned n_usable = 0;
		int err;

		ask.now_ms = NOW + (uint64_t)step * 50;
		ask.body_bytes = rng_below(&rng, 4096);
		guard_drop(g);
		guard_prefilled(&guards[rng_below(&rng, GUARDS)]);
		shake_worker(&rng, WORKERS);
		tried[0] = unit_worker(pool, "w3")->id;
		ask.tried = tried;
		ask.n_tried = rng_below(&rng, 4) == 0;
		if (rng_below(&rng, 8) == 0)
			ask.pinned = SPAN_LIT("w2");
		for (unsigned i = 0; i < WORKERS; i++) {
			char name[8];

			snprintf(name, sizeof(name), "w%u", i);
			n_usable += may_serve(unit_worker(pool, name), &ask);
		}
		pool_index_stats(pool, ROLE_UNIFIED, &before);
		WANT(pool_explain(pool, &ask, &first) == 0);
		WANT(pool_explain(pool, &ask, &second) == 0);
		pool_index_stats(pool, ROLE_UNIFIED, &after);
		WANT(memcmp(&before, &after, sizeof(before)) == 0);
		WANT(first.n == WORKERS && second.n == WORKERS);
		WANT(memcmp(first.candidates, second.candidates,
			     first.n * sizeof(*first.candidates)) == 0);
		WANT(first.chosen == second.chosen && first.reason == second.reason);

		err = pool_pick(pool, &ask, g, &out);
		WANT((err == 0) == (n_usable > 0));
		WANT(err == 0 || err == ERR_NOENT || err == ERR_STATE ||
			err == ERR_LIMIT);
		check_explained(&first, &ask, err, g, &out);
		if (err == 0) {
			struct worker *w = g->worker;

			guard_drop(g);
			WANT(may_serve(w, &ask));
			guard_take(g, w);
		}
		free(first.candidates);
		free(second.candidates);
		route_key_free(&key);
	}
	unit_drop(guards, GUARDS);
}
END_TEST

START_TEST(explain_says_why_one_is_out_of_play)
{
	struct pool_ask ask = ask_for(NULL);
	struct guard held[2];
	struct explain e;
	uint64_t tried[1];

	pool = unit_pool("[worker w0]\nurl = http://a:1\n"
			 "[worker w1]\nurl = http://b:1\nmax_requests = 2\n"
			 "[worker w2]\nurl = http://c:1\nmodels = other\n"
			 "[worker w3]\nurl = http://d:1\n"
			 "[worker w4]\nurl = http://e:1\n"
			 "[worker d0]\nurl = http://f:1\nrole = decode\n"
			 "[worker p0]\nurl = http://g:1\nrole = prefill\n");
	atomic_store(&unit_worker(pool, "w0")->health, WORKER_STALLED);
	unit_hold(unit_worker(pool, "w1"), held, 2);
	tried[0] = unit_worker(pool, "w3")->id;
	ask.tried = tried;
	ask.n_tried = 1;
	ask.model = SPAN_LIT("m");
	ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
	ck_assert_uint_eq(e.n, 5);
	ck_assert_str_eq(e.candidates[0].out_of_play, "state");
	ck_assert_str_eq(e.candidates[0].state, "stalled");
	ck_assert_str_eq(e.candidates[1].out_of_play, "full");
	ck_assert_uint_eq(e.candidates[1].load, 2);
	ck_assert_str_eq(e.candidates[2].out_of_play, "model");
	ck_assert_str_eq(e.candidates[3].out_of_play, "tried");
	ck_assert_ptr_null(e.candidates[4].out_of_play);
	ck_assert_int_eq(e.chosen, 4);
	ck_assert_int_eq(e.reason, PICK_ONLY_CANDIDATE);
	ck_assert_str_eq(e.policy, "cache_aware");
	free(e.candidates);
	ask.pinned = SPAN_LIT("nobody");
	ck_assert_int_eq(pool_explain(pool, &ask, &e), ERR_PARSE);
	unit_drop(held, 2);
}
END_TEST

static TCase *pick_case(void)
{
	TCase *tc = tcase_create("pick");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, cold_prompts_rotate);
	tcase_add_test(tc, held_picks_spread);
	tcase_add_test(tc, cold_turns_are_their_own);
	tcase_add_loop_test(tc, one_that_leaves_shifts_no_turn, 0, 3);
	tcase_add_test(tc, picks_count_hits);
	tcase_add_test(tc, load_is_requests_in_flight_now);
	tcase_add_test(tc, b18_hot_workers);
	tcase_add_test(tc, b64_only_a_prefix_matches);
	tcase_add_test(tc, d4_depth_is_graded_and_contiguous);
	tcase_add_test(tc, b66_partitions_never_meet);
	tcase_add_test(tc, hashes_that_the_client_sent);
	tcase_add_test(tc, residency_survives_a_health_trip);
	tcase_add_test(tc, a_single_candidate_is_no_decision);
	tcase_add_test(tc, pinned_goes_where_it_says);
	tcase_add_test(tc, tried_workers_are_left_out);
	tcase_add_test(tc, max_requests_is_a_cap);
	tcase_add_test(tc, models_of_workers);
	tcase_add_test(tc, roles_are_apart);
	tcase_add_loop_test(
		tc, picks_are_usable_and_as_explained, 0, 2 * ARRAY_LEN(policy_lines));
	tcase_add_test(tc, explain_says_why_one_is_out_of_play);
	return tc;
}

static Suite *pool_suite(void)
{
	Suite *suite = suite_create("pool");

	suite_add_tcase(suite, pick_case());
	return suite;
}

UNIT_MAIN(pool_suite())
