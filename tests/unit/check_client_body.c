/*
 * The client's buffer and a request's body, over a socket pair: bodies with a length, in
 * place and in their own memory, chunked ones, in every delivery; what is behind a body
 * stays for the next request; limits, refused bodies, and memory that is given back.
 */
#include "base/err.h"
#include "base/metric.h"
#include "base/rng.h"
#include "http/http_parse.h"
#include "proxy/body.h"
#include "proxy/budget.h"
#include "proxy/client.h"
#include "proxy/io_thread.h"
#include "tests/unit/unit_loop.h"

#include <signal.h>
#include <sys/socket.h>

#define NO_LIMIT UINT64_MAX

static struct loop *loop;
static struct process process;
static struct io_thread thread;
static struct client client;
static struct body body;
static struct budget budget;
static struct http_head head;
static int peer;

static void on_readable(void *arg)
{
	struct client *c = arg;

	c->can_read = true;
}

static void on_nothing(void *arg)
{
	(void)arg;
}

static void on_connected(void *arg, int err)
{
	(void)arg;
	(void)err;
}

static const struct stream_ops ops = {on_connected, on_readable, on_nothing, on_nothing};

static void set_up(void)
{
	int fds[2];

	signal(SIGPIPE, SIG_IGN);
	loop = loop_new();
	memset(&process, 0, sizeof(process));
	memset(&thread, 0, sizeof(thread));
	memset(&client, 0, sizeof(client));
	memset(&body, 0, sizeof(body));
	thread.loop = loop;
	thread.process = &process;
	budget = (struct budget){.total = &process.body_memory, .limit = NO_LIMIT};
	client.t = &thread;
	ck_assert_int_eq(
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
		0);
	peer = fds[1];
	stream_init(&client.stream, loop, &ops, &client);
	ck_assert_int_eq(stream_open(&client.stream, fds[0]), 0);
}

static void drop_kept_bodies(void)
{
	unsigned i;
	size_t cap;

	for (i = 0; i < IO_BODY_SIZES; i++) {
		while (thread.free_bodies[i] != NULL)
			free(io_body_get(&thread, (size_t)IO_BODY_MIN << i, &cap));
	}
	ck_assert_uint_eq(thread.free_body_bytes, 0);
}

static void tear_down(void)
{
	body_free(&body, &thread, &budget);
	ck_assert_uint_eq(atomic_load(&process.body_memory), 0);
	ck_assert_int_eq(metric_total(METRIC_BODY_MEMORY), 0);
	client_drop_buffer(&client);
	while (thread.n_free_blocks > 0)
		free(io_block_get(&thread));
	drop_kept_bodies();
	stream_close(&client.stream);
	if (peer >= 0)
		close(peer);
	loop_free(loop);
}

/* ---- how bytes come ---- */

/* What the client has still to send, in pieces of at most `piece` bytes. */
static const char *unsent;
static size_t n_unsent, piece;

static void will_send(const char *p, size_t n, size_t in_pieces)
{
	unsent = p;
	n_unsent = n;
	piece = in_pieces;
}

static void send_some(void)
{
	ssize_t n = n_unsent > 0 ? write(peer, unsent, MIN(piece, n_unsent)) : 0;

	if (n > 0) {
		unsent += n;
		n_unsent -= (size_t)n;
	}
}

/* Reads the head as the spine would, and starts the body. */
static enum fail begin(const char *text, uint64_t limit)
{
	enum fail why = FAIL_NONE;
	size_t len = strlen(text);

	ck_assert_int_eq(client_reserve(&client, MAX(len, (size_t)IO_IN_BYTES)), 0);
	memcpy(client.buf, text, len);
	client.len = len;
	ck_assert_int_eq(http_parse_request(client.buf, (uint32_t)len, &head, &why), 0);
	return body_start(&body, &head, limit);
}

/* Until the body ends one way or another. */
static int finish(uint64_t memory_limit, enum fail *why)
{
	uint64_t end_us = clock_us() + UNIT_DEADLINE_US;
	int err;

	budget.limit = memory_limit;
	while ((err = body_read(&body, &client, &budget, why)) == ERR_AGAIN) {
		ck_assert_msg(clock_us() < end_us, "never");
		send_some();
		loop_turn(loop, n_unsent > 0 ? 0 : 100);
	}
	return err;
}

static char *pattern(size_t n)
{
	char *p = malloc(n + 1);
	struct rng rng;

	rng_seed(&rng, n);
	for (size_t i = 0; i < n; i++)
		p[i] = (char)rng_next(&rng);
	return p;
}

static void want_body(const char *p, size_t n)
{
	struct span b = body_bytes(&body, &client);

	ck_assert(body.is_complete);
	ck_assert_uint_eq(b.n, n);
	ck_assert(n == 0 || memcmp(b.p, p, n) == 0);
}

/* What is left in the buffer once the request is used up, and what is still unread. */
static void want_rest(const char *text)
{
	char more[64];
	size_t n = client.len - body_used(&body), len = strlen(text);
	ssize_t unread;

	ck_assert_uint_le(body_used(&body), client.len);
	ck_assert_uint_le(n, len);
	ck_assert(memcmp(client.buf + body_used(&body), text, n) == 0);
	while (n_unsent > 0)
		send_some();
	if (n == len)
		return;
	TURN_UNTIL(loop, client.can_read);
	unread = stream_read(&client.stream, more, sizeof(more));
	ck_assert_int_eq(unread, len - n);
	ck_assert(memcmp(more, text + n, len - n) == 0);
}

/* ---- the buffer ---- */

START_TEST(buffer_is_lent_and_given_back)
{
	char *first;

	ck_assert_int_eq(client_reserve(&client, 100), 0);
	ck_assert_uint_eq(client.cap, IO_IN_BYTES);
	first = client.buf;
	client.len = 5;
	client_return_buffer(&client);
	ck_assert_ptr_eq(client.buf, first);
	client_consume(&client, 5);
	client_return_buffer(&client);
	ck_assert_ptr_null(client.buf);
	ck_assert_uint_eq(thread.n_free_blocks, 1);
	ck_assert_int_eq(client_reserve(&client, IO_IN_BYTES), 0);
	ck_assert_ptr_eq(client.buf, first);
	ck_assert_uint_eq(thread.n_free_blocks, 0);
	/* Larger than a block: its own memory, the bytes come along. */
	memcpy(client.buf, "hello", 5);
	client.len = 5;
	ck_assert_int_eq(client_reserve(&client, IO_IN_BYTES + 1), 0);
	ck_assert_uint_eq(client.cap, IO_IN_BYTES + 1);
	ck_assert(memcmp(client.buf, "hello", 5) == 0);
	ck_assert_uint_eq(thread.n_free_blocks, 1);
	ck_assert_int_eq(client_reserve(&client, 3 * IO_IN_BYTES), 0);
	ck_assert(memcmp(client.buf, "hello", 5) == 0);
	client_drop_buffer(&client);
	client_drop_buffer(&client);
	ck_assert_uint_eq(thread.n_free_blocks, 1);
}
END_TEST

START_TEST(cutting)
{
	ck_assert_int_eq(client_reserve(&client, 10), 0);
	memcpy(client.buf, "abcdefgh", 8);
	client.len = 8;
	client_cut(&client, 2, 3);
	ck_assert(client.len == 5 && memcmp(client.buf, "abfgh", 5) == 0);
	client_cut(&client, 5, 0);
	client_cut(&client, 4, 1);
	ck_assert(client.len == 4 && memcmp(client.buf, "abfg", 4) == 0);
	client_consume(&client, 1);
	ck_assert(client.len == 3 && memcmp(client.buf, "bfg", 3) == 0);
	client_consume(&client, 3);
	ck_assert_uint_eq(client.len, 0);
}
END_TEST

START_TEST(filling)
{
	char *many = pattern(3 * IO_IN_BYTES);

	ck_assert_int_eq(client_fill(&client), ERR_AGAIN);
	ck_assert_int_eq(write(peer, "abc", 3), 3);
	/* The kernel has them, but nobody has said so yet. */
	ck_assert_int_eq(client_fill(&client), ERR_AGAIN);
	TURN_UNTIL(loop, client.can_read);
	ck_assert_int_eq(client_fill(&client), 3);
	/* A short read has emptied the socket: no second one. */
	ck_assert(!client.can_read);
	ck_assert_int_eq(client_fill(&client), ERR_AGAIN);
	ck_assert_int_eq(write(peer, many, 3 * IO_IN_BYTES), 3 * IO_IN_BYTES);
	TURN_UNTIL(loop, client.can_read);
	ck_assert_int_eq(client_fill(&client), IO_IN_BYTES - 3);
	ck_assert(client.can_read);
	ck_assert_int_eq(client_fill(&client), ERR_LIMIT);
	ck_assert(memcmp(client.buf + 3, many, IO_IN_BYTES - 3) == 0);
	free(many);
}
END_TEST

START_TEST(the_clients_end)
{
	ck_assert_int_eq(write(peer, "ab", 2), 2);
	ck_assert_int_eq(shutdown(peer, SHUT_WR), 0);
	TURN_UNTIL(loop, client.can_read);
	ck_assert_int_eq(client_fill(&client), 2);
	ck_assert(!client.saw_eof);
	TURN_UNTIL(loop, client.can_read);
	ck_assert_int_eq(client_fill(&client), ERR_CLOSED);
	ck_assert(client.saw_eof);
	ck_assert(!client.is_broken);
	ck_assert_uint_eq(client.len, 2);
}
END_TEST

/* ---- bodies ---- */

START_TEST(no_body)
{
	enum fail why = FAIL_NONE;

	ck_assert_int_eq(begin("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0), FAIL_NONE);
	ck_assert_int_eq(finish(NO_LIMIT, &why), 0);
	want_body("", 0);
	ck_assert_uint_eq(body_used(&body), head.head_len);
}
END_TEST

/* Sizes about every border, in deliveries of many sizes, with the next request behind. */
static const size_t sizes[] = {0, 1, 100, 16000, 20300, 20435, 20436, 20437, 20480, 20481,
	65536, 65537, 300000, 4500000};
static const size_t pieces[] = {1, 7, 1500, 65536, 10000000};
#define PIECES_MAX 1000 /* of one body */
#define N_DELIVERIES (ARRAY_LEN(sizes) * ARRAY_LEN(pieces))

START_TEST(by_length)
{
	static const char next[] = "GET /next HTTP/1.1\r\n";
	size_t n = sizes[(size_t)_i / ARRAY_LEN(pieces)];
	size_t step = pieces[(size_t)_i % ARRAY_LEN(pieces)];
	char text[128], *bytes = pattern(n + sizeof(next));
	enum fail why = FAIL_NONE;

	memcpy(bytes + n, next, sizeof(next) - 1);
	snprintf(text, sizeof(text),
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", n);
	ck_assert_int_eq(begin(text, n), FAIL_NONE);
	will_send(bytes, n + sizeof(next) - 1, MAX(step, n / PIECES_MAX));
	ck_assert_int_eq(finish(NO_LIMIT, &why), 0);
	want_body(bytes, n);
	budget.limit = 0;
	ck_assert_int_eq(body_read(&body, &client, &budget, &why), 0);
	/* In place where it fits behind its head, else in its own memory. */
	ck_assert_int_eq(body.own == NULL, n + head.head_len <= IO_IN_BYTES);
	ck_assert_uint_ge(atomic_load(&process.body_memory), body.own != NULL ? n : 0);
	ck_assert_uint_le(
		atomic_load(&process.body_memory), body.own != NULL ? n + 65536 : 0);
	want_rest(next);
	free(bytes);
}
END_TEST

/* Of some bytes in place and in memory of its own, shorter and longer; the next request
 * stays where it is. */
START_TEST(c21_bytes_are_replaced)
{
	static const char next[] = "GET /next HTTP/1.1\r\n";
	static const size_t lens[] = {0, 1, 40, 300};
	size_t n = sizes[(size_t)_i / ARRAY_LEN(lens)];
	size_t len = lens[(size_t)_i % ARRAY_LEN(lens)];
	size_t at = n / 3, cut = MIN((size_t)40, n - at);
	char text[128], *bytes = pattern(n + sizeof(next)), *fresh = pattern(len);
	enum fail why = FAIL_NONE;

	memcpy(bytes + n, next, sizeof(next) - 1);
	snprintf(text, sizeof(text),
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", n);
	ck_assert_int_eq(begin(text, n), FAIL_NONE);
	will_send(bytes, n + sizeof(next) - 1, 65536);
	ck_assert_int_eq(finish(NO_LIMIT, &why), 0);
	ck_assert_int_eq(body_replace(&body, &client, &budget, at, cut,
				 span_make(fresh, len), &why),
		0);
	ck_assert_int_eq(body.own != NULL, 1);
	ck_assert_uint_eq(body.total, n);
	ck_assert_uint_ge(atomic_load(&process.body_memory), body.len);
	want_rest(next);
	ck_assert_uint_eq(body.len, n - cut + len);
	ck_assert_int_eq(memcmp(body.own, bytes, at), 0);
	ck_assert_int_eq(memcmp(body.own + at, fresh, len), 0);
	ck_assert_int_eq(memcmp(body.own + at + len, bytes + at + cut, n - at - cut), 0);
	free(bytes);
	free(fresh);
}
END_TEST

/* The same bytes as chunks of sizes that grow and shrink. */
static size_t chunk_up(const char *bytes, size_t n, char *out)
{
	size_t len = 0, at = 0, size = 1;

	while (at < n) {
		size_t now = MIN(size, n - at);

		len += (size_t)sprintf(out + len, "%zx\r\n", now);
		memcpy(out + len, bytes + at, now);
		len += now;
		memcpy(out + len, "\r\n", 2);
		len += 2;
		at += now;
		size = size > 100000 ? 1 : size * 3;
	}
	return len +
	       (size_t)sprintf(out + len, "0\r\nT: x\r\n\r\nGET /next HTTP/1.1\r\n");
}

START_TEST(chunked)
{
	size_t n = sizes[(size_t)_i / ARRAY_LEN(pieces)];
	size_t step = pieces[(size_t)_i % ARRAY_LEN(pieces)];
	char *bytes = pattern(n), *wire = malloc(2 * n + 1000);
	enum fail why = FAIL_NONE;

	ck_assert_int_eq(begin("POST /x HTTP/1.1\r\nHost: a\r\n"
			       "Transfer-Encoding: chunked\r\n\r\n",
				 n),
		FAIL_NONE);
	will_send(wire, chunk_up(bytes, n, wire), MAX(step, n / PIECES_MAX));
	ck_assert_int_eq(finish(NO_LIMIT, &why), 0);
	want_body(bytes, n);
	want_rest("GET /next HTTP/1.1\r\n");
	free(bytes);
	free(wire);
}
END_TEST

/* Head and body in one read, the next request too: nothing is read for it. */
START_TEST(all_in_one_read)
{
	static const char *const heads[] = {
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"};
	static const char *const rests[] = {"hello", "5\r\nhello\r\n0\r\n\r\n"};
	enum fail why = FAIL_NONE;
	char behind[64];
	size_t n;

	ck_assert_int_eq(begin(heads[_i], 5), FAIL_NONE);
	n = (size_t)snprintf(behind, sizeof(behind), "%sGET", rests[_i]);
	memcpy(client.buf + client.len, behind, n);
	client.len += n;
	ck_assert_int_eq(body_read(&body, &client, &budget, &why), 0);
	want_body("hello", 5);
	ck_assert_uint_eq(client.len - body_used(&body), 3);
	ck_assert(memcmp(client.buf + body_used(&body), "GET", 3) == 0);
}
END_TEST

/* A head that nearly fills its buffer, a long body behind it. */
START_TEST(behind_a_long_head)
{
	static const char *const ends[] = {
		"Content-Length: 100000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"};
	char *text = malloc(40000), *bytes = pattern(100000), *wire = malloc(201000);
	enum fail why = FAIL_NONE;
	size_t len = (size_t)sprintf(text, "POST /x HTTP/1.1\r\nHost: a\r\n");

	while (len < (size_t)(_i / 2 == 0 ? 20300 : 32000))
		len += (size_t)sprintf(text + len, "X%zu: %0500d\r\n", len, 0);
	sprintf(text + len, "%s", ends[_i % 2]);
	ck_assert_int_eq(begin(text, 100000), FAIL_NONE);
	if (_i % 2 == 0)
		will_send(bytes, 100000, 10000);
	else
		will_send(wire, chunk_up(bytes, 100000, wire), 10000);
	ck_assert_int_eq(finish(NO_LIMIT, &why), 0);
	want_body(bytes, 100000);
	ck_assert(memcmp(client.buf, text, strlen(text)) == 0);
	free(text);
	free(bytes);
	free(wire);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(too_large_by_its_length)
{
	static const struct {
		const char *length;
		uint64_t limit;
		enum fail why;
	} rows[] = {
		{"10", 10, FAIL_NONE},
		{"11", 10, FAIL_MAX_BODY_SIZE},
		{"1", 0, FAIL_MAX_BODY_SIZE},
		{"18446744073709551615", 1000, FAIL_MAX_BODY_SIZE},
		{"18446744073709551615", UINT64_MAX, FAIL_NONE},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char text[128];

		snprintf(text, sizeof(text),
			"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\n",
			rows[i].length);
		ck_assert_int_eq(begin(text, rows[i].limit), rows[i].why);
		/* No length is so large that it looks small. */
		ck_assert_int_eq(body.is_inline, strlen(rows[i].length) < 5);
		client.len = 0;
	}
}
END_TEST

START_TEST(too_large_by_its_chunks)
{
	enum fail why = FAIL_NONE;

	ck_assert_int_eq(begin("POST /x HTTP/1.1\r\nHost: a\r\n"
			       "Transfer-Encoding: chunked\r\n\r\n",
				 10),
		FAIL_NONE);
	will_send("5\r\nhello\r\n6\r\nworld!\r\n0\r\n\r\n", 27, 100);
	ck_assert_int_eq(finish(NO_LIMIT, &why), ERR_PARSE);
	ck_assert_int_eq(why, FAIL_MAX_BODY_SIZE);
}
END_TEST

START_TEST(broken_chunks)
{
	enum fail why = FAIL_NONE;

	ck_assert_int_eq(begin("POST /x HTTP/1.1\r\nHost: a\r\n"
			       "Transfer-Encoding: chunked\r\n\r\n",
				 1000),
		FAIL_NONE);
	will_send("5\r\nhelloX", 9, 1);
	ck_assert_int_eq(finish(NO_LIMIT, &why), ERR_PARSE);
	ck_assert_int_eq(why, FAIL_BAD_CHUNK);
}
END_TEST

/* body_memory of the process: over it, this one is refused, and counted until freed. */
START_TEST(over_the_processes_memory)
{
	static const char *const heads[] = {
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"};
	char *bytes = pattern(200000), *wire = malloc(401000);
	enum fail why = FAIL_NONE;

	atomic_store(&process.body_memory, 1000000);
	ck_assert_int_eq(begin(heads[_i], 1000000), FAIL_NONE);
	if (_i == 0)
		will_send(bytes, 200000, 10000);
	else
		will_send(wire, chunk_up(bytes, 200000, wire), 10000);
	ck_assert_int_eq(finish(1000000 + 65536, &why), ERR_PARSE);
	ck_assert_int_eq(why, FAIL_BODY_MEMORY);
	ck_assert_uint_eq(atomic_load(&process.body_memory), 1000000 + 131072);
	body_free(&body, &thread, &budget);
	ck_assert_uint_eq(atomic_load(&process.body_memory), 1000000);
	atomic_store(&process.body_memory, 0);
	free(bytes);
	free(wire);
}
END_TEST

/* Exactly at the limit is within it. */
START_TEST(at_the_processes_memory)
{
	char *bytes = pattern(65536);
	enum fail why = FAIL_NONE;

	ck_assert_int_eq(
		begin("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n",
			65536),
		FAIL_NONE);
	will_send(bytes, 65536, 65536);
	ck_assert_int_eq(finish(65536, &why), 0);
	want_body(bytes, 65536);
	free(bytes);
}
END_TEST

START_TEST(a_client_that_leaves_midway)
{
	static const char *const heads[] = {
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"};
	enum fail why = FAIL_NONE;

	ck_assert_int_eq(begin(heads[_i], 1000000), FAIL_NONE);
	will_send("3\r\nabc\r\n", 8, 8);
	send_some();
	close(peer);
	peer = -1;
	ck_assert_int_eq(finish(NO_LIMIT, &why), ERR_CLOSED);
	ck_assert(client.saw_eof);
	ck_assert(!body.is_complete);
}
END_TEST

/* A refused request's body is read up to 64 KiB, none of it kept, the next one is there.
 */
START_TEST(discarded_bodies)
{
	static const size_t lengths[] = {5, 1000, 30000, 65536};
	size_t n = lengths[_i / 2];
	char *bytes = pattern(n + 20), *wire = malloc(2 * n + 1000), text[128];
	enum fail why = FAIL_NONE;

	if (_i % 2 == 0) {
		snprintf(text, sizeof(text),
			"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", n);
		memcpy(bytes + n, "GET /next HTTP/1.1\r\n", 20);
		will_send(bytes, n + 20, 4000);
	} else {
		snprintf(text, sizeof(text),
			"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
			"chunked\r\n\r\n");
		will_send(wire, chunk_up(bytes, n, wire), 4000);
	}
	begin(text, 1000000);
	body_discard(&body);
	ck_assert_int_eq(finish(0, &why), 0);
	ck_assert_ptr_null(body.own);
	ck_assert_uint_eq(body.len, n);
	want_rest("GET /next HTTP/1.1\r\n");
	free(bytes);
	free(wire);
}
END_TEST

START_TEST(discarding_has_an_end)
{
	char *bytes = pattern(200000), *wire = malloc(401000);
	enum fail why = FAIL_NONE;

	if (_i == 0) {
		begin("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n", 1);
		will_send(bytes, 200000, 4000);
	} else {
		begin("POST /x HTTP/1.1\r\nHost: a\r\n"
		      "Transfer-Encoding: chunked\r\n\r\n",
			1000000);
		will_send(wire, chunk_up(bytes, 200000, wire), 4000);
	}
	body_discard(&body);
	ck_assert_int_eq(finish(NO_LIMIT, &why), ERR_CLOSED);
	ck_assert(!client.saw_eof);
	ck_assert_uint_gt(n_unsent, 0);
	free(bytes);
	free(wire);
}
END_TEST

/* A body's memory serves the next one of about its size. */
START_TEST(body_memory_is_kept)
{
	size_t cap = 0;
	char *first = io_body_get(&thread, 100000, &cap), *second;

	ck_assert_uint_eq(cap, 131072);
	memset(first, 'x', cap);
	io_body_put(&thread, first, cap);
	ck_assert_uint_eq(thread.free_body_bytes, 131072);
	second = io_body_get(&thread, 65536, &cap); /* half as large: not that one */
	ck_assert_ptr_ne(second, first);
	ck_assert_uint_eq(cap, 65536);
	io_body_put(&thread, second, cap);
	second = io_body_get(&thread, 65537, &cap);
	ck_assert_ptr_eq(second, first);
	ck_assert_uint_eq(cap, 131072);
	io_body_put(&thread, second, cap);
	io_body_put(&thread, NULL, 0);
	ck_assert_uint_eq(thread.free_body_bytes, 131072 + 65536);
}
END_TEST

/* What is too large, or has grown to a size of its own, goes back to the system. */
START_TEST(odd_body_memory_is_not_kept)
{
	size_t cap = 0;
	char *p = io_body_get(&thread, IO_BODY_MAX + 1, &cap);

	ck_assert_uint_eq(cap, IO_BODY_MAX + 1);
	io_body_put(&thread, p, cap);
	io_body_put(&thread, malloc(100000), 100000);
	io_body_put(&thread, malloc(16), 16);
	ck_assert_uint_eq(thread.free_body_bytes, 0);
}
END_TEST

START_TEST(kept_body_memory_is_bounded)
{
	char *held[2 * IO_BODY_KEPT_BYTES / IO_BODY_MAX];
	size_t cap = 0;
	unsigned i;

	for (i = 0; i < ARRAY_LEN(held); i++)
		held[i] = io_body_get(&thread, IO_BODY_MAX, &cap);
	for (i = 0; i < ARRAY_LEN(held); i++)
		io_body_put(&thread, held[i], cap);
	ck_assert_uint_eq(thread.free_body_bytes, IO_BODY_KEPT_BYTES);
	held[0] = io_body_get(&thread, IO_BODY_MAX, &cap);
	ck_assert_uint_eq(thread.free_body_bytes, IO_BODY_KEPT_BYTES - IO_BODY_MAX);
	io_body_put(&thread, held[0], cap);
}
END_TEST

/* One after another in the same memory, each in its own bytes. */
START_TEST(bodies_follow_one_another_in_kept_memory)
{
	char *bytes = pattern(100000);
	enum fail why = FAIL_NONE;
	const char *was = NULL;

	for (unsigned i = 0; i < 2; i++) {
		bytes[0] = (char)('a' + i);
		ck_assert_int_eq(begin("POST /x HTTP/1.1\r\nHost: a\r\n"
				       "Content-Length: 100000\r\n\r\n",
					 1000000),
			FAIL_NONE);
		will_send(bytes, 100000, 30000);
		ck_assert_int_eq(finish(NO_LIMIT, &why), 0);
		want_body(bytes, 100000);
		ck_assert(i == 0 || body.own == was);
		was = body.own;
		body_free(&body, &thread, &budget);
		client_consume(&client, client.len);
	}
	free(bytes);
}
END_TEST

static Suite *client_body_suite(void)
{
	Suite *s = suite_create("client_body");
	TCase *tc = tcase_create("client_body");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, buffer_is_lent_and_given_back);
	tcase_add_test(tc, cutting);
	tcase_add_test(tc, filling);
	tcase_add_test(tc, the_clients_end);
	tcase_add_test(tc, no_body);
	tcase_add_loop_test(tc, by_length, 0, N_DELIVERIES);
	tcase_add_loop_test(tc, c21_bytes_are_replaced, 0, 4 * ARRAY_LEN(sizes));
	tcase_add_loop_test(tc, chunked, 0, N_DELIVERIES);
	tcase_add_loop_test(tc, all_in_one_read, 0, 2);
	tcase_add_loop_test(tc, behind_a_long_head, 0, 4);
	tcase_add_test(tc, too_large_by_its_length);
	tcase_add_test(tc, too_large_by_its_chunks);
	tcase_add_test(tc, broken_chunks);
	tcase_add_loop_test(tc, over_the_processes_memory, 0, 2);
	tcase_add_test(tc, at_the_processes_memory);
	tcase_add_loop_test(tc, a_client_that_leaves_midway, 0, 3);
	tcase_add_loop_test(tc, discarded_bodies, 0, 8);
	tcase_add_loop_test(tc, discarding_has_an_end, 0, 2);
	tcase_add_test(tc, body_memory_is_kept);
	tcase_add_test(tc, odd_body_memory_is_not_kept);
	tcase_add_test(tc, kept_body_memory_is_bounded);
	tcase_add_test(tc, bodies_follow_one_another_in_kept_memory);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(client_body_suite())
