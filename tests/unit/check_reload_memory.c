/*
 * The parts of a reload that run out of memory change nothing. The n-th allocation fails,
 * for every n until the call succeeds. site_new(): each time the old site is whole, with
 * its workers, their options and keys, policies, indexes and their entries. conf_load()
 * and its kin: each time the lack of memory is reported, and nothing leaks.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "tests/unit/alloc_rig.h"
#include "tests/unit/site_rig.h"

#include <sys/stat.h>

#define BEFORE                                                                           \
	"[pool one]\nmodels = a*\n[pool two]\n"                                          \
	"[worker a]\nurl = http://a:1\npool = one\nmax_requests = 5\nworker_key = old\n" \
	"[worker b]\nurl = http://b:1\npool = two\nworker_key = old\n"                   \
	"[worker c]\nurl = http://c:1\npool = two\n"
/* Another policy, block, index, pool; a worker that stays, ones that come, go and move.
 */
#define AFTER                                                                            \
	"[pool one]\nmodels = a*\npolicy = round_robin\n"                                \
	"[pool two]\nprefix_block = 256\nindex_memory = 32m\n[pool three]\nmodels = z\n" \
	"[worker a]\nurl = http://a:1\npool = one\nmax_requests = 9\nworker_key = new\n" \
	"[worker b]\nurl = http://b:1\npool = two\nworker_key = new\nmax_requests = 9\n" \
	"[worker c]\nurl = http://c:1\npool = three\n"                                   \
	"[worker d]\nurl = http://d:1\npool = two\n"

static struct conf *before, *after;
static struct site *site;

static void set_up(void)
{
	n_added = n_removed = 0;
	before = unit_conf(BEFORE);
	after = unit_conf(AFTER);
	site = site_new(before, NULL, &rig_opts);
	ck_assert_ptr_nonnull(site);
}

static void tear_down(void)
{
	site_retire(site, NULL);
	site_unref(site);
	conf_unref(before);
	conf_unref(after);
	ck_assert_uint_eq(n_added, n_removed);
}

/* One prompt of four blocks is picked once, so that its worker holds it. */
static uint32_t matched_by(struct pool *p)
{
	struct route_key k = unit_sealed(p, 7, 4, 7, 4);
	struct pool_ask ask = {.role = ROLE_UNIFIED, .key = &k, .now_ms = 1000};
	struct guard g = {NULL};
	struct pool_pick pick;

	ck_assert_int_eq(pool_pick(p, &ask, &g, &pick), 0);
	guard_drop(&g);
	route_key_free(&k);
	return pick.matched;
}

static void want_old(struct pool *one, struct pool *two)
{
	struct worker *a = unit_worker(one, "a"), *b = unit_worker(two, "b");

	ck_assert_ptr_eq(site_pool(site, SPAN_LIT("one")), one);
	ck_assert_str_eq(pool_policy_name(one, ROLE_UNIFIED), "cache_aware");
	ck_assert_uint_eq(a->conf->max_requests, 5);
	ck_assert_uint_eq(b->conf->max_requests, 0);
	ck_assert_str_eq(atomic_load(&a->authorization), "Bearer old");
	ck_assert_str_eq(atomic_load(&b->authorization), "Bearer old");
	ck_assert(!atomic_load(&unit_worker(two, "c")->is_removed));
	ck_assert_ptr_null(pool_find(two, SPAN_LIT("d")));
	ck_assert_uint_eq(n_added, 3);
	ck_assert_uint_eq(n_removed, 0);
	ck_assert_uint_eq(matched_by(one), 4);
	ck_assert_uint_eq(matched_by(two), 4);
}

START_TEST(every_failure_changes_nothing)
{
	struct pool *one = site_pool(site, SPAN_LIT("one"));
	struct pool *two = site_pool(site, SPAN_LIT("two"));
	struct site *next = NULL;
	unsigned n = 0;

	matched_by(one);
	matched_by(two);
	while (next == NULL) {
		alloc_arm(n);
		next = site_new(after, site, &rig_opts);
		alloc_disarm();
		if (next != NULL)
			break;
		want_old(one, two);
		n++;
	}
	/* Few allocations would mean that the wrappers were not there. */
	ck_assert_uint_gt(n, 20);
	site_retire(site, next);
	site_unref(site);
	site = next;
	ck_assert_uint_eq(unit_worker(one, "a")->conf->max_requests, 9);
	ck_assert_str_eq(
		atomic_load(&unit_worker(two, "b")->authorization), "Bearer new");
	ck_assert_str_eq(pool_policy_name(one, ROLE_UNIFIED), "round_robin");
	ck_assert_ptr_null(pool_find(two, SPAN_LIT("c")));
	ck_assert_uint_eq(n_added, 5);
	ck_assert_uint_eq(n_removed, 1);
}
END_TEST

/* A removal and the end need no memory: they cannot fail half-way. */
START_TEST(going_needs_no_memory)
{
	struct pool *two = site_pool(site, SPAN_LIT("two"));

	alloc_arm(0);
	ck_assert_int_eq(pool_remove_worker(two, SPAN_LIT("c")), 0);
	pool_close(two);
	alloc_disarm();
	ck_assert_uint_eq(n_removed, 2);
	ck_assert_uint_eq(pool_workers(two, ROLE_UNIFIED), 0);
}
END_TEST

/* One file with every kind of value, and one beside it. */
#define WHOLE                                                                         \
	"[router]\nlisten = 127.0.0.1:0 [::1]:0\nadmin_key = \"a\\\"b\"\napi_keys = " \
	"%s/keys\n"                                                                   \
	"pass_paths = /v1/a /v1/b\nmetrics_listen = 127.0.0.1:1\n"                    \
	"[pool one]\nmodels = a* b*\nalpha = 0.25\nworker_cidrs = 10.0.0.0/8\n"       \
	"[pool one decode]\npolicy = round_robin\n"                                   \
	"[worker a]\nurl = http://a.test:1/base\npool = one\nworker_key = k\n"        \
	"tls_verify = off\nmodels = a1 a2\n"
#define KEYS                                                                \
	"0000000000000000000000000000000000000000000000000000000000000001 " \
	"alice max_requests=3 cache_group=g\n"                              \
	"0000000000000000000000000000000000000000000000000000000000000002 bob\n"

static void write_file(const char *folder, const char *name, const char *text)
{
	scoped_free char *path = NULL;
	scoped_file FILE *f = NULL;

	ck_assert_int_gt(asprintf(&path, "%s/%s", folder, name), 0);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
}

static void write_conf(char folder[static 64])
{
	scoped_free char *path = NULL, *text = NULL;

	snprintf(folder, 64, "/tmp/kvsteer-check-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	write_file(folder, "keys", KEYS);
	ck_assert_int_gt(asprintf(&text, WHOLE, folder), 0);
	write_file(folder, "kvsteer.conf", text);
	ck_assert_int_gt(asprintf(&path, "%s/conf.d", folder), 0);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	write_file(path, "more.conf", "[worker b]\nurl = http://b.test:1\npool = one\n");
}

static void remove_conf(const char *folder)
{
	static const char *const names[] = {
		"/conf.d/more.conf", "/conf.d", "/kvsteer.conf", "/keys", ""};
	char path[128];

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(path, sizeof(path), "%s%s", folder, names[i]);
		ck_assert_int_eq(remove(path), 0);
	}
}

/* Whoever reads the list of errors finds the one that could not be kept. */
static void want_no_memory(int err, const struct conf_errors *errors)
{
	const struct conf_error *e = conf_errors_first(errors);

	ck_assert_int_eq(err, ERR_NOMEM);
	ck_assert(errors->no_memory);
	ck_assert_uint_ge(errors->n_errors, 1);
	ck_assert_ptr_nonnull(e);
	e = conf_errors_at(errors, errors->n);
	ck_assert_str_eq(e->message, "out of memory");
	ck_assert(!e->is_warning);
}

START_TEST(every_failure_of_a_load_is_reported)
{
	struct conf *c = NULL;
	char folder[64], path[96];
	unsigned n = 0;
	int err;

	write_conf(folder);
	snprintf(path, sizeof(path), "%s/kvsteer.conf", folder);
	for (bool has_failed = true; has_failed; n++) {
		struct conf_errors errors = {0};

		alloc_arm(n);
		err = conf_load(path, NULL, &errors, &c);
		has_failed = alloc_disarm();
		if (has_failed)
			want_no_memory(err, &errors);
		else
			ck_assert_msg(err == 0, "%s", conf_error_text(errors.items));
		conf_errors_free(&errors);
	}
	ck_assert_uint_gt(n, 100);
	ck_assert_uint_eq(c->n_workers, 2);
	ck_assert_uint_eq(c->client_keys->n_tenants, 2);
	conf_unref(c);
	remove_conf(folder);
}
END_TEST

static void count_change(void *arg, const char *section, const char *key, const char *was,
	const char *now, bool needs_restart)
{
	unsigned *n = arg;

	(void)needs_restart;
	unit_must(section != NULL && key != NULL && was != NULL && now != NULL);
	(*n)++;
}

START_TEST(every_failure_of_a_diff_is_reported)
{
	unsigned n = 0, told, whole = 0;
	int err;

	ck_assert_int_eq(conf_diff(before, after, count_change, &whole), 0);
	for (bool has_failed = true; has_failed; n++) {
		told = 0;
		alloc_arm(n);
		err = conf_diff(before, after, count_change, &told);
		has_failed = alloc_disarm();
		ck_assert_int_eq(err, has_failed ? ERR_NOMEM : 0);
		ck_assert(has_failed ? told < whole : told == whole);
	}
	ck_assert_uint_gt(n, 10);
}
END_TEST

START_TEST(every_failure_of_a_print_is_reported)
{
	scoped_free char *whole = conf_print(after);
	unsigned n = 0;

	for (bool has_failed = true; has_failed; n++) {
		scoped_free char *text = NULL;

		alloc_arm(n);
		text = conf_print(after);
		has_failed = alloc_disarm();
		if (has_failed)
			ck_assert_ptr_null(text);
		else
			ck_assert_str_eq(text, whole);
	}
	ck_assert_uint_gt(n, 50);
}
END_TEST

START_TEST(every_failure_of_a_worker_is_reported)
{
	static const struct conf_pair pairs[] = {{"url", "http://n.test:1"},
		{"pool", "one"}, {"models", "x"}, {"models", "y"}, {"worker_key", "k"},
		{"max_requests", "3"}, {"degraded_ratio", "0.5"}};
	struct worker_conf wc;
	unsigned n = 0;
	int err;

	for (bool has_failed = true; has_failed; n++) {
		struct conf_errors errors = {0};

		alloc_arm(n);
		err = conf_worker_make(
			before, "n", pairs, ARRAY_LEN(pairs), &errors, &wc);
		has_failed = alloc_disarm();
		if (has_failed)
			want_no_memory(err, &errors);
		else
			ck_assert_int_eq(err, 0);
		conf_errors_free(&errors);
	}
	ck_assert_uint_gt(n, 20);
	ck_assert_uint_eq(wc.models.n, 2);
	worker_conf_free(&wc);
}
END_TEST

static Suite *reload_memory_suite(void)
{
	Suite *s = suite_create("reload_memory");
	TCase *tc = tcase_create("reload_memory");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, every_failure_changes_nothing);
	tcase_add_test(tc, going_needs_no_memory);
	tcase_add_test(tc, every_failure_of_a_load_is_reported);
	tcase_add_test(tc, every_failure_of_a_diff_is_reported);
	tcase_add_test(tc, every_failure_of_a_print_is_reported);
	tcase_add_test(tc, every_failure_of_a_worker_is_reported);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(reload_memory_suite())
