/*
 * The policies that go by sessions, routing keys and chance, in a pool of their own: rows
 * B1-B5 of the origin systems, reports B10, B33, B36 and the popular system prompt for
 * every policy; how keys move when workers come, go and rest; that only usable workers
 * are chosen, and that explain is the next pick.
 */
#include "base/ring.h"
#include "base/rng.h"
#include "tests/unit/unit_model.h"

#define NOW 1000
#define SESSIONS 256

static struct pool *pool;

static void set_up(void)
{
	pool = NULL;
}

static void tear_down(void)
{
	if (pool != NULL)
		unit_close(pool);
}

/* ---- asking ---- */

/* A request of a session (NULL: none), on the body's session_id. */
static struct pool_ask ask_for(struct pool *p, const char *session,
	struct route_key *prompt, struct routing *space)
{
	static const struct conf_list no_headers;
	struct route_key fields;
	struct pool_ask ask = {.role = ROLE_UNIFIED, .key = prompt, .now_ms = NOW};

	route_key_init(&fields);
	fields.session[SESSION_ID] = span_str(session);
	ask.routing = routing_find(
		pool_wants(p, ROLE_UNIFIED), &no_headers, NULL, NULL, &fields, space);
	return ask;
}

static unsigned number_of(const struct worker *w)
{
	return (unsigned)atoi(w->name + 1);
}

/* Where it goes; its guard is the caller's to drop. */
static unsigned pick_held(struct pool *p, const char *session, struct route_key *prompt,
	struct guard *g, enum pick_reason *reason)
{
	struct routing space;
	struct pool_ask ask = ask_for(p, session, prompt, &space);
	struct pool_pick out;

	g->worker = NULL;
	WANT(pool_pick(p, &ask, g, &out) == 0);
	*reason = out.reason;
	return number_of(g->worker);
}

static unsigned pick_of(struct pool *p, const char *session, struct route_key *prompt,
	enum pick_reason *reason)
{
	struct guard g = {0};
	unsigned n = pick_held(p, session, prompt, &g, reason);

	guard_drop(&g);
	return n;
}

static unsigned home(const char *session)
{
	enum pick_reason reason;

	return pick_of(pool, session, NULL, &reason);
}

static const char *name_of(unsigned i)
{
	static char names[8][32];
	static unsigned turn;
	char *out = names[turn++ % 8];

	snprintf(out, sizeof(names[0]), "session-%u", i);
	return out;
}

static void all_homes(unsigned *homes)
{
	for (unsigned i = 0; i < SESSIONS; i++)
		homes[i] = home(name_of(i));
}

/* Of the sessions of the worker all move, of the others none; returns how many moved. */
static unsigned only_its_own_move(
	const unsigned *was, const unsigned *is, unsigned worker)
{
	unsigned moved = 0;

	for (unsigned i = 0; i < SESSIONS; i++) {
		ck_assert_msg((was[i] != is[i]) == (was[i] == worker),
			"session %u: w%u, w%u", i, was[i], is[i]);
		moved += was[i] != is[i];
	}
	return moved;
}

static const char *const keyed[] = {
	"policy = prefix_affinity\n",
	"policy = consistent_hash\n",
	"policy = rendezvous_hash\n",
};

static const char *const every[] = {
	"policy = cache_aware\n",
	"policy = cache_aware\ncost = relative_load\n",
	/* Without max_requests a worker has 256 slots: at alpha 0.5 a whole prompt
	 * outweighs 240 of them. */
	"policy = cache_aware\ncost = free_capacity\nalpha = 0.1\n",
	"policy = cache_aware\ncost = prefill_cost\n",
	"policy = least_requests\n",
	"policy = round_robin\n",
	"policy = random\n",
	"policy = prefix_affinity\n",
	"policy = prefix_affinity\naffinity_fallback = cache_aware\n",
	"policy = prefix_affinity\naffinity_hash_tokens = 0\n",
	"policy = power_of_two\n",
	"policy = consistent_hash\n",
	"policy = rendezvous_hash\n",
	"policy = sticky_least_loaded\n",
};

/* ---- B: prefix_affinity ---- */

/* B2: agents that share a prefix of 8 k tokens (256 blocks) are told apart by session. */
START_TEST(B2_sessions_over_one_prefix_reach_all_workers)
{
	unsigned was[SESSIONS], is[SESSIONS], count[8] = {0};
	struct route_key prompt;

	pool = unit_pool_of(8, keyed[0]);
	prompt = unit_sealed(pool, 1, 256, 1, 256);
	for (unsigned i = 0; i < SESSIONS; i++) {
		enum pick_reason reason;

		was[i] = pick_of(pool, name_of(i), &prompt, &reason);
		ck_assert_int_eq(reason, PICK_AFFINITY_KEY);
		count[was[i]]++;
	}
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_uint_ge(count[i], SESSIONS / 8 / 3);
		ck_assert_uint_le(count[i], SESSIONS / 8 * 2);
	}
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("w5")), 0);
	all_homes(is);
	ck_assert_uint_eq(only_its_own_move(was, is, 5), count[5]);
	route_key_free(&prompt);
}
END_TEST

/* Without sessions the prefix has one home: the same for what differs behind the window
 * only. */
START_TEST(B1_without_a_session_the_beginning_decides)
{
	struct route_key a, b, tail, brief, tiny;
	enum pick_reason reason;
	unsigned first, homes = 0;

	/* 4,096 tokens are 128 blocks of 128 bytes. */
	pool = unit_pool_of(8, keyed[0]);
	a = unit_sealed(pool, 1, 128, 2, 300);
	tail = unit_sealed(pool, 1, 128, 3, 300);
	first = pick_of(pool, NULL, &a, &reason);
	ck_assert_int_eq(reason, PICK_AFFINITY_PREFIX);
	ck_assert_uint_eq(pick_of(pool, "", &tail, &reason), first);
	ck_assert_int_eq(reason, PICK_AFFINITY_PREFIX);
	/* One block earlier they are strangers: some of eight go elsewhere. */
	for (uint64_t i = 0; i < 8; i++) {
		b = unit_sealed(pool, 1, 127, 10 + i, 300);
		homes += pick_of(pool, NULL, &b, &reason) != first;
		ck_assert_int_eq(reason, PICK_AFFINITY_PREFIX);
		route_key_free(&b);
	}
	ck_assert_uint_ge(homes, 4);
	/* A shorter one goes by what there is; less than a block is nothing. */
	brief = unit_sealed(pool, 1, 5, 1, 5);
	first = pick_of(pool, NULL, &brief, &reason);
	ck_assert_int_eq(reason, PICK_AFFINITY_PREFIX);
	ck_assert_uint_eq(pick_of(pool, NULL, &brief, &reason), first);
	tiny = unit_sealed(pool, 1, 0, 1, 0);
	pick_of(pool, NULL, &tiny, &reason);
	ck_assert_int_eq(reason, PICK_POLICY_ORDER);
	route_key_free(&a);
	route_key_free(&tail);
	route_key_free(&brief);
	route_key_free(&tiny);
}
END_TEST

START_TEST(B1_the_prefix_can_be_switched_off)
{
	struct route_key prompt;
	enum pick_reason reason;
	unsigned at;

	pool = unit_pool_of(4, "policy = prefix_affinity\naffinity_hash_tokens = 0\n"
			       "affinity_fallback = round_robin\n");
	ck_assert_uint_eq(pool_wants(pool, ROLE_UNIFIED), POLICY_WANTS_SESSION);
	prompt = unit_sealed(pool, 1, 256, 1, 256);
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_uint_eq(pick_of(pool, NULL, &prompt, &reason), i % 4);
		ck_assert_int_eq(reason, PICK_POLICY_ORDER);
	}
	at = pick_of(pool, "s", &prompt, &reason);
	ck_assert_int_eq(reason, PICK_AFFINITY_KEY);
	ck_assert_uint_eq(pick_of(pool, "s", NULL, &reason), at);
	route_key_free(&prompt);
}
END_TEST

/* Kinds of request without any key fall through: nothing is known of them at all. */
START_TEST(B1_nothing_to_go_by_falls_through)
{
	struct pool_ask ask = {.role = ROLE_UNIFIED, .now_ms = NOW};
	struct pool_pick out;
	unsigned count[3] = {0};

	pool = unit_pool_of(3, keyed[_i]);
	for (unsigned i = 0; i < 30; i++) {
		struct guard g = {0};

		ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
		ck_assert_int_eq(out.reason, PICK_POLICY_ORDER);
		count[number_of(g.worker)]++;
		guard_drop(&g);
	}
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_eq(count[i], 10);
}
END_TEST

START_TEST(B1_a_pin_bypasses_affinity)
{
	struct routing space;
	struct pool_ask ask;
	struct pool_pick out;
	unsigned at, other;
	char name[8];

	pool = unit_pool_of(4, every[_i]);
	at = home("s");
	other = (at + 1) % 4;
	snprintf(name, sizeof(name), "w%u", other);
	for (unsigned i = 0; i < 3; i++) {
		struct guard g = {0};

		ask = ask_for(pool, "s", NULL, &space);
		ask.pinned = span_str(name);
		ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
		ck_assert_uint_eq(number_of(g.worker), other);
		ck_assert_int_eq(out.reason, PICK_PINNED);
		guard_drop(&g);
	}
	/* Nor does it move the session. */
	if ((pool_wants(pool, ROLE_UNIFIED) &
		    (POLICY_WANTS_SESSION | POLICY_WANTS_KEY)) != 0)
		ck_assert_uint_eq(home("s"), at);
}
END_TEST

/* B3: another router, with its workers in another order and another secret. */
START_TEST(B3_routers_agree)
{
	static const uint64_t other_secret[2] = {5, 6};
	unsigned homes[SESSIONS];
	struct route_key prompt, theirs;
	struct conf *conf;
	struct pool *other;
	enum pick_reason reason;
	char text[2048];
	int n;

	pool = unit_pool_of(8, keyed[_i]);
	n = snprintf(text, sizeof(text), "[pool default]\n%s", keyed[_i]);
	for (unsigned i = 0; i < 8; i++) /* w0 is at 10.0.0.1 there, too */
		n += snprintf(text + n, sizeof(text) - (size_t)n,
			"[worker w%u]\nurl = HTTP://10.0.0.%u:8000/\n", 7 - i, 8 - i);
	conf = unit_conf(text);
	other = pool_new("default", other_secret, &unit_no_ops, NULL);
	ck_assert_int_eq(pool_update(other, &conf->pools[0], conf, NOW), 0);
	conf_unref(conf);
	unit_make_healthy(other);
	all_homes(homes);
	for (unsigned i = 0; i < SESSIONS; i++)
		ck_assert_uint_eq(pick_of(other, name_of(i), NULL, &reason), homes[i]);
	for (uint64_t i = 0; _i == 0 && i < 32; i++) {
		prompt = unit_sealed(pool, i, 40, i, 40);
		theirs = unit_sealed(other, i, 40, i, 40);
		ck_assert_uint_eq(pick_of(pool, NULL, &prompt, &reason),
			pick_of(other, NULL, &theirs, &reason));
		ck_assert_int_eq(reason, PICK_AFFINITY_PREFIX);
		route_key_free(&prompt);
		route_key_free(&theirs);
	}
	pool_close(other);
	pool_unref(other);
}
END_TEST

/* B4: 1.5 x max(mean, 1): with 3 idle others, 1 request is not too many, 2 are (mean .5);
 * and of two workers with 9 and 3 (mean 6), 9 is just not too many. */
START_TEST(B4_the_first_whose_load_is_not_too_many)
{
	struct guard held[16];
	enum pick_reason reason;
	unsigned at, next;
	char name[8];

	pool = unit_pool_of(4, keyed[0]);
	at = home("s");
	snprintf(name, sizeof(name), "w%u", at);
	unit_hold(unit_worker(pool, name), held, 1);
	ck_assert_uint_eq(pick_of(pool, "s", NULL, &reason), at);
	ck_assert_int_eq(reason, PICK_AFFINITY_KEY);
	unit_hold(unit_worker(pool, name), held + 1, 1);
	next = pick_of(pool, "s", NULL, &reason);
	ck_assert_uint_ne(next, at);
	ck_assert_int_eq(reason, PICK_AFFINITY_SKEW);
	/* The spill has its own home: always the next in order. */
	ck_assert_uint_eq(pick_of(pool, "s", NULL, &reason), next);
	unit_drop(held, 2);
	ck_assert_uint_eq(pick_of(pool, "s", NULL, &reason), at);
	ck_assert_int_eq(reason, PICK_AFFINITY_KEY);
}
END_TEST

START_TEST(B4_the_mean_is_of_the_live_ones)
{
	struct guard held[16];
	enum pick_reason reason;
	unsigned at, other;
	char names[2][8];

	pool = unit_pool_of(2, keyed[0]);
	at = home("s");
	other = 1 - at;
	snprintf(names[0], sizeof(names[0]), "w%u", at);
	snprintf(names[1], sizeof(names[1]), "w%u", other);
	unit_hold(unit_worker(pool, names[0]), held, 9);
	unit_hold(unit_worker(pool, names[1]), held + 9, 3);
	ck_assert_uint_eq(pick_of(pool, "s", NULL, &reason), at);
	unit_hold(unit_worker(pool, names[0]), held + 12, 1); /* 10 > 1.5 x 6.5 */
	ck_assert_uint_eq(pick_of(pool, "s", NULL, &reason), other);
	ck_assert_int_eq(reason, PICK_AFFINITY_SKEW);
	/* Alone it takes whatever comes. */
	atomic_store(&unit_worker(pool, names[1])->health, WORKER_UNHEALTHY);
	ck_assert_uint_eq(pick_of(pool, "s", NULL, &reason), at);
	ck_assert_int_eq(reason, PICK_ONLY_CANDIDATE);
	unit_drop(held, 13);
}
END_TEST

/* B5: a worker full of cached tokens, without requests, is the home it was. */
START_TEST(B5_what_is_resident_is_no_load)
{
	struct route_key huge;
	enum pick_reason reason;
	struct guard g;
	unsigned at;
	char name[8];

	pool = unit_pool_of(
		4, "policy = prefix_affinity\naffinity_fallback = cache_aware\n");
	at = home("s");
	huge = unit_sealed(pool, 9, 20000, 9, 20000); /* 640,000 tokens */
	ck_assert_uint_eq(pick_held(pool, "s", &huge, &g, &reason), at);
	guard_drop(&g);
	snprintf(name, sizeof(name), "w%u", at);
	ck_assert_uint_eq(pool_worker_blocks(pool, unit_worker(pool, name)), 20000);
	for (unsigned i = 0; i < 20; i++) {
		ck_assert_uint_eq(pick_of(pool, "s", &huge, &reason), at);
		ck_assert_int_eq(reason, PICK_AFFINITY_KEY);
	}
	route_key_free(&huge);
}
END_TEST

/* The fallback decides as if it were alone, its state included. */
START_TEST(B1_the_fallback_is_its_own)
{
	struct route_key prompt;
	enum pick_reason reason;
	unsigned at;

	pool = unit_pool_of(4, "policy = prefix_affinity\naffinity_hash_tokens = 0\n"
			       "affinity_fallback = cache_aware\n");
	prompt = unit_sealed(pool, 1, 16, 1, 16);
	at = pick_of(pool, NULL, &prompt, &reason);
	ck_assert_int_eq(reason, PICK_NO_MATCH);
	ck_assert_uint_eq(pick_of(pool, NULL, &prompt, &reason), at);
	ck_assert_int_eq(reason, PICK_PREFIX_HIT);
	route_key_free(&prompt);
}
END_TEST

/* ---- keys move as little as they can ---- */

START_TEST(of_a_worker_that_rests_only_its_own_move)
{
	unsigned was[SESSIONS], is[SESSIONS], to[8] = {0}, moved;
	struct worker *w;

	pool = unit_pool_of(8, keyed[_i]);
	all_homes(was);
	w = unit_worker(pool, "w3");
	atomic_store(&w->health, WORKER_UNHEALTHY);
	all_homes(is);
	moved = only_its_own_move(was, is, 3);
	ck_assert_uint_ge(moved, SESSIONS / 8 / 3);
	ck_assert_uint_le(moved, SESSIONS / 8 * 2);
	/* They spread; none takes them all. */
	for (unsigned i = 0; i < SESSIONS; i++)
		to[is[i]] += was[i] != is[i];
	for (unsigned i = 0; i < 8; i++)
		ck_assert_uint_le(to[i], moved * 2 / 3);
	/* And return with it. */
	atomic_store(&w->health, WORKER_HEALTHY);
	all_homes(is);
	ck_assert_mem_eq(was, is, sizeof(was));
}
END_TEST

static void reload(const char *lines, unsigned n)
{
	char text[8192];
	struct conf *conf;

	snprintf(text, sizeof(text), "[pool default]\n%s", lines);
	unit_workers(text, sizeof(text), n, "");
	conf = unit_conf(text);
	ck_assert_int_eq(pool_update(pool, &conf->pools[0], conf, NOW), 0);
	conf_unref(conf);
	unit_make_healthy(pool);
}

START_TEST(one_that_comes_takes_an_nth)
{
	unsigned was[SESSIONS], is[SESSIONS], taken = 0;

	pool = unit_pool_of(7, keyed[_i]);
	all_homes(was);
	reload(keyed[_i], 8);
	all_homes(is);
	for (unsigned i = 0; i < SESSIONS; i++) {
		ck_assert(was[i] == is[i] || is[i] == 7);
		taken += is[i] == 7;
	}
	ck_assert_uint_ge(taken, SESSIONS / 8 / 3);
	ck_assert_uint_le(taken, SESSIONS / 8 * 2);
}
END_TEST

START_TEST(tried_workers_are_passed_over)
{
	struct routing space;
	struct pool_pick out;
	uint64_t tried[4];
	unsigned seen = 0;

	pool = unit_pool_of(4, every[_i]);
	for (unsigned n = 0; n < 4; n++) {
		struct pool_ask ask = ask_for(pool, "s", NULL, &space);
		struct guard g = {0};

		ask.tried = tried;
		ask.n_tried = n;
		ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
		tried[n] = g.worker->id;
		seen |= 1u << number_of(g.worker);
		guard_drop(&g);
	}
	ck_assert_uint_eq(seen, 0xf);
}
END_TEST

/* The ring of the pool is the ring: as check_ring.c has it, w0 being 10.0.0.1. */
START_TEST(the_pools_ring_is_the_vllm_routers)
{
	static const unsigned owners[] = {3, 4, 3, 3, 2, 4, 4, 4}, next[] = {4, 3, 4, 4};
	struct routing space = {.any.from = ROUTING_HEADER};
	struct pool_ask ask = {.role = ROLE_UNIFIED, .routing = &space, .now_ms = NOW};

	pool = unit_pool_of(4, keyed[1]);
	for (unsigned k = 0; k < ARRAY_LEN(owners); k++) {
		struct pool_pick out;
		struct guard g = {0};

		space.text_len = (size_t)snprintf(
			space.text, sizeof(space.text), "header:x-session-id:%u", k);
		space.point = ring_hash(span_make(space.text, space.text_len));
		ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
		ck_assert_uint_eq(number_of(g.worker) + 1, owners[k]);
		ck_assert_int_eq(out.reason, PICK_AFFINITY_KEY);
		if (k < ARRAY_LEN(next)) {
			struct worker *w = g.worker;

			guard_drop(&g);
			atomic_store(&w->is_draining, true);
			ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
			ck_assert_uint_eq(number_of(g.worker) + 1, next[k]);
			atomic_store(&w->is_draining, false);
		}
		guard_drop(&g);
	}
}
END_TEST

/* ---- sticky_least_loaded ---- */

#define STICKY "policy = sticky_least_loaded\nsession_ttl = 10s\n"

START_TEST(new_sessions_go_to_the_fewest)
{
	unsigned count[4] = {0};
	enum pick_reason reason;

	pool = unit_pool_of(4, STICKY);
	for (unsigned i = 0; i < 64; i++) {
		count[pick_of(pool, name_of(i), NULL, &reason)]++;
		ck_assert_int_eq(reason, PICK_POLICY_ORDER);
	}
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(count[i], 16);
	for (unsigned i = 0; i < 64; i++) {
		unsigned at = pick_of(pool, name_of(i), NULL, &reason);

		ck_assert_int_eq(reason, PICK_AFFINITY_KEY);
		ck_assert_uint_eq(home(name_of(i)), at);
	}
}
END_TEST

START_TEST(a_session_stays_where_it_is_busy)
{
	struct guard held[50];
	enum pick_reason reason;
	unsigned at;
	char name[8];

	pool = unit_pool_of(4, STICKY);
	at = home("s");
	snprintf(name, sizeof(name), "w%u", at);
	unit_hold(unit_worker(pool, name), held, 50);
	ck_assert_uint_eq(home("s"), at);
	/* A new one looks at load where sessions are alike. */
	ck_assert_uint_ne(home("other"), at);
	/* Gone: placed anew, and there it stays. */
	atomic_store(&unit_worker(pool, name)->health, WORKER_UNHEALTHY);
	at = pick_of(pool, "s", NULL, &reason);
	ck_assert_int_eq(reason, PICK_POLICY_ORDER);
	atomic_store(&unit_worker(pool, name)->health, WORKER_HEALTHY);
	ck_assert_uint_eq(pick_of(pool, "s", NULL, &reason), at);
	ck_assert_int_eq(reason, PICK_AFFINITY_KEY);
	unit_drop(held, 50);
}
END_TEST

START_TEST(a_finished_session_is_a_new_one)
{
	enum pick_reason reason;

	pool = unit_pool_of(2, STICKY);
	ck_assert(!pool_finish_session(pool, SPAN_LIT("s")));
	home("s");
	ck_assert(pool_finish_session(pool, SPAN_LIT("s")));
	ck_assert(!pool_finish_session(pool, SPAN_LIT("s")));
	pick_of(pool, "s", NULL, &reason);
	ck_assert_int_eq(reason, PICK_POLICY_ORDER);
	/* It no longer counts: a, b and the new s are on two workers, never three on
	 * one. */
	home("a");
	ck_assert(pool_finish_session(pool, SPAN_LIT("a")));
	ck_assert_uint_ne(home("b"), home("s"));
}
END_TEST

START_TEST(a_session_ends_by_its_age)
{
	struct routing space;
	struct pool_ask ask;
	struct pool_pick out;
	struct guard g = {0};

	pool = unit_pool_of(4, STICKY);
	home("s");
	ask = ask_for(pool, "s", NULL, &space);
	ask.now_ms = NOW + 9999;
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
	ck_assert_int_eq(out.reason, PICK_AFFINITY_KEY);
	guard_drop(&g);
	ask.now_ms += 10000;
	ck_assert_int_eq(pool_pick(pool, &ask, &g, &out), 0);
	ck_assert_int_eq(out.reason, PICK_POLICY_ORDER);
	guard_drop(&g);
	pool_sweep(pool, ask.now_ms + 10000);
	ck_assert(!pool_finish_session(pool, SPAN_LIT("s")));
}
END_TEST

/* Its sessions leave with it, and one with its URL that comes later has none of them. */
START_TEST(a_session_does_not_outlive_its_worker)
{
	pool = unit_pool_of(2, STICKY);
	ck_assert_uint_ne(home("a"), home("b"));
	reload(STICKY, 1);
	reload(STICKY, 2);
	ck_assert(pool_finish_session(pool, SPAN_LIT("a")) !=
		  pool_finish_session(pool, SPAN_LIT("b")));
}
END_TEST

START_TEST(sessions_live_through_a_reload)
{
	unsigned was[SESSIONS], is[SESSIONS];
	enum pick_reason reason;

	pool = unit_pool_of(4, STICKY);
	all_homes(was);
	reload(STICKY "max_load_skew = 2\n", 6);
	for (unsigned i = 0; i < SESSIONS; i++) {
		is[i] = pick_of(pool, name_of(i), NULL, &reason);
		ck_assert_int_eq(reason, PICK_AFFINITY_KEY);
	}
	ck_assert_mem_eq(was, is, sizeof(was));
	/* The two new ones have the fewest. */
	for (unsigned i = 0; i < 20; i++)
		ck_assert_uint_ge(home(name_of(SESSIONS + i)), 4);
	/* As a fallback it is the same policy still; under another it is forgotten. */
	reload("policy = prefix_affinity\naffinity_fallback = sticky_least_loaded\n", 6);
	ck_assert(pool_finish_session(pool, span_str(name_of(0))));
	reload("policy = random\n", 6);
	ck_assert(!pool_finish_session(pool, span_str(name_of(1))));
	reload(STICKY, 6);
	ck_assert(!pool_finish_session(pool, span_str(name_of(1))));
}
END_TEST

/* ---- power_of_two ---- */

START_TEST(of_two_the_less_loaded)
{
	struct guard held[64], g[5];

	pool = unit_pool_of(2, "policy = power_of_two\n");
	unit_hold(unit_worker(pool, "w0"), held, 5);
	for (unsigned i = 0; i < 5; i++) {
		enum pick_reason reason;

		/* With two there is no chance: the other one, as long as it has less. */
		ck_assert_uint_eq(pick_held(pool, NULL, NULL, &g[i], &reason), 1);
	}
	unit_drop(held, 5);
	unit_drop(g, 5);
}
END_TEST

/* What others sent counts where load_source says so; own picks come on top at once, so
 * that nobody herds to who looked idle when it was asked. */
START_TEST(reported_load_counts_with_own_picks)
{
	struct guard g[8];
	enum pick_reason reason;
	unsigned count[2] = {0};

	pool = unit_pool_of(2, "policy = power_of_two\nload_source = reported\n");
	worker_report(unit_worker(pool, "w0"), 3, 1, 0, NOW, NOW + 100);
	for (unsigned i = 0; i < 8; i++)
		count[pick_held(pool, NULL, NULL, &g[i], &reason)]++;
	ck_assert_uint_eq(count[0], 2); /* 4 + 2 there, 6 here */
	ck_assert_uint_eq(count[1], 6);
	unit_drop(g, 8);
}
END_TEST

/* B33 (d): nobody herds: what was picked counts at once. */
START_TEST(b33_a_burst_spreads)
{
	struct guard g[256];
	enum pick_reason reason;
	unsigned count[8] = {0};

	pool = unit_pool_of(8, "policy = power_of_two\n");
	pool_seed(pool, 3);
	for (unsigned i = 0; i < 256; i++)
		count[pick_held(pool, NULL, NULL, &g[i], &reason)]++;
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_uint_ge(count[i], 28);
		ck_assert_uint_le(count[i], 36);
	}
	unit_drop(g, 256);
}
END_TEST

/* Any two are drawn: the busiest of three never, both others. */
START_TEST(draws_are_fair)
{
	struct guard held[9];
	enum pick_reason reason;
	unsigned count[3] = {0};

	pool = unit_pool_of(3, "policy = power_of_two\n");
	pool_seed(pool, 3);
	unit_hold(unit_worker(pool, "w1"), held, 9);
	for (unsigned i = 0; i < 3000; i++)
		count[pick_of(pool, NULL, NULL, &reason)]++;
	ck_assert_uint_eq(count[1], 0);
	ck_assert_uint_ge(count[0], 1300);
	ck_assert_uint_ge(count[2], 1300);
	unit_drop(held, 9);
}
END_TEST

/* ---- every policy ---- */

/* A popular system prompt, 64 requests in flight at once: with sessions or without, no
 * policy sends them all to one worker. */
START_TEST(a_popular_prompt_is_no_pile_up)
{
	for (unsigned with_sessions = 0; with_sessions < 2; with_sessions++) {
		struct guard g[64];
		unsigned count[4] = {0}, most = 0;

		pool = unit_pool_of(4, every[_i]);
		pool_seed(pool, 3);
		for (unsigned i = 0; i < 64; i++) {
			struct route_key prompt = unit_sealed(pool, 1, 60, 100 + i, 64);
			enum pick_reason reason;

			count[pick_held(pool, with_sessions ? name_of(i) : NULL, &prompt,
				&g[i], &reason)]++;
			route_key_free(&prompt);
		}
		for (unsigned i = 0; i < 4; i++)
			most = MAX(most, count[i]);
		ck_assert_msg(most <= 40, "%s: %u of 64 on one worker, sessions: %u",
			every[_i], most, with_sessions);
		unit_drop(g, 64);
		unit_close(pool);
		pool = NULL;
	}
}
END_TEST

/* B10 (a): an idle fleet, prompts of their own without a session, one after another. */
START_TEST(b10_an_idle_fleet_is_used_evenly)
{
	unsigned count[3] = {0};

	pool = unit_pool_of(3, every[_i]);
	pool_seed(pool, 4);
	for (uint64_t i = 0; i < 60; i++) {
		struct route_key prompt = unit_sealed(pool, 100 + i, 16, 0, 16);
		enum pick_reason reason;

		count[pick_of(pool, NULL, &prompt, &reason)]++;
		route_key_free(&prompt);
	}
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_msg(count[i] >= 12, "%s: %u", every[_i], count[i]);
		ck_assert_msg(count[i] <= 28, "%s: %u", every[_i], count[i]);
	}
}
END_TEST

/* B36 (a), (d): ids that look alike are placed apart, each stays; odd ids are ids. */
START_TEST(b36_ids_that_look_alike)
{
	static const char *const alike[] = {
		"s-1", "s-10", "s-100", "S-1", "s-1 ", "s-2", "s-1,s-2", "s-01"};
	static char huge[8193];
	unsigned differ = 0, homes[ARRAY_LEN(alike)];

	memset(huge, 'x', sizeof(huge) - 1);
	pool = unit_pool_of(4, keyed[_i]);
	for (unsigned i = 0; i < ARRAY_LEN(alike); i++) {
		homes[i] = home(alike[i]);
		for (unsigned turn = 0; turn < 40; turn++)
			ck_assert_uint_eq(home(alike[i]), homes[i]);
		differ += i > 0 && homes[i] != homes[0];
	}
	ck_assert_uint_ge(differ, 3);
	ck_assert_uint_eq(home(huge), home(huge));
	huge[8000] = 'y';
	(void)home(huge);
}
END_TEST

/* B36 (b): a hot session leaves its home once that has more than its share. */
START_TEST(b36_a_hot_session_is_not_pinned_for_ever)
{
	struct guard g[60];
	enum pick_reason reason;
	unsigned at, away = 0;

	pool = unit_pool_of(4, keyed[0]);
	at = home("hot");
	for (unsigned i = 0; i < 60; i++)
		away += pick_held(pool, "hot", NULL, &g[i], &reason) != at;
	ck_assert_uint_ge(away, 30);
	ck_assert_uint_le(away, 45); /* and keeps what is its share */
	unit_drop(g, 60);
	ck_assert_uint_eq(home("hot"), at);
}
END_TEST

static void stir(struct rng *rng, unsigned n)
{
	static const enum worker_state states[] = {WORKER_HEALTHY, WORKER_HEALTHY,
		WORKER_SUSPECT, WORKER_UNHEALTHY, WORKER_STARTING};
	char name[8];

	for (unsigned i = 0; i < n; i++) {
		struct worker *w;

		snprintf(name, sizeof(name), "w%u", i);
		w = unit_worker(pool, name);
		atomic_store(&w->health, states[rng_below(rng, ARRAY_LEN(states))]);
		atomic_store(&w->is_draining, rng_below(rng, 6) == 0);
	}
}

/* Whatever the policy: only usable workers, and explain says what the next pick does. */
START_TEST(explain_is_the_next_pick)
{
	struct guard held[400];
	unsigned n_held = 0;
	struct rng rng;

	pool = unit_pool_of(6, every[_i]);
	rng_seed(&rng, (uint64_t)_i);
	for (unsigned turn = 0; turn < 400; turn++) {
		struct route_key prompt = unit_sealed(
			pool, rng_below(&rng, 5), rng_below(&rng, 20), turn, 20);
		const char *session = rng_below(&rng, 3) == 0
					      ? NULL
					      : name_of((unsigned)rng_below(&rng, 30));
		struct routing space;
		struct pool_ask ask = ask_for(pool, session, &prompt, &space);
		struct explain e, again;
		struct guard g = {0};
		struct pool_pick out;
		int err;

		stir(&rng, 6);
		ck_assert_int_eq(pool_explain(pool, &ask, &e), 0);
		ck_assert_int_eq(pool_explain(pool, &ask, &again), 0);
		err = pool_pick(pool, &ask, &g, &out);
		ck_assert_int_eq(e.chosen, again.chosen);
		ck_assert(err == 0 ? e.chosen >= 0 : e.chosen == -1);
		if (err == 0) {
			ck_assert(worker_is_usable(g.worker));
			ck_assert_str_eq(e.candidates[e.chosen].worker, g.worker->name);
			ck_assert_int_eq(e.reason, out.reason);
			held[n_held++] = g;
		}
		if (n_held > 20) {
			unit_drop(held, n_held);
			n_held = 0;
		}
		free(e.candidates);
		free(again.candidates);
		route_key_free(&prompt);
	}
	unit_drop(held, n_held);
}
END_TEST

static Suite *pool_policy_suite(void)
{
	Suite *s = suite_create("pool_policy");
	TCase *tc = tcase_create("pool_policy");
	int n = (int)ARRAY_LEN(every);

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, B2_sessions_over_one_prefix_reach_all_workers);
	tcase_add_test(tc, B1_without_a_session_the_beginning_decides);
	tcase_add_test(tc, B1_the_prefix_can_be_switched_off);
	tcase_add_loop_test(tc, B1_nothing_to_go_by_falls_through, 0, ARRAY_LEN(keyed));
	tcase_add_loop_test(tc, B1_a_pin_bypasses_affinity, 0, n);
	tcase_add_test(tc, B1_the_fallback_is_its_own);
	tcase_add_loop_test(tc, B3_routers_agree, 0, ARRAY_LEN(keyed));
	tcase_add_test(tc, B4_the_first_whose_load_is_not_too_many);
	tcase_add_test(tc, B4_the_mean_is_of_the_live_ones);
	tcase_add_test(tc, B5_what_is_resident_is_no_load);
	tcase_add_loop_test(
		tc, of_a_worker_that_rests_only_its_own_move, 0, ARRAY_LEN(keyed));
	tcase_add_loop_test(tc, one_that_comes_takes_an_nth, 0, ARRAY_LEN(keyed));
	tcase_add_loop_test(tc, tried_workers_are_passed_over, 0, n);
	tcase_add_test(tc, the_pools_ring_is_the_vllm_routers);
	tcase_add_test(tc, new_sessions_go_to_the_fewest);
	tcase_add_test(tc, a_session_stays_where_it_is_busy);
	tcase_add_test(tc, a_finished_session_is_a_new_one);
	tcase_add_test(tc, a_session_ends_by_its_age);
	tcase_add_test(tc, a_session_does_not_outlive_its_worker);
	tcase_add_test(tc, sessions_live_through_a_reload);
	tcase_add_test(tc, of_two_the_less_loaded);
	tcase_add_test(tc, reported_load_counts_with_own_picks);
	tcase_add_test(tc, b33_a_burst_spreads);
	tcase_add_test(tc, draws_are_fair);
	tcase_add_loop_test(tc, a_popular_prompt_is_no_pile_up, 0, n);
	tcase_add_loop_test(tc, b10_an_idle_fleet_is_used_evenly, 0, n);
	tcase_add_loop_test(tc, b36_ids_that_look_alike, 0, ARRAY_LEN(keyed));
	tcase_add_test(tc, b36_a_hot_session_is_not_pinned_for_ever);
	tcase_add_loop_test(tc, explain_is_the_next_pick, 0, n);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(pool_policy_suite())
