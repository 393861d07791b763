/*
 * Bodies that are asked anew: which are fit, byte for byte what becomes of them, and
 * random ones of many members, where a JSON library sees that nothing else changed.
 */
#include "base/rng.h"
#include "io/js.h"
#include "rewrite/resume_body.h"
#include "tests/unit/unit.h"

#include <string.h>

/* ---- which ---- */

static const struct fit_case {
	bool is_chat, is_fit;
	const char *body;
} fits[] = {
	{false, true, "{\"prompt\":\"a\",\"stream\":true}"},
	{false, true, " { \"stream\" : true , \"prompt\" : \"\" } \n"},
	{false, true,
		"{\"stream\":true,\"prompt\":\"a\",\"n\":1,\"best_of\":null,\"echo\":"
		"false,"
		"\"logprobs\":null,\"suffix\":\"\",\"temperature\":0.7,\"stop\":[\"x\"],"
		"\"seed\":7,\"max_tokens\":12,\"stream_options\":{\"include_usage\":true}"
		"}"},
	{true, true,
		"{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\","
		"\"content\":[{\"type\":\"text\",\"text\":\"]}\"}]}],\"tools\":[ ],"
		"\"add_generation_prompt\":true,\"continue_final_message\":false}"},
	/* no stream, no text */
	{false, false, "{\"prompt\":\"a\"}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":false}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":\"true\"}"},
	{false, false, "{\"stream\":true}"},
	{false, false, "{\"prompt\":[\"a\"],\"stream\":true}"},
	{false, false, "{\"prompt\":[1,2],\"stream\":true}"},
	{false, false, "{\"messages\":[{}],\"stream\":true}"},
	{true, false, "{\"prompt\":\"a\",\"stream\":true}"},
	{true, false, "{\"messages\":[],\"stream\":true}"},
	{true, false, "{\"messages\":[ \n ],\"stream\":true}"},
	{true, false, "{\"messages\":\"a\",\"stream\":true}"},
	/* more than one text, or more than text */
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"n\":2}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"n\":1.0}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"best_of\":3}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"echo\":true}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"logprobs\":0}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"suffix\":\"z\"}"},
	{true, false, "{\"messages\":[{}],\"stream\":true,\"logprobs\":true}"},
	{true, false, "{\"messages\":[{}],\"stream\":true,\"tools\":[{}]}"},
	{true, false, "{\"messages\":[{}],\"stream\":true,\"functions\":[{}]}"},
	{true, false,
		"{\"messages\":[{}],\"stream\":true,\"response_format\":{\"type\":\"json_"
		"object\"}}"},
	{true, false, "{\"messages\":[{}],\"stream\":true,\"guided_regex\":\"a+\"}"},
	{true, false,
		"{\"messages\":[{}],\"stream\":true,\"continue_final_message\":true}"},
	{true, false,
		"{\"messages\":[{}],\"stream\":true,\"add_generation_prompt\":false}"},
	{true, false,
		"{\"messages\":[{}],\"stream\":true,\"kv_transfer_params\":{\"a\":1}}"},
	/* which of two? */
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"prompt\":\"b\"}"},
	{false, false,
		"{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":1,\"max_tokens\":2}"},
	{false, false, "{\"pr\\u006fmpt\":\"a\",\"stream\":true,\"prompt\":\"b\"}"},
	/* no numbers */
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":-1}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":1e3}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":\"5\"}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":99999999999}"},
	/* no JSON object, or not only */
	{false, false, ""},
	{false, false, "[]"},
	{false, false, "\"a\""},
	{false, false, "{\"prompt\":\"a\",\"stream\":true"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true}}"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true} x"},
	{false, false, "{\"prompt\":\"a\",\"stream\":true,}"},
	{false, false, "{\"prompt\":\"a\" \"stream\":true}"},
};

START_TEST(some_are_fit)
{
	const struct fit_case *c = &fits[_i];
	struct resume_body b;
	char *copy = strdup(c->body); /* of its length, so that what reads on is seen */
	size_t n = strlen(c->body);

	copy = realloc(copy, n > 0 ? n : 1);
	ck_assert_msg(resume_body_read(span_make(copy, n), c->is_chat, &b) == c->is_fit,
		"%s", c->body);
	free(copy);
}
END_TEST

/* ---- what becomes of them ---- */

static const struct made_case {
	bool is_chat;
	const char *body, *text;
	uint64_t tokens;
	const char *made;
} made[] = {
	{false, "{\"prompt\":\"Once\",\"stream\":true,\"max_tokens\":10}", " upon\\n", 3,
		"{\"prompt\":\"Once upon\\n\",\"stream\":true,\"max_tokens\":7}"},
	{false, "{\"max_tokens\" : 100,\"stream\":true, \"prompt\": \"a\\\"\" }", "\\\"b",
		1, "{\"max_tokens\" : 99,\"stream\":true, \"prompt\": \"a\\\"\\\"b\" }"},
	{false, "{\"prompt\":\"a\",\"stream\":true}", "b", 1,
		"{\"prompt\":\"ab\",\"stream\":true,\"max_tokens\":15}"},
	{false, "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":null}", "b", 6,
		"{\"prompt\":\"ab\",\"stream\":true,\"max_tokens\":10}"},
	{false, "{\"prompt\":\"a\",\"min_tokens\":5,\"stream\":true,\"max_tokens\":9}",
		"b", 4,
		"{\"prompt\":\"ab\",\"min_tokens\":1,\"stream\":true,\"max_tokens\":5}"},
	{false, "{\"prompt\":\"a\",\"min_tokens\":5,\"stream\":true,\"max_tokens\":9}",
		"b", 6,
		"{\"prompt\":\"ab\",\"min_tokens\":0,\"stream\":true,\"max_tokens\":3}"},
	{true, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}",
		"y", 1,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
		"\"assistant\",\"content\":\"y\"}],\"stream\":true,"
		"\"continue_final_message\":true,\"add_generation_prompt\":false}"},
	{true,
		"{\"add_generation_prompt\":true,\"stream\":true,\"max_completion_"
		"tokens\":"
		"8,\"messages\":[{} ],\"max_tokens\":20,\"continue_final_message\":null}",
		"y", 5,
		"{\"add_generation_prompt\":false,\"stream\":true,\"max_completion_"
		"tokens\":"
		"3,\"messages\":[{} ,{\"role\":\"assistant\",\"content\":\"y\"}],"
		"\"max_tokens\":3,\"continue_final_message\":true}"},
	{true, "{\"messages\":[{}],\"stream\":true,\"max_tokens\":20}", "\\ud83d\\ude00",
		2,
		"{\"messages\":[{},{\"role\":\"assistant\",\"content\":"
		"\"\\ud83d\\ude00\"}],"
		"\"stream\":true,\"max_tokens\":18,\"continue_final_message\":true,"
		"\"add_generation_prompt\":false}"},
};

START_TEST(they_are_spliced)
{
	const struct made_case *c = &made[_i];
	struct span body = span_str(c->body);
	struct resume_body b;
	char *out;
	size_t n;

	ck_assert(resume_body_read(body, c->is_chat, &b));
	ck_assert_int_eq(
		resume_body_make(&b, body, span_str(c->text), c->tokens, &out, &n), 0);
	ck_assert_msg(span_eq(span_make(out, n), span_str(c->made)), "%.*s", (int)n, out);
	free(out);
}
END_TEST

START_TEST(what_is_left)
{
	struct resume_body b;

	ck_assert(resume_body_read(
		SPAN_LIT("{\"messages\":[{}],\"stream\":true}"), true, &b));
	ck_assert_uint_eq(resume_body_left(&b, 1u << 30), UINT64_MAX);
	ck_assert(resume_body_read(
		SPAN_LIT("{\"messages\":[{}],\"stream\":true,\"max_tokens\":3}"), true,
		&b));
	ck_assert_uint_eq(resume_body_left(&b, 0), 3);
	ck_assert_uint_eq(resume_body_left(&b, 3), 0);
	ck_assert_uint_eq(resume_body_left(&b, 9), 0);
	ck_assert(resume_body_read(
		SPAN_LIT("{\"prompt\":\"\",\"stream\":true}"), false, &b));
	ck_assert_uint_eq(resume_body_left(&b, 1), RESUME_COMPLETION_TOKENS - 1);
}
END_TEST

/* ---- at random ---- */

static const char *const others[] = {
	"\"temperature\":0.5",
	"\"x\":{\"max_tokens\":1,\"prompt\":\"]\",\"y\":[[{}]]}",
	"\"stop\":[\"}\",\"\\\\\"]",
	"\"user\":\"\\\"max_tokens\\\":3\"",
	"\"stream_options\":{\"include_usage\":true}",
	"\"seed\":null",
	"\"n\":1",
	"\"tools\":null",
	"\"min_tokens\":2",
	"\"add_generation_prompt\":true",
	"\"continue_final_message\":false",
};

/* Some members in some order, blanks between; the three that must be, among them. */
static size_t random_body(struct rng *rng, bool is_chat, bool has_limit, char *out)
{
	const char *members[ARRAY_LEN(others) + 3];
	size_t n = 0, len = 0, i;

	members[n++] = "\"stream\":true";
	members[n++] = is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hé]\"}]"
			       : "\"prompt\":\"one \\\\\"";
	if (has_limit)
		members[n++] = "\"max_tokens\":40";
	for (i = 0; i < ARRAY_LEN(others); i++) {
		if (rng_below(rng, 2) == 0)
			members[n++] = others[i];
	}
	for (i = n - 1; i > 0; i--) {
		size_t j = rng_below(rng, (uint32_t)i + 1);
		const char *swapped = members[i];

		members[i] = members[j];
		members[j] = swapped;
	}
	len += (size_t)sprintf(out, "{");
	for (i = 0; i < n; i++)
		len += (size_t)sprintf(out + len, "%s%s%s", i > 0 ? "," : "",
			rng_below(rng, 3) == 0 ? " \n" : "", members[i]);
	return len + (size_t)sprintf(out + len, " }");
}

static void same_text(const struct js *v, const char *text)
{
	struct span s;

	ck_assert(js_as_str(v, &s));
	ck_assert_msg(span_is(s, text), SPAN_FMT, SPAN_ARG(s));
}

static void same_number(const struct js *v, int64_t wanted)
{
	int64_t n;

	ck_assert(js_as_int(v, &n));
	ck_assert_int_eq(n, wanted);
}

START_TEST(nothing_else_changes)
{
	static const char *const kept[] = {"temperature", "x", "stop", "user",
		"stream_options", "seed", "n", "tools"};
	struct rng rng;
	char text[4096];

	rng_seed(&rng, 5);
	for (unsigned round = 0; round < 3000; round++) {
		bool is_chat = rng_below(&rng, 2) == 0,
		     has_limit = rng_below(&rng, 2) == 0;
		struct span body =
			span_make(text, random_body(&rng, is_chat, has_limit, text));
		const char *why = NULL;
		struct resume_body b;
		struct js *before, *after;
		const struct js *last;
		char *out;
		size_t n;
		bool yes = false;

		ck_assert_msg(
			resume_body_read(body, is_chat, &b), SPAN_FMT, SPAN_ARG(body));
		ck_assert_int_eq(resume_body_make(&b, body, SPAN_LIT(" two\\t\\u00e9"), 5,
					 &out, &n),
			0);
		before = js_parse(body, &why);
		after = js_parse(span_make(out, n), &why);
		ck_assert_msg(
			before != NULL && after != NULL, "%s: %.*s", why, (int)n, out);
		for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
			const struct js *a = js_get(before, kept[i]),
					*z = js_get(after, kept[i]);
			char *at = a != NULL ? js_print(a, false) : NULL;
			char *zt = z != NULL ? js_print(z, false) : NULL;

			ck_assert_int_eq(a != NULL, z != NULL);
			ck_assert(at == NULL || strcmp(at, zt) == 0);
			free(at);
			free(zt);
		}
		if (has_limit || !is_chat)
			same_number(js_get(after, "max_tokens"), has_limit ? 35 : 11);
		else
			ck_assert_ptr_null(js_get(after, "max_tokens"));
		if (js_get(before, "min_tokens") != NULL)
			same_number(js_get(after, "min_tokens"), 0);
		if (!is_chat) {
			same_text(js_get(after, "prompt"), "one \\ two\té");
		} else {
			ck_assert_uint_eq(js_len(js_get(after, "messages")), 2);
			last = js_at(js_get(after, "messages"), 1);
			same_text(js_get(last, "role"), "assistant");
			same_text(js_get(last, "content"), " two\té");
			ck_assert(js_as_bool(js_get(after, "continue_final_message"),
					  &yes) &&
				  yes);
			ck_assert(js_as_bool(
					  js_get(after, "add_generation_prompt"), &yes) &&
				  !yes);
		}
		js_free(before);
		js_free(after);
		free(out);
	}
}
END_TEST

static Suite *resume_body_suite(void)
{
	Suite *s = suite_create("resume_body");
	TCase *tc = tcase_create("resume_body");

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, some_are_fit, 0, ARRAY_LEN(fits));
	tcase_add_loop_test(tc, they_are_spliced, 0, ARRAY_LEN(made));
	tcase_add_test(tc, what_is_left);
	tcase_add_test(tc, nothing_else_changes);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(resume_body_suite())
