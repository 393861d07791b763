/*
 * A client's request over a socket pair, where a write to the client fails: no memory for
 * it is the router's failure, and no client that has left.
 */
#include "base/err.h"
#include "base/metric.h"
#include "io/mailbox.h"
#include "io/stream.h"
#include "pool/site.h"
#include "proxy/conn.h"
#include "proxy/io_thread.h"
#include "tests/unit/site_rig.h"
#include "tests/unit/unit_loop.h"

#include <signal.h>
#include <sys/socket.h>

static struct loop *loop;
static struct site *site;
static struct process process;
static struct io_thread *t;
static const char *failing; /* a write that begins so fails */
static int failure, peer;

int __real_stream_write(struct stream *s, const struct iovec *iov, int n);
int __wrap_stream_write(struct stream *s, const struct iovec *iov, int n);

int __wrap_stream_write(struct stream *s, const struct iovec *iov, int n)
{
	size_t len = strlen(failing);

	if (iov[0].iov_len >= len && memcmp(iov[0].iov_base, failing, len) == 0)
		return failure;
	return __real_stream_write(s, iov, n);
}

static struct {
	unsigned n;
	int status;
	enum fail why;
} counted;

void __wrap_metric_request(unsigned route, int status, enum fail why);

void __wrap_metric_request(unsigned route, int status, enum fail why)
{
	(void)route;
	counted.n++;
	counted.status = status;
	counted.why = why;
}

static void set_up(void)
{
	signal(SIGPIPE, SIG_IGN);
	loop = loop_new();
	counted.n = 0;
	process = (struct process){.max_connections = 1, .connections = 1};
}

/* The client sends head, and reads until its end. */
static void serve(const char *text, const char *head)
{
	union sock_addr from;
	int fds[2];
	char byte;

	site = rig_site(text, NULL);
	t = io_thread_new(0, loop, &process, site);
	t->mailbox = mailbox_new(loop);
	ck_assert_int_eq(sock_addr_parse("127.0.0.1", 1, &from), 0);
	ck_assert_int_eq(
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
		0);
	peer = fds[1];
	ck_assert_int_eq(conn_open(t, fds[0], &from, false), 0);
	ck_assert_int_eq(write(peer, head, strlen(head)), (ssize_t)strlen(head));
	TURN_UNTIL(loop, read(peer, &byte, 1) == 0); /* not a byte before */
}

static void tear_down(void)
{
	close(peer);
	TURN_UNTIL(loop, t->n_conns == 0);
	loop_turn(loop, 0);
	loop_turn(loop, 0);
	mailbox_free(t->mailbox);
	io_thread_free(t);
	rig_close(site);
	loop_free(loop);
	ck_assert_uint_eq(
		metric_total(METRIC_GUARDS_TAKEN), metric_total(METRIC_GUARDS_DROPPED));
}

/* 0: its body is awaited; 1: it goes to the worker as it comes. */
START_TEST(no_memory_for_100_continue)
{
	static const char *const policies[] = {"cache_aware", "random"};
	char text[256];

	snprintf(text, sizeof(text),
		"[pool default]\npolicy = %s\n[worker a]\nurl = http://127.0.0.1:1\n",
		policies[_i]);
	failing = "HTTP/1.1 100";
	failure = ERR_NOMEM;
	serve(text, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
		    "Content-Length: 100000\r\nExpect: 100-continue\r\n\r\n");
	ck_assert_uint_eq(counted.n, 1);
	ck_assert_int_eq(counted.status, 0);
	ck_assert_int_eq(counted.why, FAIL_OVERLOADED);
}
END_TEST

START_TEST(no_memory_for_an_own_answer)
{
	failing = "HTTP/1.1 200";
	failure = ERR_NOMEM;
	serve("[worker a]\nurl = http://127.0.0.1:1\n",
		"GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
	ck_assert_uint_eq(counted.n, 1);
	ck_assert_int_eq(counted.why, FAIL_OVERLOADED);
}
END_TEST

static Suite *intake_suite(void)
{
	Suite *s = suite_create("intake");
	TCase *c = tcase_create("intake");

	tcase_add_checked_fixture(c, set_up, tear_down);
	tcase_add_loop_test(c, no_memory_for_100_continue, 0, 2);
	tcase_add_test(c, no_memory_for_an_own_answer);
	suite_add_tcase(s, c);
	return s;
}

UNIT_MAIN(intake_suite())
