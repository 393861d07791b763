/*
 * The control side of a daemon in one process, asked over its admin socket while memory
 * runs out: the n-th allocation of the call fails, for every n until the call needs fewer.
 * Each time the site in force is the old one or, where the call succeeded, the new one;
 * the guards balance; and (with sanitizers) nothing leaks. The I/O threads run.
 */
#include "base/metric.h"
#include "control/listen.h"
#include "tests/unit/alloc_rig.h"
#include "tests/unit/control_rig.h"

/* Two configurations, one after the other: pools, policies, workers, ranks, addresses. */
#define FIRST                                                           \
	RIG_ROUTER "listen = 127.0.0.1:0\n"                             \
		   "[pool one]\nmodels = a*\n[pool two]\n"              \
		   "[worker a]\nurl = http://127.0.0.1:1\npool = one\n" \
		   "[worker b]\nurl = http://127.0.0.1:2\npool = two\n"
#define SECOND                                                                 \
	RIG_ROUTER                                                             \
	"listen = 127.0.0.1:0 [::1]:0\nlog_level = error\n"                    \
	"[pool one]\nmodels = c*\npolicy = consistent_hash\n"                  \
	"[pool two]\nindex_memory = 32m\n[pool three]\nmodels = z\n"           \
	"[worker a]\nurl = http://127.0.0.1:1\npool = one\nmax_requests = 9\n" \
	"[worker c]\nurl = http://127.0.0.1:3\npool = three\ndp_size = 3\n"

static void want_guards(void)
{
	ck_assert_int_eq(
		metric_total(METRIC_GUARDS_TAKEN), metric_total(METRIC_GUARDS_DROPPED));
}

/* 503 by the call, or nothing where even the server has no memory. */
static void want_refusal(int status, unsigned n)
{
	ck_assert_msg(status == 503 || status == 0, "%d at allocation %u", status, n);
	want_guards();
}

static void want_done(int got, int status)
{
	ck_assert_int_eq(got, status);
}

/* ---- the calls ---- */

START_TEST(reload)
{
	unsigned refused = 0;

	rig_write_conf(SECOND);
	for (unsigned n = 0;; n++) {
		struct site *before = c->site;
		bool has_failed;
		int status;

		rig_connect();
		alloc_arm(n);
		status = rig_ask("POST", "reload", "");
		has_failed = alloc_disarm();
		if (c->site == before) {
			want_refusal(status, n);
			ck_assert_uint_eq(listen_count(c->listening), 1);
			ck_assert_uint_eq(c->site->n_pools, 2);
			ck_assert_str_eq(unit_worker(c->site->pools[1], "b")->name, "b");
			refused++;
			continue;
		}
		ck_assert(status == 200 || status == 0);
		ck_assert_uint_eq(listen_count(c->listening), 2);
		ck_assert_uint_eq(c->site->n_pools, 3);
		ck_assert_uint_eq(pool_workers(c->site->pools[2], ROLE_UNIFIED), 3);
		if (!has_failed)
			break;
		rig_write_conf(FIRST);
		want_done(rig_ask("POST", "reload", ""), 200);
		rig_write_conf(SECOND);
	}
	ck_assert_uint_gt(refused, 200);
}
END_TEST

START_TEST(add_and_remove)
{
	static const char body[] =
		"{\"name\": \"n\", \"url\": \"http://127.0.0.1:4\", \"pool\": \"one\", "
		"\"dp_size\": 2, \"models\": [\"a1\", \"a2\"], \"worker_key\": \"k\"}";
	struct pool *pool = c->site->pools[0];
	unsigned refused = 0;

	for (unsigned n = 0;; n++) {
		bool has_failed, is_there;
		int status;

		rig_connect();
		alloc_arm(n);
		status = rig_ask("POST", "workers", body);
		has_failed = alloc_disarm();
		is_there = pool_workers(pool, ROLE_UNIFIED) == 3;
		ck_assert(is_there || pool_workers(pool, ROLE_UNIFIED) == 1);
		ck_assert(status == 0 || (status == 201) == is_there);
		if (!is_there) {
			want_refusal(status, n);
			refused++;
			continue;
		}
		rig_connect();
		alloc_arm(n);
		status = rig_ask("DELETE", "workers/n", "");
		has_failed |= alloc_disarm();
		if (pool_workers(pool, ROLE_UNIFIED) == 3) {
			want_refusal(status, n);
			want_done(rig_ask("DELETE", "workers/n", ""), 202);
		}
		ck_assert_uint_eq(pool_workers(pool, ROLE_UNIFIED), 1);
		if (!has_failed)
			break;
	}
	ck_assert_uint_gt(refused, 50);
}
END_TEST

/* A call that changes nothing: an answer, or a refusal. */
static unsigned refusals(const char *method, const char *path, const char *body)
{
	unsigned refused = 0;

	for (unsigned n = 0;; n++) {
		bool has_failed;
		int status;

		rig_connect();
		alloc_arm(n);
		status = rig_ask(method, path, body);
		has_failed = alloc_disarm();
		if (status == 200 && !has_failed)
			return refused;
		if (status != 200) {
			ck_assert(has_failed);
			want_refusal(status, n);
			refused++;
		}
	}
}

START_TEST(explain)
{
	static const char body[] =
		"{\"model\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": "
		"\"Why is it that whoever asks a long question is given a short "
		"answer, and the other way round? The prompt has to have a few blocks, "
		"so that its key needs memory, and a \\u00e4 that must be decoded.\"}]}";

	ck_assert_uint_gt(refusals("POST", "explain", body), 50);
}
END_TEST

START_TEST(config)
{
	ck_assert_uint_gt(refusals("GET", "config", ""), 100);
}
END_TEST

START_TEST(status)
{
	ck_assert_uint_gt(refusals("GET", "status", ""), 100);
}
END_TEST

static void set_up(void)
{
	rig_boot(FIRST);
}

static Suite *control_memory_suite(void)
{
	Suite *s = suite_create("control_memory");
	TCase *t = tcase_create("control_memory");

	tcase_add_checked_fixture(t, set_up, rig_close);
	tcase_add_test(t, reload);
	tcase_add_test(t, add_and_remove);
	tcase_add_test(t, explain);
	tcase_add_test(t, config);
	tcase_add_test(t, status);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(control_memory_suite())
