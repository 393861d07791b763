/*
 * The life of the small HTTP server's connections: clients that leave, stop reading or
 * send too much, deadlines, bounds, drain, the end of the server, unix sockets.
 */
#include "http_server_rig.h"

#include <sys/resource.h>
#include <sys/un.h>

START_TEST(a_client_that_leaves_is_noticed)
{
	struct client *c = dial(0);

	say(c, GET("/later"));
	until(&handled, 1);
	hang_up(c);
	until(&gone, 1);
	until_connections(0);
	/* A half-close without Connection: close means the same. */
	c = dial(0);
	say(c, GET("/later"));
	until(&handled, 2);
	shutdown(c->fd, SHUT_WR);
	until(&gone, 2);
	hang_up(c);
	/* So does leaving with pipelined requests that fill the buffer. */
	c = dial(0);
	say(c, GET("/later"));
	until(&handled, 3);
	for (int i = 0; i < 2000; i++) {
		if (send(c->fd, GET("/hello"), sizeof(GET("/hello")) - 1, MSG_NOSIGNAL) <
			0)
			break;
		loop_turn(loop, 0);
	}
	ck_assert_int_eq(handled, 3);
	hang_up(c);
	until(&gone, 3);
	until_connections(0);
}
END_TEST

START_TEST(a_half_closed_client_gets_its_last_answer)
{
	static const char *const requests[] = {
		"GET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"GET /later HTTP/1.0\r\n\r\n",
	};

	for (size_t k = 0; k < ARRAY_LEN(requests); k++) {
		struct client *c = dial(0);

		handled = 0;
		say(c, requests[k]);
		shutdown(c->fd, SHUT_WR);
		until(&handled, 1);
		for (int i = 0; i < 5; i++)
			loop_turn(loop, 1);
		ck_assert_int_eq(gone, 0);
		http_call_reply(kept, 200, "text/plain", SPAN_LIT("after all"),
			span_make(NULL, 0));
		expect(c, NULL);
		ck_assert_ptr_nonnull(strstr(c->in, "after all"));
		ck_assert(!c->reset);
		hang_up(c);
		until_connections(0);
	}
}
END_TEST

START_TEST(an_unwatched_call_survives_its_client)
{
	struct client *c = dial(0);

	say(c, GET("/unwatched"));
	until(&handled, 1);
	hang_up(c);
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 1);
	ck_assert_uint_eq(http_server_connections(server), 1);
	http_call_begin(kept, 200, "text/plain", span_make(NULL, 0));
	ck_assert_int_eq(http_call_write(kept, SPAN_LIT("x")), ERR_CLOSED);
	http_call_end(kept);
	loop_turn(loop, 0);
	ck_assert_uint_eq(http_server_connections(server), 0);
}
END_TEST

START_TEST(a_slow_reader_holds_the_stream_back)
{
	struct client *c = dial(0);
	static char block[32768];
	uint64_t end_us = clock_us() + WAIT_US, sent = 0, heard = 0;
	int err = 0;

	memset(block, 's', sizeof(block));
	say(c, GET("/later"));
	until(&handled, 1);
	http_call_begin(kept, 200, "text/plain", span_make(NULL, 0));
	while (err == 0) {
		ck_assert(clock_us() < end_us);
		err = http_call_write(kept, span_make(block, sizeof(block)));
		sent += sizeof(block);
	}
	ck_assert_int_eq(err, ERR_LIMIT);
	ck_assert_int_eq(writable, 0);
	while (writable == 0) {
		ck_assert(clock_us() < end_us);
		hear(c);
		heard += c->n;
		forget(c);
		loop_turn(loop, 1);
	}
	http_call_end(kept);
	while (memmem(c->in, c->n, "\r\n0\r\n\r\n", 7) == NULL) {
		ck_assert(clock_us() < end_us);
		loop_turn(loop, 1);
		hear(c);
		if (c->n > sizeof(c->in) / 2) {
			heard += c->n - 16;
			memmove(c->in, c->in + c->n - 16, 16);
			c->n = 16;
		}
	}
	ck_assert_uint_ge(heard + c->n, sent);
	hang_up(c);
}
END_TEST

/* Sends requests and reads nothing, until the server has not taken a byte for many turns;
 * returns how many bytes went. */
static size_t flood(struct client *c)
{
	static const char request[] = GET("/large");
	size_t sent = 0;
	int stuck = 0;

	while (stuck < 50) {
		size_t at = sent % (sizeof(request) - 1);
		ssize_t n =
			send(c->fd, request + at, sizeof(request) - 1 - at, MSG_NOSIGNAL);

		stuck = n > 0 ? 0 : stuck + 1;
		sent += n > 0 ? (size_t)n : 0;
		ck_assert_msg(sent < 32u << 20, "the server takes without end");
		if (n <= 0 || sent % 65536 < sizeof(request))
			loop_turn(loop, n > 0 ? 0 : 1);
	}
	return sent;
}

START_TEST(pipelining_without_reading_is_held_back)
{
	struct client *c = dial(0);
	int requests = (int)(flood(c) / (sizeof(GET("/large")) - 1)), before = handled;
	uint64_t end_us = clock_us() + WAIT_US;

	ck_assert_int_gt(before, 0);
	ck_assert_int_lt(before, requests);
	while (handled < MIN(before + 100, requests)) {
		ck_assert(clock_us() < end_us);
		hear(c);
		forget(c);
		loop_turn(loop, 0);
	}
	hang_up(c);
	until_connections(0);
}
END_TEST

START_TEST(pipelining_behind_an_open_call_is_held_back)
{
	struct client *c = dial(0);
	struct linger now = {1, 0};

	say(c, GET("/later"));
	until(&handled, 1);
	flood(c);
	ck_assert_int_eq(handled, 1);
	ck_assert_int_eq(gone, 0);
	/* A FIN would wait behind what the server does not read; a reset does not. */
	ck_assert_int_eq(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	hang_up(c);
	until(&gone, 1);
	until_connections(0);
}
END_TEST

START_TEST(a_client_that_stops_reading_is_cut)
{
	struct client *c;
	static char block[32768];

	opts.write_timeout_ms = 30;
	restart();
	c = dial(0);
	say(c, GET("/later"));
	until(&handled, 1);
	http_call_begin(kept, 200, "text/plain", span_make(NULL, 0));
	while (http_call_write(kept, span_make(block, sizeof(block))) == 0)
		;
	until(&gone, 1);
	until_connections(0);
	hang_up(c);
}
END_TEST

START_TEST(writing_to_a_broken_connection)
{
	struct client *c = dial(0);
	struct linger now = {1, 0};
	uint64_t end_us = clock_us() + WAIT_US;

	say(c, GET("/later"));
	until(&handled, 1);
	http_call_begin(kept, 200, "text/plain", span_make(NULL, 0));
	ck_assert_int_eq(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	hang_up(c);
	/* No turn in between: the write itself meets the reset, and calls nobody. */
	while (http_call_write(kept, SPAN_LIT("x")) != ERR_CLOSED)
		ck_assert(clock_us() < end_us);
	ck_assert_int_eq(gone, 0);
	ck_assert_int_eq(http_call_write(kept, SPAN_LIT("x")), ERR_CLOSED);
	until(&gone, 1);
	until_connections(0);
}
END_TEST

START_TEST(deadlines)
{
	struct client *c;

	opts.head_timeout_ms = opts.body_timeout_ms = opts.keepalive_timeout_ms = 20;
	restart();
	c = dial(0);
	expect(c, NULL); /* nothing sent: closed without a word */
	ck_assert_uint_eq(c->n, 0);
	hang_up(c);
	c = dial(0);
	say(c, "GET /hello HT");
	expect(c, NULL);
	ck_assert_int_eq(strncmp(c->in, "HTTP/1.1 408 ", 13), 0);
	hang_up(c);
	c = dial(0);
	say(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc");
	expect(c, NULL);
	ck_assert_int_eq(strncmp(c->in, "HTTP/1.1 408 ", 13), 0);
	ck_assert_ptr_nonnull(strstr(c->in, "client_timeout"));
	hang_up(c);
	c = dial(0);
	say(c, GET("/hello"));
	expect(c, "hello");
	expect(c, NULL);
	ck_assert_uint_eq(count(c, "HTTP/1.1"), 1);
	hang_up(c);
	ck_assert_int_eq(handled, 1);
}
END_TEST

START_TEST(an_open_call_has_no_deadline_of_its_own)
{
	struct client *c, *probe;

	opts.head_timeout_ms = opts.body_timeout_ms = opts.keepalive_timeout_ms = 20;
	restart();
	c = dial(0);
	say(c, GET("/later"));
	until(&handled, 1);
	probe = dial(1);
	expect(probe, NULL); /* a later deadline of the same length has passed */
	ck_assert_int_eq(gone, 0);
	http_call_fail(kept, FAIL_NO_WORKER);
	expect(c, "HTTP/1.1 503 ");
	hang_up(c);
	hang_up(probe);
}
END_TEST

START_TEST(out_of_descriptors)
{
	struct client *c = dial(0), *d;
	struct rlimit was, low;
	uint64_t end_us;
	unsigned turns;
	int probe;

	say(c, GET("/hello"));
	expect(c, "hello");
	forget(c);
	d = dial(1);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	low = was;
	low.rlim_cur = 3;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	ck_assert_int_lt(probe = dup(0), 0);
	say(d, GET("/hello"));
	end_us = clock_us() + 50000;
	for (turns = 0; clock_us() < end_us; turns++)
		loop_turn(loop, 20);
	ck_assert_uint_eq(http_server_connections(server), 1);
	ck_assert_uint_lt(turns, 50); /* accepting was paused: the loop slept */
	say(c, GET("/hello"));        /* those that are there are served */
	expect(c, "hello");
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	expect(d, "hello");
	hang_up(c);
	hang_up(d);
	(void)probe;
}
END_TEST

START_TEST(no_more_connections_than_allowed)
{
	struct client *a, *b, *c;

	opts.max_connections = 2;
	restart();
	a = dial(0);
	b = dial(1);
	c = dial(2);
	say(a, GET("/hello"));
	say(b, GET("/hello"));
	say(c, GET("/hello"));
	expect(a, "hello");
	expect(b, "hello");
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 1);
	ck_assert_uint_eq(http_server_connections(server), 2);
	ck_assert_int_eq(handled, 2);
	hang_up(a);
	expect(c, "hello");
	hang_up(b);
	hang_up(c);
}
END_TEST

START_TEST(drain_ends_what_is_idle_and_finishes_the_rest)
{
	struct client *idle = dial(0), *busy = dial(1);
	int late;

	say(idle, GET("/hello"));
	expect(idle, "hello");
	say(busy, GET("/later"));
	until(&handled, 2);
	http_server_drain(server);
	expect(idle, NULL);
	late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_lt(connect(late, &address.sa, sock_addr_len(&address)), 0);
	close(late);
	ck_assert_int_eq(gone, 0);
	http_call_reply(kept, 200, "text/plain", SPAN_LIT("last"), span_make(NULL, 0));
	expect(busy, NULL);
	ck_assert_ptr_nonnull(strcasestr(busy->in, "connection: close\r\n"));
	ck_assert_ptr_nonnull(strstr(busy->in, "last"));
	hang_up(idle);
	hang_up(busy);
	until_connections(0);
}
END_TEST

START_TEST(a_broken_off_stream_ends_without_its_end)
{
	struct client *c = dial(0);

	say(c, GET("/break"));
	expect(c, NULL);
	ck_assert(!c->reset);
	ck_assert_ptr_nonnull(strstr(c->in, "\r\n4\r\nhalf\r\n"));
	ck_assert_ptr_null(strstr(c->in, "\r\n0\r\n"));
	hang_up(c);
	until_connections(0);
}
END_TEST

/* Who connects meanwhile is served afterwards; who is there already is served all the
 * time. */
START_TEST(a_pause_leaves_them_in_the_backlog)
{
	struct client *first = dial(0), *second;

	until_connections(1);
	http_server_pause(server, true);
	http_server_pause(server, true);
	second = dial(1);
	say(second, GET("/hello"));
	say(first, GET("/hello"));
	expect(first, "hello");
	for (int i = 0; i < 5; i++)
		loop_turn(loop, 2);
	ck_assert_uint_eq(http_server_connections(server), 1);
	http_server_pause(server, false);
	expect(second, "hello");
	hang_up(first);
	hang_up(second);
}
END_TEST

/* In every state a connection may be in; the next ones are served. */
START_TEST(a_cut_resets_all_connections)
{
	struct client *open = dial(0), *idle = dial(1), *half = dial(2), *body = dial(3),
		      *next;

	say(open, GET("/later"));
	until(&handled, 1);
	say(half, "GET /hel");
	say(body, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
	until_connections(4);
	loop_turn(loop, 0);
	http_server_cut(server);
	ck_assert_int_eq(gone, 1);
	ck_assert_uint_eq(http_server_connections(server), 0);
	expect(open, NULL);
	expect(idle, NULL);
	expect(half, NULL);
	expect(body, NULL);
	ck_assert(open->reset && idle->reset && half->reset && body->reset);
	next = dial(4);
	say(next, GET("/hello"));
	expect(next, "hello");
	hang_up(next);
}
END_TEST

START_TEST(freeing_a_server_tells_open_calls)
{
	struct client *c = dial(0), *half = dial(1);

	say(c, GET("/later"));
	until(&handled, 1);
	say(half, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab");
	loop_turn(loop, 5);
	http_server_free(server);
	ck_assert_int_eq(gone, 1);
	loop_turn(loop, 0);
	server = NULL;
	hang_up(c);
	hang_up(half);
}
END_TEST

static void handle_suicide(void *arg UNUSED, struct http_call *call UNUSED)
{
	http_server_free(server);
	server = NULL;
	handled++;
}

START_TEST(a_handler_may_free_the_server)
{
	static const struct http_route one[] = {{"GET", "/", handle_suicide}};
	struct client *c;

	opts.routes = one;
	opts.n_routes = 1;
	restart();
	c = dial(0);
	say(c, GET("/") GET("/"));
	until(&handled, 1);
	expect(c, NULL);
	hang_up(c);
}
END_TEST

START_TEST(unix_sockets)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct client *c = &clients[0];
	char folder[] = "/tmp/check_http_server.XXXXXX";
	int fd = -1;

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(un.sun_path, sizeof(un.sun_path), "%s/sock", folder);
	ck_assert_int_eq(sock_listen_unix(un.sun_path, 0600, &fd), 0);
	http_server_free(server);
	server = http_server_new(loop, fd, &opts);
	ck_assert_ptr_nonnull(server);
	memset(c, 0, sizeof(*c));
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(c->fd, (struct sockaddr *)&un, sizeof(un)), 0);
	ck_assert_int_eq(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
	say(c, GET("/where/u"));
	expect(c, "/where/u||-|");
	say(c, GET("/later"));
	until(&handled, 1);
	hang_up(c);
	until(&gone, 1);
	unlink(un.sun_path);
	rmdir(folder);
}
END_TEST

static Suite *http_server_life_suite(void)
{
	Suite *suite = suite_create("http_server_life");
	TCase *tc = tcase_create("http_server_life");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_client_that_leaves_is_noticed);
	tcase_add_test(tc, a_half_closed_client_gets_its_last_answer);
	tcase_add_test(tc, an_unwatched_call_survives_its_client);
	tcase_add_test(tc, a_slow_reader_holds_the_stream_back);
	tcase_add_test(tc, pipelining_without_reading_is_held_back);
	tcase_add_test(tc, pipelining_behind_an_open_call_is_held_back);
	tcase_add_test(tc, a_client_that_stops_reading_is_cut);
	tcase_add_test(tc, writing_to_a_broken_connection);
	tcase_add_test(tc, deadlines);
	tcase_add_test(tc, an_open_call_has_no_deadline_of_its_own);
	tcase_add_test(tc, out_of_descriptors);
	tcase_add_test(tc, no_more_connections_than_allowed);
	tcase_add_test(tc, drain_ends_what_is_idle_and_finishes_the_rest);
	tcase_add_test(tc, a_broken_off_stream_ends_without_its_end);
	tcase_add_test(tc, a_pause_leaves_them_in_the_backlog);
	tcase_add_test(tc, a_cut_resets_all_connections);
	tcase_add_test(tc, freeing_a_server_tells_open_calls);
	tcase_add_test(tc, a_handler_may_free_the_server);
	tcase_add_test(tc, unix_sockets);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(http_server_life_suite())
