/*
 * Random request bodies, whole and in pieces, valid and mutated, against an oracle:
 * jansson's tree, from which this file builds the prompt stream a second time, without a
 * look at the first. And: a longer conversation extends a shorter one.
 *
 * Skipped where a tree cannot know the spelling: numbers with fractions or exponents, and
 * duplicates inside what counts as JSON.
 */
#include "tests/unit/route_oracle.h"
#include "tests/unit/route_rig.h"

/* How many times as many bodies as in "make check": the environment's KVSTEER_ROUNDS. */
static unsigned rounds(unsigned n)
{
	const char *times = getenv("KVSTEER_ROUNDS");

	return times != NULL ? n * (unsigned)atoi(times) : n;
}

/* --- Random bodies --- */

struct maker {
	struct text out;
	struct rng rng;
	bool is_odd; /* wrong kinds and duplicates too */
};

static size_t below(struct maker *m, size_t n)
{
	return (size_t)rng_below(&m->rng, n);
}

static void blank(struct maker *m)
{
	static const char *const blanks[] = {"", "", "", "", " ", "\n\t", "  \r\n"};

	put(&m->out, blanks[below(m, ARRAY_LEN(blanks))]);
}

static void put_escape(struct maker *m, unsigned code)
{
	char escape[8];

	snprintf(escape, sizeof(escape), below(m, 2) ? "\\u%04x" : "\\u%04X", code);
	put(&m->out, escape);
}

/* One character, in one of its spellings. */
static void put_character(struct maker *m, unsigned char c)
{
	static const char shorts[] = "\"\\/\b\f\n\r\t", spelled[] = "\"\\/bfnrt";
	const char *is_short = strchr(shorts, c);
	char raw = (char)c;

	if (c >= 0x80) {
		static const char *const wide[] = {"\xc3\xa9", "\xe2\x82\xac",
			"\xf0\x9f\x98\x80", "\\u00e9", "\\u20AC", "\\ud83d\\uDE00"};

		put(&m->out, wide[c % 6]);
	} else if (is_short != NULL && (c != '/' || below(m, 2))) {
		add(&m->out, "\\", 1);
		add(&m->out, &spelled[is_short - shorts], 1);
	} else if (c < 0x20 || c == '"' || c == '\\' || below(m, 40) == 0) {
		put_escape(m, c);
	} else {
		add(&m->out, &raw, 1);
	}
}

static void make_word(struct maker *m, const char *word)
{
	put(&m->out, "\"");
	for (; *word != '\0'; word++) {
		if (below(m, 60) == 0)
			put_escape(m, (unsigned char)*word);
		else
			add(&m->out, word, 1);
	}
	put(&m->out, "\"");
}

/* Every second string is plain: those are hashed in place where they are long. */
static void make_string(struct maker *m)
{
	static const size_t lengths[] = {0, 1, 2, 5, 5, 10, 30, 60, 64, 70, 150, 700};
	static const char odd[] = "\"\\/\b\f\n\r\t\x01\x80\x81\x82\x83\x84\x85";
	size_t n = below(m, 60) == 0 ? 9000 : lengths[below(m, ARRAY_LEN(lengths))];
	unsigned every = below(m, 2) ? 200 : 5;
	bool is_plain = below(m, 2);

	put(&m->out, "\"");
	if (below(m, 30) == 0)
		put(&m->out, "data:");
	else if (below(m, 10) == 0)
		put(&m->out, below(m, 2) ? "x-anthropic-billing-header: \\n"
					 : "\\u0078-anthropic-billing-header\\u000A");
	for (size_t i = 0; i < n; i++) {
		char c = (char)('a' + below(m, 26));

		if (is_plain)
			add(&m->out, &c, 1);
		else if (below(m, every) == 0)
			put_character(m, (unsigned char)odd[below(m, sizeof(odd) - 1)]);
		else
			put_character(m, (unsigned char)c);
	}
	put(&m->out, "\"");
}

static void make_integer(struct maker *m)
{
	char number[32];

	snprintf(number, sizeof(number), "%lld",
		(long long)(rng_next(&m->rng) >> (1 + below(m, 63))));
	if (below(m, 8) == 0 && number[0] != '0')
		put(&m->out, "-");
	put(&m->out, number);
}

/* Any JSON, without duplicate keys. */
static void make_json(struct maker *m, unsigned depth)
{
	static const char *const scalars[] = {"true", "false", "null", "[]", "{}"};
	bool object = below(m, 2);
	size_t n = below(m, 5);
	char name[32];

	if (depth == 0 || below(m, 3) == 0) {
		if (below(m, 3) == 0)
			put(&m->out, scalars[below(m, ARRAY_LEN(scalars))]);
		else if (below(m, 2))
			make_integer(m);
		else
			make_string(m);
		return;
	}
	put(&m->out, object ? "{" : "[");
	for (size_t i = 0; i < n; i++) {
		put(&m->out, i > 0 ? "," : "");
		blank(m);
		if (object) {
			snprintf(name, sizeof(name), "%s%zu",
				below(m, 9) ? "key" : "data:", i);
			make_word(m, i == 3 ? "cache_control" : i == 4 ? "id" : name);
			blank(m);
			put(&m->out, ":");
			blank(m);
		}
		make_json(m, depth - 1);
		blank(m);
	}
	put(&m->out, object ? "}" : "]");
}

typedef void make_fn(struct maker *m);

struct member {
	const char *key;
	make_fn *make;
};

/* Members in random order, some missing; some twice where that is meant. */
static void make_object(
	struct maker *m, const struct member *members, size_t n, bool has_duplicates)
{
	size_t start = below(m, n), step = below(m, 2) ? 1 : n - 1, count = n,
	       written = 0;

	if (has_duplicates && m->is_odd && below(m, 4) == 0)
		count += below(m, n);
	put(&m->out, "{");
	for (size_t i = 0; i < count; i++) {
		const struct member *member = &members[(start + i * step) % n];

		if (below(m, 4) == 0)
			continue;
		put(&m->out, written++ > 0 ? "," : "");
		blank(m);
		make_word(m, member->key);
		blank(m);
		put(&m->out, ":");
		blank(m);
		if (m->is_odd && below(m, 12) == 0)
			make_json(m, 2);
		else
			member->make(m);
		blank(m);
	}
	put(&m->out, "}");
}

#define OBJECT(m, members, duplicates) \
	make_object(m, members, ARRAY_LEN(members), duplicates)

static void make_list(struct maker *m, make_fn *item, size_t most)
{
	size_t n = below(m, most + 1);

	put(&m->out, "[");
	for (size_t i = 0; i < n; i++) {
		put(&m->out, i > 0 ? "," : "");
		blank(m);
		if (m->is_odd && below(m, 20) == 0)
			make_json(m, 1);
		else
			item(m);
		blank(m);
	}
	put(&m->out, "]");
}

static void make_any(struct maker *m)
{
	make_json(m, 3);
}

static void make_type(struct maker *m)
{
	static const char *const types[] = {"text", "input_text", "output_text",
		"refusal", "thinking", "redacted_thinking", "tool_use", "tool_result",
		"image_url", "input_image", "image", "input_audio", "file", "video_url",
		"document", "odd", "reasoning_text", "text", "text", "message",
		"function_call", "function_call_output", "reasoning", "custom_tool_call",
		"item_reference"};

	make_word(m, types[below(m, ARRAY_LEN(types))]);
}

static void make_role(struct maker *m)
{
	static const char *const roles[] = {
		"user", "assistant", "system", "developer", "tool"};

	make_word(m, roles[below(m, ARRAY_LEN(roles))]);
}

static void make_source(struct maker *m)
{
	static const struct member members[] = {{"type", make_role},
		{"media_type", make_role}, {"data", make_string}, {"url", make_string},
		{"detail", make_role}, {"file_id", make_string}};

	if (below(m, 3) == 0)
		make_string(m);
	else
		OBJECT(m, members, false);
}

static void make_inner_content(struct maker *m);

static void make_part(struct maker *m)
{
	static const struct member members[] = {{"type", make_type},
		{"text", make_string}, {"refusal", make_string},
		{"thinking", make_string}, {"data", make_string}, {"id", make_role},
		{"name", make_role}, {"input", make_any}, {"tool_use_id", make_role},
		{"content", make_inner_content}, {"image_url", make_source},
		{"source", make_source}, {"cache_control", make_source},
		{"file", make_source}};
	static const struct member texts[] = {{"type", make_type}, {"text", make_string},
		{"cache_control", make_source}};

	if (below(m, 8) == 0)
		make_string(m);
	else if (below(m, 2))
		OBJECT(m, texts, false);
	else
		OBJECT(m, members, false);
}

static void make_inner_content(struct maker *m)
{
	/* Below a part, parts are short of parts. */
	if (m->out.n > 20000 || below(m, 2))
		make_string(m);
	else
		make_list(m, make_part, 2);
}

static void make_content(struct maker *m)
{
	if (below(m, 8) == 0)
		put(&m->out, "null");
	else if (below(m, 2))
		make_string(m);
	else
		make_list(m, make_part, 4);
}

static void make_function(struct maker *m)
{
	static const struct member members[] = {
		{"name", make_role}, {"arguments", make_string}, {"input", make_any}};

	OBJECT(m, members, true);
}

static void make_call(struct maker *m)
{
	static const struct member members[] = {{"id", make_role}, {"type", make_role},
		{"function", make_function}, {"custom", make_function}};

	OBJECT(m, members, true);
}

static void make_calls(struct maker *m)
{
	make_list(m, make_call, 3);
}

static void make_message(struct maker *m)
{
	static const struct member members[] = {{"role", make_role},
		{"content", make_content}, {"name", make_role},
		{"tool_calls", make_calls}, {"tool_call_id", make_role},
		{"function_call", make_function}, {"reasoning", make_string},
		{"reasoning_content", make_string}, {"id", make_string},
		{"cache_control", make_any}};
	static const struct member simple[] = {
		{"role", make_role}, {"content", make_string}};

	if (below(m, 2))
		OBJECT(m, simple, true);
	else
		OBJECT(m, members, true);
}

static void make_messages(struct maker *m)
{
	make_list(m, make_message, 5);
}

static void make_item(struct maker *m)
{
	static const struct member members[] = {{"type", make_type}, {"role", make_role},
		{"content", make_content}, {"call_id", make_role}, {"name", make_role},
		{"arguments", make_string}, {"output", make_inner_content},
		{"summary", make_content}, {"id", make_role}, {"status", make_role},
		{"input", make_string}};
	static const struct member simple[] = {
		{"role", make_role}, {"content", make_content}, {"id", make_role}};

	if (below(m, 2))
		OBJECT(m, simple, false);
	else
		OBJECT(m, members, false);
}

static void make_id(struct maker *m)
{
	char number[32];

	snprintf(number, sizeof(number), "%u",
		(uint32_t)rng_next(&m->rng) >> below(m, 32));
	put(&m->out, number);
}

static void make_ids(struct maker *m)
{
	make_list(m, make_id, 300);
}

static void make_prompt(struct maker *m)
{
	switch (below(m, 5)) {
	case 0:
		make_list(m, make_string, 3);
		break;
	case 1:
		make_list(m, make_ids, 3);
		break;
	case 2:
		make_string(m);
		break;
	default:
		make_ids(m);
	}
}

static void make_input(struct maker *m)
{
	if (below(m, 3) == 0)
		make_prompt(m);
	else
		make_list(m, make_item, 5);
}

static void make_document(struct maker *m)
{
	static const struct member members[] = {{"text", make_string}, {"x", make_any}};

	if (below(m, 2))
		make_string(m);
	else
		OBJECT(m, members, false);
}

static void make_documents(struct maker *m)
{
	if (below(m, 4) == 0)
		make_document(m);
	else
		make_list(m, make_document, 4);
}

static void make_tools(struct maker *m)
{
	if (below(m, 10) == 0)
		make_json(m, 12);
	else
		make_list(m, make_any, 4);
}

static void make_bool(struct maker *m)
{
	put(&m->out, below(m, 2) ? "true" : "false");
}

static void make_session(struct maker *m)
{
	static const struct member members[] = {
		{"session_id", make_role}, {"x", make_any}};

	OBJECT(m, members, true);
}

static void make_metadata(struct maker *m)
{
	static const struct member members[] = {
		{"session_id", make_role}, {"user_id", make_string}, {"x", make_any}};

	OBJECT(m, members, true);
}

static void make_body(struct maker *m)
{
	static const struct member members[] = {{"model", make_role},
		{"stream", make_bool}, {"messages", make_messages}, {"tools", make_tools},
		{"functions", make_tools}, {"system", make_content},
		{"instructions", make_string}, {"input", make_input},
		{"previous_response_id", make_role}, {"prompt", make_prompt},
		{"text", make_prompt}, {"input_ids", make_ids}, {"token_ids", make_ids},
		{"image_data", make_documents}, {"query", make_document},
		{"documents", make_documents}, {"text_1", make_documents},
		{"text_2", make_documents}, {"data_1", make_documents},
		{"data_2", make_document}, {"queries", make_documents},
		{"items", make_documents}, {"input_extra", make_any},
		{"input_prefix", make_string}, {"input_suffix", make_string},
		{"content", make_prompt}, {"texts", make_prompt},
		{"inputs", make_messages}, {"state", make_document},
		{"lora_path", make_documents}, {"cache_salt", make_role},
		{"session_params", make_session}, {"user", make_string},
		{"session_id", make_integer}, {"user_id", make_role},
		{"prompt_cache_key", make_string}, {"safety_identifier", make_role},
		{"response_format", make_any}, {"metadata", make_metadata}};

	m->out.n = 0;
	blank(m);
	OBJECT(m, members, true);
	blank(m);
}

/* --- Both together --- */

static void build(enum route_endpoint endpoint, const struct text *body,
	const struct route_key_opts *opts, struct rng *rng)
{
	rig_build(endpoint, body->p, body->n, opts, rng);
}

static void check_chain(const char *p, size_t n, size_t block, const struct text *body)
{
	uint64_t h = 0;

	if (key.n_blocks != n / block)
		complain("%zu blocks for %zu: %.*s", key.n_blocks, n / block,
			(int)body->n, body->p);
	for (size_t i = 0; i < n / block; i++) {
		h = hash64(p + i * block, block, h);
		if (key.hashes[i] != h)
			complain("block %zu of %zu: %.*s\nstream %.*s", i, block,
				(int)body->n, body->p, (int)n, p);
	}
}

static void check_hashes(const struct oracle *o, const struct route_key_opts *opts,
	const struct text *body)
{
	static unsigned char ids[4 * ARRAY_LEN(o->ids)];

	if (!o->is_ids) {
		REQUIRE(key.unit == 'b' && key.block == opts->block_bytes);
		if (key.prompt_units != o->stream.n)
			complain("%zu bytes: %.*s", o->stream.n, (int)body->n, body->p);
		check_chain(o->stream.p, o->stream.n, opts->block_bytes, body);
		return;
	}
	REQUIRE(key.unit == 't' && key.block == opts->block_tokens);
	REQUIRE(key.prompt_units == o->n_ids);
	for (size_t i = 0; i < 4 * o->n_ids; i++)
		ids[i] = (unsigned char)(o->ids[i / 4] >> (8 * (i % 4)));
	check_chain(
		(const char *)ids, 4 * o->n_ids, (size_t)4 * opts->block_tokens, body);
}

static void check_field(
	struct span got, const json_t *v, bool is_session, const struct text *body)
{
	char number[32] = "";
	struct span wanted = span_str(number);

	if (json_is_string(v))
		wanted = span_make(json_string_value(v), json_string_length(v));
	if (is_session && json_is_integer(v)) {
		snprintf(
			number, sizeof(number), "%lld", (long long)json_integer_value(v));
		wanted = span_str(number);
	}
	if (!span_eq(got, wanted))
		complain(
			"field " SPAN_FMT ": %.*s", SPAN_ARG(got), (int)body->n, body->p);
}

static void check_fields(json_t *dom, const struct text *body)
{
	json_t *lora = json_object_get(dom, "lora_path");

	if (json_is_array(lora))
		lora = json_array_get(lora, 0);
	check_field(key.model, json_object_get(dom, "model"), false, body);
	check_field(key.lora, lora, false, body);
	check_field(key.cache_salt, json_object_get(dom, "cache_salt"), false, body);
	check_field(key.session[SESSION_PARAMS_ID],
		json_object_get(json_object_get(dom, "session_params"), "session_id"),
		true, body);
	check_field(key.session[SESSION_USER], json_object_get(dom, "user"), true, body);
	check_field(
		key.session[SESSION_ID], json_object_get(dom, "session_id"), true, body);
	check_field(key.session[SESSION_USER_ID], json_object_get(dom, "user_id"), true,
		body);
	check_field(key.session[SESSION_CACHE_KEY],
		json_object_get(dom, "prompt_cache_key"), true, body);
	check_field(key.session[SESSION_SAFETY],
		json_object_get(dom, "safety_identifier"), true, body);
	check_field(key.session[SESSION_METADATA_ID],
		json_object_get(json_object_get(dom, "metadata"), "session_id"), true,
		body);
	check_field(key.session[SESSION_METADATA_USER],
		json_object_get(json_object_get(dom, "metadata"), "user_id"), true, body);
	REQUIRE(key.stream == json_is_true(json_object_get(dom, "stream")));
}

/* Whether the tree holds all there is to know. */
static bool has_spelling(json_t *v)
{
	const char *name;
	json_t *item;
	size_t i;

	if (json_is_real(v))
		return false;
	json_array_foreach(v, i, item)
	{
		if (!has_spelling(item))
			return false;
	}
	json_object_foreach(v, name, item)
	{
		if (!has_spelling(item))
			return false;
	}
	return true;
}

static const unsigned blocks[] = {1, 2, 3, 16, 100, 128, 128, 1000, 4096, 5000};

/* True when the oracle could judge. */
static bool check_body(struct maker *m, enum route_endpoint endpoint, size_t flags)
{
	static struct oracle o;
	struct route_key_opts opts = {blocks[below(m, ARRAY_LEN(blocks))],
		blocks[below(m, ARRAY_LEN(blocks))], 0, false, false};
	json_t *dom = json_loadb(m->out.p, m->out.n, flags, NULL);
	bool can_judge = json_is_object(dom) && has_spelling(dom) &&
			 memmem(m->out.p, m->out.n, "-0", 2) == NULL;

	build(endpoint, &m->out, &opts, below(m, 3) == 0 ? NULL : &m->rng);
	if (json_is_object(dom) && !key.readable)
		complain("jansson reads %.*s", (int)m->out.n, m->out.p);
	if (can_judge) {
		o_body(&o, endpoint, dom);
		check_fields(dom, &m->out);
		check_hashes(&o, &opts, &m->out);
	}
	json_decref(dom);
	return can_judge;
}

static enum route_endpoint any_endpoint(struct maker *m)
{
	return (enum route_endpoint)(1 + below(m, ENDPOINT_MAX - 1));
}

static void check_random(uint64_t seed, bool is_odd)
{
	static struct maker m;
	unsigned judged = 0, all = rounds(600);

	rng_seed(&m.rng, seed);
	m.is_odd = is_odd;
	for (unsigned i = 0; i < all; i++) {
		make_body(&m);
		judged += check_body(&m, any_endpoint(&m), 0);
	}
	ck_assert_uint_gt(judged, all * 8 / 10);
}

START_TEST(test_valid)
{
	check_random(1, false);
}
END_TEST

START_TEST(test_odd)
{
	check_random(2, true);
}
END_TEST

/* Bytes changed, removed, doubled: judged where jansson still reads it, and never a
 * crash. */
START_TEST(test_mutated)
{
	static const char bytes[] = "\"\\{}[],:0e.u n\n\x01\xff";
	static struct maker m;
	unsigned judged = 0, all = rounds(1200);

	rng_seed(&m.rng, 3);
	m.is_odd = true;
	for (unsigned i = 0; i < all; i++) {
		make_body(&m);
		for (size_t flips = 1 + below(&m, 3); flips > 0; flips--) {
			size_t at = below(&m, m.out.n),
			       n = MIN(m.out.n - at, 1 + below(&m, 20));

			switch (below(&m, 3)) {
			case 0:
				m.out.p[at] = bytes[below(&m, sizeof(bytes) - 1)];
				break;
			case 1:
				memmove(m.out.p + at, m.out.p + at + n, m.out.n - at - n);
				m.out.n -= n;
				break;
			default:
				memmove(m.out.p + at,
					m.out.p + below(&m, m.out.n - n + 1), n);
			}
			if (m.out.n == 0)
				put(&m.out, "{}");
		}
		judged += check_body(&m, any_endpoint(&m), JSON_REJECT_DUPLICATES);
	}
	ck_assert_uint_gt(judged, all / 15);
}
END_TEST

/* Turn n+1 extends turn n: the chain of one begins with the chain of the other. */
static void check_turns(
	struct maker *m, enum route_endpoint endpoint, const char *list, make_fn *turn)
{
	struct route_key_opts opts = {1, 1, 0, false, false};
	struct text body = {NULL, 0, 0};
	uint64_t last = 0;
	size_t n = 0;

	m->out.n = 0;
	put(&m->out, "{\"tools\":");
	make_tools(m);
	put(&m->out, ",\"system\":\"s\",\"instructions\":\"i\",\"");
	put(&m->out, list);
	put(&m->out, "\":[");
	for (unsigned i = 0; i < 5; i++) {
		put(&m->out, i > 0 ? "," : "");
		turn(m);
		body.n = 0;
		add(&body, m->out.p, m->out.n);
		put(&body, "],\"model\":\"m\"}");
		build(endpoint, &body, &opts, NULL);
		REQUIRE(key.readable && key.n_blocks >= n);
		if (n > 0 && key.hashes[n - 1] != last)
			complain("no extension: %.*s", (int)body.n, body.p);
		n = key.n_blocks;
		last = n > 0 ? key.hashes[n - 1] : 0;
	}
	free(body.p);
}

START_TEST(test_turns)
{
	static struct maker m;

	rng_seed(&m.rng, 4);
	for (unsigned i = 0; i < rounds(60); i++) {
		m.is_odd = i % 2;
		check_turns(&m, ENDPOINT_CHAT, "messages", make_message);
		check_turns(&m, ENDPOINT_MESSAGES, "messages", make_message);
		check_turns(&m, ENDPOINT_RESPONSES, "input", make_item);
	}
}
END_TEST

static Suite *route_prompt_suite(void)
{
	Suite *suite = suite_create("route_prompt");
	TCase *tcase = tcase_create("route_prompt");

	tcase_set_timeout(tcase, 0);
	tcase_add_test(tcase, test_valid);
	tcase_add_test(tcase, test_odd);
	tcase_add_test(tcase, test_mutated);
	tcase_add_test(tcase, test_turns);
	suite_add_tcase(suite, tcase);
	return suite;
}

int main(void)
{
	return rig_main(route_prompt_suite());
}
