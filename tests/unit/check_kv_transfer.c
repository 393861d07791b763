/*
 * What prefill workers answer, the small calls beside the legs, ids and rooms.
 */
#include "base/rng.h"
#include "rewrite/kv_transfer.h"
#include "tests/unit/unit.h"

#include <string.h>

/* A copy of its exact size, so that a sanitizer sees what reads on; free() it. */
static char *exact(const char *text, struct span *out)
{
	size_t n = strlen(text);
	char *copy = malloc(n > 0 ? n : 1);

	memcpy(copy, text, n);
	*out = span_make(copy, n);
	return copy;
}

START_TEST(forms_say_what_a_connector_needs)
{
	ck_assert_ptr_eq(kv_form(CONNECTOR_NONE), kv_form(CONNECTOR_NIXL));
	ck_assert(kv_form(CONNECTOR_NIXL)->has_params);
	ck_assert(kv_form(CONNECTOR_NIXL)->decodes_alone);
	ck_assert(!kv_form(CONNECTOR_NIXL)->needs_both);
	ck_assert(kv_form(CONNECTOR_MOONCAKE)->needs_engine);
	ck_assert(!kv_form(CONNECTOR_MOONCAKE)->has_params);
	ck_assert(kv_form(CONNECTOR_P2P_NCCL)->needs_id);
	ck_assert(kv_form(CONNECTOR_P2P_NCCL)->needs_both);
	ck_assert(!kv_form(CONNECTOR_P2P_NCCL)->is_concurrent);
	ck_assert(kv_form(CONNECTOR_SGLANG)->is_concurrent);
	ck_assert(kv_form(CONNECTOR_SGLANG)->needs_both);
	ck_assert(!kv_form(CONNECTOR_SGLANG)->decodes_alone);
}
END_TEST

#define NIXL_PARAMS                                                               \
	"{\"do_remote_prefill\":true, \"remote_block_ids\":[[4,5,6]],\n"          \
	"\"remote_engine_id\":\"e-17\",\"remote_request_id\":\"cmpl-1\",\"seq\":" \
	"18446744073709551615123,\"ratio\":1.50e+02}"

static const struct answer_case {
	const char *answer;
	enum kv_answer kind;
	const char *params;
} answers[] = {
	{"{\"choices\":[{\"text\":\"x\"}],\"kv_transfer_params\":" NIXL_PARAMS "}",
		KV_ANSWER_PARAMS, NIXL_PARAMS},
	{" {\"kv_transfer_params\" : {} , \"choices\":[]} \n", KV_ANSWER_PARAMS, "{}"},
	{"{\"kv_transfer\\u005fparams\":{\"a\":1}}", KV_ANSWER_PARAMS, "{\"a\":1}"},
	{"{\"kv_transfer_params\":{\"a\":1},\"kv_transfer_params\":{\"a\":2}}",
		KV_ANSWER_PARAMS, "{\"a\":2}"},
	{"{\"error\":null,\"kv_transfer_params\":{\"a\":1}}", KV_ANSWER_PARAMS,
		"{\"a\":1}"},
	{"{\"error\":\"\",\"object\":\"text_completion\",\"kv_transfer_params\":{}}",
		KV_ANSWER_PARAMS, "{}"},
	/* only at the top */
	{"{\"choices\":[{\"kv_transfer_params\":{\"a\":1}}]}", KV_ANSWER_NONE, ""},
	{"{}", KV_ANSWER_NONE, ""},
	{"{\"kv_transfer_params\":null}", KV_ANSWER_NONE, ""},
	{"{\"kv_transfer_params\":{\"a\":1},\"kv_transfer_params\":null}", KV_ANSWER_NONE,
		""},
	/* a good status, and nothing good in it */
	{"{\"error\":{\"message\":\"no\"}}", KV_ANSWER_ERROR, ""},
	{"{\"error\":{\"message\":\"no\"},\"kv_transfer_params\":{\"a\":1}}",
		KV_ANSWER_ERROR, ""},
	{"{\"error\":\"out of memory\"}", KV_ANSWER_ERROR, ""},
	{"{\"object\":\"error\",\"message\":\"no\",\"code\":400}", KV_ANSWER_ERROR, ""},
	/* no JSON object, or not only, or not all of it */
	{"", KV_ANSWER_BROKEN, ""},
	{"[]", KV_ANSWER_BROKEN, ""},
	{"null", KV_ANSWER_BROKEN, ""},
	{"Internal Server Error", KV_ANSWER_BROKEN, ""},
	{"{\"kv_transfer_params\":{\"a\":1}", KV_ANSWER_BROKEN, ""},
	{"{\"kv_transfer_params\":{\"a\":1}} x", KV_ANSWER_BROKEN, ""},
	{"{\"kv_transfer_params\":{\"a\":1},}", KV_ANSWER_BROKEN, ""},
	{"data: {\"kv_transfer_params\":{}}\n\n", KV_ANSWER_BROKEN, ""},
	/* no object */
	{"{\"kv_transfer_params\":[1]}", KV_ANSWER_BROKEN, ""},
	{"{\"kv_transfer_params\":\"x\"}", KV_ANSWER_BROKEN, ""},
	{"{\"kv_transfer_params\":7}", KV_ANSWER_BROKEN, ""},
};

START_TEST(answers_are_read)
{
	const struct answer_case *c = &answers[_i];
	struct span answer, params;
	char *copy = exact(c->answer, &answer);

	ck_assert_msg(kv_answer_read(answer, &params) == c->kind, "%s", c->answer);
	ck_assert_msg(span_is(params, c->params), "%s", c->answer);
	free(copy);
}
END_TEST

static const struct cut_case {
	enum route_endpoint endpoint;
	const char *answer;
	bool was_cut;
} cuts[] = {
	{ENDPOINT_CHAT, "{\"choices\":[{\"finish_reason\":\"length\"}]}", true},
	{ENDPOINT_CHAT, "{\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}",
		false},
	{ENDPOINT_CHAT, "{\"choices\":[{\"finish_reason\":\"tool_calls\"}]}", false},
	{ENDPOINT_CHAT, "{\"choices\":[{\"finish_reason\":null}]}", true},
	{ENDPOINT_COMPLETIONS,
		"{\"usage\":{},\"choices\":[{\"text\":\"finish_reason\"},"
		"{\"finish_reason\":\"stop\"}]}",
		false},
	{ENDPOINT_INFERENCE_GENERATE, "{\"choices\":[{\"finish_reason\":\"length\"}]}",
		true},
	{ENDPOINT_RESPONSES, "{\"status\":\"incomplete\"}", true},
	{ENDPOINT_RESPONSES, "{\"output\":[],\"status\":\"completed\"}", false},
	{ENDPOINT_MESSAGES, "{\"stop_reason\":\"max_tokens\"}", true},
	{ENDPOINT_MESSAGES, "{\"stop_reason\":\"end_turn\"}", false},
	/* It does not say. */
	{ENDPOINT_CHAT, "{}", true},
	{ENDPOINT_CHAT, "", true},
	{ENDPOINT_MESSAGES, "[]", true},
	{ENDPOINT_CHAT, "{\"choices\":7}", true},
};

START_TEST(f6_what_was_not_cut_is_told)
{
	const struct cut_case *c = &cuts[_i];
	struct span answer;
	char *copy = exact(c->answer, &answer);

	ck_assert_msg(
		kv_answer_was_cut(answer, c->endpoint) == c->was_cut, "%s", c->answer);
	free(copy);
}
END_TEST

static const struct usage_case {
	const char *answer;
	bool has_cached;
	uint64_t cached, prompt;
} usages[] = {
	{"{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":"
	 "{\"cached_tokens\":4}}}",
		true, 4, 9},
	{"{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":null}}", false, 0, 9},
	{"{\"kv_transfer_params\":{\"remote_prefill_cached_tokens\":3},\"usage\":"
	 "{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}",
		true, 3, 9},
	{"{\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":4,"
	 "\"cache_creation_input_tokens\":2}}",
		true, 4, 15},
	{"[{\"meta_info\":{\"prompt_tokens\":9,\"cached_tokens\":4}},"
	 "{\"meta_info\":{\"prompt_tokens\":1,\"cached_tokens\":1}}]",
		true, 5, 10},
	{"data: {\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":9,"
	 "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\r\n\ndata: [DONE]\n\n",
		true, 4, 9},
	/* It does not say. */
	{"{}", false, 0, 0},
	{"", false, 0, 0},
	{"[", false, 0, 0},
	{"nonsense", false, 0, 0},
	{"{\"usage\":{\"prompt_tokens\":-1,\"prompt_tokens_details\":{\"cached_tokens\":"
	 "1e3}}}",
		false, 0, 0},
	{"{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":"
	 "18446744073709551615}}}",
		false, 0, 0},
};

START_TEST(c12_cached_tokens_are_read)
{
	const struct usage_case *c = &usages[_i];
	struct kv_usage u;
	struct span answer;
	char *copy = exact(c->answer, &answer);

	kv_answer_usage(answer, &u);
	ck_assert_msg(u.has_cached == c->has_cached && u.cached == c->cached &&
			      u.prompt == c->prompt,
		"%s", c->answer);
	free(copy);
}
END_TEST

static const struct release_case {
	const char *params, *body;
} releases[] = {
	{"{\"remote_request_id\":\"cmpl-\\u00e91\",\"kvx_token\":\"ab12\",\"x\":[1]}",
		"{\"remote_request_id\":\"cmpl-\\u00e91\",\"token\":\"ab12\"}"},
	{"{ \"kvx_token\" : \"t\" , \"remote_request_id\" : 9007199254740993 }",
		"{\"remote_request_id\":9007199254740993,\"token\":\"t\"}"},
	/* vLLM's have no token; nothing can be said then */
	{NIXL_PARAMS, ""},
	{"{\"kvx_token\":\"t\"}", ""},
	{"{\"remote_request_id\":null,\"kvx_token\":\"t\"}", ""},
	{"{\"remote_request_id\":\"a\",\"kvx_token\":{}}", ""},
	{"{}", ""},
	{"", ""},
};

START_TEST(releases_are_made)
{
	const struct release_case *c = &releases[_i];
	struct span params;
	char *copy = exact(c->params, &params), *body;
	size_t n;

	ck_assert_int_eq(kv_release_body(params, &body, &n), 0);
	ck_assert_msg(span_is(span_make(body, n), c->body), "%s", c->params);
	ck_assert((body == NULL) == (n == 0));
	free(body);
	free(copy);
}
END_TEST

static const struct engine_case {
	const char *answer;
	unsigned rank;
	const char *id; /* NULL: none */
} engines[] = {
	{"{\"0\":{\"engine_id\":\"eng-a\",\"worker_addr\":{}},\"1\":{\"engine_id\":"
	 "\"eng-b\"}}",
		0, "eng-a"},
	{"{\"0\":{\"engine_id\":\"eng-a\",\"worker_addr\":{}},\"1\":{\"engine_id\":"
	 "\"eng-b\"}}",
		1, "eng-b"},
	{"{\"1\":{\"engine_id\":\"eng-b\"},\"10\":{\"engine_id\":\"ten\"}}", 10, "ten"},
	/* another rank's is better than none */
	{"{\"4\":{\"engine_id\":\"eng-a\"}}", 0, "eng-a"},
	{"{\"0\":{},\"1\":{\"engine_id\":\"eng-b\"}}", 0, "eng-b"},
	{"{\"0\":{\"engine_id\":\"\"},\"1\":{\"engine_id\":\"a\\\"b\"}}", 0, "a\\\"b"},
	{"{\"0\":{\"engine_id\":null}}", 0, NULL},
	{"{\"0\":{\"engine_id\":12}}", 0, NULL},
	{"{\"0\":\"eng-a\"}", 0, NULL},
	{"{}", 0, NULL},
	{"[{\"engine_id\":\"eng-a\"}]", 0, NULL},
	{"not ready", 0, NULL},
	{"", 0, NULL},
};

START_TEST(engine_ids_are_found)
{
	const struct engine_case *c = &engines[_i];
	struct span answer, id = {NULL, 0};
	char *copy = exact(c->answer, &answer);

	ck_assert_msg(
		kv_engine_id(answer, c->rank, &id) == (c->id != NULL), "%s", c->answer);
	if (c->id != NULL)
		ck_assert_msg(span_is(id, c->id), "%s", c->answer);
	free(copy);
}
END_TEST

static const uint8_t secret[16] = {
	0, 1, 2, 3, 4, 5, 0xf6, 7, 0xf8, 9, 10, 11, 12, 13, 14, 0xff};

START_TEST(ids_hold_both_addresses)
{
	char out[KV_ID_ROOM], host[KV_ID_ROOM];
	size_t n;

	n = kv_make_id(
		SPAN_LIT("10.0.0.7:21001"), SPAN_LIT("[fd00::8]:21002"), secret, out);
	ck_assert_str_eq(out, "___prefill_addr_10.0.0.7:21001___decode_addr_[fd00::8]:"
			      "21002_000102030405f607f8090a0b0c0d0eff");
	ck_assert_uint_eq(n, strlen(out));
	memset(host, 'h', sizeof(host));
	ck_assert_uint_eq(
		kv_make_id(span_make(host, 300), span_make(host, 300), secret, out), 0);
}
END_TEST

START_TEST(ids_that_name_peers_are_seen)
{
	ck_assert(kv_id_names_peers(
		SPAN_LIT("x___prefill_addr_evil:1___decode_addr_evil:2_0")));
	ck_assert(kv_id_names_peers(SPAN_LIT("___decode_addr_evil:2")));
	ck_assert(!kv_id_names_peers(SPAN_LIT("req-prefill_addr-7")));
	ck_assert(!kv_id_names_peers(SPAN_LIT("")));
	ck_assert(!kv_id_names_peers(span_make(NULL, 0)));
}
END_TEST

static void check_address(
	const char *host, uint16_t port, unsigned bootstrap_port, const char *wanted)
{
	char text[KV_ADDRESS_ROOM], *copy = strdup(host);
	struct worker_conf w = {
		.url = {.host = copy, .port = port}, .bootstrap_port = bootstrap_port};

	ck_assert_uint_eq(kv_address(&w, text), strlen(wanted));
	ck_assert_str_eq(text, wanted);
	free(copy);
}

START_TEST(addresses_are_those_of_the_transfer)
{
	check_address("10.0.0.7", 8000, 0, "10.0.0.7:8000");
	check_address("10.0.0.7", 8000, 21001, "10.0.0.7:21001");
	check_address("fd00::7", 8000, 0, "[fd00::7]:8000");
}
END_TEST

START_TEST(transfer_ids_are_uuids)
{
	char out[KV_TRANSFER_ID_ROOM];

	kv_make_transfer_id(secret, out);
	ck_assert_str_eq(out, "xfer-00010203-0405-4607-b809-0a0b0c0d0eff");
}
END_TEST

START_TEST(rooms_are_63_bits_and_of_the_rank)
{
	struct rng rng;
	unsigned i;

	ck_assert_uint_eq(kv_make_room(42, 0, 0), 42);
	ck_assert_uint_eq(kv_make_room(42, 0, 1), 42);
	ck_assert_uint_eq(kv_make_room(42, 3, 4), 43);
	ck_assert_uint_eq(kv_make_room(0, 3, 4), 3);
	rng_seed(&rng, 7);
	for (i = 0; i < 100000; i++) {
		unsigned ranks = 1 + (unsigned)rng_below(&rng, 1024);
		unsigned rank = (unsigned)rng_below(&rng, ranks);
		uint64_t random = i < 10 ? UINT64_MAX - i : rng_next(&rng);
		uint64_t room = kv_make_room(random, rank, ranks);

		ck_assert_uint_le(room, INT64_MAX - 4096ULL * 1024);
		ck_assert(ranks == 1 || room % ranks == rank);
	}
}
END_TEST

static Suite *kv_transfer_suite(void)
{
	Suite *s = suite_create("kv_transfer");
	TCase *t = tcase_create("kv_transfer");

	tcase_add_test(t, forms_say_what_a_connector_needs);
	tcase_add_loop_test(t, answers_are_read, 0, sizeof(answers) / sizeof(answers[0]));
	tcase_add_loop_test(t, f6_what_was_not_cut_is_told, 0, ARRAY_LEN(cuts));
	tcase_add_loop_test(t, c12_cached_tokens_are_read, 0, ARRAY_LEN(usages));
	tcase_add_loop_test(
		t, releases_are_made, 0, sizeof(releases) / sizeof(releases[0]));
	tcase_add_loop_test(
		t, engine_ids_are_found, 0, sizeof(engines) / sizeof(engines[0]));
	tcase_add_test(t, ids_hold_both_addresses);
	tcase_add_test(t, ids_that_name_peers_are_seen);
	tcase_add_test(t, addresses_are_those_of_the_transfer);
	tcase_add_test(t, transfer_ids_are_uuids);
	tcase_add_test(t, rooms_are_63_bits_and_of_the_rank);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(kv_transfer_suite())
