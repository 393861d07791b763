/*
 * Tests of json_scan: what is JSON and what is not (beside jansson), tokens and offsets,
 * cuts at any byte, what is left out, and the search for the end of strings at every
 * alignment.
 */
#include "base/rng.h"
#include "route/json_scan.h"
#include "unit.h"

#include <jansson.h>
#include <string.h>

#define MAX_TOKENS 4096

/* In loops: Check's own assertions write to a file each. */
#define REQUIRE(fact)                              \
	do {                                       \
		if (!(fact))                       \
			ck_abort_msg("%s", #fact); \
	} while (0)

static const struct json_scan_opts report_all = {JSON_STRICT_DEPTH, 0, 0};

struct tokens {
	enum json_event event[MAX_TOKENS];
	struct json_token token[MAX_TOKENS];
	unsigned n;
	bool is_done;
};

static void take(struct json_scan *s, const char *base, size_t to, struct tokens *all)
{
	for (;;) {
		struct json_token token;
		enum json_event event = json_scan_next(s, base, to, &token);

		if (event == SCAN_MORE || event == SCAN_BAD)
			break;
		REQUIRE(all->n < MAX_TOKENS);
		REQUIRE(token.start < token.end);
		REQUIRE(token.end <= to);
		all->event[all->n] = event;
		all->token[all->n++] = token;
	}
}

/* Scans in pieces cut by rng (NULL: whole). Each piece lies in a block of its own size,
 * so that sanitizers see a step too far. */
static void scan(const char *text, size_t n, struct json_scan_opts opts, struct rng *rng,
	struct tokens *all)
{
	struct json_scan s;
	size_t to = 0;

	all->n = 0;
	json_scan_init(&s, opts);
	do {
		char *piece;

		to = rng == NULL ? n
				 : MIN(n, to + 1 +
						   rng_below(rng,
							   rng_below(rng, 2) ? 3 : 40));
		piece = malloc(to > 0 ? to : 1);
		REQUIRE(piece != NULL);
		memcpy(piece, text, to);
		take(&s, piece, to, all);
		free(piece);
	} while (to < n);
	all->is_done = json_scan_is_done(&s);
}

static bool same_token(const struct json_token *a, const struct json_token *b)
{
	return a->start == b->start && a->end == b->end && a->depth == b->depth &&
	       a->escaped == b->escaped;
}

static bool same_tokens(const struct tokens *a, const struct tokens *b)
{
	if (a->n != b->n || a->is_done != b->is_done)
		return false;
	for (unsigned i = 0; i < a->n; i++) {
		if (a->event[i] != b->event[i] || !same_token(&a->token[i], &b->token[i]))
			return false;
	}
	return true;
}

static bool is_reported(const struct tokens *a, unsigned i, struct json_scan_opts opts)
{
	const struct json_token *t = &a->token[i];

	if (t->depth <= opts.all_depth)
		return true;
	switch (a->event[i]) {
	case SCAN_OPEN_ARRAY:
	case SCAN_OPEN_OBJECT:
	case SCAN_CLOSE:
		return t->depth <= opts.open_depth;
	case SCAN_STRING:
		return t->end - t->start >= opts.long_string;
	default:
		return false;
	}
}

/* Cuts change nothing; leaving out is leaving out. */
static void check_properties(const char *text, size_t n, struct rng *rng)
{
	static struct tokens whole, other, wanted;
	struct json_scan_opts opts = {(unsigned)rng_below(rng, 3),
		(unsigned)rng_below(rng, 5), rng_below(rng, 20)};

	scan(text, n, report_all, NULL, &whole);
	scan(text, n, report_all, rng, &other);
	if (!same_tokens(&whole, &other))
		ck_abort_msg("cut: %.*s", (int)n, text);
	wanted.n = 0;
	wanted.is_done = whole.is_done;
	for (unsigned i = 0; i < whole.n; i++) {
		if (is_reported(&whole, i, opts)) {
			wanted.event[wanted.n] = whole.event[i];
			wanted.token[wanted.n++] = whole.token[i];
		}
	}
	scan(text, n, opts, NULL, &other);
	if (!same_tokens(&wanted, &other))
		ck_abort_msg("left out: %.*s", (int)n, text);
	scan(text, n, opts, rng, &other);
	if (!same_tokens(&wanted, &other))
		ck_abort_msg("left out and cut: %.*s", (int)n, text);
}

struct sample {
	bool is_json;
	const char *text;
};

/* In the manner of JSONTestSuite. */
static const struct sample samples[] = {
	{true, "{}"},
	{true, "[]"},
	{true, " \t\r\n{ } \n"},
	{true, "null"},
	{true, "true"},
	{true, "false"},
	{true, "0"},
	{true, "-0"},
	{true, "-12.50e+3"},
	{true, "1E-2"},
	{true, "0e0"},
	{true, "\"\""},
	{true, "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83D\\ude00\""},
	{true, "\"\\ud800\""},
	{true, "\"\\u0000\""},
	{true, "\"\xff\xfe\""},
	{true, "\"\xc0\xaf\""},
	{true, "\"\x7f\""},
	{true, "[1,2,3]"},
	{true, "[1, 22, 333 ,4444,55555,666666,7777777,88888888,999999999,0,-1,2.5,1e3]"},
	{true, "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"},
	{true, "[[],[[]],{}]"},
	{true, "{\"a\":{\"b\":[{\"c\":null}]},\"\":1}"},
	{true, "{\"a\":1,\"a\":2}"},
	{true, "{\"a\\u0062\":1}"},
	{true, "[1e400,123456789012345678901234567890]"},
	{false, ""},
	{false, "   "},
	{false, "\xef\xbb\xbf{}"},
	{false, "{"},
	{false, "["},
	{false, "]"},
	{false, "}"},
	{false, "[}"},
	{false, "{]"},
	{false, "[1,]"},
	{false, "[,1]"},
	{false, "[1,,2,3,4,5,6,7,8,9]"},
	{false, "[1 2]"},
	{false, "[01,2,3,4,5,6,7,8,9,10]"},
	{false, "[1,02,3,4,5,6,7,8,9,10]"},
	{false, "[1,2,3,4,5,6,7,8,9,]"},
	{false, "[1,2,3,4,5,6,7,8,9,}"},
	{false, "{\"a\":1,}"},
	{false, "{,\"a\":1}"},
	{false, "{\"a\"}"},
	{false, "{\"a\",1}"},
	{false, "{\"a\":}"},
	{false, "{\"a\":1 \"b\":2}"},
	{false, "{\"a\"::1}"},
	{false, "{a:1}"},
	{false, "{1:1}"},
	{false, "{'a':1}"},
	{false, "[\"a\":1]"},
	{false, "{} {}"},
	{false, "{}x"},
	{false, "{},"},
	{false, "1 2"},
	{false, "NaN"},
	{false, "[Infinity]"},
	{false, "[-]"},
	{false, "[+1]"},
	{false, "[.5]"},
	{false, "[5.]"},
	{false, "[1e]"},
	{false, "[1e+]"},
	{false, "[1.5.5]"},
	{false, "[0x1]"},
	{false, "[-01]"},
	{false, "[tru]"},
	{false, "[True]"},
	{false, "[nulll]"},
	{false, "[truefalse]"},
	{false, "\""},
	{false, "\"\\x\""},
	{false, "\"\\u12\""},
	{false, "\"\\u12G4\""},
	{false, "\"\\"},
	{false, "\"a\nb\""},
	{false, "\"a\tb\""},
	{false, "[\"\x1f\"]"},
	{false, "[1]]"},
	{false, "// c\n{}"},
	{false, "{\"a\":/*c*/1}"},
	{false, "[1\f]"},
	{false, "\xff\xfe{\x00}\x00"},
};

START_TEST(test_samples)
{
	for (unsigned i = 0; i < ARRAY_LEN(samples); i++) {
		const char *text = samples[i].text;
		size_t n = strlen(text);
		static struct tokens all;
		json_t *oracle = json_loadb(text, n, JSON_DECODE_ANY, NULL);

		scan(text, n, report_all, NULL, &all);
		ck_assert_msg(all.is_done == samples[i].is_json, "%s", text);
		ck_assert_msg(oracle == NULL || all.is_done, "jansson reads %s", text);
		json_decref(oracle);
	}
}
END_TEST

START_TEST(test_samples_cut)
{
	struct rng rng;

	rng_seed(&rng, 1);
	for (unsigned i = 0; i < ARRAY_LEN(samples); i++) {
		for (unsigned turn = 0; turn < 20; turn++)
			check_properties(samples[i].text, strlen(samples[i].text), &rng);
	}
}
END_TEST

struct wanted_token {
	enum json_event event;
	size_t start, end;
	unsigned depth;
	bool escaped;
};

START_TEST(test_tokens)
{
	static const char text[] =
		" {\"a\\n\": [1, \"x\"], \"b\":{ },\"c\":-2.5e1 ,\"d\":true}";
	static const struct wanted_token wanted[] = {
		{SCAN_OPEN_OBJECT, 1, 2, 0, false},
		{SCAN_KEY, 2, 7, 1, true},
		{SCAN_OPEN_ARRAY, 9, 10, 1, false},
		{SCAN_NUMBER, 10, 11, 2, false},
		{SCAN_STRING, 13, 16, 2, false},
		{SCAN_CLOSE, 16, 17, 1, false},
		{SCAN_KEY, 19, 22, 1, false},
		{SCAN_OPEN_OBJECT, 23, 24, 1, false},
		{SCAN_CLOSE, 25, 26, 1, false},
		{SCAN_KEY, 27, 30, 1, false},
		{SCAN_NUMBER, 31, 37, 1, false},
		{SCAN_KEY, 39, 42, 1, false},
		{SCAN_TRUE, 43, 47, 1, false},
		{SCAN_CLOSE, 47, 48, 0, false},
	};
	static struct tokens all;

	scan(text, sizeof(text) - 1, report_all, NULL, &all);
	ck_assert(all.is_done);
	ck_assert_uint_eq(all.n, ARRAY_LEN(wanted));
	for (unsigned i = 0; i < all.n; i++) {
		struct json_token token = {wanted[i].start, wanted[i].end,
			wanted[i].depth, wanted[i].escaped};

		ck_assert_msg(all.event[i] == wanted[i].event &&
				      same_token(&all.token[i], &token),
			"token %u", i);
	}
}
END_TEST

struct writer {
	char text[8192];
	size_t n;
	struct rng rng;
};

static void put(struct writer *w, const char *text)
{
	size_t n = strlen(text);

	REQUIRE(w->n + n < sizeof(w->text));
	memcpy(w->text + w->n, text, n);
	w->n += n;
}

static void put_one_of(struct writer *w, const char *const *texts, size_t n)
{
	put(w, texts[rng_below(&w->rng, n)]);
}

static void put_blank(struct writer *w)
{
	static const char *const blanks[] = {"", "", "", " ", "\n", "\t  ", "\r\n"};

	put_one_of(w, blanks, ARRAY_LEN(blanks));
}

/* A document of random nesting, below 6,000 bytes. */
static void put_random(struct writer *w, unsigned depth)
{
	static const char *const keys[] = {"\"k\"", "\"\"", "\"k\\u0061\""};
	static const char *const scalars[] = {"1", "0", "-7", "12345678", "123456789",
		"1.5", "2e9", "true", "false", "null", "\"\"", "\"abc\"", "\"a\\\"b\"",
		"\"\\u00e9\\n\\\\\"",
		"\"0123456789012345678901234567890123456789\\u1234 xx\"", "[]", "{}",
		"[1,2,33,444 ,5, 66,\n7,8,9,10]"};
	unsigned items = (unsigned)rng_below(&w->rng, 5);
	bool object = rng_below(&w->rng, 2) == 0;

	if (depth == 0 || w->n > 4000 || rng_below(&w->rng, 4) == 0) {
		put_one_of(w, scalars, ARRAY_LEN(scalars));
		return;
	}
	put(w, object ? "{" : "[");
	for (unsigned i = 0; i < items; i++) {
		put(w, i > 0 ? "," : "");
		put_blank(w);
		if (object) {
			put_one_of(w, keys, ARRAY_LEN(keys));
			put_blank(w);
			put(w, ":");
		}
		put_random(w, depth - 1);
		put_blank(w);
	}
	put(w, object ? "}" : "]");
}

START_TEST(test_random)
{
	static struct tokens all;
	static struct writer w;
	unsigned accepted = 0, refused = 0;

	rng_seed(&w.rng, 7);
	for (unsigned i = 0; i < 4000; i++) {
		json_t *oracle;

		w.n = 0;
		put_random(&w, 1 + (unsigned)rng_below(&w.rng, 9));
		for (uint64_t flips = rng_below(&w.rng, 3); flips > 0; flips--)
			w.text[rng_below(&w.rng, w.n)] =
				"\"\\{}[],:0e. u\n\x01"[rng_below(&w.rng, 15)];
		check_properties(w.text, w.n, &w.rng);
		oracle = json_loadb(w.text, w.n, JSON_DECODE_ANY, NULL);
		scan(w.text, w.n, report_all, NULL, &all);
		accepted += oracle != NULL;
		refused += !all.is_done;
		if (oracle != NULL && !all.is_done)
			ck_abort_msg("jansson reads %.*s", (int)w.n, w.text);
		json_decref(oracle);
	}
	ck_assert_uint_gt(accepted, 1000);
	ck_assert_uint_gt(refused, 1000);
}
END_TEST

/* Whether the text is JSON to its end, fed in pieces of `step` bytes, with only the
 * outermost tokens reported. */
static bool is_json(const char *text, size_t n, size_t step)
{
	struct json_scan_opts opts = {1, 8, 64};
	struct json_token token;
	struct json_scan s;

	json_scan_init(&s, opts);
	for (size_t to = 0; to < n;) {
		enum json_event event;

		to = MIN(n, to + step);
		while ((event = json_scan_next(&s, text, to, &token)) > SCAN_BAD)
			continue;
		if (event == SCAN_BAD)
			return false;
	}
	return json_scan_is_done(&s);
}

START_TEST(test_deep)
{
	enum { DEEP = 100000 };
	char *text = malloc(2 * DEEP + 1);

	ck_assert_ptr_nonnull(text);
	memset(text, '[', DEEP);
	memset(text + DEEP, ']', DEEP + 1);
	ck_assert(!is_json(text, DEEP, DEEP));
	ck_assert(is_json(text, 2 * DEEP, 2 * DEEP));
	ck_assert(is_json(text, 2 * DEEP, 999));
	ck_assert(!is_json(text, 2 * DEEP + 1, DEEP));
	/* Strings below the strict depth may hold brackets. */
	memcpy(text + DEEP - 6, "\"]\\\"]\"", 6);
	memcpy(text + 2 * DEEP - 6, "      ", 6);
	ck_assert(is_json(text, 2 * DEEP, 2 * DEEP));
	ck_assert(is_json(text, 2 * DEEP, 1));
	free(text);
}
END_TEST

/* Brackets are matched by kind exactly as deep as jansson goes. */
START_TEST(test_strict_depth)
{
	for (unsigned depth = JSON_STRICT_DEPTH - 1; depth <= JSON_STRICT_DEPTH + 1;
		depth++) {
		char text[2 * (JSON_STRICT_DEPTH + 1)];

		memset(text, '[', depth);
		memset(text + depth, ']', depth);
		ck_assert(is_json(text, 2 * depth, 7));
		text[depth] = '}';
		ck_assert_int_eq(is_json(text, 2 * depth, 7), depth > JSON_STRICT_DEPTH);
	}
}
END_TEST

START_TEST(test_find_special)
{
	enum { ROOM = 300 };
	static const char specials[] = "\"\\\x1f\n\x01";

	for (size_t n = 0; n < ROOM; n++) {
		char *text = malloc(n > 0 ? n : 1);

		ck_assert_ptr_nonnull(text);
		for (size_t i = 0; i < n; i++)
			text[i] = " !#[]x\x7f\x80\xff"[i % 9];
		REQUIRE(json_find_special(text, text + n) == text + n);
		for (size_t at = 0; at < n; at++) {
			char old = text[at];

			text[at] = specials[(at + n) % 5];
			REQUIRE(json_find_special(text, text + n) == text + at);
			REQUIRE(json_find_special(text + at, text + n) == text + at);
			text[at] = old;
		}
		free(text);
	}
}
END_TEST

START_TEST(test_digits)
{
	struct rng rng;

	rng_seed(&rng, 3);
	for (unsigned i = 0; i < 20000; i++) {
		uint32_t value = (uint32_t)rng_next(&rng) >> rng_below(&rng, 32);
		uint64_t digits;
		char text[24];
		unsigned n;

		snprintf(text, sizeof(text), "%u%c\xff\x3a\x2f/0000", value % 100000000,
			"], .:/\x80"[i % 7]);
		n = json_count_digits(text, &digits);
		REQUIRE(n == strspn(text, "0123456789"));
		REQUIRE(json_digits_value(digits, n) == value % 100000000);
	}
}
END_TEST

static Suite *json_scan_suite(void)
{
	Suite *suite = suite_create("json_scan");
	TCase *tcase = tcase_create("json_scan");

	tcase_set_timeout(tcase, 0);
	tcase_add_test(tcase, test_samples);
	tcase_add_test(tcase, test_samples_cut);
	tcase_add_test(tcase, test_tokens);
	tcase_add_test(tcase, test_random);
	tcase_add_test(tcase, test_deep);
	tcase_add_test(tcase, test_strict_depth);
	tcase_add_test(tcase, test_find_special);
	tcase_add_test(tcase, test_digits);
	suite_add_tcase(suite, tcase);
	return suite;
}

UNIT_MAIN(json_scan_suite())
