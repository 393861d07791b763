/*
 * Answers on their way to a client, over a socket pair: the three framings to the byte,
 * each piece on the wire before the next is asked for, a slow client, and one that left.
 */
#include "base/err.h"
#include "io/stream.h"
#include "proxy/relay.h"
#include "tests/unit/unit_loop.h"

#include <signal.h>
#include <sys/socket.h>

static struct loop *loop;
static struct stream stream;
static struct relay relay;
static int peer;
static unsigned writable;
static char got[1 << 20]; /* what the client has read, from the start */
static size_t n_got;

static void on_event(void *arg)
{
	(void)arg;
}

static void on_connected(void *arg, int err)
{
	(void)arg;
	(void)err;
}

static void on_writable(void *arg)
{
	(void)arg;
	writable++;
}

static const struct stream_ops ops = {on_connected, on_event, on_writable, on_event};

static void set_up(void)
{
	int fds[2];

	signal(SIGPIPE, SIG_IGN);
	loop = loop_new();
	ck_assert_int_eq(
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
		0);
	stream_init(&stream, loop, &ops, NULL);
	ck_assert_int_eq(stream_open(&stream, fds[0]), 0);
	peer = fds[1];
	relay = (struct relay){.to = &stream};
	writable = 0;
	n_got = 0;
}

static void tear_down(void)
{
	stream_close(&stream);
	if (peer >= 0)
		close(peer);
	loop_free(loop);
}

/* All that is there now. */
static void read_all(void)
{
	ssize_t n;

	while (n_got < sizeof(got) &&
		(n = read(peer, got + n_got, sizeof(got) - n_got)) > 0)
		n_got += (size_t)n;
}

static void want(const char *text)
{
	read_all();
	ck_assert_msg(n_got == strlen(text) && memcmp(got, text, n_got) == 0,
		"not %s but %.*s", text, (int)n_got, got);
}

static void send_piece(const char *head, const char *data, bool last)
{
	ck_assert_int_eq(relay_send(&relay, span_str(head), span_str(data), last), 0);
	ck_assert(!relay.is_full);
}

/* Chunks, and the length of one by itself: nothing is gathered. */
START_TEST(chunked)
{
	relay.framing = HTTP_BODY_CHUNKED;
	send_piece("H\r\n\r\n", "", false);
	want("H\r\n\r\n");
	send_piece("", "hello", false);
	want("H\r\n\r\n5\r\nhello\r\n");
	send_piece("", "", false);
	want("H\r\n\r\n5\r\nhello\r\n");
	send_piece("", "0123456789abcdefg", true);
	want("H\r\n\r\n5\r\nhello\r\n11\r\n0123456789abcdefg\r\n0\r\n\r\n");
	ck_assert_uint_eq(relay.bytes, 22);
}
END_TEST

START_TEST(chunked_in_one_write)
{
	relay.framing = HTTP_BODY_CHUNKED;
	send_piece("H\r\n\r\n", "a", true);
	want("H\r\n\r\n1\r\na\r\n0\r\n\r\n");
	ck_assert_uint_eq(relay.bytes, 1);
}
END_TEST

/* An empty piece must not be the chunk that ends the body; the end alone is. */
START_TEST(chunked_without_data)
{
	relay.framing = HTTP_BODY_CHUNKED;
	send_piece("", "", false);
	want("");
	send_piece("", "", true);
	want("0\r\n\r\n");
	ck_assert_uint_eq(relay.bytes, 0);
}
END_TEST

START_TEST(by_length_and_until_close)
{
	static const enum http_framing framings[] = {
		HTTP_BODY_LENGTH, HTTP_BODY_UNTIL_CLOSE};

	relay.framing = framings[_i];
	send_piece("H\r\n\r\n", "one", false);
	send_piece("", "", false);
	send_piece("", "two", false);
	want("H\r\n\r\nonetwo");
	send_piece("", "3", true);
	send_piece("", "", true);
	want("H\r\n\r\nonetwo3");
	ck_assert_uint_eq(relay.bytes, 7);
}
END_TEST

START_TEST(without_a_body)
{
	relay.framing = HTTP_BODY_NONE;
	send_piece("H\r\n\r\n", "", true);
	want("H\r\n\r\n");
	ck_assert_uint_eq(relay.bytes, 0);
}
END_TEST

/* The caller's buffers may be used again at once, also when the kernel took nothing. */
START_TEST(a_slow_client_stops_the_source)
{
	enum { PIECE = 32768 };
	char *piece = malloc(PIECE);
	size_t sent = 0, i, total;
	struct relay r = {.to = &stream, .framing = HTTP_BODY_LENGTH};

	while (!r.is_full) {
		for (i = 0; i < PIECE; i++)
			piece[i] = (char)((sent + i) * 7);
		ck_assert_int_eq(
			relay_send(&r, SPAN_LIT(""), span_make(piece, PIECE), false), 0);
		sent += PIECE;
		ck_assert_uint_lt(sent, sizeof(got));
	}
	memset(piece, 'x', PIECE);
	free(piece);
	ck_assert_uint_gt(stream_queued(&stream), STREAM_HIGH_BYTES);
	ck_assert_uint_eq(writable, 0);
	TURN_UNTIL(loop, (read_all(), writable > 0));
	ck_assert_uint_le(stream_queued(&stream), STREAM_LOW_BYTES);
	/* The next piece says that there is room again. */
	ck_assert_int_eq(relay_send(&r, SPAN_LIT(""), SPAN_LIT("!"), true), 0);
	ck_assert(!r.is_full);
	total = sent + 1;
	TURN_UNTIL(loop, (read_all(), n_got == total));
	for (i = 0; i < sent; i++)
		if (got[i] != (char)(i * 7))
			ck_abort_msg("byte %zu", i);
	ck_assert_int_eq(got[sent], '!');
	ck_assert_uint_eq(r.bytes, total);
}
END_TEST

START_TEST(a_client_that_left)
{
	relay.framing = HTTP_BODY_CHUNKED;
	send_piece("H\r\n\r\n", "a", false);
	close(peer);
	peer = -1;
	ck_assert_int_eq(
		relay_send(&relay, SPAN_LIT(""), SPAN_LIT("b"), false), ERR_CLOSED);
	ck_assert_int_eq(
		relay_send(&relay, SPAN_LIT(""), SPAN_LIT("c"), true), ERR_CLOSED);
	ck_assert(!relay.is_full);
	/* Nothing to say finds nothing out. */
	ck_assert_int_eq(relay_send(&relay, SPAN_LIT(""), SPAN_LIT(""), false), 0);
}
END_TEST

static Suite *relay_suite(void)
{
	Suite *s = suite_create("relay");
	TCase *tc = tcase_create("relay");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, chunked);
	tcase_add_test(tc, chunked_in_one_write);
	tcase_add_test(tc, chunked_without_data);
	tcase_add_loop_test(tc, by_length_and_until_close, 0, 2);
	tcase_add_test(tc, without_a_body);
	tcase_add_test(tc, a_slow_client_stops_the_source);
	tcase_add_test(tc, a_client_that_left);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(relay_suite())
