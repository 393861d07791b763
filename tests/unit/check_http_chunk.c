/*
 * Tests of http_chunk: what a chunked body decodes to, what is refused, limits, and that
 * any split gives the same data and verdict.
 */
#include "base/err.h"
#include "http/http_chunk.h"
#include "http/http_head.h"
#include "tests/unit/unit.h"

#include <string.h>

struct decoded {
	int r;
	enum fail why;
	char data[256]; /* the first bytes */
	size_t data_len;
	size_t used; /* of all input */
};

static void keep(struct decoded *d, const char *p, size_t n)
{
	for (size_t i = 0; i < n && d->data_len + i < sizeof(d->data); i++)
		d->data[d->data_len + i] = p[i];
	d->data_len += n;
}

/* Decodes in steps of so many bytes, each in a block of its exact size. */
static struct decoded decode_steps(
	const char *text, size_t n, size_t step, bool is_response, uint64_t max_data)
{
	struct decoded d = {.r = ERR_AGAIN};
	struct http_chunk c;

	http_chunk_start(&c, is_response, max_data);
	for (size_t at = 0; at < n && d.r == ERR_AGAIN; at += step) {
		size_t len = MIN(step, n - at), data_len, used;
		char *piece = malloc(len);

		ck_assert(piece != NULL);
		memcpy(piece, text + at, len);
		d.r = http_chunk_decode(&c, piece, len, &data_len, &used, &d.why);
		ck_assert(data_len <= used && used <= len);
		ck_assert(d.r != ERR_AGAIN || used == len);
		/* what follows the body is where it was */
		ck_assert(d.r != 0 ||
			  memcmp(piece + used, text + at + used, len - used) == 0);
		if (data_len > 0)
			keep(&d, piece, data_len);
		d.used += used;
		free(piece);
	}
	return d;
}

static struct decoded decode_all(
	const char *text, size_t n, bool is_response, uint64_t max_data)
{
	struct decoded whole = decode_steps(text, n, n, is_response, max_data);

	for (size_t step = 1; step < n && n < 2000; step++) {
		struct decoded d = decode_steps(text, n, step, is_response, max_data);

		ck_assert_msg(d.r == whole.r && d.why == whole.why &&
				      d.data_len == whole.data_len &&
				      d.used == whole.used &&
				      memcmp(d.data, whole.data, sizeof(d.data)) == 0,
			"steps of %zu differ: %s", step, text);
	}
	return whole;
}

static void check_data(const char *text, const char *data, size_t left)
{
	size_t n = strlen(text);
	struct decoded d = decode_all(text, n, false, 1000);

	ck_assert_msg(d.r == 0, "%s: %d, failure %d", text, d.r, (int)d.why);
	ck_assert_msg(d.data_len == strlen(data) && memcmp(d.data, data, d.data_len) == 0,
		"%s: %.*s", text, (int)d.data_len, d.data);
	ck_assert_msg(d.used + left == n, "%s: used %zu", text, d.used);
}

/* before: the data that is given before the fault shows. */
static void check_fault(const char *text, const char *before, enum fail why)
{
	struct decoded d = decode_all(text, strlen(text), false, 1000);

	ck_assert_msg(d.r == ERR_PARSE && d.why == why, "%s: %d, failure %d", text, d.r,
		(int)d.why);
	ck_assert_msg(
		d.data_len == strlen(before) && memcmp(d.data, before, d.data_len) == 0,
		"%s: %.*s", text, (int)d.data_len, d.data);
	d = decode_all(text, strlen(text), true, 1000);
	ck_assert_msg(d.r == ERR_PARSE && d.why == FAIL_WORKER_PROTOCOL,
		"%s: in an answer", text);
}

START_TEST(decodes)
{
	check_data("0\r\n\r\n", "", 0);
	check_data("5\r\nhello\r\n0\r\n\r\n", "hello", 0);
	check_data("5\r\nhello\r\n0\r\n\r\nGET /", "hello", 5);
	check_data(
		"A\r\n0123456789\r\nb\r\n0123456789a\r\n00000005\r\nhello\r\n0\r\n\r\n",
		"01234567890123456789ahello", 0);
	check_data("0000000000000005\r\nhello\r\n0000\r\n\r\n", "hello", 0);
	check_data("2\r\n\r\n\r\n1\r\n0\r\n0\r\n\r\n", "\r\n0", 0);
	check_data("5\r\nhello\r\n0\r\nX-Sum: 1\r\nX: \t\r\n\r\n\r\n", "hello", 2);
}
END_TEST

START_TEST(reads_extensions)
{
	check_data("5;a\r\nhello\r\n0\r\n\r\n", "hello", 0);
	check_data("5;a=b\r\nhello\r\n0;c=d;e\r\n\r\n", "hello", 0);
	check_data("5;a;b=c;d=\"e\"\r\nhello\r\n0\r\n\r\n", "hello", 0);
	check_data("5;a=\"\"\r\nhello\r\n0\r\n\r\n", "hello", 0);
	check_data("5;a=\"x;y, \t\x80\xff=\"\r\nhello\r\n0\r\n\r\n", "hello", 0);
	check_data("5;a=\"\\\"\\\\\\x\";b\r\nhello\r\n0\r\n\r\n", "hello", 0);
	check_data("5;!#$%&'*+-.^_`|~=1\r\nhello\r\n0\r\n\r\n", "hello", 0);
}
END_TEST

START_TEST(refuses_sizes)
{
	check_fault("\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault(";a\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("+5\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("-5\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("-1\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault(" 5\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("\t5\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5 \r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5\t\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("0x5\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5h\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5g\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("g\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5_0\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5,5\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5.0\r\n", "", FAIL_BAD_CHUNK);
	check_fault("\"5\"\r\n", "", FAIL_BAD_CHUNK);
	check_fault("\xef\xbc\x95\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5`\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5@\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5\rhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5\r\rhello", "", FAIL_BAD_CHUNK);
	check_fault("00000000000000005\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("10000000000000005\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("FFFFFFFFFFFFFFFF\r\nhello", "", FAIL_BODY_TOO_LARGE);
	check_fault("8000000000000000\r\nhello", "", FAIL_BODY_TOO_LARGE);
}
END_TEST

START_TEST(refuses_line_ends)
{
	check_fault("5\r\nhelloXX0\r\n\r\n", "hello", FAIL_BAD_CHUNK);
	check_fault("5\r\nhello\n0\r\n\r\n", "hello", FAIL_BAD_CHUNK);
	check_fault("5\r\nhello\r0\r\n\r\n", "hello", FAIL_BAD_CHUNK);
	check_fault("5\r\nhello0\r\n\r\n", "hello", FAIL_BAD_CHUNK);
	check_fault("4\r\nhello\r\n0\r\n\r\n", "hell", FAIL_BAD_CHUNK);
	check_fault("8\r\nhello\r\n0\r\n\r\n", "hello\r\n0", FAIL_BAD_CHUNK);
	check_fault("5\r\nhello\r\n\r\n0\r\n\r\n", "hello", FAIL_BAD_CHUNK);
	check_fault("5\r\nhello\r\n0\n\r\n", "hello", FAIL_BAD_CHUNK);
	check_fault("5\r\nhello\r\n0\r\n\n", "hello", FAIL_BAD_HEADER);
	check_fault("5\r\nhello\r\n0\r\n\rX", "hello", FAIL_BAD_HEADER);
	check_fault("5\r\nhello\r\n0\rX", "hello", FAIL_BAD_CHUNK);
}
END_TEST

START_TEST(refuses_extensions)
{
	check_fault("5;\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5;a=b;\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5;;a=b\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5;=b\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=;b\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=b=c\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5; a\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5 ;a\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a \r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a= b\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a(\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5;a\nb=c\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a\rb\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=b\nc\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\"b\nc\"\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\"b\rc\"\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\"b\\\rc\"\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\"b\x7f\"\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\"b\x01\"\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\"b\\\x7f\"\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\"b\r\nhello\r\n0\r\n\r\n", "", FAIL_BAD_CHUNK);
	check_fault("5;a=\"b\"c\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=b\"c\"\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;\"a\"\r\nhello", "", FAIL_BAD_CHUNK);
	check_fault("5;a=caf\xe9\r\nhello", "", FAIL_BAD_CHUNK);
}
END_TEST

START_TEST(refuses_trailers)
{
	check_fault("0\r\nX-A : b\r\n\r\n", "", FAIL_BAD_HEADER);
	check_fault("0\r\n: b\r\n\r\n", "", FAIL_BAD_HEADER);
	check_fault("0\r\nA\r\n\r\n", "", FAIL_BAD_HEADER);
	check_fault("0\r\n A: b\r\n\r\n", "", FAIL_BAD_HEADER);
	check_fault("0\r\nA: b\r\n c\r\n\r\n", "", FAIL_BAD_HEADER);
	check_fault("0\r\nA: b\n\r\n", "", FAIL_BAD_HEADER);
	check_fault("0\r\nA: b\r\n\n", "", FAIL_BAD_HEADER);
	check_fault("1\r\nx\r\n0\r\nContent-Length: 50\r\n\r\n", "x", FAIL_BAD_FRAMING);
	check_fault(
		"0\r\nA: b\r\ntransfer-encoding: chunked\r\n\r\n", "", FAIL_BAD_FRAMING);
	check_fault("0\r\nGET / HTTP/1.1\r\n", "", FAIL_BAD_HEADER);
}
END_TEST

START_TEST(data_is_limited_at_the_size_line)
{
	struct decoded d = decode_all("5\r\nhello\r\n0\r\n\r\n", 15, false, 5);

	ck_assert_int_eq(d.r, 0);
	d = decode_all("6\r", 2, false, 5);
	ck_assert_int_eq(d.r, ERR_PARSE);
	ck_assert_int_eq(d.why, FAIL_BODY_TOO_LARGE);
	d = decode_all("6;", 2, false, 5);
	ck_assert_int_eq(d.why, FAIL_BODY_TOO_LARGE);
	d = decode_all("3\r\nabc\r\n3\r\n", 11, false, 5);
	ck_assert_int_eq(d.why, FAIL_BODY_TOO_LARGE);
	ck_assert_uint_eq(d.data_len, 3);
	/* sums must not wrap */
	d = decode_all("1\r\na\r\nFFFFFFFFFFFFFFFF\r\n", 24, false, UINT64_MAX);
	ck_assert_int_eq(d.why, FAIL_BODY_TOO_LARGE);
	d = decode_all("0\r\n\r\n", 5, false, 0);
	ck_assert_int_eq(d.r, 0);
}
END_TEST

static char *repeat(const char *text, size_t times, const char *after)
{
	size_t n = strlen(text);
	char *out = malloc(n * times + strlen(after) + 1);

	ck_assert(out != NULL);
	for (size_t i = 0; i < times; i++)
		memcpy(out + i * n, text, n);
	strcpy(out + n * times, after);
	return out;
}

static enum fail decode_repeated(const char *text, size_t times, const char *after)
{
	char *all = repeat(text, times, after);
	size_t n = strlen(all);
	struct decoded whole = decode_steps(all, n, n, false, 1 << 20);
	struct decoded bytes = decode_steps(all, n, 1, false, 1 << 20);
	struct decoded odd = decode_steps(all, n, 4093, false, 1 << 20);

	free(all);
	ck_assert(
		whole.r == bytes.r && whole.why == bytes.why && whole.used == bytes.used);
	ck_assert(whole.r == odd.r && whole.why == odd.why && whole.used == odd.used);
	ck_assert(whole.r != ERR_AGAIN);
	return whole.r == 0 ? FAIL_NONE : whole.why;
}

START_TEST(overhead_is_limited)
{
	/* single bytes are wasteful (6 for 1) but honest */
	ck_assert_int_eq(decode_repeated("1\r\nx\r\n", 20000, "0\r\n\r\n"), FAIL_NONE);
	/* 20 for 1 is not, once past the allowance */
	ck_assert_int_eq(decode_repeated("000000000000001\r\nx\r\n", 1000, "0\r\n\r\n"),
		FAIL_NONE);
	ck_assert_int_eq(decode_repeated("000000000000001\r\nx\r\n", 20000, "0\r\n\r\n"),
		FAIL_CHUNK_OVERHEAD);
	/* extensions of one body: ";a" is two bytes */
	ck_assert_int_eq(
		decode_repeated(
			"40;a\r\n"
			"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
			"\r\n",
			HTTP_CHUNK_EXT_MAX / 2, "0\r\n\r\n"),
		FAIL_NONE);
	ck_assert_int_eq(
		decode_repeated(
			"40;a\r\n"
			"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
			"\r\n",
			HTTP_CHUNK_EXT_MAX / 2, "0;a\r\n\r\n"),
		FAIL_CHUNK_EXTENSIONS);
}
END_TEST

START_TEST(trailers_are_limited)
{
	char *fields = repeat("X: y\r\n", HTTP_REQUEST_FIELDS_MAX, "\r\n");
	char *all = repeat("0\r\n", 1, fields);

	ck_assert_int_eq(decode_repeated(all, 1, ""), FAIL_NONE);
	free(fields);
	free(all);
	fields = repeat("X: y\r\n", HTTP_REQUEST_FIELDS_MAX + 1, "\r\n");
	all = repeat("0\r\n", 1, fields);
	ck_assert_int_eq(decode_repeated(all, 1, ""), FAIL_TRAILER_TOO_LARGE);
	free(fields);
	free(all);
	fields = repeat("y", 40000, "\r\n\r\n");
	all = repeat("0\r\nX: ", 1, fields);
	ck_assert_int_eq(decode_repeated(all, 1, ""), FAIL_TRAILER_TOO_LARGE);
	free(fields);
	free(all);
}
END_TEST

static enum fail decode_response(const char *text, size_t times, const char *after)
{
	char *all = repeat(text, times, after);
	size_t n = strlen(all);
	struct decoded d = decode_steps(all, n, n, true, UINT64_MAX);

	free(all);
	return d.r == 0 ? FAIL_NONE : d.why;
}

START_TEST(limits_of_a_worker_say_so)
{
	ck_assert_int_eq(decode_response("x", 1, ""), FAIL_WORKER_PROTOCOL);
	ck_assert_int_eq(decode_response("000000000000001\r\nx\r\n", 20000, ""),
		FAIL_WORKER_CHUNKS);
	ck_assert_int_eq(decode_response("1;a\r\nx\r\n", HTTP_CHUNK_EXT_MAX, ""),
		FAIL_WORKER_CHUNKS);
	ck_assert_int_eq(
		decode_response("0\r\nX: y", 1,
			"\r\n0:\r\n1:\r\n2:\r\n3:\r\n4:\r\n5:\r\n6:\r\n7:\r\n8:\r\n\r\n"),
		FAIL_NONE);
	ck_assert_int_eq(decode_response("0\r\nX: ", 1, "\n"), FAIL_WORKER_PROTOCOL);
}
END_TEST

START_TEST(failure_is_final)
{
	struct http_chunk c;
	char bad[] = "x", good[] = "0\r\n\r\n";
	size_t data_len, used;
	enum fail why;

	http_chunk_start(&c, false, 10);
	ck_assert_int_eq(
		http_chunk_decode(&c, bad, 1, &data_len, &used, &why), ERR_PARSE);
	ck_assert_int_eq(
		http_chunk_decode(&c, good, 5, &data_len, &used, &why), ERR_PARSE);
	ck_assert_int_eq(why, FAIL_BAD_CHUNK);
	ck_assert_uint_eq(used, 0);
}
END_TEST

/* What it takes at once it counts as the decoder does; anything else it leaves as it is. */
START_TEST(a_chunk_alone)
{
	static const struct {
		const char *text;
		size_t data; /* bytes of it; 0: it is none */
	} rows[] = {
		{"3\r\nabc\r\n", 3},
		{"00a\r\n0123456789\r\n", 10},
		{"3\r\nabc\r\n2\r\nde\r\n", 0},
		{"3\r\nabc\r\n0\r\n\r\n", 0},
		{"3;x\r\nabc\r\n", 0},
		{"0\r\n\r\n", 0},
		{"3\r\nabc\r", 0},
		{"3\r\nab", 0},
		{"3\nabc\n", 0},
		{"3\r\nabcd\r\n", 0},
		{"B\r\n0123456789a\r\n", 0}, /* more than it may hold */
		{"3", 0},
		{"\r\n", 0},
		{"", 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		size_t n = strlen(rows[i].text), data_len, used;
		struct http_chunk c, d;
		char *text = malloc(n + (n == 0)), *copy = malloc(n + (n == 0));
		enum fail why;
		struct span data;

		memcpy(text, rows[i].text, n);
		memcpy(copy, rows[i].text, n);
		http_chunk_start(&c, true, 10);
		d = c;
		data = http_chunk_alone(&c, text, n);
		ck_assert_msg(data.n == rows[i].data, "%s", rows[i].text);
		if (data.n > 0) {
			ck_assert_int_eq(
				http_chunk_decode(&d, copy, n, &data_len, &used, &why),
				ERR_AGAIN);
			ck_assert(
				data_len == data.n && memcmp(copy, data.p, data.n) == 0);
		}
		ck_assert(memcmp(&c, &d, sizeof(c)) == 0);
		free(text);
		free(copy);
	}
}
END_TEST

/* In the midst of a chunk there is none. */
START_TEST(no_chunk_alone_inside_another)
{
	char text[] = "8\r\n3\r\nabc\r\n\r\n";
	struct http_chunk c;
	size_t at, data_len, used;
	enum fail why;

	for (at = 1; at < sizeof(text) - 1; at++) {
		char copy[sizeof(text)];

		memcpy(copy, text, sizeof(text));
		http_chunk_start(&c, true, UINT64_MAX);
		ck_assert_int_eq(http_chunk_decode(&c, copy, at, &data_len, &used, &why),
			ERR_AGAIN);
		ck_assert_ptr_null(
			http_chunk_alone(&c, text + at, sizeof(text) - 1 - at).p);
	}
}
END_TEST

static void check_line(uint64_t size, const char *text)
{
	char out[HTTP_CHUNK_LINE_MAX];
	size_t n = http_chunk_line(size, out);

	ck_assert_uint_eq(n, strlen(text));
	ck_assert(memcmp(out, text, n) == 0);
}

START_TEST(encodes_sizes)
{
	check_line(0, "0\r\n");
	check_line(1, "1\r\n");
	check_line(15, "f\r\n");
	check_line(16, "10\r\n");
	check_line(0x1f, "1f\r\n");
	check_line(0xabcdef, "abcdef\r\n");
	check_line(UINT64_MAX, "ffffffffffffffff\r\n");
}
END_TEST

static Suite *chunk_suite(void)
{
	Suite *s = suite_create("http_chunk");
	TCase *t = tcase_create("chunk");

	tcase_add_test(t, decodes);
	tcase_add_test(t, reads_extensions);
	tcase_add_test(t, refuses_sizes);
	tcase_add_test(t, refuses_line_ends);
	tcase_add_test(t, refuses_extensions);
	tcase_add_test(t, refuses_trailers);
	tcase_add_test(t, data_is_limited_at_the_size_line);
	tcase_add_test(t, overhead_is_limited);
	tcase_add_test(t, trailers_are_limited);
	tcase_add_test(t, limits_of_a_worker_say_so);
	tcase_add_test(t, failure_is_final);
	tcase_add_test(t, a_chunk_alone);
	tcase_add_test(t, no_chunk_alone_inside_another);
	tcase_add_test(t, encodes_sizes);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(chunk_suite())
