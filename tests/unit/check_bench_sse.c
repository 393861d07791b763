/* Event streams: every line end, in every cut, fields that are none of ours, and limits.
 */
#include "base/err.h"
#include "bench/sse.h"
#include "tests/unit/unit.h"

#include <string.h>

static struct sse sse;
static char seen[4096]; /* the events, each in brackets */
static int stop_after;

static void set_up(void)
{
	memset(&sse, 0, sizeof(sse));
	seen[0] = '\0';
	stop_after = -1;
}

static void tear_down(void)
{
	sse_free(&sse);
}

static int on_event(void *arg, struct span data)
{
	ck_assert_ptr_eq(arg, &sse);
	strcat(seen, "[");
	strncat(seen, data.p != NULL ? data.p : "", data.n);
	strcat(seen, "]");
	return stop_after >= 0 && stop_after-- == 0 ? ERR_PARSE : 0;
}

static int feed(const char *p, size_t n)
{
	return sse_feed(&sse, span_make(p, n), on_event, &sse);
}

static const struct {
	const char *text, *events;
} rows[] = {
	{"data: a\n\n", "[a]"},
	{"data: a\r\n\r\ndata: b\r\n\r\n", "[a][b]"},
	{"data: a\r\rdata: b\r\r", "[a][b]"},
	{"data: a\n\r\ndata: b\r\n\n", "[a][b]"},
	{"data:a\n\n", "[a]"},
	{"data:  a\n\n", "[ a]"},
	{"data: a\ndata: b\n\n", "[a\nb]"},
	{"data\n\n", "[]"},
	{"data:\n\n", "[]"},
	{"data: \n\n", "[]"},
	{"data:\ndata:\n\n", "[\n]"},
	{"\n\n\n", ""},
	{": comment\n\ndata: a\n: more\n\n", "[a]"},
	{"event: x\nid: 7\nretry: 5\ndata: a\n\n", "[a]"},
	{"event: x\n\ndata: a\n\n", "[a]"},
	{"database: a\n\n", ""},
	{"data: a\n", ""},
	{"data: a\n\ndata: half", "[a]"},
	{"data: {\"a\":\"data: b\"}\n\ndata: [DONE]\n\n",
		"[{\"a\":\"data: b\"}][[DONE]]"},
};

/* Whole, byte by byte, and in two pieces at every place. */
START_TEST(in_all_pieces)
{
	const char *text = rows[_i].text;
	size_t n = strlen(text);

	for (size_t cut = 0; cut <= n; cut++) {
		sse_clear(&sse);
		seen[0] = '\0';
		ck_assert_int_eq(feed(text, cut), 0);
		ck_assert_int_eq(feed(text + cut, n - cut), 0);
		ck_assert_msg(
			strcmp(seen, rows[_i].events) == 0, "cut at %zu: %s", cut, seen);
	}
	sse_clear(&sse);
	seen[0] = '\0';
	for (size_t i = 0; i < n; i++)
		ck_assert_int_eq(feed(text + i, 1), 0);
	ck_assert_str_eq(seen, rows[_i].events);
}
END_TEST

START_TEST(stops_when_told)
{
	stop_after = 1;
	ck_assert_int_eq(feed("data: a\n\ndata: b\n\ndata: c\n\n", 27), ERR_PARSE);
	ck_assert_str_eq(seen, "[a][b]");
}
END_TEST

START_TEST(clear_forgets_halves)
{
	ck_assert_int_eq(feed("data: a\ndata: ha", 16), 0);
	sse_clear(&sse);
	ck_assert_int_eq(feed("data: b\n\n", 9), 0);
	ck_assert_str_eq(seen, "[b]");
}
END_TEST

/* A line without an end, and an event without one. */
START_TEST(limits)
{
	size_t n = 65536;
	char *piece = malloc(n);
	int err = 0;
	int rounds;

	ck_assert_ptr_nonnull(piece);
	memset(piece, 'x', n);
	for (rounds = 0; err == 0 && rounds < 1000; rounds++)
		err = feed(piece, n);
	ck_assert_int_eq(err, ERR_LIMIT);
	ck_assert_int_eq(rounds, SSE_EVENT_MAX / (int)n + 1);
	sse_clear(&sse);
	memcpy(piece, "data:", 5);
	piece[n - 1] = '\n';
	for (err = 0, rounds = 0; err == 0 && rounds < 1000; rounds++)
		err = feed(piece, n);
	ck_assert_int_eq(err, ERR_LIMIT);
	free(piece);
}
END_TEST

static Suite *sse_suite(void)
{
	Suite *suite = suite_create("bench_sse");
	TCase *tc = tcase_create("bench_sse");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_loop_test(tc, in_all_pieces, 0, ARRAY_LEN(rows));
	tcase_add_test(tc, stops_when_told);
	tcase_add_test(tc, clear_forgets_halves);
	tcase_add_test(tc, limits);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(sse_suite())
