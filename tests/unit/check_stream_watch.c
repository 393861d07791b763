/*
 * What an engine says in a stream: content, errors and ends of each API, as engines spell
 * them, in one piece and cut at every byte.
 */
#include "rewrite/stream_watch.h"

#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#define CHAT(delta, finish)                                                           \
	"data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{"     \
	"\"index\":0,\"delta\":" delta ",\"logprobs\":null,\"finish_reason\":" finish \
	"}]}\n\n"
#define ROLE CHAT("{\"role\":\"assistant\",\"content\":\"\"}", "null")
#define WORD CHAT("{\"content\":\"x\"}", "null")
#define TEXT(text, finish)                                                     \
	"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"" text "\"," \
	"\"finish_reason\":" finish "}]}\n\n"
#define TYPED(type, rest) "event: " type "\ndata: {\"type\":\"" type "\"" rest "}\n\n"
#define DONE "data: [DONE]\n\n"
#define BARE                                                                           \
	"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}," \
	"\"finish_reason\":null}]}"
#define CRLF(event) event "\r\n\r\n"
/* A member of an event: one choice with text, and what stands before it there. */
#define FIRST(before) "\"choices\":[{" before "\"delta\":{\"content\":\"x\"}}]"
/* SGLang's own, in Python's spacing. */
#define GENERATED(finish)                                         \
	"data: {\"text\": \"x\", \"meta_info\": {\"id\": \"1\", " \
	"\"finish_reason\": " finish ", \"completion_tokens\": 1}}\n\n"

enum { SILENT = 0, CONTENT = 1, END = 2, ERROR = 4, STRANGE = 8 };

static const struct {
	enum route_endpoint endpoint;
	const char *text;
	unsigned want;
} rows[] = {
	/* chat: before content */
	{ENDPOINT_CHAT, "", SILENT},
	{ENDPOINT_CHAT, ": ping\n\n: ping\r\n\r\n", SILENT},
	{ENDPOINT_CHAT, "event: ping\ndata: {}\n\nid: 7\nretry: 10\n\n", SILENT},
	{ENDPOINT_CHAT, ROLE, SILENT},
	{ENDPOINT_CHAT, ROLE ROLE "data: {\"choices\":[],\"usage\":{\"x\":1}}\n\n",
		SILENT},
	{ENDPOINT_CHAT, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x",
		SILENT},
	/* content */
	{ENDPOINT_CHAT, WORD, CONTENT},
	{ENDPOINT_CHAT, ROLE WORD WORD WORD, CONTENT},
	{ENDPOINT_CHAT, CHAT("{\"reasoning_content\":\"h\"}", "null"), CONTENT},
	{ENDPOINT_CHAT, CHAT("{\"tool_calls\":[{\"index\":0}]}", "null"), CONTENT},
	{ENDPOINT_CHAT,
		WORD CHAT("{\"content\":\"\\\"error\\\":\\\"finish_reason\\\":"
			  "\\\"abort\\\"\"}",
			"null"),
		CONTENT},
	{ENDPOINT_CHAT, CHAT("{\"content\":\"\\\"error\\\"\"}", "null"), CONTENT},
	{ENDPOINT_CHAT, WORD ": ping\n\n" WORD ": ping\r\n\r\n" WORD, CONTENT},
	{ENDPOINT_CHAT, CRLF(BARE) CRLF(BARE) CRLF(BARE) CRLF("data: [DONE]"),
		CONTENT | END},
	{ENDPOINT_CHAT, "event: message\n" WORD "event: message\n" WORD DONE,
		CONTENT | END},
	{ENDPOINT_CHAT, BARE "\nid: 1\n\n" BARE "\nid: 1\n\n" BARE "\nid: 2\n\n",
		CONTENT},
	/* what looks like a choice's text and is none */
	{ENDPOINT_CHAT, "data: {\"x\":{" FIRST("\"index\":0,") "},\"choices\":[]}\n\n",
		SILENT},
	{ENDPOINT_CHAT,
		"data: {\"x\\\"choices\":[{\"delta\":{\"content\":\"x\"}}],"
		"\"choices\":[]}\n\n",
		SILENT},
	{ENDPOINT_CHAT,
		"data: {\"choices\":[],\"x\":[{\"delta\":{\"content\":\"x\"}}]}\n\n",
		SILENT},
	{ENDPOINT_CHAT, "data: {" FIRST("\"x\":{\"y\":1},") "}\n\n", CONTENT},
	{ENDPOINT_CHAT,
		"data: {\"choices\":[{\"x\":{\"delta\":{\"content\":\"x\"}}}]}\n\n",
		SILENT},
	{ENDPOINT_CHAT,
		"data: {\"choices\":[{\"x\\\",\"delta\":{\"content\":\"x\"}}]}\n\n",
		SILENT},
	{ENDPOINT_CHAT, CHAT("{\"content\":\"\",\"role\":\"assistant\"}", "null"),
		SILENT},
	{ENDPOINT_CHAT, "data: {" FIRST("") ",\"error\":{\"code\":500}}\n\n", ERROR},
	{ENDPOINT_CHAT, "data: {\"object\":\"error\"," FIRST("") "}\n\n", ERROR},
	{ENDPOINT_CHAT, "event: error\ndata: {" FIRST("") "}\n\n", ERROR},
	/* its finish_reason in any place */
	{ENDPOINT_CHAT, "data: {" FIRST("\"finish_reason\":\"stop\",") "}\n\n",
		CONTENT | END},
	{ENDPOINT_CHAT, "data: {" FIRST("\"finish_reason\" : \"abort\",") "}\n\n",
		CONTENT | ERROR},
	{ENDPOINT_CHAT, WORD WORD "data: {" FIRST("\"finish_reason\":\"stop\",") "}\n\n",
		CONTENT | END},
	{ENDPOINT_CHAT,
		"data: "
		"{\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":null},"
		"{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
		CONTENT | END},
	/* ends */
	{ENDPOINT_CHAT, ROLE CHAT("{}", "\"stop\""), CONTENT | END},
	{ENDPOINT_CHAT, WORD WORD CHAT("{}", "\"length\""), CONTENT | END},
	{ENDPOINT_CHAT, WORD DONE, CONTENT | END},
	{ENDPOINT_CHAT, DONE, CONTENT | END},
	/* errors */
	{ENDPOINT_CHAT,
		"data: "
		"{\"error\":{\"message\":\"EngineCore\",\"type\":\"InternalServerError\","
		"\"param\":null,\"code\":500}}\n\n",
		ERROR},
	{ENDPOINT_CHAT, WORD WORD "data: {\"error\": {\"message\": \"x\"}}\n\n" DONE,
		CONTENT | END | ERROR},
	{ENDPOINT_CHAT, WORD "error: {\"code\":500,\"message\":\"x\"}\n\n",
		CONTENT | ERROR},
	{ENDPOINT_CHAT, "data: {\"object\":\"error\",\"message\":\"x\",\"code\":500}\n\n",
		ERROR},
	{ENDPOINT_CHAT, WORD "event: error\ndata: gone\n\n", CONTENT | ERROR | STRANGE},
	{ENDPOINT_CHAT, WORD CHAT("{}", "\"abort\""), CONTENT | ERROR},
	{ENDPOINT_CHAT, CHAT("{}", "\"error\""), ERROR},
	/* the client's own errors, which end a stream well */
	{ENDPOINT_CHAT,
		"data: {\"error\":{\"message\":\"too "
		"long\",\"type\":\"BadRequestError\",\"code\":400}}\n\n",
		CONTENT | END},
	{ENDPOINT_CHAT,
		"data: "
		"{\"error\":{\"type\":\"invalid_request_error\",\"code\":\"context_"
		"length_exceeded\"}}\n\n",
		CONTENT | END},
	{ENDPOINT_CHAT,
		WORD "data: {\"error\":{\"type\":\"BadRequestError\",\"code\":503}}\n\n",
		CONTENT | ERROR},
	/* null, false and empty errors are none */
	{ENDPOINT_CHAT, "data: {\"error\":null,\"choices\":[]}\n\n", SILENT},
	/* what is not known */
	{ENDPOINT_CHAT, "xxx", CONTENT | STRANGE},
	{ENDPOINT_CHAT, "data: hello\n\n", CONTENT | STRANGE},
	{ENDPOINT_CHAT, "data: {\"x\":1}\n\n", CONTENT | STRANGE},
	{ENDPOINT_CHAT, "data: {\ndata: }\n\n", CONTENT | STRANGE},
	{ENDPOINT_OTHER, ": x\n\n", SILENT},
	{ENDPOINT_OTHER, "data: {\"error\":{}}\n\n", CONTENT | STRANGE},
	/* completions */
	{ENDPOINT_COMPLETIONS, TEXT("", "null"), SILENT},
	{ENDPOINT_COMPLETIONS, TEXT("x", "null") TEXT("y", "null"), CONTENT},
	{ENDPOINT_COMPLETIONS, TEXT("x", "null") TEXT("", "\"stop\""), CONTENT | END},
	{ENDPOINT_COMPLETIONS, TEXT("x", "\"abort\""), CONTENT | ERROR},
	{ENDPOINT_COMPLETIONS,
		"data: {\"choices\":[{\"logprobs\":{\"text\":\"x\"},\"text\":\"\"}]}\n\n",
		SILENT},
	{ENDPOINT_COMPLETIONS, TEXT("x", "null") TEXT("", "\"abort\"") DONE,
		CONTENT | END | ERROR},
	{ENDPOINT_INFERENCE_GENERATE,
		"data: "
		"{\"choices\":[{\"index\":0,\"token_ids\":[5],\"finish_reason\":null}]}"
		"\n\n",
		CONTENT},
	/* responses */
	{ENDPOINT_RESPONSES,
		TYPED("response.created", "") TYPED("response.in_progress", "")
			TYPED("response.output_item.added", ""),
		SILENT},
	{ENDPOINT_RESPONSES,
		TYPED("response.created", "")
			TYPED("response.output_text.delta", ",\"delta\":\"x\"")
				TYPED("response.output_text.delta", ",\"delta\":\"y\""),
		CONTENT},
	{ENDPOINT_RESPONSES,
		TYPED("response.output_text.delta", "")
			TYPED("response.output_text.delta", "") TYPED(
				"response.completed", ",\"response\":{\"error\":null}"),
		CONTENT | END},
	{ENDPOINT_RESPONSES,
		TYPED("response.output_text.delta", "")
			TYPED("response.output_text.delta", "") TYPED("response.failed",
				",\"response\":{\"error\":{\"code\":\"server_error\"}}"),
		CONTENT | ERROR},
	{ENDPOINT_RESPONSES,
		TYPED("response.created", "") TYPED("response.failed",
			",\"response\":{\"error\":{\"code\":\"invalid_prompt\"}}"),
		CONTENT | END},
	{ENDPOINT_RESPONSES, TYPED("error", ",\"code\":\"x\",\"message\":\"y\""), ERROR},
	/* messages */
	{ENDPOINT_MESSAGES,
		TYPED("message_start", "") TYPED("ping", "")
			TYPED("content_block_start", ""),
		SILENT},
	{ENDPOINT_MESSAGES,
		TYPED("content_block_delta", ",\"delta\":{\"text\":\"x\"}")
			TYPED("content_block_delta", "") TYPED("content_block_stop", ""),
		CONTENT},
	{ENDPOINT_MESSAGES,
		TYPED("content_block_delta", "") TYPED("content_block_delta", "") TYPED(
			"message_delta", ",\"delta\":{\"stop_reason\":\"end_turn\"}"),
		CONTENT | END},
	{ENDPOINT_MESSAGES, TYPED("content_block_delta", "") TYPED("message_stop", ""),
		CONTENT | END},
	{ENDPOINT_MESSAGES,
		TYPED("content_block_delta", "") TYPED("content_block_delta", "")
			TYPED("error", ",\"error\":{\"type\":\"overloaded_error\"}"),
		CONTENT | ERROR},
	{ENDPOINT_MESSAGES,
		TYPED("error", ",\"error\":{\"type\":\"invalid_request_error\"}"),
		CONTENT | END},
	/* SGLang's own */
	{ENDPOINT_GENERATE, GENERATED("null") GENERATED("null"), CONTENT},
	{ENDPOINT_GENERATE,
		GENERATED("null") GENERATED("{\"type\": \"length\", \"length\": 2}"),
		CONTENT | END},
	{ENDPOINT_GENERATE,
		GENERATED("null") GENERATED("{\"type\": \"abort\", \"message\": \"x\", "
					    "\"status_code\": 500}"),
		CONTENT | ERROR},
	{ENDPOINT_GENERATE,
		GENERATED("{\"type\": \"abort\", \"message\": \"x\", \"status_code\": "
			  "400}"),
		CONTENT | END},
	/* it was asked for; or it says nothing of that */
	{ENDPOINT_GENERATE,
		GENERATED("{\"type\": \"abort\", \"message\": \"Aborted\", "
			  "\"status_code\": null, \"err_type\": null}"),
		CONTENT | END},
	{ENDPOINT_GENERATE, GENERATED("{\"type\": \"abort\", \"message\": \"x\"}"),
		CONTENT | ERROR},
};

static void feed(struct stream_watch *w, const char *p, size_t n)
{
	char *copy = malloc(n + 1); /* so that what reads on is seen */

	memcpy(copy, p, n);
	stream_watch_feed(w, span_make(copy, n));
	free(copy);
}

static unsigned seen(const struct stream_watch *w)
{
	return (w->has_content ? CONTENT : 0) | (w->has_end ? END : 0) |
	       (w->has_error ? ERROR : 0) | (w->is_strange ? STRANGE : 0);
}

START_TEST(what_is_said)
{
	size_t n = strlen(rows[_i].text), step;

	for (step = 1; step <= n + 1; step++) {
		struct stream_watch w;

		stream_watch_init(&w);
		stream_watch_begin(&w, rows[_i].endpoint);
		for (size_t at = 0; at < n; at += step)
			feed(&w, rows[_i].text + at, n - at < step ? n - at : step);
		ck_assert_msg(seen(&w) == rows[_i].want, "%s in steps of %zu: %u, not %u",
			rows[_i].text, step, seen(&w), rows[_i].want);
		ck_assert(stream_watch_is_amid(&w) ==
			  (n > 0 && rows[_i].text[n - 1] != '\n'));
		stream_watch_free(&w);
	}
}
END_TEST

/* An event that looks like the one before is known by its ends; any other is read. */
START_TEST(events_of_one_shape_are_known_by_it)
{
	struct stream_watch w;
	unsigned i;

	stream_watch_init(&w);
	stream_watch_begin(&w, ENDPOINT_CHAT);
	for (i = 0; i < 5; i++)
		feed(&w, WORD, strlen(WORD));
	ck_assert_uint_gt(w.n_trail, 0);
	feed(&w, DONE, strlen(DONE));
	ck_assert_uint_eq(seen(&w), CONTENT | END);
	stream_watch_free(&w);
}
END_TEST

/* Several events in a read, cut anywhere, say what they say one by one: those that are
 * known by their shape hide nothing behind them. */
START_TEST(reads_hold_any_number_of_events)
{
	static const char *const streams[] = {
		ROLE WORD WORD WORD CHAT("{}", "\"stop\"") DONE,
		WORD WORD "data: {\"error\":{\"code\":500}}\n\n" WORD WORD,
		WORD WORD WORD CHAT("{}", "\"abort\"") WORD,
		WORD ": ping\n\n" WORD BARE "\r\n\r\n" BARE "\r\n\r\n" WORD DONE WORD,
		WORD "data: {\"id\":\"c\"}\n\n" WORD "event: error\n" WORD,
		BARE "\nid: 1\n\n" BARE "\nid: 1\n\n" BARE "\nid: 1\n\n" DONE,
	};
	size_t i, cut, second;

	for (i = 0; i < ARRAY_LEN(streams); i++) {
		const char *text = streams[i];
		size_t n = strlen(text);
		unsigned want = 0;

		for (cut = 0; cut <= n; cut++) {
			for (second = cut; second <= n; second += 7) {
				struct stream_watch w;

				stream_watch_init(&w);
				stream_watch_begin(&w, ENDPOINT_CHAT);
				feed(&w, text, cut);
				feed(&w, text + cut, second - cut);
				feed(&w, text + second, n - second);
				if (want == 0)
					want = seen(&w);
				ck_assert_msg(seen(&w) == want,
					"%s cut at %zu and %zu: %u, not %u", text, cut,
					second, seen(&w), want);
				ck_assert(!stream_watch_is_amid(&w));
				stream_watch_free(&w);
			}
		}
	}
}
END_TEST

/* Answers that are no streams: an error's object, by its first bytes; in any pieces. */
START_TEST(error_objects)
{
	static const struct {
		const char *text;
		unsigned want;
	} objects[] = {
		{"{\"id\":\"x\",\"error\":{\"code\":500}}", CONTENT},
		{"{\"error\":{\"message\":\"x\",\"code\":500}}", ERROR},
		{" {\n \"error\" : \"gone\"}\n", ERROR},
		{"{\"object\": \"error\", \"message\": \"x\"}", ERROR},
		{"{\"object\":\"error\",\"code\":503}", ERROR},
		{"{\"error\":{\"message\":\"x\",\"code\":404}}", CONTENT | END},
		{"{\"object\":\"error\",\"type\":\"BadRequestError\"}", CONTENT | END},
		{"{\"error\":null,\"x\":1}", CONTENT},
		{"{\"errors\":1}", CONTENT},
		{"{\"object\":\"chat.completion\"}", CONTENT},
		{"[{\"error\":1}]", CONTENT},
		{"", SILENT},
		{"{\"error\":", CONTENT},
		{"error", CONTENT},
		{" ", CONTENT},
		{"\r\n\t\n", CONTENT},
	};
	size_t i, step;

	for (i = 0; i < ARRAY_LEN(objects); i++) {
		size_t n = strlen(objects[i].text), at;

		for (step = 1; step <= n + 1; step++) {
			struct stream_watch w;

			stream_watch_init(&w);
			w.endpoint = ENDPOINT_CHAT;
			for (at = 0; at < n; at += step) {
				size_t len = n - at < step ? n - at : step;
				char *copy = malloc(len);

				memcpy(copy, objects[i].text + at, len);
				stream_watch_object(
					&w, span_make(copy, len), at + len == n);
				free(copy);
			}
			w.is_strange = false; /* of what has no choices */
			ck_assert_msg(seen(&w) == objects[i].want,
				"%s in steps of %zu: %u", objects[i].text, step,
				seen(&w));
			stream_watch_free(&w);
		}
	}
}
END_TEST

/* An abort can be excused as long as it is all that went wrong. */
START_TEST(aborts_that_were_asked_for)
{
	static const struct {
		const char *text;
		bool is_abort;
	} aborts[] = {
		{WORD CHAT("{}", "\"abort\""), true},
		{CHAT("{}", "\"abort\"") DONE, true},
		{CHAT("{}", "\"error\""), false},
		{CHAT("{}", "\"error\"") CHAT("{}", "\"abort\""), false},
		{CHAT("{}", "\"abort\"") "data: {\"error\":{\"code\":500}}\n\n", false},
	};
	size_t i;

	for (i = 0; i < ARRAY_LEN(aborts); i++) {
		struct stream_watch w;

		stream_watch_init(&w);
		stream_watch_begin(&w, ENDPOINT_CHAT);
		feed(&w, aborts[i].text, strlen(aborts[i].text));
		ck_assert(w.has_error && w.is_abort == aborts[i].is_abort);
		if (w.is_abort)
			stream_watch_excuse_abort(&w);
		ck_assert(w.has_error != aborts[i].is_abort);
		ck_assert(stream_watch_is_whole(&w));
		stream_watch_free(&w);
	}
}
END_TEST

/* What has no end is not kept, and no longer understood. */
START_TEST(memory_is_bounded)
{
	static char junk[20000];
	struct stream_watch w;
	unsigned i;

	memset(junk, 'z', sizeof(junk));
	stream_watch_init(&w);
	stream_watch_begin(&w, ENDPOINT_CHAT);
	for (i = 0; i < 100; i++) {
		feed(&w, junk, sizeof(junk));
		ck_assert_uint_le(w.half.n, STREAM_WATCH_KEPT);
	}
	ck_assert(w.is_strange && w.has_content);
	ck_assert(stream_watch_is_whole(&w));
	stream_watch_free(&w);
}
END_TEST

/* The blank line of a long event is found however it is cut, and the next one is read. */
START_TEST(long_events_end)
{
	static const char *const ends[] = {"\n\n", "\r\n\r\n", "\n\r\n"};
	static char line[STREAM_WATCH_KEPT];
	size_t i, cut;

	memset(line, 'z', sizeof(line));
	memcpy(line, "data: ", 6);
	for (i = 0; i < ARRAY_LEN(ends); i++) {
		for (cut = 0; cut <= strlen(ends[i]); cut++) {
			struct stream_watch w;
			size_t n = strlen(ends[i]);

			stream_watch_init(&w);
			stream_watch_begin(&w, ENDPOINT_CHAT);
			feed(&w, WORD, strlen(WORD));
			feed(&w, line, sizeof(line));
			feed(&w, "\nid: 7\rx", 8);
			feed(&w, ends[i], cut);
			ck_assert(stream_watch_is_amid(&w) == (cut < n));
			feed(&w, ends[i] + cut, n - cut);
			ck_assert(!stream_watch_is_amid(&w) && !w.has_end);
			feed(&w, DONE, strlen(DONE));
			ck_assert(w.has_end && !stream_watch_is_amid(&w));
			stream_watch_free(&w);
		}
	}
}
END_TEST

/* After each byte of a stream: an event of the router's may follow behind whole events
 * alone, however the bytes before came. */
START_TEST(amid_is_known_at_every_byte)
{
	static const char stream[] =
		": ping\n\n" ROLE WORD "event: x\r\nid: 1\r\ndata: {}\r\n\r\n" WORD WORD
		"data: a\ndata: b\n\n" DONE;
	size_t n = sizeof(stream) - 1, at, step;

	for (step = 1; step < 40; step++) {
		struct stream_watch w;

		stream_watch_init(&w);
		stream_watch_begin(&w, ENDPOINT_CHAT);
		for (at = 0; at < n; at += step) {
			size_t end = at + step < n ? at + step : n;
			bool is_whole =
				(end > 1 && strncmp(stream + end - 2, "\n\n", 2) == 0) ||
				(end > 3 && strncmp(stream + end - 3, "\n\r\n", 3) == 0);

			feed(&w, stream + at, end - at);
			ck_assert_msg(stream_watch_is_amid(&w) == !is_whole,
				"at %zu in steps of %zu", end, step);
		}
		stream_watch_free(&w);
	}
}
END_TEST

/* Whole only if it said why it ends. */
START_TEST(whole_is_what_says_why_it_ends)
{
	struct stream_watch w;

	stream_watch_init(&w);
	ck_assert(stream_watch_is_whole(&w)); /* no stream */
	stream_watch_begin(&w, ENDPOINT_CHAT);
	ck_assert(!stream_watch_is_whole(&w));
	feed(&w, WORD, strlen(WORD));
	ck_assert(!stream_watch_is_whole(&w));
	feed(&w, DONE, strlen(DONE));
	ck_assert(stream_watch_is_whole(&w));
	stream_watch_free(&w);
}
END_TEST

/* What begins like no event is told by its first byte, however it comes. */
START_TEST(what_is_no_event_is_told_in_any_pieces)
{
	static const char *const texts[] = {
		"\377\377 no event\n\n",
		": ping\n\n.no event",
		"data: {\"choices\":[]}\n\n\001\n\n",
	};

	for (size_t n = 1; n <= strlen(texts[_i]); n++) {
		struct stream_watch w;

		stream_watch_init(&w);
		stream_watch_begin(&w, ENDPOINT_CHAT);
		for (size_t at = 0; at < strlen(texts[_i]); at += n)
			feed(&w, texts[_i] + at, MIN(n, strlen(texts[_i]) - at));
		ck_assert(w.is_strange);
		ck_assert(w.has_content);
		stream_watch_free(&w);
	}
}
END_TEST

static Suite *stream_watch_suite(void)
{
	Suite *s = suite_create("stream_watch");
	TCase *tc = tcase_create("stream_watch");

	tcase_add_loop_test(tc, what_is_said, 0, ARRAY_LEN(rows));
	tcase_add_test(tc, events_of_one_shape_are_known_by_it);
	tcase_add_test(tc, reads_hold_any_number_of_events);
	tcase_add_test(tc, error_objects);
	tcase_add_test(tc, aborts_that_were_asked_for);
	tcase_add_test(tc, memory_is_bounded);
	tcase_add_test(tc, long_events_end);
	tcase_add_test(tc, amid_is_known_at_every_byte);
	tcase_add_test(tc, whole_is_what_says_why_it_ends);
	tcase_add_loop_test(tc, what_is_no_event_is_told_in_any_pieces, 0, 3);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(stream_watch_suite())
