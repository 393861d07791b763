/*
 * The control side of a daemon in one process, asked over its admin socket while memory
 * runs out: the n-th allocation of the call fails, for every n until the call needs fewer.
 * Each time the site in force is the old one or, where the call succeeded, the new one;
 * the guards balance; and (with sanitizers) nothing leaks. The I/O threads run.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/metric.h"
#include "control/boot.h"
#include "control/control.h"
#include "control/inherit.h"
#include "control/listen.h"
#include "tests/unit/alloc_rig.h"
#include "tests/unit/unit_loop.h"
#include "tests/unit/unit_model.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ROUTER "[router]\nthreads = 2\nmetrics_listen = none\nadmin_socket = %s/socket\n"

/* Two configurations, one after the other: pools, policies, workers, ranks, addresses. */
#define FIRST                                                       \
	ROUTER "listen = 127.0.0.1:0\n"                             \
	       "[pool one]\nmodels = a*\n[pool two]\n"              \
	       "[worker a]\nurl = http://127.0.0.1:1\npool = one\n" \
	       "[worker b]\nurl = http://127.0.0.1:2\npool = two\n"
#define SECOND                                                                        \
	ROUTER "listen = 127.0.0.1:0 [::1]:0\nlog_level = error\n"                    \
	       "[pool one]\nmodels = c*\npolicy = consistent_hash\n"                  \
	       "[pool two]\nindex_memory = 32m\n[pool three]\nmodels = z\n"           \
	       "[worker a]\nurl = http://127.0.0.1:1\npool = one\nmax_requests = 9\n" \
	       "[worker c]\nurl = http://127.0.0.1:3\npool = three\ndp_size = 3\n"

static char folder[64], conf_path[96], socket_path[96];
static struct control *c;
static int client = -1;

static void write_conf(const char *form)
{
	scoped_file FILE *f = fopen(conf_path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_gt(fprintf(f, form, folder), 0);
}

static void set_up(void)
{
	struct inherited none = {NULL, 0};
	struct conf_errors errors = {0};
	struct conf *conf;

	snprintf(folder, sizeof(folder), "/tmp/kvsteer-check-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(conf_path, sizeof(conf_path), "%s/conf", folder);
	snprintf(socket_path, sizeof(socket_path), "%s/socket", folder);
	write_conf(FIRST);
	c = calloc(1, sizeof(*c));
	ck_assert_ptr_nonnull(c);
	c->flags.conf_file = conf_path;
	ck_assert_int_eq(conf_load(conf_path, NULL, &errors, &conf), 0);
	conf_errors_free(&errors);
	ck_assert_int_eq(boot_prepare(c, conf, &none), 0);
	ck_assert_int_eq(boot_open(c), 0);
	conf_unref(conf);
}

static void tear_down(void)
{
	if (client >= 0)
		close(client);
	ck_assert(boot_undo(c)); /* guards taken and dropped balance */
	free(c);
	ck_assert_int_eq(unlink(conf_path), 0);
	ck_assert_int_eq(rmdir(folder), 0);
}

/* ---- the client ---- */

static void client_open(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char byte;

	turn_idle(c->loop, 2);
	if (client >= 0 && recv(client, &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN)
		return; /* the last answer did not end it */
	if (client >= 0)
		close(client);
	client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	memcpy(a.sun_path, socket_path, strlen(socket_path) + 1);
	ck_assert_int_eq(connect(client, (struct sockaddr *)&a, sizeof(a)), 0);
	turn_idle(c->loop, 2);
}

/* The length of the answer that text begins with; 0: it is not whole. */
static size_t answer_length(const char *text)
{
	const char *end = strstr(text, "\r\n\r\n"), *length;

	if (end == NULL)
		return 0;
	length = strstr(text, "Content-Length: ");
	must(length != NULL && length < end);
	return (size_t)(end + 4 - text) + strtoul(length + 16, NULL, 10);
}

/* The status of one call; 0: the connection was closed. */
static int ask(const char *method, const char *path, const char *body)
{
	static char text[1 << 20];
	size_t used = 0, want = 0;
	uint64_t end_us;
	ssize_t n;

	if (client < 0)
		client_open();
	n = snprintf(text, sizeof(text),
		"%s /admin/v1/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
		method, path, strlen(body), body);
	must(write(client, text, (size_t)n) == n);
	for (end_us = clock_us() + UNIT_DEADLINE_US; want == 0 || used < want;) {
		must(clock_us() < end_us);
		loop_turn(c->loop, 10);
		n = read(client, text + used, sizeof(text) - used - 1);
		if (n == 0 || (n < 0 && errno != EAGAIN)) {
			close(client);
			client = -1;
			return 0;
		}
		used += n > 0 ? (size_t)n : 0;
		text[used] = '\0';
		want = answer_length(text);
	}
	return atoi(text + strlen("HTTP/1.1 "));
}

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

	write_conf(SECOND);
	for (unsigned n = 0;; n++) {
		struct site *before = c->site;
		bool has_failed;
		int status;

		client_open();
		alloc_arm(n);
		status = ask("POST", "reload", "");
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
		write_conf(FIRST);
		want_done(ask("POST", "reload", ""), 200);
		write_conf(SECOND);
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

		client_open();
		alloc_arm(n);
		status = ask("POST", "workers", body);
		has_failed = alloc_disarm();
		is_there = pool_workers(pool, ROLE_UNIFIED) == 3;
		ck_assert(is_there || pool_workers(pool, ROLE_UNIFIED) == 1);
		ck_assert(status == 0 || (status == 201) == is_there);
		if (!is_there) {
			want_refusal(status, n);
			refused++;
			continue;
		}
		client_open();
		alloc_arm(n);
		status = ask("DELETE", "workers/n", "");
		has_failed |= alloc_disarm();
		if (pool_workers(pool, ROLE_UNIFIED) == 3) {
			want_refusal(status, n);
			want_done(ask("DELETE", "workers/n", ""), 202);
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

		client_open();
		alloc_arm(n);
		status = ask(method, path, body);
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

static Suite *control_memory_suite(void)
{
	Suite *s = suite_create("control_memory");
	TCase *t = tcase_create("control_memory");

	tcase_add_checked_fixture(t, set_up, tear_down);
	tcase_add_test(t, reload);
	tcase_add_test(t, add_and_remove);
	tcase_add_test(t, explain);
	tcase_add_test(t, config);
	tcase_add_test(t, status);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(control_memory_suite())
