/*
 * Tests of route_key: the prompt stream of each endpoint, byte for byte; which bodies
 * share a key and which must not; fields, the client's hashes, secrets. The stream is
 * recovered from a chain of one-byte blocks, so what is tested is what is hashed. Random
 * documents are in check_route_prompt.c.
 */
#include "base/err.h"
#include "base/hash.h"
#include "tests/unit/route_rig.h"

#define MAX_STREAM 16384

static void build(
	enum route_endpoint endpoint, const char *body, size_t n, unsigned block)
{
	struct route_key_opts opts = {block, block, 0, false, false};

	rig_build(endpoint, body, n, &opts, NULL);
}

static void build_text(enum route_endpoint endpoint, const char *body)
{
	build(endpoint, body, strlen(body), 1);
}

/* The bytes whose chain of one-byte blocks key has. */
static size_t recover(char out[MAX_STREAM])
{
	uint64_t previous = 0;

	ck_assert_uint_le(key.n_blocks, MAX_STREAM);
	ck_assert_uint_eq(key.n_blocks, key.prompt_units);
	for (size_t i = 0; i < key.n_blocks; i++) {
		unsigned byte = 0;
		unsigned char c = 0;

		while (byte < 256 && hash64(&c, 1, previous) != key.hashes[i])
			c = (unsigned char)++byte;
		ck_assert_msg(byte < 256, "block %zu is of no byte", i);
		out[i] = (char)c;
		previous = key.hashes[i];
	}
	return key.n_blocks;
}

/* What tables write: ~ is the border 0xFF, @...@ the digest of the text between, 4,096
 * bytes of it, and #...# the digest once. */
static size_t expand(const char *wanted, char out[MAX_STREAM])
{
	size_t n = 0;

	for (const char *p = wanted; *p != '\0'; p++) {
		if (*p == '@' || *p == '#') {
			const char *end = strchr(p + 1, *p);
			uint64_t digest = hash64(p + 1, (size_t)(end - p - 1), 0);

			for (unsigned i = 0; i < (*p == '@' ? 4096 : 8); i++)
				out[n++] = (char)(digest >> (8 * (i % 8)));
			p = end;
		} else {
			out[n++] = *p == '~' ? (char)0xFF : *p;
		}
	}
	return n;
}

struct stream_case {
	enum route_endpoint endpoint;
	const char *body, *stream;
};

/* clang-format off */
static const struct stream_case streams[] = {
	/* completions: the bytes of the prompt */
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":\"hello\"}", "hello" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":\"\"}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":null}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":7}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":{\"a\":\"b\"}}", "" },
	{ ENDPOINT_COMPLETIONS, "{}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}", "~la" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[\"a\",1]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[1,\"a\"]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[[]]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[[1,2],3]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[[\"a\"]]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[null]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[1,2.5]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[1,-2]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[1,4294967296]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":[1,2,3,4,5,6,7,8,9,10,99999999999999999999999]}", "" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":\"caf\\u00e9 \\/ \\\"\\ud83d\\ude00\\n\"}", "caf\xc3\xa9 / \"\xf0\x9f\x98\x80\n" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":\"a\\ud800b\"}", "a\xed\xa0\x80" "b" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":\"a\\udc00\\ud83d\"}", "a\xed\xb0\x80\xed\xa0\xbd" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":\"\xff\xfe\xc0\xaf\"}", "\xff\xfe\xc0\xaf" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":\"first\",\"prompt\":\"last\"}", "last" },
	{ ENDPOINT_COMPLETIONS, "{\"p\\u0072ompt\":\"x\"}", "x" },
	{ ENDPOINT_COMPLETIONS, "{\"prompt\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"y\"}],\"input\":\"z\"}", "x" },

	/* chat: messages */
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", "~muser~xhi" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"content\":\"hi\",\"role\":\"user\"}]}", "~muser~xhi" },
	{ ENDPOINT_CHAT, " { \"messages\" : [ { \"role\" :\n\"user\" , \"content\" : \"hi\" } ] } ", "~muser~xhi" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}]}", "~muser~xhi" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}},{\"text\":\"b\",\"type\":\"text\"}]}]}", "~muser~xa~xb" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[\"a\",{\"text\":\"b\"}]}]}", "~muser~xa~xb" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":null}]}", "~massistant" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":[]}]}", "~massistant" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\"}]}", "~massistant" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}]}", "~massistant~x" },
	{ ENDPOINT_CHAT, "{\"messages\":[{}]}", "~m" },
	{ ENDPOINT_CHAT, "{\"messages\":[]}", "" },
	{ ENDPOINT_CHAT, "{\"messages\":\"x\"}", "" },
	{ ENDPOINT_CHAT, "{\"messages\":[7]}", "~j7" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":7,\"content\":8}]}", "~m~j8" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"role\":\"system\",\"content\":\"x\",\"content\":\"y\"}]}", "~msystem~xy" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"a\"}],\"messages\":[{\"role\":\"b\"}]}", "~mb" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"r\\u006fle\":\"user\",\"c\\u006fntent\":\"h\\u0069\"}]}", "~muser~xhi" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"name\":\"bob\",\"content\":\"hi\",\"id\":\"msg_1\",\"metadata\":{\"k\":1}}]}", "~muser~nbob~xhi" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"}]}", "~mdeveloper~xd~muser~xu" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":\"why\",\"content\":\"so\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"arguments\":\"{\\\"a\\\":1}\",\"name\":\"f\"}},{\"id\":\"c2\",\"function\":{\"name\":\"g\",\"arguments\":{\"b\": [1 , 2]}}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"r\"}]}",
	  "~massistant~xso~cc1~df~a{\"a\":1}~cc2~dg~a{~\"b~\":[1,2]}~gwhy~mtool~xr~rc1" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"},\"reasoning\":\"w\",\"tool_calls\":null}]}", "~massistant~c~df~a{}~gw" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"custom\",\"custom\":{\"name\":\"n\",\"input\":\"i\"}}]}]}", "~massistant~cc~dn~ai" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}]}", "~massistant~xno" },

	/* chat: media and unknown parts */
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://x/y\",\"detail\":\"low\"}},{\"type\":\"text\",\"text\":\"q\"}]}]}", "~muser~i@http://x/y@~xq" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"http:\\/\\/x\\/y\"}}]}]}", "~muser~i@http://x/y@" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"data:image/png;base64,AAAA\"}]}]}", "~muser~i@data:image/png;base64,AAAA@" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"image_url\":{\"url\":\"u\"}}]}]}", "~muser~i@u@" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\",\"input_audio\":{\"format\":\"wav\",\"data\":\"UklG\"}}]}]}", "~muser~i@UklG@" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"file\",\"file\":{\"filename\":\"f\",\"file_data\":\"D\"}}]}]}", "~muser~i@D@" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video_url\",\"video_url\":{\"url\":\"v\"}}]}]}", "~muser~i@v@" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":null}]}]}", "~muser~j{~\"type~\":~\"image_url~\",~\"image_url~\":null}" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"file\":{\"url\":\"u\"}}}]}]}", "~muser~j{~\"type~\":~\"image~\",~\"source~\":{~\"file~\":{~\"url~\":~\"u~\"}}}" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"odd\",\"x\" : [1.50, true],\"cache_control\":{},\"y\":\"data:abc\"}]}]}", "~muser~j{~\"type~\":~\"odd~\",~\"x~\":[1.50,true],~\"y~\":~i#data:abc#}" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}]}", "~muser~j{~\"type~\":~\"text~\",~\"text~\":5}" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":{\"type\":\"text\",\"text\":\"one\"}}]}", "~muser~xone" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[[1],null,7]}]}", "~muser~j[1]~jnull~j7" },

	/* tools before everything, wherever they stand */
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}} , {\"n\":1e0}]}",
	  "~t{~\"type~\":~\"function~\",~\"function~\":{~\"name~\":~\"f~\"}}~t{~\"n~\":1e0}~muser~xhi" },
	{ ENDPOINT_CHAT, "{\"tools\":[{\"b\":\"\\u00e9\\\"\",\"cache_control\":{\"type\":\"ephemeral\"},\"a\":{\"cache_control\":1}}],\"messages\":[]}",
	  "~t{~\"b~\":~\"\xc3\xa9\"~\",~\"a~\":{~\"cache_control~\":1}}" },
	{ ENDPOINT_CHAT, "{\"tools\":[{\"icon\":\"data:a\"},{\"x\":[\"d\\u0061ta:b\"]}],\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"arguments\":{\"p\":\"data:c\"}}}]}]}",
	  "~t{~\"icon~\":~i#data:a#}~t{~\"x~\":[~i#data:b#]}~massistant~cc~a{~\"p~\":~i#data:c#}" },
	{ ENDPOINT_CHAT, "{\"tools\":[{\"cache_control\":1}],\"functions\":[{\"name\":\"f\"}]}", "~t{}~f{~\"name~\":~\"f~\"}" },
	{ ENDPOINT_CHAT, "{\"tools\":[],\"functions\":null}", "" },
	{ ENDPOINT_CHAT, "{\"tools\":{\"x\": 1}}", "~t{~\"x~\":1}" },
	{ ENDPOINT_CHAT, "{\"system\":\"s\",\"instructions\":\"i\"}", "" },

	/* Anthropic */
	{ ENDPOINT_MESSAGES, "{\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"name\":\"f\"}]}", "~t{~\"name~\":~\"f~\"}~s~xs~muser~xhi" },
	{ ENDPOINT_MESSAGES, "{\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{\"type\":\"ephemeral\"}}]}", "~s~xs" },
	{ ENDPOINT_MESSAGES, "{\"system\":null}", "" },

	/* the line that engines drop from system prompts */
	{ ENDPOINT_MESSAGES, "{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: v=1; cch=00a1f;\"},{\"type\":\"text\",\"text\":\"s\"}]}", "~s~xs" },
	{ ENDPOINT_MESSAGES, "{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: v=1; cch=00a1f;\\nmore\"},{\"type\":\"text\",\"text\":\"s\"}]}", "~s~xs" },
	{ ENDPOINT_MESSAGES, "{\"system\":\"x-anthropic-billing-header: v=1; cch=00a1f;\\nYou are\\nan agent\"}", "~s~xYou are\nan agent" },
	{ ENDPOINT_MESSAGES, "{\"system\":\"x-anthropic-billing-header: v=1; cch=00a1f;\"}", "~s" },
	{ ENDPOINT_MESSAGES, "{\"system\":\"x\\u002danthropic-billing-header\\\\n: \\u00e9\\u000As\"}", "~s~xs" },
	{ ENDPOINT_MESSAGES, "{\"system\":[{\"type\":\"text\",\"text\":\"s x-anthropic-billing-header: v=1; cch=00a1f;\"}]}", "~s~xs x-anthropic-billing-header: v=1; cch=00a1f;" },
	{ ENDPOINT_MESSAGES, "{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: v=1; cch=00a1f;\"},{\"type\":\"text\",\"text\":\"s\"}]},{\"role\":\"system\",\"content\":\"x-anthropic-billing-header: v=1; cch=00a1f;\\ns\"},{\"role\":\"user\",\"content\":\"x-anthropic-billing-header: v=1; cch=00a1f;\"}]}", "~msystem~xs~msystem~xs~muser~xx-anthropic-billing-header: v=1; cch=00a1f;" },
	{ ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"x-anthropic-billing-header: v=1; cch=00a1f;\\ns\"},{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: v=1; cch=00a1f;\\nt\"},{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: v=1; cch=00a1f;\"}]},{\"role\":\"developer\",\"content\":\"x-anthropic-billing-header: v=1; cch=00a1f;\"}]}", "~msystem~xs~msystem~xt~mdeveloper~xx-anthropic-billing-header: v=1; cch=00a1f;" },
	{ ENDPOINT_RESPONSES, "{\"instructions\":\"x-anthropic-billing-header: v=1; cch=00a1f;\\ns\",\"input\":\"x-anthropic-billing-header: v=1; cch=00a1f;\"}", "~s~xs~muser~xx-anthropic-billing-header: v=1; cch=00a1f;" },

	{ ENDPOINT_MESSAGES, "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\",\"signature\":\"S\"},{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"tool_use\",\"id\":\"tu\",\"name\":\"f\",\"input\":{\"a\": \"b\"}}]}]}",
	  "~massistant~gt~xx~ctu~df~a{~\"a~\":~\"b~\"}" },
	{ ENDPOINT_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"tu\",\"content\":\"ok\"},{\"type\":\"tool_result\",\"tool_use_id\":\"tv\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":\"QUJD\"}}]},{\"type\":\"tool_result\",\"tool_use_id\":\"tw\"}]}]}",
	  "~muser~rtu~xok~rtv~xa~i@QUJD@~rtw" },
	{ ENDPOINT_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"U\"}},{\"type\":\"redacted_thinking\",\"data\":\"R\"}]}]}", "~muser~i@U@~gR" },
	{ ENDPOINT_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[{\"type\":\"tool_result\"}]}]}]}", "~muser~ra~j{~\"type~\":~\"tool_result~\"}" },

	/* responses */
	{ ENDPOINT_RESPONSES, "{\"input\":\"hi\",\"instructions\":\"be\"}", "~s~xbe~muser~xhi" },
	{ ENDPOINT_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":\"hi\"}],\"instructions\":\"be\"}", "~s~xbe~muser~xhi" },
	{ ENDPOINT_RESPONSES, "{\"input\":[{\"type\":\"message\",\"id\":\"msg_7\",\"status\":\"completed\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_image\",\"image_url\":\"U\",\"detail\":\"auto\"}]},{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"b\",\"annotations\":[]}]}]}",
	  "~muser~xa~i@U@~massistant~xb" },
	{ ENDPOINT_RESPONSES, "{\"input\":[{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\",\"status\":\"completed\"},{\"type\":\"function_call_output\",\"id\":\"x\",\"call_id\":\"c\",\"output\":\"42\"},{\"type\":\"function_call_output\",\"call_id\":\"d\",\"output\":[{\"type\":\"input_text\",\"text\":\"43\"}]}]}",
	  "~cc~df~a{}~rc~x42~rd~x43" },
	{ ENDPOINT_RESPONSES, "{\"input\":[{\"type\":\"reasoning\",\"id\":\"rs_1\",\"encrypted_content\":\"E\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"c\"}]}]}", "~gs~gc" },
	{ ENDPOINT_RESPONSES, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"i\"},{\"type\":\"odd\",\"id\":\"i\",\"status\":\"s\",\"q\":1}]}", "~j{~\"type~\":~\"item_reference~\",~\"id~\":~\"i~\"}~j{~\"type~\":~\"odd~\",~\"q~\":1}" },
	{ ENDPOINT_RESPONSES, "{\"previous_response_id\":\"resp_1\",\"instructions\":\"be\",\"input\":\"go\",\"tools\":[{\"type\":\"web_search\"}]}", "~t{~\"type~\":~\"web_search~\"}~s~xbe~presp_1~muser~xgo" },
	{ ENDPOINT_RESPONSES, "{\"input\":[{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"n\",\"input\":\"raw\"},{\"type\":\"custom_tool_call_output\",\"call_id\":\"c\",\"output\":\"o\"}]}", "~cc~dn~araw~rc~xo" },

	/* the rest */
	{ ENDPOINT_EMBEDDINGS, "{\"input\":\"e\"}", "e" },
	{ ENDPOINT_EMBEDDINGS, "{\"input\":[\"e\",\"f\"]}", "~le" },
	{ ENDPOINT_EMBEDDINGS, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", "~muser~xhi" },
	{ ENDPOINT_RERANK, "{\"documents\":[\"d1\",{\"text\":\"d2\"},{\"x\":1}],\"query\":\"q\"}", "~qq~kd1~kd2~k{~\"x~\":1}" },
	{ ENDPOINT_SCORE, "{\"text_2\":[\"b\",\"c\"],\"text_1\":\"a\"}", "~qa~kb" },
	{ ENDPOINT_SCORE, "{\"text_2\":\"b\",\"text_1\":[\"a\"]}", "~qa~kb" },
	{ ENDPOINT_SCORE, "{\"text_1\":[],\"text_2\":null}", "" },
	{ ENDPOINT_GENERATE, "{\"text\":\"g\",\"input_ids\":[1,2]}", "g" },
	{ ENDPOINT_GENERATE, "{\"text\":[\"g\",\"h\"]}", "~lg" },
	{ ENDPOINT_GENERATE, "{\"prompt\":\"g\",\"text\":null}", "g" },
	{ ENDPOINT_GENERATE, "{\"text\":\"g\",\"image_data\":[\"A\",\"B\"]}", "~i@A@~i@B@g" },
	{ ENDPOINT_TOKENIZE, "{\"prompt\":\"t\"}", "t" },
	{ ENDPOINT_TOKENIZE, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[1]}", "~t1~muser~xhi" },
	{ ENDPOINT_OTHER, "{\"prompt\":\"x\",\"messages\":[{}]}", "" },
};
/* clang-format on */

START_TEST(test_streams)
{
	static char got[MAX_STREAM], wanted[MAX_STREAM];

	for (unsigned i = 0; i < ARRAY_LEN(streams); i++) {
		size_t n, want;

		build_text(streams[i].endpoint, streams[i].body);
		ck_assert_msg(key.readable == (streams[i].endpoint != ENDPOINT_OTHER),
			"%s", streams[i].body);
		n = recover(got);
		want = expand(streams[i].stream, wanted);
		ck_assert_msg(n == want && memcmp(got, wanted, n) == 0,
			"%s\nwanted %s\ngot    %.*s", streams[i].body, streams[i].stream,
			(int)n, got);
	}
}
END_TEST

/* The chain over ids, as the manual says it. */
static void check_ids(
	const char *body, enum route_endpoint endpoint, const uint32_t *ids, size_t n)
{
	uint64_t h = 0;

	build(endpoint, body, strlen(body), 2);
	ck_assert_int_eq(key.unit, 't');
	ck_assert_uint_eq(key.prompt_units, n);
	ck_assert_uint_eq(key.n_blocks, n / 2);
	for (size_t i = 0; i < n / 2; i++) {
		unsigned char block[8];

		for (unsigned b = 0; b < 8; b++)
			block[b] = (unsigned char)(ids[2 * i + b / 4] >> (8 * (b % 4)));
		h = hash64(block, 8, h);
		ck_assert_uint_eq(key.hashes[i], h);
	}
}

START_TEST(test_ids)
{
	static const uint32_t ids[] = {
		1, 22, 333, 4444, 0, 151643, 4294967295, 100000000, 12345678, 9, 10, 11};
	static const char list[] =
		"[1, 22 ,333,4444,\n0,151643,4294967295,100000000,12345678,9,10,11 ]";
	char body[256];

	snprintf(body, sizeof(body), "{\"prompt\":%s}", list);
	check_ids(body, ENDPOINT_COMPLETIONS, ids, ARRAY_LEN(ids));
	check_ids(body, ENDPOINT_TOKENIZE, ids, ARRAY_LEN(ids));
	snprintf(body, sizeof(body), "{\"prompt\":[%s,[5],[\"x\"]]}", list);
	check_ids(body, ENDPOINT_COMPLETIONS, ids, ARRAY_LEN(ids));
	snprintf(body, sizeof(body), "{\"input\":%s}", list);
	check_ids(body, ENDPOINT_EMBEDDINGS, ids, ARRAY_LEN(ids));
	snprintf(body, sizeof(body), "{\"input_ids\":[%s]}", list);
	check_ids(body, ENDPOINT_GENERATE, ids, ARRAY_LEN(ids));
	snprintf(body, sizeof(body), "{\"token_ids\":%s}", list);
	check_ids(body, ENDPOINT_INFERENCE_GENERATE, ids, ARRAY_LEN(ids));
}
END_TEST

struct pair {
	enum route_endpoint endpoint;
	bool is_same;
	const char *a, *b;
};

#define USER(content) "{\"role\":\"user\",\"content\":" content "}"
#define CHAT(messages) "{\"messages\":[" messages "]}"

/* clang-format off */
static const struct pair pairs[] = {
	{ ENDPOINT_CHAT, true, "{\"model\":\"m\",\"messages\":[" USER("\"x\"") "],\"tools\":[{\"a\":1}]}",
	                       "{\"tools\":[{ \"a\" : 1 }],\"messages\":[" USER("\"x\"") "],\"model\":\"n\"}" },
	{ ENDPOINT_CHAT, true, CHAT(USER("\"hi\"")), CHAT(USER("[{\"type\":\"text\",\"text\":\"hi\"}]")) },
	{ ENDPOINT_CHAT, true, CHAT(USER("\"\\u0068\\/\"")), CHAT(USER("\"h/\"")) },
	{ ENDPOINT_CHAT, true, CHAT(USER("\"x\"")), CHAT("{\"role\":\"user\",\"content\":\"x\",\"id\":\"msg_1\",\"cache_control\":{}}") },
	{ ENDPOINT_CHAT, true, CHAT(USER("\"x\"")), "{\"temperature\":0.7,\"seed\":9007199254740993,\"messages\":[" USER("\"x\"") "],\"stream\":true}" },
	{ ENDPOINT_CHAT, false, CHAT(USER("[\"a\",\"b\"]")), CHAT(USER("[\"ab\"]")) },
	{ ENDPOINT_CHAT, false, CHAT(USER("\"a\"") "," USER("\"b\"")), CHAT(USER("\"ab\"")) },
	{ ENDPOINT_CHAT, false, CHAT(USER("\"a\"") "," USER("\"b\"")), CHAT(USER("\"b\"") "," USER("\"a\"")) },
	{ ENDPOINT_CHAT, false, CHAT(USER("\"x\"")), CHAT("{\"role\":\"system\",\"content\":\"x\"}") },
	{ ENDPOINT_CHAT, false, CHAT(USER("\"x\"")), CHAT("{\"role\":\"user\",\"name\":\"n\",\"content\":\"x\"}") },
	{ ENDPOINT_CHAT, false, CHAT(USER("\"x\"")), "{\"tools\":[{}],\"messages\":[" USER("\"x\"") "]}" },
	{ ENDPOINT_CHAT, false, "{\"tools\":[{\"a\":1,\"b\":2}]}", "{\"tools\":[{\"b\":2,\"a\":1}]}" },
	{ ENDPOINT_CHAT, false, "{\"tools\":[{\"a\":1.0}]}", "{\"tools\":[{\"a\":1}]}" },
	{ ENDPOINT_CHAT, false, "{\"tools\":[{\"a\":\"1\"}]}", "{\"tools\":[{\"a\":1}]}" },
	{ ENDPOINT_CHAT, false, "{\"tools\":[{\"a\":\"x\\\",\\\"b\"}]}", "{\"tools\":[{\"a\":\"x\",\"b\"  :1}]}" },
	{ ENDPOINT_CHAT, false, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c1\"}]}]}", "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c2\"}]}]}" },
	{ ENDPOINT_CHAT, false, CHAT(USER("[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:a\"}}]")), CHAT(USER("[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:b\"}}]")) },
	{ ENDPOINT_CHAT, false, CHAT(USER("[{\"type\":\"image_url\",\"image_url\":{\"url\":\"a\"}},\"t\"]")), CHAT(USER("[\"t\",{\"type\":\"image_url\",\"image_url\":{\"url\":\"a\"}}]")) },
	{ ENDPOINT_COMPLETIONS, false, "{\"prompt\":[1,2,3]}", "{\"prompt\":\"1,2,3\"}" },
	{ ENDPOINT_COMPLETIONS, false, "{\"prompt\":\"1,2,3\"}", "{\"prompt\":[\"1,2,3\"]}" },
	{ ENDPOINT_COMPLETIONS, false, "{\"prompt\":[1,2,3]}", "{\"prompt\":[1,2,4]}" },
	{ ENDPOINT_COMPLETIONS, true, "{\"prompt\":[1,2,3]}", "{\"prompt\":[ [ 1 , 2 , 3 ] , [ 4 ] ]}" },
	{ ENDPOINT_COMPLETIONS, true, "{\"prompt\":[\"a\",\"b\"]}", "{\"prompt\":[\"a\",\"c\"]}" },
	{ ENDPOINT_RESPONSES, true, "{\"input\":\"hi\"}", "{\"input\":[{\"type\":\"message\",\"id\":\"m\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"hi\"}]}]}" },
	{ ENDPOINT_MESSAGES, false, "{\"system\":\"a\"}", "{\"messages\":[" USER("\"a\"") "]}" },
	{ ENDPOINT_MESSAGES, true, "{\"system\":\"a\"}", "{\"system\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}}]}" },
};
/* clang-format on */

START_TEST(test_pairs)
{
	for (unsigned i = 0; i < ARRAY_LEN(pairs); i++) {
		const struct pair *pair = &pairs[i];
		size_t n;
		uint64_t last;
		char unit;

		build_text(pair->endpoint, pair->a);
		ck_assert_uint_gt(key.n_blocks, 0);
		n = key.n_blocks;
		last = key.hashes[n - 1];
		unit = key.unit;
		build_text(pair->endpoint, pair->b);
		ck_assert_uint_gt(key.n_blocks, 0);
		ck_assert_msg(pair->is_same ==
				      (n == key.n_blocks && last == key.hashes[n - 1] &&
					      unit == key.unit),
			"%s\n%s", pair->a, pair->b);
	}
}
END_TEST

/* Blocks of 128 over a long prompt are the plain chain of hash.h, in place or not. */
START_TEST(test_chain)
{
	enum { LONG = 100003 };
	static char body[LONG + 64];
	static uint64_t wanted[LONG / 128];
	struct route_key_opts opts = {128, 32, 0, false, false};

	memcpy(body, "{\"prompt\":\"", 11);
	for (unsigned i = 0; i < LONG; i++)
		body[11 + i] = (char)('a' + i * i % 23);
	memcpy(body + 11 + LONG, "\"}", 2);
	hash_chain(body + 11, LONG / 128, 128, 0, wanted);
	build(ENDPOINT_COMPLETIONS, body, LONG + 13, 128);
	ck_assert_uint_eq(key.n_blocks, LONG / 128);
	ck_assert_uint_eq(key.prompt_units, LONG);
	ck_assert_int_eq(key.unit, 'b');
	ck_assert_uint_eq(key.block, 128);
	ck_assert_mem_eq(key.hashes, wanted, sizeof(wanted));

	/* The bound on blocks bounds the blocks, not the count of units. */
	opts.max_blocks = 7;
	ck_assert_int_eq(route_key_build(scan, body, LONG + 13, &opts, &key), 0);
	ck_assert_uint_eq(key.n_blocks, 7);
	ck_assert_uint_eq(key.prompt_units, LONG);
	ck_assert_mem_eq(key.hashes, wanted, 7 * sizeof(wanted[0]));

	/* One escape in the middle: the same blocks before it. */
	memcpy(body + 11 + 50000, "\\n", 2);
	build(ENDPOINT_COMPLETIONS, body, LONG + 13, 128);
	ck_assert_uint_eq(key.prompt_units, LONG - 1);
	ck_assert_mem_eq(key.hashes, wanted, 390 * sizeof(wanted[0]));
	ck_assert_uint_ne(key.hashes[390], wanted[390]);
}
END_TEST

/* A session key is no prefix of another; a strict prefix of a prompt is. */
START_TEST(test_borders)
{
	uint64_t first[64];
	size_t n;

	build_text(ENDPOINT_CHAT, CHAT(USER("\"session-1\"") "," USER("\"x\"")));
	n = key.n_blocks;
	ck_assert_uint_le(n, ARRAY_LEN(first));
	memcpy(first, key.hashes, n * sizeof(*first));
	build_text(ENDPOINT_CHAT, CHAT(USER("\"session-12\"") "," USER("\"x\"")));
	ck_assert_uint_eq(key.n_blocks, n + 1);
	/* The same up to "session-1": 6 bytes of role, 2 of border, 9 of text. */
	ck_assert_mem_eq(key.hashes, first, 17 * sizeof(*first));
	ck_assert_uint_ne(key.hashes[17], first[17]);
}
END_TEST

/* How many leading blocks the keys of two bodies share, in blocks of this size. */
static size_t shared_blocks(const char *a, const char *b, unsigned block)
{
	static uint64_t first[MAX_STREAM];
	size_t n, same = 0;

	build(ENDPOINT_CHAT, a, strlen(a), block);
	n = key.n_blocks;
	ck_assert_uint_le(n, MAX_STREAM);
	memcpy(first, key.hashes, n * sizeof(*first));
	build(ENDPOINT_CHAT, b, strlen(b), block);
	while (same < MIN(n, key.n_blocks) && key.hashes[same] == first[same])
		same++;
	return same;
}

#define IMAGE(url) "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" url "\"}}"
#define ASKED(before, url, after) CHAT(USER("[" before IMAGE(url) "," after "]"))

/* An image has whole blocks of its own at every size up to 2,048 bytes and wherever it
 * stands: another question keeps them, another image does not. */
START_TEST(test_media)
{
	static const unsigned sizes[] = {1, 16, 100, 128, 512, 1000, 1024, 2047, 2048};
	static const char q[] = ASKED("", "u", "\"what is it?\""),
			  other_q[] = ASKED("", "u", "\"how many?\""),
			  other_u[] = ASKED("", "v", "\"what is it?\""),
			  late[] = ASKED("\"0123456789\",", "u", "\"what is it?\""),
			  late_q[] = ASKED("\"0123456789\",", "u", "\"how many?\"");

	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		unsigned size = sizes[i];

		/* 6 bytes of role, 2 of border, the image; 2 of the next border. */
		ck_assert_uint_eq(shared_blocks(q, other_q, size), (8 + 4096 + 2) / size);
		ck_assert_uint_eq(shared_blocks(q, other_u, size), 8 / size);
		/* 12 more before it. */
		ck_assert_uint_eq(
			shared_blocks(late, late_q, size), (20 + 4096 + 2) / size);
	}
	build(ENDPOINT_CHAT, q, strlen(q), 128);
	ck_assert_uint_eq(key.prompt_units, 8 + 4096 + 2 + strlen("what is it?"));
}
END_TEST

/* Past 1,024 media parts each counts 8 bytes, so that tiny ones make no huge stream; what
 * stands after the last one still counts, and one image more extends the stream. */
START_TEST(test_media_most)
{
	enum { MOST = 1024, MORE = 5 };
	static char body[16 * (MOST + MORE)];
	uint64_t last = 0;
	size_t n = 0;

	for (unsigned parts = MOST - 1; parts <= MOST + MORE; parts++) {
		char *b = stpcpy(body, "{\"text\":\"\",\"image_data\":[\"\"");

		for (unsigned i = 1; i < parts; i++)
			b = stpcpy(b, ",\"\"");
		b = stpcpy(b, "]}");
		build(ENDPOINT_GENERATE, body, (size_t)(b - body), 2);
		ck_assert_uint_eq(key.prompt_units,
			parts * 2 + MIN(parts, (unsigned)MOST) * 4096 +
				(parts - MIN(parts, (unsigned)MOST)) * 8);
		ck_assert_uint_eq(key.n_blocks, key.prompt_units / 2);
		ck_assert(n == 0 || key.hashes[n - 1] == last);
		n = key.n_blocks;
		last = key.hashes[n - 1];
	}
}
END_TEST

struct field_case {
	const char *body, *model, *lora, *salt, *sessions[SESSION_MAX];
	bool stream;
};

/* clang-format off */
static const struct field_case fields[] = {
	{ "{}", "", "", "", { NULL }, false },
	{ "{\"model\":\"m\",\"stream\":true,\"lora_path\":\"l\",\"cache_salt\":\"s\",\"user\":\"u\",\"session_id\":\"i\",\"user_id\":\"v\",\"session_params\":{\"session_id\":\"p\"}}",
	  "m", "l", "s", { [SESSION_PARAMS_ID] = "p", [SESSION_USER] = "u", [SESSION_ID] = "i", [SESSION_USER_ID] = "v" }, true },
	{ "{\"m\\u006fdel\":\"\\u00e9\\n\"}", "\xc3\xa9\n", "", "", { NULL }, false },
	{ "{\"model\":\"a\",\"model\":\"b\",\"stream\":true,\"stream\":false}", "b", "", "", { NULL }, false },
	{ "{\"model\":\"a\",\"model\":7,\"stream\":\"true\",\"user\":\"x\",\"user\":null}", "", "", "", { NULL }, false },
	{ "{\"user\":12,\"session_id\":1.50,\"user_id\":-0e1,\"session_params\":{\"session_id\":9007199254740993}}", "", "", "", { [SESSION_PARAMS_ID] = "9007199254740993", [SESSION_USER] = "12", [SESSION_ID] = "1.50", [SESSION_USER_ID] = "-0e1" }, false },
	{ "{\"user\":true,\"session_id\":[],\"user_id\":{\"session_id\":1},\"session_params\":\"s\"}", "", "", "", { NULL }, false },
	{ "{\"session_params\":{\"session_id\":\"a\",\"x\":{\"session_id\":\"b\"}},\"cache_salt\":\"\",\"lora_path\":[\"l1\",\"l2\"]}", "", "l1", "", { "a" }, false },
	{ "{\"session_params\":{\"session_id\":\"a\"},\"session_params\":{},\"lora_path\":[],\"stream\":1}", "", "", "", { NULL }, false },
	{ "{\"x\":{\"model\":\"deep\",\"stream\":true},\"messages\":[{\"user\":\"deep\"}]}", "", "", "", { NULL }, false },
	{ "{\"prompt_cache_key\":\"k\",\"safety_identifier\":\"p\",\"metadata\":{\"user_id\":\"u\",\"session_id\":7}}", "", "", "", { [SESSION_CACHE_KEY] = "k", [SESSION_SAFETY] = "p", [SESSION_METADATA_USER] = "u", [SESSION_METADATA_ID] = "7" }, false },
	{ "{\"metadata\":{\"user_id\":\"{\\\"device_id\\\": \\\"d\\\", \\\"session_id\\\": \\\"s-1\\\"}\"}}", "", "", "", { [SESSION_METADATA_ID] = "s-1" }, false },
	{ "{\"metadata\":{\"user_id\":\"user_0a_account_1b_session_s-2\"}}", "", "", "", { [SESSION_METADATA_ID] = "s-2" }, false },
	{ "{\"metadata\":{\"user_id\":\"user_0a_account_1b_session_\"}}", "", "", "", { [SESSION_METADATA_USER] = "user_0a_account_1b_session_" }, false },
	{ "{\"metadata\":{\"user_id\":\"{\\\"session_id\\\":\\\"\\\"}\",\"session_id\":\"t\"}}", "", "", "", { [SESSION_METADATA_ID] = "t", [SESSION_METADATA_USER] = "{\"session_id\":\"\"}" }, false },
	{ "{\"metadata\":{\"user_id\":\"{\\\"session_id\\\":\"}}", "", "", "", { [SESSION_METADATA_USER] = "{\"session_id\":" }, false },
	{ "{\"metadata\":\"user_id\",\"prompt_cache_key\":[]}", "", "", "", { NULL }, false },
};
/* clang-format on */

START_TEST(test_fields)
{
	for (unsigned i = 0; i < ARRAY_LEN(fields); i++) {
		const struct field_case *c = &fields[i];

		build_text(ENDPOINT_CHAT, c->body);
		ck_assert_msg(key.readable, "%s", c->body);
		ck_assert_msg(span_is(key.model, c->model), "%s", c->body);
		ck_assert_msg(span_is(key.lora, c->lora), "%s", c->body);
		ck_assert_msg(span_is(key.cache_salt, c->salt), "%s", c->body);
		ck_assert_msg(key.stream == c->stream, "%s", c->body);
		for (unsigned s = 0; s < SESSION_MAX; s++)
			ck_assert_msg(
				span_is(key.session[s],
					c->sessions[s] != NULL ? c->sessions[s] : ""),
				"%s", c->body);
	}
}
END_TEST

/* What no worker can read has no key, and the next body does. */
START_TEST(test_unreadable)
{
	static const char *const bodies[] = {"", "null", "[]", "\"x\"", "7", "{",
		"{\"model\":\"m\"", "\xef\xbb\xbf{\"model\":\"m\"}", "{\"model\":\"m\"}x",
		"{\"model\":\"m\"}{}", "{\"model\":\"m\",}", "{\"model\":NaN}",
		"{\"model\":\"m\nn\"}", "{\"model\":'m'}", "{\"prompt\":\"abc",
		"{\"prompt\":\"abc\\", "{\"prompt\":[1,2,3", "{\"model\":\"m\"]"};

	for (unsigned i = 0; i < ARRAY_LEN(bodies); i++) {
		build_text(ENDPOINT_COMPLETIONS,
			"{\"model\":\"m\",\"user\":\"u\",\"prompt\":\"x\"}");
		ck_assert(key.readable && key.n_blocks == 1);
		build_text(ENDPOINT_COMPLETIONS, bodies[i]);
		ck_assert_msg(!key.readable, "%s", bodies[i]);
		ck_assert_uint_eq(key.n_blocks, 0);
		ck_assert_uint_eq(key.prompt_units, 0);
		ck_assert(key.model.n == 0 && key.session[SESSION_USER].n == 0 &&
			  !key.stream);
	}
}
END_TEST

/* Every truncation of some bodies. */
START_TEST(test_truncated)
{
	for (unsigned i = 0; i < ARRAY_LEN(streams); i++) {
		size_t len = strlen(streams[i].body);

		for (size_t n = 0; n < len; n++) {
			bool is_cut = memchr(streams[i].body + n, '}', len - n) != NULL;

			build(streams[i].endpoint, streams[i].body, n, 3);
			ck_assert(!is_cut || !key.readable);
		}
	}
}
END_TEST

/* A schema 1,000 levels deep before the messages leaves them their key; 100,000 brackets
 * are harmless. */
START_TEST(test_deep)
{
	enum { DEEP = 1000, DEEPER = 100000 };
	static const char tail[] = ",\"messages\":[" USER("\"hi\"") "]}";
	char *body = malloc(2 * DEEPER + 200), *p = body;
	static char got[MAX_STREAM], wanted[MAX_STREAM];
	size_t n;

	ck_assert_ptr_nonnull(body);
	p = stpcpy(p, "{\"x\":");
	for (unsigned i = 0; i < DEEP; i++)
		p = stpcpy(p, "[{\"a\":");
	p = stpcpy(p, "\"messages\"");
	for (unsigned i = 0; i < DEEP; i++)
		p = stpcpy(p, "}]");
	p = stpcpy(p, tail);
	build(ENDPOINT_CHAT, body, (size_t)(p - body), 1);
	ck_assert(key.readable);
	n = recover(got);
	ck_assert_uint_eq(n, expand("~muser~xhi", wanted));
	ck_assert_mem_eq(got, wanted, n);

	p = stpcpy(body, "{\"messages\":");
	memset(p, '[', DEEPER);
	memset(p + DEEPER, ']', DEEPER);
	p[2 * DEEPER] = '}';
	build(ENDPOINT_CHAT, body, 12 + DEEPER, 128);
	ck_assert(!key.readable);
	build(ENDPOINT_CHAT, body, 12 + 2 * DEEPER + 1, 128);
	free(body);
}
END_TEST

/* Long strings and containers have skips; the values around them must still be found. */
START_TEST(test_long_values)
{
	static char body[200000], wanted[200000];
	char *b = body, *w = wanted;
	uint64_t h = 0;

	b = stpcpy(b, "{\"tools\":[");
	for (unsigned i = 0; i < 40; i++) {
		b += sprintf(b, "%s{\"n\":\"%0*u\",\"o\":{\"p\":[\"%0*u\"]}}",
			i > 0 ? "," : "", (int)i * 5, 1, (int)(200 - i * 5), 2);
		w += sprintf(w,
			"\377t{\377\"n\377\":\377\"%0*u\377\",\377\"o\377\":{"
			"\377\"p\377\":[\377\"%0*u\377\"]}}",
			(int)i * 5, 1, (int)(200 - i * 5), 2);
	}
	b = stpcpy(b, "],\"messages\":[");
	for (unsigned i = 0; i < 200; i++) {
		b += sprintf(b,
			"%s{\"content\":[{\"type\":\"text\",\"text\":\"%0*u\\n\"},\"%0*"
			"u\"],\"role\":\"user\"}",
			i > 0 ? "," : "", (int)i, 3, (int)(i * 7 % 150), 4);
		w += sprintf(w, "\377muser\377x%0*u\n\377x%0*u", (int)i, 3,
			(int)(i * 7 % 150), 4);
	}
	b = stpcpy(b, "]}");
	build(ENDPOINT_CHAT, body, (size_t)(b - body), 1);
	ck_assert(key.readable);
	ck_assert_uint_eq(key.n_blocks, (size_t)(w - wanted));
	for (size_t i = 0; i < key.n_blocks; i++) {
		h = hash64(wanted + i, 1, h);
		if (h != key.hashes[i])
			ck_abort_msg("byte %zu: %.40s", i, wanted + i);
	}
}
END_TEST

/* The model's name in the middle of fields that have skips: shorter, longer, the same; the
 * key is then that of the body as it is now. */
START_TEST(c21_the_model_is_replaced)
{
	static const char *const names[] = {"", "a", "0123456789", "a\\u0062c\\/d",
		"a-name-that-is-longer-than-any-skip-is-to-be-recorded-for-at-all-so"};
	static char was[40000], now[40000];
	static uint64_t hashes[40000];
	const char *from = names[(size_t)_i / ARRAY_LEN(names)];
	const char *to = names[(size_t)_i % ARRAY_LEN(names)];
	const struct route_key_opts opts = {.block_bytes = 16, .block_tokens = 32};
	struct route_scan_name name;
	size_t n;

	for (unsigned i = 0; i < 2; i++) {
		char *b = i > 0 ? now : was;

		b += sprintf(b, "{\"tools\":[{\"n\":\"%0500u\"}],\"user\":\"u\",", 1);
		b += sprintf(b, "\"model\" : \"%s\",\"messages\":[", i > 0 ? to : from);
		for (unsigned j = 0; j < 30; j++)
			b += sprintf(b, "%s{\"role\":\"user\",\"content\":[\"%0*u\\n\"]}",
				j > 0 ? "," : "", (int)j * 9, j);
		sprintf(b, "],\"lora_path\":\"l\",\"system\":\"%0300u\"}", 2);
	}
	rig_build(ENDPOINT_CHAT, now, strlen(now), &opts, NULL);
	n = key.n_blocks;
	ck_assert_uint_gt(n, 100);
	memcpy(hashes, key.hashes, n * sizeof(*hashes));
	rig_build(ENDPOINT_CHAT, was, strlen(was), &opts, NULL);
	name = route_scan_model(scan);
	ck_assert_uint_eq(name.n, strlen(from));
	if (name.n == 0)
		return;
	ck_assert_mem_eq(was + name.at, from, name.n);
	route_scan_replaced(scan, name, strlen(to));
	ck_assert_int_eq(route_key_build(scan, now, strlen(now), &opts, &key), 0);
	ck_assert(key.readable && span_is(key.lora, "l"));
	ck_assert(span_is(key.session[SESSION_USER], "u"));
	ck_assert(strchr(to, '\\') != NULL || span_is(key.model, to));
	ck_assert_uint_eq(key.n_blocks, n);
	ck_assert_mem_eq(key.hashes, hashes, n * sizeof(*hashes));
}
END_TEST

struct header_case {
	const char *value;
	int err;
	char unit;
	uint32_t block;
	size_t n;
	uint64_t hashes[4];
};

/* clang-format off */
static const struct header_case headers[] = {
	{ "128b;", 0, 'b', 128, 0, { 0 } },
	{ " 128b; ", 0, 'b', 128, 0, { 0 } },
	{ "128b;1", 0, 'b', 128, 1, { 1 } },
	{ "2048b;ffffffffffffffff,0", 0, 'b', 2048, 2, { UINT64_MAX, 0 } },
	{ "32t;aB,\t0cD,  00000000000000ef", 0, 't', 32, 3, { 0xab, 0xcd, 0xef } },
	{ "128b; 1, 2", 0, 'b', 128, 2, { 1, 2 } },
	{ "", ERR_PARSE, 0, 0, 0, { 0 } },
	{ ";", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "b;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "0b;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "-1b;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128x;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128B;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "4294967296b;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "99999999999999999999b;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128 b;1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;1,", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;,1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;1,,2", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;1 2", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;0x1", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;g", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;11111111111111111", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;1;2", ERR_PARSE, 0, 0, 0, { 0 } },
	{ "128b;1,2,3,4,5", ERR_LIMIT, 0, 0, 0, { 0 } },
};
/* clang-format on */

START_TEST(test_header)
{
	for (unsigned i = 0; i < ARRAY_LEN(headers); i++) {
		const struct header_case *c = &headers[i];

		route_key_reset(&key);
		ck_assert_msg(
			route_key_from_header(span_str(c->value), 4, &key) == c->err,
			"%s", c->value);
		ck_assert_msg(key.hashes_sent == (c->err == 0), "%s", c->value);
		ck_assert_uint_eq(key.n_blocks, c->n);
		if (c->err < 0)
			continue;
		ck_assert_int_eq(key.unit, c->unit);
		ck_assert_uint_eq(key.block, c->block);
		ck_assert_uint_eq(key.prompt_units, c->n * c->block);
		for (size_t h = 0; h < c->n; h++)
			ck_assert_uint_eq(key.hashes[h], c->hashes[h]);
	}
	ck_assert_int_eq(route_key_from_header(SPAN_LIT("1b;1,2,3,4,5"), 0, &key), 0);
	ck_assert_uint_eq(key.n_blocks, 5);
}
END_TEST

/* Where the client sent the hashes, the body still tells the model. */
START_TEST(test_header_and_body)
{
	static const char body[] = "{\"model\":\"m\",\"prompt\":\"abc\"}";
	struct route_key_opts opts = {1, 1, 0, false, false};

	route_key_reset(&key);
	ck_assert_int_eq(route_key_from_header(SPAN_LIT("128b;7"), 0, &key), 0);
	route_scan_begin(scan, ENDPOINT_COMPLETIONS);
	ck_assert_int_eq(route_scan_feed(scan, body, 0, sizeof(body) - 1), 0);
	ck_assert_int_eq(route_key_build(scan, body, sizeof(body) - 1, &opts, &key), 0);
	ck_assert(span_is(key.model, "m") && key.hashes_sent);
	ck_assert_uint_eq(key.n_blocks, 1);
	ck_assert_uint_eq(key.hashes[0], 7);
	ck_assert_uint_eq(key.block, 128);
}
END_TEST

/* Every field parts name spaces, and none can pretend to be its neighbour. */
START_TEST(test_secret)
{
	const struct route_salt plain = {
		{1, 2}, SPAN_LIT("m"), {NULL, 0}, {NULL, 0}, SPAN_LIT("t"), 0, 'b', 128};
	struct route_salt salts[12];
	uint64_t secrets[ARRAY_LEN(salts)];

	for (unsigned i = 0; i < ARRAY_LEN(salts); i++)
		salts[i] = plain;
	salts[1].boot_secret[0] = 9;
	salts[2].boot_secret[1] = 9;
	salts[3].model = SPAN_LIT("mt");
	salts[4].lora = SPAN_LIT("t");
	salts[4].tenant = span_make(NULL, 0);
	salts[5].cache_salt = SPAN_LIT("t");
	salts[5].tenant = span_make(NULL, 0);
	salts[6].tenant = SPAN_LIT("u");
	salts[7].generation = 1;
	salts[8].unit = 't';
	salts[9].block = 256;
	salts[10].model = span_make(NULL, 0);
	salts[10].lora = SPAN_LIT("m");
	salts[11].tenant = SPAN_LIT("t\0");
	for (unsigned i = 0; i < ARRAY_LEN(salts); i++) {
		secrets[i] = route_key_secret(&salts[i]);
		for (unsigned other = 0; other < i; other++)
			ck_assert_msg(
				secrets[i] != secrets[other], "%u and %u", i, other);
	}
	ck_assert_uint_eq(route_key_secret(&plain), secrets[0]);
	salts[0].lora = SPAN_LIT("");
	ck_assert_uint_eq(route_key_secret(&salts[0]), secrets[0]);
}
END_TEST

/* What one request needed is not kept for the next. */
START_TEST(test_memory)
{
	enum { LONG = 1 << 20 };
	static char body[LONG];

	memset(body, 'x', LONG);
	memcpy(body, "{\"prompt\":\"", 11);
	memcpy(body + LONG - 2, "\"}", 2);
	build(ENDPOINT_COMPLETIONS, body, LONG, 128);
	ck_assert_uint_eq(key.n_blocks, (LONG - 13) / 128);
	route_key_reset(&key);
	ck_assert_uint_le(key.cap_blocks * sizeof(*key.hashes) + key.text_cap, 4096);
}
END_TEST

static Suite *route_key_suite(void)
{
	Suite *suite = suite_create("route_key");
	TCase *tcase = tcase_create("route_key");

	tcase_set_timeout(tcase, 0);
	tcase_add_test(tcase, test_streams);
	tcase_add_test(tcase, test_ids);
	tcase_add_test(tcase, test_pairs);
	tcase_add_test(tcase, test_chain);
	tcase_add_test(tcase, test_borders);
	tcase_add_test(tcase, test_media);
	tcase_add_test(tcase, test_media_most);
	tcase_add_test(tcase, test_fields);
	tcase_add_test(tcase, test_unreadable);
	tcase_add_test(tcase, test_truncated);
	tcase_add_test(tcase, test_deep);
	tcase_add_test(tcase, test_long_values);
	tcase_add_loop_test(tcase, c21_the_model_is_replaced, 0, 25);
	tcase_add_test(tcase, test_header);
	tcase_add_test(tcase, test_header_and_body);
	tcase_add_test(tcase, test_secret);
	tcase_add_test(tcase, test_memory);
	suite_add_tcase(suite, tcase);
	return suite;
}

int main(void)
{
	return rig_main(route_key_suite());
}
