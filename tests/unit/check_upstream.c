/*
 * The deadlines of an exchange with a worker, over loopback: which one is armed in which
 * phase, and that total_timeout ends it in each of them.
 */
#include "proxy/io_thread.h"
#include "proxy/upstream.h"
#include "proxy/upstream_state.h"
#include "tests/unit/unit_loop.h"
#include "tests/unit/unit_model.h"

#include <arpa/inet.h>
#include <signal.h>
#include <unistd.h>

#define LONG_MS 3600000u

static struct loop *loop;
static struct io_thread thread;
static struct worker *worker;
static struct exchange *ex;
static struct exchange_opts opts;
static int listener, peer; /* the worker's */
static unsigned wakes;

static void on_wake(void *arg)
{
	(void)arg;
	wakes++;
}

static void set_up(void)
{
	union sock_addr a;
	struct conf *conf;
	char text[128];

	signal(SIGPIPE, SIG_IGN);
	loop = loop_new();
	memset(&thread, 0, sizeof(thread));
	thread.loop = loop;
	thread.wheel = loop_wheel(loop);
	thread.scratch_bytes = malloc(IO_SCRATCH_BYTES);
	thread.idle = upstream_idle_new(&thread);
	listener = listen_any(&a);
	peer = -1;
	snprintf(text, sizeof(text), "[worker w0]\nurl = http://127.0.0.1:%u\n",
		ntohs(a.in.sin_port));
	conf = unit_conf(text);
	worker = worker_new(&conf->workers[0]);
	conf_unref(conf);
	ck_assert_ptr_nonnull(worker);
	wakes = 0;
	opts = (struct exchange_opts){
		.head = SPAN_LIT("POST /v1/completions HTTP/1.1\r\nHost: w\r\n\r\n"),
		.method = HTTP_POST,
		.connect_timeout_ms = LONG_MS,
		.first_byte_timeout_ms = LONG_MS,
		.stream_idle_timeout_ms = LONG_MS,
	};
}

static void tear_down(void)
{
	exchange_cancel(&ex);
	turn_idle(loop, 1);
	exchange_free_all(&thread);
	upstream_idle_free(thread.idle);
	turn_idle(loop, 1);
	worker_unref(worker);
	free(thread.scratch_bytes);
	if (peer >= 0)
		close(peer);
	close(listener);
	loop_free(loop);
}

static void start(void)
{
	ex = exchange_start(&thread, worker, &opts, on_wake, NULL);
	ck_assert_ptr_nonnull(ex);
}

/* Its worker has the connection, and is silent. */
static void start_silent(void)
{
	union sock_addr from;

	start();
	TURN_UNTIL(loop, ex->phase == PHASE_HEAD);
	TURN_UNTIL(loop, sock_accept(listener, &peer, &from) == 0);
}

static void say(const char *text)
{
	ck_assert_int_eq(write(peer, text, strlen(text)), (ssize_t)strlen(text));
	TURN_UNTIL(loop, ex->can_read);
}

static void read_head(void)
{
	const struct http_head *head;
	const char *base;

	ck_assert_int_eq(exchange_head(ex, &head, &base), EXCHANGE_OK);
}

/* In the body of an answer that goes on. */
static void start_answer(void)
{
	start_silent();
	say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
	read_head();
}

static uint64_t armed_ms(void)
{
	return ex->uc->timer.due_ms;
}

/* Counted from some moment between before and now. */
static bool is_from_now(uint64_t due_ms, uint64_t before_ms, uint64_t limit_ms)
{
	return due_ms >= before_ms + limit_ms && due_ms <= clock_now_ms() + limit_ms;
}

START_TEST(the_whole_is_armed_in_every_phase)
{
	struct exchange_piece none = {.last = false}, end = {.last = true};
	struct span data;
	uint64_t due_ms = clock_now_ms() + LONG_MS / 2;

	opts.total_due_ms = due_ms;
	opts.in_pieces = true;
	start();
	ck_assert_uint_eq(armed_ms(), due_ms);
	TURN_UNTIL(loop, exchange_wants_piece(ex));
	exchange_piece(ex, &none); /* the rest is awaited from the client */
	ck_assert_uint_eq(armed_ms(), due_ms);
	exchange_piece(ex, &end);
	ck_assert_uint_eq(armed_ms(), due_ms);
	TURN_UNTIL(loop, sock_accept(listener, &peer, &(union sock_addr){0}) == 0);
	say("HTTP/1.1 200 OK\r\n");
	ck_assert_int_eq(
		exchange_head(ex, &(const struct http_head *){NULL}, &(const char *){0}),
		EXCHANGE_AGAIN);
	ck_assert_uint_eq(armed_ms(), due_ms);
	say("Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
	read_head();
	ck_assert_int_eq(exchange_body(ex, &data), EXCHANGE_OK);
	ck_assert_uint_eq(armed_ms(), due_ms);
	exchange_pause(ex);
	ck_assert_uint_eq(armed_ms(), due_ms);
	exchange_resume(ex);
	ck_assert_uint_eq(armed_ms(), due_ms);
}
END_TEST

START_TEST(the_limit_of_a_phase_is_armed_where_it_is_sooner)
{
	uint64_t before_ms = clock_now_ms();

	opts.total_due_ms = before_ms + (uint64_t)LONG_MS * 24;
	start_silent();
	ck_assert(is_from_now(armed_ms(), before_ms, LONG_MS));
	before_ms = clock_now_ms();
	say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
	read_head();
	ck_assert(is_from_now(armed_ms(), before_ms, LONG_MS));
}
END_TEST

/* With stream_idle_timeout and without: a paused exchange wakes nobody. */
START_TEST(a_pause_arms_nothing)
{
	uint64_t before_ms;

	opts.stream_idle_timeout_ms = _i == 0 ? 0 : LONG_MS;
	start_answer();
	ck_assert_int_eq(armed_ms() != 0, _i != 0);
	exchange_pause(ex);
	ck_assert_uint_eq(armed_ms(), 0);
	before_ms = clock_now_ms();
	exchange_resume(ex);
	ck_assert(
		_i == 0 ? armed_ms() == 0 : is_from_now(armed_ms(), before_ms, LONG_MS));
}
END_TEST

static void ends_as_overlong(void)
{
	struct span data;

	wakes = 0;
	TURN_UNTIL(loop, wakes > 0);
	ck_assert_int_eq(exchange_body(ex, &data), EXCHANGE_FAILED);
	ck_assert_int_eq(exchange_failure(ex), FAIL_WORKER_TIMEOUT);
	ck_assert(exchange_was_overlong(ex));
	ck_assert_uint_ge(clock_now_ms(), opts.total_due_ms);
}

START_TEST(the_whole_ends_a_silence)
{
	opts.total_due_ms = clock_now_ms() + 30;
	opts.trial_timeout_ms = _i == 0 ? 0 : LONG_MS;
	start_silent();
	ends_as_overlong();
	ck_assert(exchange_was_silent(ex));
}
END_TEST

START_TEST(the_whole_ends_a_pause)
{
	opts.stream_idle_timeout_ms = _i == 0 ? 0 : LONG_MS;
	start_answer();
	exchange_pause(ex);
	/* As if it had been paused for so long: nothing else is as sure to be in time. */
	opts.total_due_ms = ex->o.total_due_ms = clock_now_ms() + 30;
	exchange_resume(ex);
	exchange_pause(ex);
	ends_as_overlong();
}
END_TEST

/* The answer lies here whole: its client is awaited, whom others watch. */
START_TEST(a_whole_answer_has_no_deadline)
{
	struct span data;

	opts.total_due_ms = clock_now_ms() + LONG_MS / 2;
	start_silent();
	say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	read_head();
	ck_assert_int_eq(exchange_body(ex, &data), EXCHANGE_OK);
	ck_assert(exchange_at_end(ex));
	exchange_pause(ex);
	ck_assert_uint_eq(armed_ms(), 0);
	exchange_resume(ex);
	ck_assert_uint_eq(armed_ms(), 0);
	ck_assert_int_eq(exchange_body(ex, &data), EXCHANGE_END);
}
END_TEST

/* ---- errors come whole ---- */

static enum exchange_result ask_head(const struct http_head **head)
{
	const char *base;

	return exchange_head(ex, head, &base);
}

static void rest_is(const char *body, enum exchange_result end)
{
	char got[64] = "";
	struct span data;
	enum exchange_result r;
	size_t n = 0;

	while ((r = exchange_body(ex, &data)) == EXCHANGE_OK) {
		memcpy(got + n, data.p, data.n);
		n += data.n;
	}
	ck_assert_str_eq(got, body);
	ck_assert_int_eq(r, end);
}

static const char *const errors[] = {
	"HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\nabcdef",
	"HTTP/1.1 429 X\r\nTransfer-Encoding: "
	"chunked\r\n\r\n2\r\nab\r\n4\r\ncdef\r\n0\r\n\r\n",
	"HTTP/1.1 404 X\r\nConnection: close\r\n\r\nabcdef",
};

/* Cut in two anywhere: header and body are there at once, and the first half is not
 * shown. */
START_TEST(an_error_comes_with_its_body)
{
	const char *text = errors[_i];
	const struct http_head *head;
	size_t cut;

	for (cut = 1; cut < strlen(text); cut++) {
		char half[128];

		start_silent();
		snprintf(half, sizeof(half), "%.*s", (int)cut, text);
		say(half);
		ck_assert_int_eq(ask_head(&head), EXCHANGE_AGAIN);
		say(text + cut);
		if (_i == 2) {
			ck_assert_int_eq(ask_head(&head), EXCHANGE_AGAIN);
			shutdown(peer, SHUT_WR);
			TURN_UNTIL(loop, ex->can_read);
		}
		ck_assert_int_eq(ask_head(&head), EXCHANGE_OK);
		ck_assert_int_ge(head->status, 400);
		rest_is("abcdef", EXCHANGE_END);
		exchange_cancel(&ex);
		turn_idle(loop, 1);
		close(peer);
		peer = -1;
	}
}
END_TEST

/* What has come of it is there in half a second, whatever else may last longer, and the
 * rest as it comes. */
START_TEST(an_error_that_is_late_comes_in_parts)
{
	const struct http_head *head;
	uint64_t before_ms;

	opts.first_byte_timeout_ms = _i == 0 ? 1 : LONG_MS;
	opts.trial_timeout_ms = _i == 1 ? LONG_MS : 0;
	opts.in_pieces = _i == 2;
	start_silent();
	before_ms = clock_now_ms();
	ck_assert_int_eq(write(peer, errors[0], strlen(errors[0]) - 3),
		(ssize_t)strlen(errors[0]) - 3);
	TURN_UNTIL(loop, ex->can_read);
	if (ask_head(&head) == EXCHANGE_FAILED)
		return; /* it was not the first byte that was late, but this test */
	ck_assert_int_eq(exchange_late(ex), EXCHANGE_IN_TIME);
	if (_i == 2)
		exchange_piece(ex, &(struct exchange_piece){.last = true});
	ck_assert(is_from_now(armed_ms(), before_ms, EXCHANGE_HOLD_ERROR_MS));
	ex->held_ms = 1;
	exchange_await_content(ex);
	wakes = 0;
	TURN_UNTIL(loop, wakes > 0);
	before_ms = clock_now_ms();
	ck_assert_int_eq(ask_head(&head), EXCHANGE_OK);
	ck_assert_int_eq(head->status, 503);
	ck_assert(is_from_now(armed_ms(), before_ms, LONG_MS));
	rest_is("abc", EXCHANGE_AGAIN);
	say("def");
	rest_is("def", EXCHANGE_END);
}
END_TEST

START_TEST(an_error_that_breaks_off_is_an_error_first)
{
	const struct http_head *head;
	char half[128];

	start_silent();
	snprintf(half, sizeof(half), "%.*s", (int)strlen(errors[_i]) - (_i == 0 ? 3 : 10),
		errors[_i]);
	say(half);
	ck_assert_int_eq(ask_head(&head), EXCHANGE_AGAIN);
	close(peer);
	peer = -1;
	TURN_UNTIL(loop, ex->can_read);
	ck_assert_int_eq(ask_head(&head), EXCHANGE_OK);
	rest_is("abc", EXCHANGE_FAILED);
	ck_assert_int_eq(exchange_failure(ex), FAIL_WORKER_BROKE);
}
END_TEST

START_TEST(the_whole_ends_the_wait_for_an_error)
{
	opts.total_due_ms = clock_now_ms() + 30;
	start_silent();
	say("HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\nabc");
	ck_assert_int_eq(ask_head(&(const struct http_head *){NULL}), EXCHANGE_AGAIN);
	ends_as_overlong();
}
END_TEST

static Suite *upstream_suite(void)
{
	Suite *s = suite_create("upstream");
	TCase *tc = tcase_create("deadlines");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, the_whole_is_armed_in_every_phase);
	tcase_add_test(tc, the_limit_of_a_phase_is_armed_where_it_is_sooner);
	tcase_add_loop_test(tc, a_pause_arms_nothing, 0, 2);
	tcase_add_loop_test(tc, the_whole_ends_a_silence, 0, 2);
	tcase_add_loop_test(tc, the_whole_ends_a_pause, 0, 2);
	tcase_add_test(tc, a_whole_answer_has_no_deadline);
	tcase_add_loop_test(tc, an_error_comes_with_its_body, 0, ARRAY_LEN(errors));
	tcase_add_loop_test(tc, an_error_that_is_late_comes_in_parts, 0, 3);
	tcase_add_loop_test(tc, an_error_that_breaks_off_is_an_error_first, 0, 2);
	tcase_add_test(tc, the_whole_ends_the_wait_for_an_error);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(upstream_suite())
