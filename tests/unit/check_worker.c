/*
 * One worker: what it is made of, when it may be used, new options under an old identity,
 * addresses, and the key that other threads read while it changes.
 */
#include "base/err.h"
#include "io/resolve.h"
#include "tests/unit/unit_model.h"

static struct conf *conf;

static void set_up(void)
{
	conf = unit_conf("[worker a]\nurl = http://10.0.0.1:8000/team/\n"
			 "worker_key = secret-one-of-twenty\n"
			 "[worker b]\nurl = http://b.test:81\nmax_requests = 2\n");
}

static void tear_down(void)
{
	conf_unref(conf);
}

START_TEST(new_worker_is_starting_and_empty)
{
	struct worker *a = worker_new(&conf->workers[0]);
	struct worker *b = worker_new(&conf->workers[1]);

	ck_assert_str_eq(a->name, "a");
	ck_assert_int_eq(worker_state(a), WORKER_STARTING);
	ck_assert(!worker_is_usable(a));
	ck_assert_uint_eq(worker_load(a), 0);
	ck_assert(span_is(a->host_line, "Host: 10.0.0.1:8000\r\n"));
	ck_assert(span_is(a->url_base, "/team"));
	ck_assert(span_is(b->host_line, "Host: b.test:81\r\n"));
	ck_assert(span_is(b->url_base, ""));
	ck_assert_uint_gt(b->id, a->id);
	ck_assert_uint_eq(a->pool.index_slot, PREFIX_NO_SLOT);
	ck_assert_int_eq(a->origin, ORIGIN_FILE);
	ck_assert_str_eq(atomic_load(&a->authorization), "Bearer secret-one-of-twenty");
	ck_assert_ptr_null(atomic_load(&b->authorization));
	worker_unref(a);
	worker_unref(b);
	worker_unref(NULL);
}
END_TEST

START_TEST(every_state_has_its_own_name)
{
	for (int s = 0; s < WORKER_STATE_MAX; s++) {
		const char *name = worker_state_name((enum worker_state)s);

		ck_assert_uint_gt(strlen(name), 0);
		for (int t = 0; t < s; t++)
			ck_assert_str_ne(name, worker_state_name((enum worker_state)t));
	}
	ck_assert_str_eq(worker_state_name(WORKER_DRAINING), "draining");
}
END_TEST

/* Every state, draining or not: usable is healthy or suspect, and not draining. */
START_TEST(usable_in_two_states_only)
{
	struct worker *w = worker_new(&conf->workers[0]);

	for (int s = 0; s < WORKER_DRAINING; s++) {
		bool is_good = s == WORKER_HEALTHY || s == WORKER_SUSPECT;

		atomic_store(&w->health, s);
		ck_assert_int_eq(worker_state(w), s);
		ck_assert_int_eq(worker_is_usable(w), is_good);
		atomic_store(&w->is_draining, true);
		ck_assert_int_eq(worker_state(w), WORKER_DRAINING);
		ck_assert(!worker_is_usable(w));
		atomic_store(&w->is_draining, false);
	}
	worker_unref(w);
}
END_TEST

START_TEST(full_at_max_requests)
{
	struct worker *w = worker_new(&conf->workers[1]);
	struct guard guards[2];

	atomic_store(&w->health, WORKER_HEALTHY);
	unit_hold(w, &guards[0], 1);
	ck_assert(worker_is_usable(w));
	unit_hold(w, &guards[1], 1);
	ck_assert(!worker_is_usable(w));
	ck_assert_int_eq(worker_state(w), WORKER_HEALTHY);
	guard_drop(&guards[0]);
	ck_assert(worker_is_usable(w));
	guard_drop(&guards[1]);
	worker_unref(w);
}
END_TEST

/* A reload with other options: same worker, same load; a reader of the old key is safe.
 */
START_TEST(configure_keeps_identity_and_load)
{
	struct conf *next = unit_conf("[worker a]\nurl = http://10.0.0.1:8000/team\n"
				      "worker_key = another-one-of-twenty\n"
				      "max_requests = 1\n");
	struct worker *w = worker_new(&conf->workers[0]);
	uint64_t id = w->id;
	const char *old = atomic_load(&w->authorization);
	struct guard g;

	atomic_store(&w->health, WORKER_HEALTHY);
	unit_hold(w, &g, 1);
	ck_assert(worker_is_usable(w));
	ck_assert(worker_same_identity(w, &next->workers[0]));
	ck_assert_int_eq(worker_configure(w, &next->workers[0]), 0);
	ck_assert_uint_eq(w->id, id);
	ck_assert_uint_eq(worker_load(w), 1);
	ck_assert_int_eq(worker_state(w), WORKER_HEALTHY);
	ck_assert(!worker_is_usable(w));
	ck_assert_str_eq(atomic_load(&w->authorization), "Bearer another-one-of-twenty");
	ck_assert_str_eq(old, "Bearer secret-one-of-twenty");
	guard_drop(&g);
	worker_unref(w);
	conf_unref(next);
}
END_TEST

START_TEST(a_key_that_stays_is_the_same_text)
{
	struct conf *keyless = unit_conf("[worker a]\nurl = http://10.0.0.1:8000/team\n");
	struct worker *w = worker_new(&conf->workers[0]);
	const char *before = atomic_load(&w->authorization);

	ck_assert_int_eq(worker_configure(w, &conf->workers[0]), 0);
	ck_assert_ptr_eq(atomic_load(&w->authorization), before);
	ck_assert_int_eq(worker_configure(w, &keyless->workers[0]), 0);
	ck_assert_ptr_null(atomic_load(&w->authorization));
	ck_assert_int_eq(worker_configure(w, &conf->workers[0]), 0);
	ck_assert_str_eq(atomic_load(&w->authorization), "Bearer secret-one-of-twenty");
	worker_unref(w);
	conf_unref(keyless);
}
END_TEST

START_TEST(identity_is_name_url_and_role)
{
	static const struct {
		const char *text;
		bool is_same;
	} rows[] = {
		{"[worker a]\nurl = http://10.0.0.1:8000/team\n", true},
		{"[worker a]\nurl = HTTP://10.0.0.1:8000/team/\nmax_requests = 9\n",
			true},
		{"[worker c]\nurl = http://10.0.0.1:8000/team\n", false},
		{"[worker a]\nurl = http://10.0.0.1:8001/team\n", false},
		{"[worker a]\nurl = http://10.0.0.1:8000/other\n", false},
		{"[worker a]\nurl = http://10.0.0.1:8000\n", false},
		{"[worker a]\nurl = http://10.0.0.2:8000/team\n", false},
	};
	struct worker *w = worker_new(&conf->workers[0]);
	struct worker_conf decode;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct conf *c = unit_conf(rows[i].text);

		ck_assert_msg(worker_same_identity(w, &c->workers[0]) == rows[i].is_same,
			"%s", rows[i].text);
		conf_unref(c);
	}
	ck_assert_int_eq(worker_conf_copy(&conf->workers[0], &decode), 0);
	decode.role = ROLE_DECODE;
	ck_assert(!worker_same_identity(w, &decode));
	worker_conf_free(&decode);
	worker_unref(w);
}
END_TEST

/* Others' requests count as long as the report is fresh; own ones never twice. */
START_TEST(reported_load)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct guard held[5];

	ck_assert_uint_eq(worker_whole_load(w, 1), 0);
	ck_assert(!worker_report_is_fresh(w, 1));
	unit_hold(w, held, 2);
	/* It has nine, of which two are ours: seven are others'. */
	worker_report(w, 6, 3, 2, 1000, 1300);
	ck_assert_uint_eq(worker_whole_load(w, 1000), 9);
	unit_hold(w, held + 2, 3);
	ck_assert_uint_eq(worker_whole_load(w, 1100), 12);
	unit_drop(held, 5);
	ck_assert_uint_eq(worker_whole_load(w, 1300), 7);
	ck_assert_uint_eq(worker_whole_load(w, 1301), 0);
	ck_assert_uint_eq(worker_load(w), 0);
	/* It has fewer than we sent: some are on the way. */
	unit_hold(w, held, 5);
	worker_report(w, 1, 0, 5, 2000, 2300);
	ck_assert_uint_eq(worker_whole_load(w, 2000), 5);
	unit_drop(held, 5);
	ck_assert_uint_eq(worker_whole_load(w, 2000), 0);
	worker_unref(w);
}
END_TEST

static void check_hits(const struct worker *w, uint64_t matched, uint64_t blocks)
{
	ck_assert_uint_eq(atomic_load(&w->pool.hits.recent_matched), matched);
	ck_assert_uint_eq(atomic_load(&w->pool.hits.recent_blocks), blocks);
}

/* Recent hits weigh half as much with each minute, whole ones are kept. */
START_TEST(hits_fade)
{
	struct worker *w = worker_new(&conf->workers[0]);
	struct hit_count *h = &w->pool.hits;
	uint64_t now = 600000;

	check_hits(w, 0, 0);
	hit_count_add(h, 0, 100, now);
	hit_count_add(h, 100, 100, now + 59999);
	check_hits(w, 100, 200);
	hit_count_add(h, 0, 0, now + 60000);
	check_hits(w, 50, 100);
	hit_count_add(h, 10, 10, now + 60000);
	check_hits(w, 60, 110);
	/* Time that stands still, or is told late by another thread. */
	hit_count_add(h, 0, 10, now);
	check_hits(w, 60, 120);
	hit_count_add(h, 0, 0, now + 4 * 60000);
	check_hits(w, 7, 15);
	hit_count_add(h, 3, 4, now + UINT32_MAX * 60000ull);
	check_hits(w, 3, 4);
	ck_assert_uint_eq(atomic_load(&h->blocks), 224);
	ck_assert_uint_eq(atomic_load(&h->matched), 113);
	worker_unref(w);
}
END_TEST

/* A literal address needs no resolver; a name has none until one is set. */
START_TEST(addresses)
{
	struct worker *a = worker_new(&conf->workers[0]);
	struct worker *b = worker_new(&conf->workers[1]);
	struct addr_list *list = addr_list_literal("127.0.0.1", 81), *got;
	unsigned first, second;

	got = worker_addrs(a, &first);
	ck_assert_ptr_nonnull(got);
	addr_list_unref(got);
	ck_assert_ptr_null(worker_addrs(b, &first));
	worker_set_addrs(b, list);
	got = worker_addrs(b, &first);
	ck_assert_ptr_eq(got, list);
	addr_list_unref(got);
	got = worker_addrs(b, &second);
	ck_assert_uint_eq(second, first + 1);
	/* Replaced while a reader holds it. */
	worker_set_addrs(b, addr_list_literal("127.0.0.2", 81));
	ck_assert(addr_list_equal(got, list));
	addr_list_unref(got);
	worker_unref(a);
	worker_unref(b);
}
END_TEST

static Suite *worker_suite(void)
{
	Suite *s = suite_create("worker");
	TCase *tc = tcase_create("worker");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, new_worker_is_starting_and_empty);
	tcase_add_test(tc, every_state_has_its_own_name);
	tcase_add_test(tc, usable_in_two_states_only);
	tcase_add_test(tc, full_at_max_requests);
	tcase_add_test(tc, configure_keeps_identity_and_load);
	tcase_add_test(tc, reported_load);
	tcase_add_test(tc, a_key_that_stays_is_the_same_text);
	tcase_add_test(tc, identity_is_name_url_and_role);
	tcase_add_test(tc, hits_fade);
	tcase_add_test(tc, addresses);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(worker_suite())
