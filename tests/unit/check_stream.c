/*
 * Streams over real sockets: short writes and marks, pause and the peer's end, half-close
 * both ways, connects, closing inside callbacks.
 */
#include "base/err.h"
#include "io/stream.h"
#include "tests/unit/unit_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>

static struct loop *loop;

/* A stream and what it was told. peer is the plain descriptor at the other end. */
struct end {
	struct stream stream;
	int peer;
	unsigned connected, readable, writable, closed;
	int connect_err;
	ssize_t last_read;
	size_t got;
	char first[64];
	bool reads, closes_in_readable, closes_in_writable, closes_in_connected, pauses;
};

static void drain_stream(struct end *e)
{
	char buf[4096];
	ssize_t n;

	while ((n = stream_read(&e->stream, buf, sizeof(buf))) > 0) {
		if (e->got < sizeof(e->first))
			memcpy(e->first + e->got, buf,
				MIN((size_t)n, sizeof(e->first) - e->got));
		e->got += (size_t)n;
	}
	e->last_read = n;
}

static void on_connected(void *arg, int err)
{
	struct end *e = arg;

	e->connected++;
	e->connect_err = err;
	if (e->closes_in_connected)
		stream_close(&e->stream);
}

static void on_readable(void *arg)
{
	struct end *e = arg;

	e->readable++;
	if (e->reads)
		drain_stream(e);
	if (e->pauses)
		stream_pause(&e->stream);
	if (e->closes_in_readable)
		stream_close(&e->stream);
}

static void on_writable(void *arg)
{
	struct end *e = arg;

	e->writable++;
	if (e->closes_in_writable)
		stream_close(&e->stream);
}

static void on_peer_closed(void *arg)
{
	struct end *e = arg;

	e->closed++;
}

static const struct stream_ops ops = {
	on_connected, on_readable, on_writable, on_peer_closed};

static void setup(void)
{
	loop = loop_new();
	ck_assert_ptr_nonnull(loop);
}

static void teardown(void)
{
	loop_free(loop);
}

static void init_end(struct end *e)
{
	memset(e, 0, sizeof(*e));
	e->peer = -1;
	e->reads = true;
	stream_init(&e->stream, loop, &ops, e);
}

/*
 * Both ends of one TCP connection over loopback. The kernel's buffers are small and stay
 * so: left alone it may take megabytes at once.
 */
static void tcp_pair(int *ours, int *theirs)
{
	union sock_addr a, peer;
	int listener = listen_any(&a), err, bytes = 65536;

	*theirs = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(
		setsockopt(*theirs, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
	ck_assert_int_eq(connect(*theirs, &a.sa, sock_addr_len(&a)), 0);
	do
		err = sock_accept(listener, ours, &peer);
	while (err == ERR_AGAIN);
	ck_assert_int_eq(err, 0);
	ck_assert_int_eq(
		setsockopt(*ours, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
	close(listener);
}

static void open_tcp(struct end *e)
{
	int fd;

	init_end(e);
	tcp_pair(&fd, &e->peer);
	ck_assert_int_eq(stream_open(&e->stream, fd), 0);
	ck_assert(stream_is_open(&e->stream));
}

static void open_unix(struct end *e)
{
	int fds[2];

	init_end(e);
	ck_assert_int_eq(
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
		0);
	e->peer = fds[1];
	ck_assert_int_eq(stream_open(&e->stream, fds[0]), 0);
}

static void end_close(struct end *e)
{
	stream_close(&e->stream);
	stream_close(&e->stream);
	ck_assert(!stream_is_open(&e->stream));
	if (e->peer >= 0)
		close(e->peer);
	e->peer = -1;
}

/* The peer dies: what it has not read makes the kernel send RST. */
static void reset_peer(struct end *e)
{
	sock_abort_on_close(e->peer);
	close(e->peer);
	e->peer = -1;
}

static int write_str(struct end *e, const char *text)
{
	struct iovec iov = {(char *)(uintptr_t)text, strlen(text)};

	return stream_write(&e->stream, &iov, 1);
}

/* What the peer has been sent and has not read yet. */
static size_t peer_reads(struct end *e, char *buf, size_t n)
{
	ssize_t got = recv(e->peer, buf, n, MSG_DONTWAIT);

	return got > 0 ? (size_t)got : 0;
}

START_TEST(bytes_both_ways)
{
	struct end e;
	char buf[64];
	struct iovec iov[3] = {{"ab", 2}, {"", 0}, {"cde", 3}};

	open_tcp(&e);
	ck_assert_int_eq(send(e.peer, "hello", 5, 0), 5);
	TURN_UNTIL(loop, e.got == 5);
	ck_assert_int_eq(memcmp(e.first, "hello", 5), 0);
	ck_assert_int_eq(e.last_read, ERR_AGAIN);
	ck_assert_uint_eq(e.stream.bytes_in, 5);
	ck_assert_int_eq(stream_write(&e.stream, iov, 3), 0);
	ck_assert_int_eq(stream_send(&e.stream, iov, 3), 5);
	ck_assert_uint_eq(e.stream.bytes_out, 10);
	ck_assert_ptr_null(e.stream.out);
	ck_assert_int_eq(recv(e.peer, buf, 10, MSG_WAITALL), 10);
	ck_assert_int_eq(memcmp(buf, "abcdeabcde", 10), 0);
	turn_idle(loop, 3);
	ck_assert_uint_eq(e.writable, 0); /* nobody asked */
	end_close(&e);
}
END_TEST

START_TEST(more_pieces_than_iov_max)
{
	enum { PIECES = 3 * IOV_MAX + 7 };
	struct iovec *iov = calloc(PIECES, sizeof(*iov));
	char *bytes = malloc(PIECES), *got = malloc(PIECES);
	struct end e;

	open_unix(&e);
	for (int i = 0; i < PIECES; i++) {
		bytes[i] = (char)('a' + i % 26);
		iov[i] = (struct iovec){bytes + i, 1};
	}
	ck_assert_int_eq(stream_write(&e.stream, iov, PIECES), 0);
	ck_assert_int_eq(recv(e.peer, got, PIECES, MSG_WAITALL), PIECES);
	ck_assert_int_eq(memcmp(got, bytes, PIECES), 0);
	ck_assert_int_eq(stream_send(&e.stream, iov, PIECES), PIECES);
	end_close(&e);
	free(iov);
	free(bytes);
	free(got);
}
END_TEST

/* A pattern whose faults show: lost, doubled or swapped bytes. */
static void fill(char *p, size_t n, size_t at)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (char)((at + i) * 2654435761u >> 13);
}

/* Reads the bytes from `at` to `total` at the peer, turning the loop meanwhile, and
 * compares them with the pattern. */
static void read_pattern(struct end *e, size_t at, size_t total)
{
	uint64_t end_us = clock_us() + UNIT_DEADLINE_US;
	char buf[16384], want[16384];

	while (at < total) {
		size_t n = peer_reads(e, buf, MIN(sizeof(buf), total - at));

		fill(want, n, at);
		if (memcmp(buf, want, n) != 0)
			ck_abort_msg("wrong bytes near %zu", at);
		at += n;
		if (n == 0)
			loop_turn(loop, 10);
		ck_assert_msg(clock_us() < end_us, "stuck at %zu of %zu", at, total);
	}
}

START_TEST(a_slow_reader_and_the_marks)
{
	enum { PIECE = 10000 };
	char piece[PIECE];
	struct iovec iov[2] = {{piece, 4000}, {piece + 4000, PIECE - 4000}};
	struct end e;
	size_t total = 0, was_read;
	int err = 0;

	open_tcp(&e);
	while (err == 0) {
		fill(piece, PIECE, total);
		err = stream_write(&e.stream, iov, 2);
		total += PIECE;
		ck_assert_uint_lt(total, 100u << 20);
		ck_assert(err != 0 || stream_queued(&e.stream) <= STREAM_HIGH_BYTES);
	}
	ck_assert_int_eq(err, ERR_LIMIT);
	ck_assert_uint_gt(stream_queued(&e.stream), STREAM_HIGH_BYTES);
	/* Still taken, still full. The kernel moves what it has in its own time: filled
	 * up until it stands still. */
	do {
		e.writable = 0;
		do {
			fill(piece, PIECE, total);
			err = stream_write(&e.stream, iov, 2);
			total += PIECE;
			ck_assert_uint_lt(total, 100u << 20);
		} while (err == 0);
		ck_assert_int_eq(err, ERR_LIMIT);
		turn_idle(loop, 5);
	} while (e.writable != 0);
	read_pattern(&e, 0, total);
	ck_assert_uint_eq(e.writable, 1);
	ck_assert_uint_eq(stream_queued(&e.stream), 0);
	ck_assert_ptr_null(e.stream.out);
	ck_assert_uint_eq(e.stream.bytes_out, total);
	turn_idle(loop, 5);
	ck_assert_uint_eq(e.writable, 1);
	ck_assert(!e.stream.write_is_armed);
	/* queued, but not full this time: nobody waits */
	was_read = total;
	while (stream_queued(&e.stream) == 0) {
		fill(piece, PIECE, total);
		ck_assert_int_eq(stream_write(&e.stream, iov, 2), 0);
		total += PIECE;
	}
	read_pattern(&e, was_read, total);
	turn_idle(loop, 5);
	ck_assert_uint_eq(e.writable, 1);
	end_close(&e);
}
END_TEST

START_TEST(on_writable_at_the_low_mark)
{
	static char big[8 << 20];
	struct iovec iov = {big, sizeof(big)};
	size_t queued;
	char buf[4096];
	struct end e;

	open_tcp(&e);
	ck_assert_int_eq(stream_write(&e.stream, &iov, 1), ERR_LIMIT);
	while (e.writable == 0) {
		queued = stream_queued(&e.stream);
		if (peer_reads(&e, buf, sizeof(buf)) == 0)
			loop_turn(loop, 10);
		ck_assert(e.writable != 0 || stream_queued(&e.stream) > STREAM_LOW_BYTES);
	}
	ck_assert_uint_gt(queued, STREAM_LOW_BYTES);
	ck_assert_uint_le(stream_queued(&e.stream), STREAM_LOW_BYTES);
	end_close(&e);
}
END_TEST

START_TEST(short_send_then_writable_once)
{
	static char big[16 << 20];
	struct iovec iov = {big, sizeof(big)};
	struct end e;
	ssize_t sent;

	fill(big, sizeof(big), 0);
	open_tcp(&e);
	sent = stream_send(&e.stream, &iov, 1);
	ck_assert_int_gt(sent, 0);
	ck_assert_int_lt(sent, (ssize_t)sizeof(big));
	ck_assert_uint_eq(stream_queued(&e.stream), 0);
	/* The kernel takes a bit more than one call takes, and more again once the other
	 * side has moved on: until it says no, and stands still. */
	do {
		e.writable = 0;
		for (ssize_t more = 1; more > 0; sent += more) {
			iov = (struct iovec){big + sent, sizeof(big) - (size_t)sent};
			more = stream_send(&e.stream, &iov, 1);
			ck_assert_int_ge(more, 0);
		}
		turn_idle(loop, 5);
	} while (e.writable > 0);
	read_pattern(&e, 0, (size_t)sent);
	TURN_UNTIL(loop, e.writable == 1);
	turn_idle(loop, 5);
	ck_assert_uint_eq(e.writable, 1);
	end_close(&e);
}
END_TEST

START_TEST(pause_and_resume_in_one_turn_cost_nothing)
{
	struct end e;

	open_tcp(&e);
	stream_pause(&e.stream);
	stream_pause(&e.stream);
	ck_assert(e.stream.read_is_armed);
	stream_resume(&e.stream);
	stream_resume(&e.stream);
	ck_assert(e.stream.read_is_armed);
	ck_assert_int_eq(e.stream.hangup.fd, -1);
	ck_assert_int_eq(send(e.peer, "x", 1, 0), 1);
	TURN_UNTIL(loop, e.got == 1);
	end_close(&e);
}
END_TEST

static uint64_t cpu_us(void)
{
	struct timespec ts;

	ck_assert_int_eq(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts), 0);
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/*
 * Nothing spins, neither our turns nor libevent within one: waiting 100 ms takes few
 * turns, and next to no work. (A spin takes all the processor it gets; a busy machine
 * makes this test blind, never wrong.)
 */
static void check_no_spin(void)
{
	uint64_t start_us = clock_us(), start_cpu_us = cpu_us();
	unsigned turns = 0;

	while (clock_us() - start_us < 100000) {
		loop_turn(loop, 50);
		turns++;
	}
	ck_assert_uint_lt(turns, 20);
	ck_assert_uint_lt(cpu_us() - start_cpu_us, 50000);
}

START_TEST(paused_with_bytes_waiting)
{
	struct end e;

	open_tcp(&e);
	stream_pause(&e.stream);
	ck_assert_int_eq(send(e.peer, "hello", 5, 0), 5);
	TURN_UNTIL(loop, e.stream.hangup.fd >= 0);
	check_no_spin();
	ck_assert_uint_eq(e.readable, 0);
	ck_assert_uint_eq(e.closed, 0);
	stream_resume(&e.stream);
	TURN_UNTIL(loop, e.got == 5);
	ck_assert_uint_eq(e.readable, 1);
	end_close(&e);
}
END_TEST

START_TEST(paused_then_fin_is_told_once)
{
	struct end e;

	for (int with_bytes = 0; with_bytes < 2; with_bytes++) {
		open_tcp(&e);
		stream_pause(&e.stream);
		if (with_bytes) {
			ck_assert_int_eq(send(e.peer, "hello", 5, 0), 5);
			TURN_UNTIL(loop, e.stream.hangup.fd >= 0);
		}
		ck_assert_int_eq(shutdown(e.peer, SHUT_WR), 0);
		TURN_UNTIL(loop, e.closed == 1);
		check_no_spin();
		ck_assert_uint_eq(e.closed, 1);
		ck_assert_uint_eq(e.readable, 0);
		/* the peer still reads, and what it had sent is still there */
		ck_assert_int_eq(write_str(&e, "answer"), 0);
		stream_resume(&e.stream);
		TURN_UNTIL(loop, e.last_read == ERR_CLOSED);
		ck_assert_uint_eq(e.got, with_bytes ? 5 : 0);
		check_no_spin();
		/* once is once: not for a reset either */
		reset_peer(&e);
		turn_idle(loop, 5);
		ck_assert_uint_eq(e.closed, 1);
		end_close(&e);
	}
}
END_TEST

/* libevent's own EV_CLOSED spins here without a callback. */
START_TEST(paused_then_reset_is_told_once)
{
	struct end e;

	open_tcp(&e);
	stream_pause(&e.stream);
	ck_assert_int_eq(send(e.peer, "hello", 5, 0), 5);
	TURN_UNTIL(loop, e.stream.hangup.fd >= 0);
	reset_peer(&e);
	TURN_UNTIL(loop, e.closed == 1);
	check_no_spin();
	ck_assert_uint_eq(e.closed, 1);
	ck_assert_uint_eq(e.readable, 0);
	ck_assert_int_lt(write_str(&e, "x"), 0);
	ck_assert_int_lt(write_str(&e, "x"), 0);
	stream_resume(&e.stream);
	end_close(&e);
}
END_TEST

START_TEST(closed_while_parked)
{
	struct end e;
	int copy;

	open_tcp(&e);
	stream_pause(&e.stream);
	ck_assert_int_eq(send(e.peer, "hello", 5, 0), 5);
	TURN_UNTIL(loop, e.stream.hangup.fd >= 0);
	copy = dup(e.stream.fd); /* keeps the socket open, and in the kernel's lists */
	stream_close(&e.stream);
	close(e.peer);
	e.peer = -1;
	turn_idle(loop, 5);
	ck_assert_uint_eq(e.closed + e.readable, 0);
	close(copy);
	end_close(&e);
}
END_TEST

START_TEST(a_flood_of_pauses_loses_nothing)
{
	const size_t total = 3 << 20;
	static char big[3 << 20];
	struct end e;
	size_t at = 0;

	open_tcp(&e);
	ck_assert_int_eq(fcntl(e.peer, F_SETFL, O_NONBLOCK), 0);
	fill(big, total, 0);
	e.pauses = true;
	while (e.got < total) {
		ssize_t n = at < total ? send(e.peer, big + at,
						 MIN((size_t)50000, total - at), 0)
				       : 0;

		at += n > 0 ? (size_t)n : 0;
		loop_turn(loop, 1);
		loop_turn(loop, 1);
		stream_resume(&e.stream);
	}
	ck_assert_uint_eq(e.got, total);
	end_close(&e);
}
END_TEST

/* The owner stays after the peer's FIN: no spin, it may still write, and a later reset is
 * told. */
START_TEST(half_closed_by_the_peer)
{
	struct end e;
	char buf[8];

	open_tcp(&e);
	ck_assert_int_eq(shutdown(e.peer, SHUT_WR), 0);
	TURN_UNTIL(loop, e.last_read == ERR_CLOSED);
	check_no_spin();
	ck_assert_uint_eq(e.readable, 1);
	ck_assert_uint_eq(e.closed, 0);
	ck_assert_int_eq(stream_read(&e.stream, buf, sizeof(buf)), ERR_CLOSED);
	stream_pause(&e.stream);
	stream_resume(&e.stream);
	check_no_spin();
	ck_assert_int_eq(write_str(&e, "answer"), 0);
	ck_assert_int_eq(recv(e.peer, buf, 6, MSG_WAITALL), 6);
	reset_peer(&e);
	TURN_UNTIL(loop, e.closed == 1);
	check_no_spin();
	ck_assert_uint_eq(e.closed, 1);
	end_close(&e);
}
END_TEST

START_TEST(half_closed_by_us_after_the_queue)
{
	static char big[4 << 20];
	struct iovec iov = {big, sizeof(big)};
	struct end e;
	char byte;

	fill(big, sizeof(big), 0);
	open_tcp(&e);
	ck_assert_int_eq(stream_write(&e.stream, &iov, 1), ERR_LIMIT);
	stream_shutdown_write(&e.stream);
	stream_shutdown_write(&e.stream);
	ck_assert_int_eq(write_str(&e, "late"), ERR_STATE);
	ck_assert(!e.stream.is_shut);
	read_pattern(&e, 0, sizeof(big));
	TURN_UNTIL(loop, e.stream.is_shut);
	ck_assert_int_eq(recv(e.peer, &byte, 1, 0), 0);
	ck_assert_int_eq(send(e.peer, "more", 4, 0), 4);
	TURN_UNTIL(loop, e.got == 4);
	end_close(&e);
}
END_TEST

START_TEST(half_closed_by_us_at_once)
{
	struct end e;
	char byte;

	open_tcp(&e);
	stream_shutdown_write(&e.stream);
	ck_assert_int_eq(recv(e.peer, &byte, 1, 0), 0);
	ck_assert_int_eq(write_str(&e, "late"), ERR_STATE);
	end_close(&e);
	stream_shutdown_write(&e.stream);
}
END_TEST

START_TEST(a_reset_is_read_as_an_error)
{
	struct end e;
	char buf[8];

	open_tcp(&e);
	reset_peer(&e);
	TURN_UNTIL(loop, e.readable > 0);
	ck_assert_int_eq(e.last_read, ERR_IO);
	ck_assert_int_eq(stream_read(&e.stream, buf, sizeof(buf)), ERR_IO);
	check_no_spin();
	ck_assert_uint_eq(e.readable, 1);
	ck_assert_int_lt(write_str(&e, "x"), 0);
	ck_assert_int_eq(write_str(&e, "x"), ERR_CLOSED);
	end_close(&e);
}
END_TEST

/* Nobody reads, the queue is full: the reset ends the wait for on_writable too. */
START_TEST(a_reset_while_full)
{
	static char big[8 << 20];
	struct iovec iov = {big, sizeof(big)};
	struct end e;

	open_tcp(&e);
	stream_pause(&e.stream);
	ck_assert_int_eq(stream_write(&e.stream, &iov, 1), ERR_LIMIT);
	reset_peer(&e);
	TURN_UNTIL(loop, e.writable == 1 && e.closed == 1);
	check_no_spin();
	ck_assert_uint_eq(e.writable, 1);
	ck_assert_uint_eq(stream_queued(&e.stream), 0);
	ck_assert_int_eq(write_str(&e, "x"), ERR_CLOSED);
	ck_assert_int_eq(stream_send(&e.stream, &iov, 1), ERR_CLOSED);
	end_close(&e);
}
END_TEST

START_TEST(writing_to_a_closed_unix_peer)
{
	struct end e;

	open_unix(&e);
	close(e.peer);
	e.peer = -1;
	/* SIGPIPE would end the test here */
	ck_assert_int_eq(write_str(&e, "x"), ERR_CLOSED);
	ck_assert_int_eq(write_str(&e, "x"), ERR_CLOSED);
	TURN_UNTIL(loop, e.last_read == ERR_CLOSED);
	check_no_spin();
	end_close(&e);
	ck_assert_int_eq(write_str(&e, "x"), ERR_CLOSED);
	ck_assert_int_eq(stream_read(&e.stream, e.first, 1), ERR_CLOSED);
}
END_TEST

static int accept_soon(int listener)
{
	union sock_addr peer;
	int fd = -1;
	uint64_t end_us = clock_us() + UNIT_DEADLINE_US;

	while (sock_accept(listener, &fd, &peer) == ERR_AGAIN)
		ck_assert_uint_lt(clock_us(), end_us);
	return fd;
}

START_TEST(connects_and_sends_what_waited)
{
	union sock_addr a;
	int listener = listen_any(&a);
	struct end e;
	char buf[16];

	init_end(&e);
	ck_assert_int_eq(stream_connect(&e.stream, &a), 0);
	ck_assert(stream_is_open(&e.stream));
	ck_assert_uint_eq(e.connected, 0);
	ck_assert_int_eq(write_str(&e, "early"), 0);
	ck_assert_int_eq(stream_read(&e.stream, buf, 1), ERR_AGAIN);
	ck_assert_uint_eq(stream_queued(&e.stream), 5);
	stream_shutdown_write(&e.stream);
	TURN_UNTIL(loop, e.connected == 1);
	ck_assert_int_eq(e.connect_err, 0);
	e.peer = accept_soon(listener);
	TURN_UNTIL(loop, e.stream.is_shut);
	ck_assert_int_eq(recv(e.peer, buf, 6, MSG_WAITALL), 0 + 5);
	ck_assert_int_eq(send(e.peer, "hi", 2, 0), 2);
	TURN_UNTIL(loop, e.got == 2);
	turn_idle(loop, 3);
	ck_assert_uint_eq(e.connected, 1);
	ck_assert(!e.stream.write_is_armed);
	end_close(&e);
	close(listener);
}
END_TEST

/* connect(2) to a unix socket is done at once; the callback still comes later. */
START_TEST(connects_to_a_unix_socket)
{
	union sock_addr a;
	struct sockaddr_un *un = (struct sockaddr_un *)(void *)&a;
	char folder[] = "/tmp/kvsteer-unit-XXXXXX";
	struct end e;
	int listener;

	memset(&a, 0, sizeof(a));
	ck_assert_ptr_nonnull(mkdtemp(folder));
	un->sun_family = AF_UNIX;
	snprintf(un->sun_path, sizeof(un->sun_path), "%s/s", folder);
	ck_assert_int_eq(sock_listen_unix(un->sun_path, 0600, &listener), 0);
	init_end(&e);
	ck_assert_int_eq(stream_connect(&e.stream, &a), 0);
	ck_assert_uint_eq(e.connected, 0);
	TURN_UNTIL(loop, e.connected == 1);
	ck_assert_int_eq(e.connect_err, 0);
	e.peer = accept_soon(listener);
	end_close(&e);
	close(listener);
	unlink(un->sun_path);
	ck_assert_int_eq(stream_connect(&e.stream, &a), ERR_IO);
	ck_assert(!stream_is_open(&e.stream));
	rmdir(folder);
}
END_TEST

START_TEST(a_refused_connect_and_another_try)
{
	union sock_addr a;
	int listener = listen_any(&a), err;
	struct end e;

	init_end(&e);
	close(listener);
	err = stream_connect(&e.stream, &a);
	if (err == 0) {
		ck_assert_int_eq(write_str(&e, "lost"), 0);
		TURN_UNTIL(loop, e.connected == 1);
		err = e.connect_err;
	}
	ck_assert_int_eq(err, ERR_REFUSED);
	ck_assert(!stream_is_open(&e.stream));
	turn_idle(loop, 3);
	listener = listen_any(&a);
	ck_assert_int_eq(stream_connect(&e.stream, &a), 0);
	ck_assert_uint_eq(stream_queued(&e.stream), 0);
	e.connected = 0;
	TURN_UNTIL(loop, e.connected == 1);
	ck_assert_int_eq(e.connect_err, 0);
	ck_assert_uint_eq(e.readable + e.writable + e.closed, 0);
	end_close(&e);
	close(listener);
}
END_TEST

START_TEST(closing_while_connecting_is_silent)
{
	union sock_addr a;
	int listener = listen_any(&a);
	struct end e;

	init_end(&e);
	ck_assert_int_eq(stream_connect(&e.stream, &a), 0);
	stream_close(&e.stream);
	turn_idle(loop, 3);
	ck_assert_uint_eq(e.connected, 0);
	close(listener);
}
END_TEST

START_TEST(pausing_while_connecting_holds)
{
	union sock_addr a;
	int listener = listen_any(&a);
	struct end e;

	init_end(&e);
	ck_assert_int_eq(stream_connect(&e.stream, &a), 0);
	stream_pause(&e.stream);
	TURN_UNTIL(loop, e.connected == 1);
	e.peer = accept_soon(listener);
	ck_assert_int_eq(send(e.peer, "hi", 2, 0), 2);
	turn_idle(loop, 5);
	ck_assert_uint_eq(e.readable, 0);
	stream_resume(&e.stream);
	TURN_UNTIL(loop, e.got == 2);
	end_close(&e);
	close(listener);
}
END_TEST

START_TEST(closing_inside_on_connected)
{
	union sock_addr a;
	int listener = listen_any(&a);
	struct end e;

	init_end(&e);
	e.closes_in_connected = true;
	ck_assert_int_eq(stream_connect(&e.stream, &a), 0);
	ck_assert_int_eq(write_str(&e, "never"), 0);
	TURN_UNTIL(loop, e.connected == 1);
	turn_idle(loop, 3);
	ck_assert(!stream_is_open(&e.stream));
	ck_assert_uint_eq(e.readable + e.writable + e.closed, 0);
	close(listener);
}
END_TEST

/* Readable and writable in the same turn: after the close in the first, the second must
 * not come. */
START_TEST(closing_inside_a_callback_ends_the_others)
{
	static char big[8 << 20];
	struct iovec iov = {big, sizeof(big)};
	struct end e;
	char buf[65536];

	for (int in_writable = 0; in_writable < 2; in_writable++) {
		open_tcp(&e);
		e.closes_in_readable = !in_writable;
		e.closes_in_writable = true;
		ck_assert_int_ge(stream_send(&e.stream, &iov, 1), 0);
		if (!in_writable)
			ck_assert_int_eq(send(e.peer, "x", 1, 0), 1);
		while (peer_reads(&e, buf, sizeof(buf)) > 0)
			;
		TURN_UNTIL(loop, !stream_is_open(&e.stream));
		turn_idle(loop, 3);
		ck_assert_uint_eq(e.readable + e.writable, 1);
		ck_assert_uint_eq(e.closed, 0);
		end_close(&e);
	}
}
END_TEST

START_TEST(abort_resets)
{
	struct end e;
	char byte;

	open_tcp(&e);
	stream_abort(&e.stream);
	ck_assert_int_eq(recv(e.peer, &byte, 1, 0), -1);
	ck_assert_int_eq(errno, ECONNRESET);
	stream_abort(&e.stream);
	end_close(&e);
}
END_TEST

START_TEST(opened_again_it_is_as_new)
{
	struct end e;
	int fd, peer;

	open_tcp(&e);
	reset_peer(&e);
	TURN_UNTIL(loop, e.last_read == ERR_IO);
	ck_assert_int_lt(write_str(&e, "x"), 0);
	stream_close(&e.stream);
	tcp_pair(&fd, &peer);
	e.peer = peer;
	e.got = 0;
	ck_assert_int_eq(stream_open(&e.stream, fd), 0);
	ck_assert_int_eq(write_str(&e, "x"), 0);
	ck_assert_int_eq(send(e.peer, "hello", 5, 0), 5);
	TURN_UNTIL(loop, e.got == 5);
	end_close(&e);
}
END_TEST

static void add_reading(Suite *s)
{
	TCase *t = tcase_create("reading");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, bytes_both_ways);
	tcase_add_test(t, pause_and_resume_in_one_turn_cost_nothing);
	tcase_add_test(t, paused_with_bytes_waiting);
	tcase_add_test(t, paused_then_fin_is_told_once);
	tcase_add_test(t, paused_then_reset_is_told_once);
	tcase_add_test(t, closed_while_parked);
	tcase_add_test(t, a_flood_of_pauses_loses_nothing);
	tcase_add_test(t, half_closed_by_the_peer);
	tcase_add_test(t, a_reset_is_read_as_an_error);
	tcase_add_test(t, opened_again_it_is_as_new);
	suite_add_tcase(s, t);
}

static void add_writing(Suite *s)
{
	TCase *t = tcase_create("writing");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, more_pieces_than_iov_max);
	tcase_add_test(t, a_slow_reader_and_the_marks);
	tcase_add_test(t, on_writable_at_the_low_mark);
	tcase_add_test(t, short_send_then_writable_once);
	tcase_add_test(t, half_closed_by_us_after_the_queue);
	tcase_add_test(t, half_closed_by_us_at_once);
	tcase_add_test(t, a_reset_while_full);
	tcase_add_test(t, writing_to_a_closed_unix_peer);
	tcase_add_test(t, abort_resets);
	tcase_add_test(t, closing_inside_a_callback_ends_the_others);
	suite_add_tcase(s, t);
}

static Suite *stream_suite(void)
{
	Suite *s = suite_create("stream");
	TCase *t = tcase_create("connecting");

	add_reading(s);
	add_writing(s);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, connects_and_sends_what_waited);
	tcase_add_test(t, connects_to_a_unix_socket);
	tcase_add_test(t, a_refused_connect_and_another_try);
	tcase_add_test(t, closing_while_connecting_is_silent);
	tcase_add_test(t, pausing_while_connecting_holds);
	tcase_add_test(t, closing_inside_on_connected);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(stream_suite())
