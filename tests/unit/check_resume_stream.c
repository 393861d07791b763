/*
 * Streams that go on elsewhere: each is cut at every byte, and goes on from there with
 * another worker's events; what the client has is then one stream. What cannot go on is
 * noticed.
 */
#include "rewrite/resume_stream.h"

#include "base/rng.h"
#include "tests/unit/unit.h"

#include <string.h>

/* A chat of five tokens as vLLM streams it, %s stands for id and created. */
#define CHUNK(id, rest)                                                              \
	"data: {\"id\":\"" id "\",\"object\":\"chat.completion.chunk\",\"created\":" \
	"17" id ",\"model\":\"m\"," rest "}\n\n"
#define ROLE(id)                                                                 \
	CHUNK(id, "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"," \
		  "\"content\":\"\"},\"finish_reason\":null}]")
#define WORD(id, w)                                                       \
	CHUNK(id, "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" w \
		  "\"},\"logprobs\":null,\"finish_reason\":null}]")
#define FINISH(id) \
	CHUNK(id, "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]")
#define USAGE(id, p, c, t)                                         \
	CHUNK(id, "\"choices\":[],\"usage\":{\"prompt_tokens\":" p \
		  ",\"total_tokens\":" t ",\"completion_tokens\":" c "}")
#define DONE "data: [DONE]\n\n"

static const char *const words[] = {" a", "\\n", " \\\"b", "\\ud83d", "\\ude00"};
static const char whole[] = ROLE("1") WORD("1", " a") WORD("1", "\\n") WORD("1", " \\\"b")
	WORD("1", "\\ud83d") WORD("1", "\\ude00") FINISH("1") USAGE("1", "7", "5", "12")
		DONE;

/* What a second worker sends for the words from `from` on. */
static size_t second(size_t from, char *out)
{
	static const char *const counts[] = {"5", "4", "3", "2", "1", "0"};
	static const char *const prompts[] = {"7", "8", "9", "10", "11", "12"};
	size_t n = (size_t)sprintf(out, "%s", ROLE("2"));

	for (size_t i = from; i < ARRAY_LEN(words); i++)
		n += (size_t)sprintf(out + n, WORD("2", "%s"), words[i]);
	n += (size_t)sprintf(out + n, "%s", FINISH("2"));
	n += (size_t)sprintf(
		out + n, USAGE("2", "%s", "%s", "12"), prompts[from], counts[from]);
	return n + (size_t)sprintf(out + n, "%s", DONE);
}

struct seen {
	char p[8192];
	size_t n;
};

static void feed(struct resume_stream *s, const char *p, size_t n, bool last, size_t step,
	struct seen *seen)
{
	for (size_t at = 0; at < n || (last && n == 0); at += step) {
		size_t len = n - at < step ? n - at : step;
		char *copy = malloc(len + 1); /* so that what reads on is seen */
		struct span out;

		memcpy(copy, p + at, len);
		ck_assert_int_eq(resume_stream_feed(s, span_make(copy, len),
					 last && at + len == n, &out),
			0);
		if (out.n > 0)
			memcpy(seen->p + seen->n, out.p, out.n);
		seen->n += out.n;
		free(copy);
		if (n == 0)
			break;
	}
	seen->p[seen->n] = '\0';
}

START_TEST(a_stream_that_ends_is_not_changed)
{
	static const char *const streams[] = {
		whole,
		"data: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\n: "
		"ping\r\n\r\ndata:[DONE]\r\n\r\n",
		"event: x\ndata: {\"choices\":[]}\nid: 3\n\n\n\ndata: tail without end",
		"data: 1\ndata: 2\n\n",
		"data: {broken\n\n",
		"\n\n\n",
		"",
	};

	for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
		for (size_t step = 1; step <= strlen(streams[i]) + 1; step++) {
			struct resume_stream s;
			struct seen seen = {.n = 0};

			resume_stream_init(&s, true);
			feed(&s, streams[i], strlen(streams[i]), true, step, &seen);
			ck_assert_str_eq(seen.p, streams[i]);
			resume_stream_free(&s);
		}
	}
}
END_TEST

/* The words of whole that end before this byte. */
static size_t words_before(size_t cut)
{
	size_t n = 0;

	for (const char *p = whole; (p = strstr(p, "\n\n")) != NULL; p += 2) {
		if ((size_t)(p + 2 - whole) > cut)
			break;
		n++;
	}
	return n == 0 ? 0 : n - 1 > ARRAY_LEN(words) ? ARRAY_LEN(words) : n - 1;
}

START_TEST(it_is_one_stream_wherever_it_breaks)
{
	size_t finish =
		(size_t)(strstr(whole, "{\"id\":\"1\",\"object\":\"chat.completion."
				       "chunk\",\"created\":171,\"model\":\"m\","
				       "\"choices\":[{\"index\":0,\"delta\":{},") -
			 whole);
	size_t step = (size_t)_i;

	for (size_t cut = 0; cut < finish; cut++) {
		struct resume_stream s;
		struct seen seen = {.n = 0};
		char rest[4096];
		size_t got = words_before(cut), n;

		resume_stream_init(&s, true);
		feed(&s, whole, cut, false, step, &seen);
		ck_assert_uint_eq(s.tokens, got);
		ck_assert(!s.is_lost && !s.is_finished && !s.is_done);
		resume_stream_continue(&s);
		n = second(got, rest);
		feed(&s, rest, n, true, step, &seen);
		if (!s.has_role)
			ck_abort_msg("no role");
		/* Broken before its first event, it is the second's stream. */
		if (strstr(seen.p, "\"id\":\"1\"") != NULL)
			ck_assert_str_eq(seen.p, whole);
		else
			ck_assert_str_eq(seen.p, rest);
		ck_assert_uint_eq(s.tokens, 5);
		ck_assert(s.is_finished && s.is_done);
		resume_stream_free(&s);
	}
}
END_TEST

START_TEST(it_may_break_again_and_again)
{
	struct resume_stream s;
	struct seen seen = {.n = 0};
	char rest[4096];

	resume_stream_init(&s, true);
	feed(&s, whole, strlen(ROLE("1") WORD("1", " a")) + 9, false, 5, &seen);
	resume_stream_continue(&s);
	feed(&s, ROLE("3") WORD("3", "\\n") "data: {\"id\"",
		strlen(ROLE("3") WORD("3", "\\n")) + 9, false, 5, &seen);
	ck_assert_uint_eq(s.tokens, 2);
	resume_stream_continue(&s);
	feed(&s, rest, second(2, rest), true, 4096, &seen);
	ck_assert_str_eq(seen.p, whole);
	ck_assert(span_eq(
		span_make(s.text.p, s.text.n), SPAN_LIT(" a\\n \\\"b\\ud83d\\ude00")));
	resume_stream_free(&s);
}
END_TEST

START_TEST(a_completion_goes_on_too)
{
	static const char first[] =
		"data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\" "
		"x\"}],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3,\"total_"
		"tokens\":7}}\n\n";
	static const char next[] =
		"data: {\"id\":\"b\",\"created\":2,\"choices\":[{\"index\":0,\"text\":\" "
		"y\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_"
		"tokens\":9}}\n\n";
	struct resume_stream s;
	struct seen seen = {.n = 0};

	resume_stream_init(&s, false);
	feed(&s, first, sizeof(first) - 1, false, 1, &seen);
	ck_assert_uint_eq(s.tokens, 3); /* as the worker counts, not one for the event */
	resume_stream_continue(&s);
	seen.n = 0;
	feed(&s, next, sizeof(next) - 1, false, 1, &seen);
	ck_assert_str_eq(seen.p,
		"data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\" "
		"y\"}],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":5,\"total_"
		"tokens\":9}}\n\n");
	ck_assert_uint_eq(s.tokens, 5);
	resume_stream_free(&s);
}
END_TEST

/* Tokens of a completion's event with usage, as the third of three workers tells it. */
#define COUNTED(id, text, p, c, t, more)                                   \
	"data: {\"id\":\"" id                                              \
	"\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\"" text      \
	"\"}],\"usage\":{\"prompt_tokens\":" p ",\"completion_tokens\":" c \
	",\"total_tokens\":" t more "}}\n\n"
#define CACHED(n) ",\"prompt_tokens_details\":{\"cached_tokens\":" n "}"

/* Workers may cut the text so far into other tokens than those that made it. */
START_TEST(f5_a_prompt_keeps_the_count_that_was_told_first)
{
	static const char *const given[] = {COUNTED("a", "x", "14", "3", "17", ""),
		COUNTED("a", "y", "70", "2", "72", CACHED("64")),
		COUNTED("a", "z", "90", "1", "91", CACHED("13"))};
	static const char *const wanted[] = {COUNTED("a", "x", "14", "3", "17", ""),
		COUNTED("a", "y", "14", "5", "19", CACHED("14")),
		COUNTED("a", "z", "14", "6", "20", CACHED("13"))};
	struct resume_stream s;

	resume_stream_init(&s, false);
	for (size_t i = 0; i < ARRAY_LEN(given); i++) {
		struct seen seen = {.n = 0};

		if (i > 0)
			resume_stream_continue(&s);
		feed(&s, given[i], strlen(given[i]), false, 7, &seen);
		ck_assert_str_eq(seen.p, wanted[i]);
	}
	resume_stream_free(&s);
}
END_TEST

/* Nobody told: the text so far counts as its events did, and once told it holds. */
START_TEST(f5_a_prompt_that_nobody_counted_is_derived)
{
	static const char *const given[] = {
		"data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":"
		"\"x\"}]}\n\n",
		COUNTED("a", "y", "15", "2", "17", ""),
		COUNTED("a", "z", "30", "4", "34", "")};
	static const char *const wanted[] = {
		"data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":"
		"\"x\"}]}\n\n",
		COUNTED("a", "y", "14", "3", "17", ""),
		COUNTED("a", "z", "14", "7", "21", "")};
	struct resume_stream s;

	resume_stream_init(&s, false);
	for (size_t i = 0; i < ARRAY_LEN(given); i++) {
		struct seen seen = {.n = 0};

		if (i > 0)
			resume_stream_continue(&s);
		feed(&s, given[i], strlen(given[i]), false, 7, &seen);
		ck_assert_str_eq(seen.p, wanted[i]);
	}
	resume_stream_free(&s);
}
END_TEST

START_TEST(a_second_role_goes_but_not_what_is_with_it)
{
	struct resume_stream s;
	struct seen seen = {.n = 0};

	resume_stream_init(&s, true);
	feed(&s, ROLE("1"), strlen(ROLE("1")), false, 4096, &seen);
	resume_stream_continue(&s);
	seen.n = 0;
	feed(&s,
		CHUNK("1", "\"choices\":[{\"delta\":{\"role\":\"assistant\",\"refusal\":"
			   "null,\"content\":\" x\"}}]"),
		strlen(CHUNK("1", "\"choices\":[{\"delta\":{\"role\":\"assistant\","
				  "\"refusal\":null,\"content\":\" x\"}}]")),
		false, 4096, &seen);
	ck_assert_str_eq(
		seen.p, CHUNK("1", "\"choices\":[{\"delta\":{\"content\":\" x\"}}]"));
	seen.n = 0;
	feed(&s,
		CHUNK("1", "\"choices\":[{\"delta\":{\"role\":\"assistant\"},\"finish_"
			   "reason\":\"stop\"}]"),
		strlen(CHUNK("1", "\"choices\":[{\"delta\":{\"role\":\"assistant\"},"
				  "\"finish_reason\":\"stop\"}]")),
		false, 4096, &seen);
	ck_assert_str_eq(seen.p,
		CHUNK("1", "\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]"));
	ck_assert(!s.is_lost);
	resume_stream_free(&s);
}
END_TEST

/* ---- what cannot go on ---- */

static const char *const lost[] = {
	"data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\"}}]}\n\n",
	"data: {\"choices\":[{\"index\":0,\"delta\":{}},{\"index\":0,\"delta\":{}}]}\n\n",
	"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n",
	"data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n",
	"data: {\"choices\":[{\"delta\":{\"content\":[\"a\"]}}]}\n\n",
	"data: "
	"{\"choices\":[{\"delta\":{\"content\":\"a\"},\"logprobs\":{\"content\":[1]}}]}"
	"\n\n",
	"data: {\"choices\":[{\"delta\":7}]}\n\n",
	"data: {\"choices\":[7]}\n\n",
	"data: {\"choices\":7}\n\n",
	"data: [1]\n\n",
	"data: {\n\n",
	"data: {}\ndata: {}\n\n",
};

START_TEST(what_is_not_text_is_lost)
{
	struct resume_stream s;
	struct seen seen = {.n = 0};

	resume_stream_init(&s, true);
	feed(&s, ROLE("1") WORD("1", "a"), strlen(ROLE("1") WORD("1", "a")), false, 4096,
		&seen);
	ck_assert(!s.is_lost);
	seen.n = 0;
	feed(&s, lost[_i], strlen(lost[_i]), false, 4096, &seen);
	ck_assert(s.is_lost);
	ck_assert_str_eq(seen.p, lost[_i]);
	resume_stream_free(&s);
}
END_TEST

START_TEST(what_is_too_long_is_lost)
{
	static const char head[] = "data: {\"choices\":[{\"text\":\"";
	static char big[RESUME_EVENT_MAX + 4096];
	struct resume_stream s;
	struct span out;

	/* In text: a quarter of a MiB each time. */
	resume_stream_init(&s, false);
	memcpy(big, head, sizeof(head) - 1);
	memset(big + sizeof(head) - 1, 'x', 262144);
	memcpy(big + sizeof(head) - 1 + 262144, "\"}]}\n\n", 6);
	for (unsigned i = 0; i < 5; i++) {
		size_t n = sizeof(head) - 1 + 262144 + 6;

		ck_assert_int_eq(s.is_lost, i > 4);
		ck_assert_int_eq(
			resume_stream_feed(&s, span_make(big, n), false, &out), 0);
		ck_assert_uint_eq(out.n, n);
	}
	ck_assert(s.is_lost && !s.is_raw);
	resume_stream_free(&s);
	/* An event without an end goes through as it comes. */
	resume_stream_init(&s, false);
	memset(big, 'y', sizeof(big));
	ck_assert_int_eq(resume_stream_feed(&s, span_make(big, 1000), false, &out), 0);
	ck_assert_uint_eq(out.n, 0);
	ck_assert_int_eq(
		resume_stream_feed(&s, span_make(big, sizeof(big) - 1000), false, &out),
		0);
	ck_assert_uint_eq(out.n, sizeof(big));
	ck_assert(s.is_lost && s.is_raw);
	ck_assert_int_eq(resume_stream_feed(&s, span_make(big, 5), true, &out), 0);
	ck_assert_uint_eq(out.n, 5);
	resume_stream_free(&s);
}
END_TEST

START_TEST(a_name_too_long_is_lost)
{
	char event[1024], name[400];
	struct resume_stream s;
	struct span out;
	int n;

	memset(name, 'n', sizeof(name));
	n = snprintf(event, sizeof(event), "data: {\"model\":\"%.*s\"}\n\n",
		(int)sizeof(name), name);
	resume_stream_init(&s, true);
	ck_assert_int_eq(
		resume_stream_feed(&s, span_make(event, (size_t)n), false, &out), 0);
	ck_assert(s.is_lost);
	resume_stream_free(&s);
}
END_TEST

/* ---- whatever comes ---- */

/* A byte changed, doubled or gone here and there. */
static size_t garble(struct rng *rng, const char *p, size_t n, char *out)
{
	static const char odd[] = "{}[]\":,\\\n\r 0d\xff";
	size_t len = 0;

	for (size_t i = 0; i < n; i++) {
		switch (rng_below(rng, 60)) {
		case 0:
			out[len++] = odd[rng_below(rng, sizeof(odd) - 1)];
			break;
		case 1:
			break;
		case 2:
			out[len++] = p[i];
			out[len++] = p[i];
			break;
		default:
			out[len++] = p[i];
		}
	}
	return len;
}

START_TEST(bytes_of_a_first_stream_are_never_changed)
{
	struct rng rng;
	static char broken[8192], rest[8192], more[8192];

	rng_seed(&rng, 11);
	for (unsigned round = 0; round < 3000; round++) {
		size_t n = garble(&rng, whole, sizeof(whole) - 1, broken);
		size_t step = 1 + rng_below(&rng, 200), m;
		struct resume_stream s;
		struct seen seen = {.n = 0};

		resume_stream_init(&s, rng_below(&rng, 2) == 0);
		feed(&s, broken, n, rng_below(&rng, 2) == 0, step, &seen);
		ck_assert_uint_le(seen.n, n);
		ck_assert_int_eq(memcmp(seen.p, broken, seen.n), 0);
		resume_stream_continue(&s);
		m = garble(&rng, rest, second(rng_below(&rng, 5), rest), more);
		seen.n = 0;
		feed(&s, more, m, true, step, &seen);
		resume_stream_free(&s);
	}
}
END_TEST

/* ---- the end alone ---- */

START_TEST(the_end_is_made)
{
	struct resume_stream s;
	struct seen seen = {.n = 0};
	struct span out;

	resume_stream_init(&s, true);
	feed(&s, WORD("1", "a"), strlen(WORD("1", "a")), false, 4096, &seen);
	ck_assert_int_eq(resume_stream_end(&s, &out), 0);
	ck_assert(span_eq(out, SPAN_LIT("data: "
					"{\"id\":\"1\",\"object\":\"chat.completion."
					"chunk\",\"created\":171,"
					"\"model\":\"m\",\"choices\":[{\"index\":0,"
					"\"delta\":{},\"logprobs\":null,"
					"\"finish_reason\":\"length\"}]}\n\n" DONE)));
	resume_stream_free(&s);
	resume_stream_init(&s, true);
	feed(&s, FINISH("1") "data: [DO", strlen(FINISH("1")) + 9, false, 4096, &seen);
	ck_assert(s.is_finished && !s.is_done);
	ck_assert_int_eq(resume_stream_end(&s, &out), 0);
	ck_assert(span_eq(out, SPAN_LIT(DONE)));
	ck_assert_int_eq(resume_stream_end(&s, &out), 0);
	ck_assert_uint_eq(out.n, 0);
	resume_stream_free(&s);
}
END_TEST

/* An error of the worker is kept from the client: another worker goes on, and what it says
 * is the stream's. */
START_TEST(an_error_is_kept_apart)
{
	static const char error[] =
		"data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n" DONE;
	struct resume_stream s;
	struct seen seen = {.n = 0};

	resume_stream_init(&s, true);
	feed(&s, ROLE("1") WORD("1", "a"), strlen(ROLE("1") WORD("1", "a")), false, 4096,
		&seen);
	seen.n = 0;
	seen.p[0] = '\0';
	feed(&s, error, strlen(error), false, 4096, &seen);
	ck_assert(s.has_error && !s.is_lost && !s.is_done);
	ck_assert_str_eq(seen.p, "");
	ck_assert_uint_eq(s.error.n, strlen(error));
	ck_assert_mem_eq(s.error.p, error, s.error.n);
	resume_stream_continue(&s);
	ck_assert(!s.has_error && s.text.n == 1);
	feed(&s, WORD("1", "b"), strlen(WORD("1", "b")), false, 4096, &seen);
	ck_assert_str_eq(seen.p, WORD("1", "b"));
	resume_stream_free(&s);
}
END_TEST

static Suite *resume_stream_suite(void)
{
	Suite *s = suite_create("resume_stream");
	TCase *tc = tcase_create("resume_stream");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_stream_that_ends_is_not_changed);
	tcase_add_loop_test(tc, it_is_one_stream_wherever_it_breaks, 1, 4);
	tcase_add_test(tc, it_may_break_again_and_again);
	tcase_add_test(tc, a_completion_goes_on_too);
	tcase_add_test(tc, f5_a_prompt_keeps_the_count_that_was_told_first);
	tcase_add_test(tc, f5_a_prompt_that_nobody_counted_is_derived);
	tcase_add_test(tc, a_second_role_goes_but_not_what_is_with_it);
	tcase_add_loop_test(tc, what_is_not_text_is_lost, 0, ARRAY_LEN(lost));
	tcase_add_test(tc, what_is_too_long_is_lost);
	tcase_add_test(tc, a_name_too_long_is_lost);
	tcase_add_test(tc, bytes_of_a_first_stream_are_never_changed);
	tcase_add_test(tc, the_end_is_made);
	tcase_add_test(tc, an_error_is_kept_apart);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(resume_stream_suite())
