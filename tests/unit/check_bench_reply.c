/* Answers and events of different servers: usage, text, errors, workers, and broken ones.
 */
#include "base/err.h"
#include "bench/reply.h"
#include "tests/unit/unit.h"

#include <string.h>

static struct reply reply;
static bool has_text;

static void set_up(void)
{
	memset(&reply, 0, sizeof(reply));
	reply.keeps_text = true;
}

static void tear_down(void)
{
	reply_free(&reply);
}

static int event(const char *data)
{
	return reply_event(&reply, span_str(data), &has_text);
}

static void assert_text(const char *want)
{
	ck_assert_uint_eq(reply.text.n, strlen(want));
	ck_assert(reply.text.n == 0 || memcmp(reply.text.p, want, reply.text.n) == 0);
}

START_TEST(whole_chat)
{
	ck_assert_int_eq(
		reply_read(&reply,
			SPAN_LIT("{\"choices\":[{\"index\":0,\"message\":{\"role\":"
				 "\"assistant\",\"content\":\"hi \\u00e9\"},"
				 "\"finish_reason\":\"stop\"}],\"usage\":{"
				 "\"prompt_tokens\":7,\"completion_tokens\":3,"
				 "\"prompt_tokens_details\":{\"cached_tokens\":4}},"
				 "\"system_fingerprint\":\"fp_1\"}")),
		0);
	assert_text("hi \xc3\xa9");
	ck_assert(reply.has_usage && reply.has_cached && reply.has_finish);
	ck_assert(!reply.has_error && !reply.is_done);
	ck_assert_uint_eq(reply.prompt_tokens, 7);
	ck_assert_uint_eq(reply.new_tokens, 3);
	ck_assert_uint_eq(reply.cached_tokens, 4);
	ck_assert_str_eq(reply.worker, "fp_1");
}
END_TEST

START_TEST(whole_completion_without_details)
{
	ck_assert_int_eq(
		reply_read(&reply,
			SPAN_LIT("{\"choices\":[{\"text\":\"a\"},{\"text\":\"b\"}],"
				 "\"usage\":{\"prompt_tokens\":7,"
				 "\"completion_tokens\":3,"
				 "\"prompt_tokens_details\":null},\"worker\":\"w1\","
				 "\"system_fingerprint\":\"fp_1\"}")),
		0);
	assert_text("ab");
	ck_assert(reply.has_usage && !reply.has_cached);
	ck_assert_str_eq(reply.worker, "w1");
}
END_TEST

START_TEST(a_stream)
{
	ck_assert_int_eq(
		event("{\"choices\":[{\"delta\":{\"role\":\"assistant\","
		      "\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}"),
		0);
	ck_assert(!has_text && !reply.has_usage && !reply.has_finish);
	ck_assert_int_eq(event("{\"choices\":[{\"delta\":{\"content\":\" a\"}}]}"), 0);
	ck_assert(has_text);
	ck_assert_int_eq(event("{\"choices\":[{\"text\":\" b\"}]}"), 0);
	ck_assert(has_text);
	ck_assert_int_eq(
		event("{\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}"), 0);
	ck_assert(!has_text && reply.has_finish && !reply.is_done);
	ck_assert_int_eq(event("{\"choices\":[],\"usage\":{\"prompt_tokens\":9,"
			       "\"completion_tokens\":2}}"),
		0);
	ck_assert(!has_text && reply.has_usage);
	ck_assert_int_eq(event("[DONE]"), 0);
	ck_assert(!has_text && reply.is_done);
	assert_text(" a b");
}
END_TEST

/* Tokens that are no content start the clock too, and are no part of the text. */
START_TEST(other_kinds_of_text)
{
	ck_assert_int_eq(
		event("{\"choices\":[{\"delta\":{\"reasoning_content\":\"x\"}}]}"), 0);
	ck_assert(has_text);
	ck_assert_int_eq(event("{\"choices\":[{\"delta\":{\"reasoning\":\"x\"}}]}"), 0);
	ck_assert(has_text);
	ck_assert_int_eq(
		event("{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}"), 0);
	ck_assert(has_text);
	ck_assert_int_eq(event("{\"choices\":[{\"delta\":{\"tool_calls\":[]}}]}"), 0);
	ck_assert(!has_text);
	assert_text("");
}
END_TEST

static const struct {
	const char *body, *message;
	bool has_error;
} errors[] = {
	{"{\"error\":{\"message\":\"too long\",\"code\":400}}", "too long", true},
	{"{\"error\":\"plain\"}", "plain", true},
	{"{\"error\":{\"code\":1}}", "", true},
	{"{\"error\":null}", "", false},
	{"{\"object\":\"error\",\"message\":\"old vllm\"}", "old vllm", true},
	{"{\"detail\":\"Not Found\"}", "Not Found", false},
	{"{\"error\":{\"message\":\"a\\u001b[31m\\u00e9\"}}", "a?[31m??", true},
};

START_TEST(error_shapes)
{
	ck_assert_int_eq(reply_read(&reply, span_str(errors[_i].body)), 0);
	ck_assert_str_eq(reply.message, errors[_i].message);
	ck_assert(reply.has_error == errors[_i].has_error);
}
END_TEST

static const char *const strange[] = {
	"{}",
	"{\"choices\":null}",
	"{\"choices\":{}}",
	"{\"choices\":[null,1,\"x\",[]]}",
	"{\"choices\":[{\"delta\":null}]}",
	"{\"choices\":[{\"delta\":{\"content\":null}}]}",
	"{\"choices\":[{\"delta\":{\"content\":7,\"tool_calls\":7}}]}",
	"{\"usage\":[]}",
	"{\"usage\":{\"prompt_tokens\":-1}}",
	"{\"usage\":{\"prompt_tokens\":\"7\"}}",
	"{\"usage\":{\"prompt_tokens\":1.5}}",
	"{\"worker\":7,\"system_fingerprint\":null}",
};

START_TEST(strange_but_json)
{
	ck_assert_int_eq(event(strange[_i]), 0);
	ck_assert(!has_text && !reply.has_usage && !reply.has_error);
	assert_text("");
}
END_TEST

START_TEST(no_json_object)
{
	static const char *const texts[] = {
		"", "null", "[]", "\"x\"", "{", "{\"a\":1}x", "[DONE"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		ck_assert_msg(event(texts[i]) == ERR_PARSE, "%s", texts[i]);
		ck_assert_int_eq(reply_read(&reply, span_str(texts[i])), ERR_PARSE);
	}
}
END_TEST

START_TEST(long_names_are_cut)
{
	char text[600] = "{\"worker\":\"";

	memset(text + 11, 'w', 500);
	strcpy(text + 511, "\"}");
	ck_assert_int_eq(event(text), 0);
	ck_assert_uint_eq(strlen(reply.worker), REPLY_WORKER_MAX - 1);
}
END_TEST

START_TEST(clear_keeps_the_wish)
{
	ck_assert_int_eq(event("{\"choices\":[{\"text\":\"x\"}],\"worker\":\"w\"}"), 0);
	reply_clear(&reply);
	ck_assert(reply.keeps_text);
	assert_text("");
	ck_assert_str_eq(reply.worker, "");
	reply.keeps_text = false;
	ck_assert_int_eq(event("{\"choices\":[{\"text\":\"x\"}]}"), 0);
	ck_assert(has_text);
	assert_text("");
}
END_TEST

static Suite *reply_suite(void)
{
	Suite *suite = suite_create("bench_reply");
	TCase *tc = tcase_create("bench_reply");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, whole_chat);
	tcase_add_test(tc, whole_completion_without_details);
	tcase_add_test(tc, a_stream);
	tcase_add_test(tc, other_kinds_of_text);
	tcase_add_loop_test(tc, error_shapes, 0, ARRAY_LEN(errors));
	tcase_add_loop_test(tc, strange_but_json, 0, ARRAY_LEN(strange));
	tcase_add_test(tc, no_json_object);
	tcase_add_test(tc, long_names_are_cut);
	tcase_add_test(tc, clear_keeps_the_wish);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(reply_suite())
