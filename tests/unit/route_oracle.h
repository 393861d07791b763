/*
 * The oracle of the prompt stream: what route_prompt.c hashes, built a second time from
 * jansson's tree. o_body() fills a struct oracle with the stream, or with the token ids.
 * Included by check_route_prompt.c only.
 */
#ifndef UNIT_ROUTE_ORACLE_H
#define UNIT_ROUTE_ORACLE_H

#include "base/hash.h"
#include "base/span.h"
#include "route/route_key.h"
#include "tests/unit/unit.h"

#include <jansson.h>
#include <stdarg.h>
#include <string.h>

#define REQUIRE(fact)                              \
	do {                                       \
		if (!(fact))                       \
			ck_abort_msg("%s", #fact); \
	} while (0)

/* Check cuts no message and dies of a long one. */
PRINTF_LIKE(1, 2) static inline void complain(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	ck_abort_msg("see above");
}

/* Bytes that grow. */
struct text {
	char *p;
	size_t n, room;
};

static void add(struct text *t, const char *p, size_t n)
{
	if (t->n + n > t->room) {
		t->room = 2 * (t->n + n);
		t->p = realloc(t->p, t->room);
		REQUIRE(t->p != NULL);
	}
	if (n > 0)
		memcpy(t->p + t->n, p, n);
	t->n += n;
}

static void put(struct text *t, const char *s)
{
	add(t, s, strlen(s));
}

struct oracle {
	struct text stream;
	bool is_ids;
	uint32_t ids[4096];
	size_t n_ids;
	unsigned n_media;
	bool is_system, drops_billing;
};

static void o_tag(struct oracle *o, char tag)
{
	add(&o->stream, "\xff", 1);
	add(&o->stream, &tag, 1);
}

static void o_string(struct oracle *o, const json_t *v)
{
	if (json_is_string(v))
		add(&o->stream, json_string_value(v), json_string_length(v));
}

static void o_text(struct oracle *o, char tag, const json_t *v)
{
	if (!json_is_string(v))
		return;
	o_tag(o, tag);
	o_string(o, v);
}

/* Without the billing line of a system prompt; of /v1/messages without such a part. */
static void o_said(struct oracle *o, const json_t *v, bool is_part)
{
	static const char billing[] = "x-anthropic-billing-header";
	const char *p = json_string_value(v), *line;
	size_t n = json_string_length(v);

	if (!o->is_system || strncmp(p, billing, sizeof(billing) - 1) != 0) {
		o_text(o, 'x', v);
		return;
	}
	line = memchr(p, '\n', n);
	if (line == NULL || line + 1 == p + n || (is_part && o->drops_billing))
		return;
	o_tag(o, 'x');
	add(&o->stream, line + 1, (size_t)(p + n - line - 1));
}

static void o_digest(struct oracle *o, const char *p, size_t n, unsigned bytes)
{
	uint64_t digest = hash64(p, n, 0);

	o_tag(o, 'i');
	for (unsigned i = 0; i < bytes; i++) {
		char byte = (char)(digest >> (8 * (i % 8)));

		add(&o->stream, &byte, 1);
	}
}

/* A media part: its digest 512 times, of the first 1,024 parts. */
static void o_media(struct oracle *o, const json_t *v)
{
	o_digest(o, json_string_value(v), json_string_length(v),
		o->n_media++ < 1024 ? 4096 : 8);
}

static void o_json_string(struct oracle *o, const char *p, size_t n)
{
	if (n >= 5 && memcmp(p, "data:", 5) == 0) {
		o_digest(o, p, n, 8);
		return;
	}
	o_tag(o, '"');
	add(&o->stream, p, n);
	o_tag(o, '"');
}

static bool is_one_of(const char *word, const char *list)
{
	struct span rest = span_str(list), piece;

	while (span_next(&rest, ' ', &piece)) {
		if (span_is(piece, word))
			return true;
	}
	return false;
}

static void o_json(struct oracle *o, json_t *v, const char *without)
{
	char number[32];
	const char *key;
	json_t *item;
	size_t i, n = 0;

	switch (json_typeof(v)) {
	case JSON_OBJECT:
		put(&o->stream, "{");
		json_object_foreach(v, key, item)
		{
			if (is_one_of(key, without))
				continue;
			put(&o->stream, n++ > 0 ? "," : "");
			o_json_string(o, key, strlen(key));
			put(&o->stream, ":");
			o_json(o, item, "");
		}
		put(&o->stream, "}");
		break;
	case JSON_ARRAY:
		put(&o->stream, "[");
		json_array_foreach(v, i, item)
		{
			put(&o->stream, i > 0 ? "," : "");
			o_json(o, item, "");
		}
		put(&o->stream, "]");
		break;
	case JSON_STRING:
		o_json_string(o, json_string_value(v), json_string_length(v));
		break;
	case JSON_INTEGER:
		snprintf(
			number, sizeof(number), "%lld", (long long)json_integer_value(v));
		put(&o->stream, number);
		break;
	case JSON_TRUE:
		put(&o->stream, "true");
		break;
	case JSON_FALSE:
		put(&o->stream, "false");
		break;
	default:
		put(&o->stream, "null");
	}
}

static bool is_absent(const json_t *v)
{
	return v == NULL || json_is_null(v);
}

static void o_unknown(struct oracle *o, json_t *v)
{
	o_tag(o, 'j');
	o_json(o, v, "cache_control");
}

static void o_arguments(struct oracle *o, json_t *v)
{
	if (is_absent(v))
		return;
	o_tag(o, 'a');
	if (json_is_string(v))
		o_string(o, v);
	else
		o_json(o, v, "");
}

static const char *string_of(const json_t *v)
{
	return json_is_string(v) ? json_string_value(v) : "";
}

static json_t *media_of(json_t *v)
{
	static const char *const names[] = {"image_url", "video_url", "audio_url",
		"input_audio", "audio", "image", "video", "file", "source", "url", "data",
		"file_data", "file_url", "file_id"};

	for (unsigned level = 0; level < 2 && json_is_object(v); level++) {
		json_t *next = NULL;

		for (unsigned i = ARRAY_LEN(names); i-- > 0;) {
			if (!is_absent(json_object_get(v, names[i])))
				next = json_object_get(v, names[i]);
		}
		if (next == NULL)
			return NULL;
		v = next;
	}
	return json_is_string(v) ? v : NULL;
}

static void o_content(struct oracle *o, json_t *v, bool is_inner);

static void o_part(struct oracle *o, json_t *v, bool is_inner)
{
	json_t *type = json_object_get(v, "type"), *text = json_object_get(v, "text");
	const char *name = string_of(type);

	if (json_is_string(v)) {
		o_said(o, v, false);
		return;
	}
	if (json_is_string(type) && strlen(name) != json_string_length(type))
		name = "";
	if (is_one_of(name, "text input_text output_text") || is_absent(type)) {
		if (json_is_string(text)) {
			o_said(o, text, true);
			return;
		}
	}
	if (strcmp(name, "refusal") == 0 &&
		json_is_string(json_object_get(v, "refusal"))) {
		o_said(o, json_object_get(v, "refusal"), true);
	} else if (strcmp(name, "thinking") == 0 &&
		   json_is_string(json_object_get(v, "thinking"))) {
		o_text(o, 'g', json_object_get(v, "thinking"));
	} else if (strcmp(name, "redacted_thinking") == 0 &&
		   json_is_string(json_object_get(v, "data"))) {
		o_text(o, 'g', json_object_get(v, "data"));
	} else if (is_one_of(name, "reasoning_text summary_text") &&
		   json_is_string(text)) {
		o_text(o, 'g', text);
	} else if (strcmp(name, "tool_use") == 0) {
		o_tag(o, 'c');
		o_string(o, json_object_get(v, "id"));
		o_text(o, 'd', json_object_get(v, "name"));
		o_arguments(o, json_object_get(v, "input"));
	} else if (strcmp(name, "tool_result") == 0 && !is_inner) {
		o_tag(o, 'r');
		o_string(o, json_object_get(v, "tool_use_id"));
		o_content(o, json_object_get(v, "content"), true);
	} else if (json_is_object(v) && media_of(v) != NULL &&
		   (is_absent(type) || is_one_of(name, "image_url input_image image "
						       "input_audio audio_url audio "
						       "video_url input_video video file "
						       "input_file document"))) {
		o_media(o, media_of(v));
	} else {
		o_unknown(o, v);
	}
}

static void o_content(struct oracle *o, json_t *v, bool is_inner)
{
	json_t *item;
	size_t i;

	if (is_absent(v))
		return;
	if (!json_is_array(v))
		o_part(o, v, is_inner);
	json_array_foreach(v, i, item) o_part(o, item, is_inner);
}

static void o_function(struct oracle *o, json_t *v)
{
	json_t *arguments = json_object_get(v, "arguments");

	o_text(o, 'd', json_object_get(v, "name"));
	o_arguments(o, is_absent(arguments) ? json_object_get(v, "input") : arguments);
}

static void o_reasoning(struct oracle *o, json_t *v)
{
	json_t *item;
	size_t i;

	o_text(o, 'g', v);
	json_array_foreach(v, i, item) o_text(o, 'g', json_object_get(item, "text"));
}

static void o_message(struct oracle *o, json_t *m)
{
	json_t *call, *function;
	size_t i;

	if (!json_is_object(m)) {
		o_unknown(o, m);
		return;
	}
	o_tag(o, 'm');
	o_string(o, json_object_get(m, "role"));
	o_text(o, 'n', json_object_get(m, "name"));
	o->is_system = json_is_string(json_object_get(m, "role")) &&
		       strcmp(string_of(json_object_get(m, "role")), "system") == 0;
	o_content(o, json_object_get(m, "content"), false);
	o->is_system = false;
	json_array_foreach(json_object_get(m, "tool_calls"), i, call)
	{
		o_tag(o, 'c');
		o_string(o, json_object_get(call, "id"));
		function = json_object_get(call, "function");
		o_function(o,
			is_absent(function) ? json_object_get(call, "custom") : function);
	}
	if (json_is_object(json_object_get(m, "function_call"))) {
		o_tag(o, 'c');
		o_function(o, json_object_get(m, "function_call"));
	}
	o_text(o, 'r', json_object_get(m, "tool_call_id"));
	o_reasoning(o, json_object_get(m, "reasoning_content"));
	o_reasoning(o, json_object_get(m, "reasoning"));
}

static void o_item(struct oracle *o, json_t *v)
{
	json_t *type = json_object_get(v, "type"),
	       *arguments = json_object_get(v, "arguments");
	const char *name = string_of(type);

	if (strcmp(name, "message") == 0 ||
		(is_absent(type) && !is_absent(json_object_get(v, "role")))) {
		o_message(o, v);
	} else if (is_one_of(name, "function_call custom_tool_call")) {
		o_tag(o, 'c');
		o_string(o, json_object_get(v, "call_id"));
		o_text(o, 'd', json_object_get(v, "name"));
		o_arguments(o,
			is_absent(arguments) ? json_object_get(v, "input") : arguments);
	} else if (is_one_of(name, "function_call_output custom_tool_call_output")) {
		o_tag(o, 'r');
		o_string(o, json_object_get(v, "call_id"));
		o_content(o, json_object_get(v, "output"), true);
	} else if (strcmp(name, "reasoning") == 0) {
		o_reasoning(o, json_object_get(v, "summary"));
		o_reasoning(o, json_object_get(v, "content"));
	} else {
		o_tag(o, 'j');
		o_json(o, v,
			strcmp(name, "item_reference") == 0 ? "cache_control"
							    : "id status cache_control");
	}
}

static void o_tools(struct oracle *o, char tag, json_t *v)
{
	json_t *item;
	size_t i;

	if (!is_absent(v) && !json_is_array(v)) {
		o_tag(o, tag);
		o_json(o, v, "");
	}
	json_array_foreach(v, i, item)
	{
		o_tag(o, tag);
		o_json(o, item, "cache_control");
	}
}

static void o_ids(struct oracle *o, json_t *v)
{
	json_t *item;
	size_t i;

	o->is_ids = true;
	o->n_ids = 0;
	json_array_foreach(v, i, item)
	{
		json_int_t id = json_integer_value(item);

		if (!json_is_integer(item) || id < 0 || id > UINT32_MAX) {
			o->n_ids = 0;
			return;
		}
		REQUIRE(i < ARRAY_LEN(o->ids));
		o->ids[o->n_ids++] = (uint32_t)id;
	}
}

static bool is_uniform(json_t *list)
{
	json_t *item;
	size_t i;

	json_array_foreach(list, i, item)
	{
		if (json_typeof(item) != json_typeof(json_array_get(list, 0)))
			return false;
	}
	return json_array_size(list) > 0;
}

static void o_prompt(struct oracle *o, json_t *v)
{
	json_t *first = json_array_get(v, 0);

	if (json_is_integer(first)) {
		o_ids(o, v);
		return;
	}
	o_string(o, v);
	if (!is_uniform(v))
		return;
	o_text(o, 'l', first);
	if (json_is_array(first))
		o_ids(o, first);
}

static void o_document(struct oracle *o, char tag, json_t *v)
{
	if (is_absent(v))
		return;
	if (json_is_string(json_object_get(v, "text")))
		v = json_object_get(v, "text");
	o_tag(o, tag);
	if (json_is_string(v))
		o_string(o, v);
	else
		o_json(o, v, "");
}

static void o_first_document(struct oracle *o, char tag, json_t *v)
{
	json_t *first = json_array_get(v, 0);

	if (!json_is_array(v))
		o_document(o, tag, v);
	else if (is_uniform(v) || json_is_integer(first))
		o_document(o, tag, first);
}

static void o_messages(struct oracle *o, json_t *body, bool has_functions)
{
	json_t *item, *messages = json_object_get(body, "messages");
	size_t i;

	if (has_functions) {
		o_tools(o, 't', json_object_get(body, "tools"));
		o_tools(o, 'f', json_object_get(body, "functions"));
	}
	json_array_foreach(messages, i, item) o_message(o, item);
}

static void o_system(struct oracle *o, json_t *v)
{
	if (is_absent(v))
		return;
	o_tag(o, 's');
	o->is_system = true;
	o_content(o, v, false);
	o->is_system = false;
}

static void o_responses(struct oracle *o, json_t *body)
{
	json_t *item, *input = json_object_get(body, "input");
	size_t i;

	o_tools(o, 't', json_object_get(body, "tools"));
	o_system(o, json_object_get(body, "instructions"));
	o_text(o, 'p', json_object_get(body, "previous_response_id"));
	if (json_is_string(input)) {
		o_tag(o, 'm');
		put(&o->stream, "user");
		o_text(o, 'x', input);
	}
	json_array_foreach(input, i, item) o_item(o, item);
}

static void o_generate(struct oracle *o, json_t *body)
{
	json_t *text = json_object_get(body, "text"), *item, *images;
	size_t i;

	if (is_absent(text))
		text = json_object_get(body, "prompt");
	if (is_absent(text)) {
		o_prompt(o, json_object_get(body, "input_ids"));
		return;
	}
	images = json_object_get(body, "image_data");
	if (json_is_string(text) && json_is_string(images))
		o_media(o, images);
	json_array_foreach(images, i, item)
	{
		if (json_is_string(text) && json_is_string(item))
			o_media(o, item);
	}
	o_prompt(o, text);
}

/* The first of these members that is there; the last where none is. */
static json_t *first_there(json_t *body, const char *const *names)
{
	while (names[1] != NULL && is_absent(json_object_get(body, *names)))
		names++;
	return json_object_get(body, *names);
}

static void o_score(struct oracle *o, json_t *body)
{
	static const char *const queries[] = {
		"text_1", "data_1", "queries", "query", NULL};
	static const char *const documents[] = {
		"text_2", "data_2", "documents", "items", NULL};

	o_first_document(o, 'q', first_there(body, queries));
	o_first_document(o, 'k', first_there(body, documents));
}

static void o_any_text(struct oracle *o, json_t *body)
{
	static const char *const prompts[] = {
		"prompt", "input", "content", "texts", "inputs", NULL};
	json_t *messages = json_object_get(body, "messages"), *item;
	json_t *prompt = first_there(body, prompts), *first = json_array_get(prompt, 0);
	size_t i;

	if (!is_absent(messages)) {
		o_tools(o, 't', json_object_get(body, "tools"));
		if (json_is_array(json_array_get(messages, 0)))
			messages = json_array_get(messages, 0);
		json_array_foreach(messages, i, item) o_message(o, item);
	} else if (!is_absent(json_object_get(body, "input_prefix"))) {
		if (!is_absent(json_object_get(body, "input_extra"))) {
			o_tag(o, 'j');
			o_json(o, json_object_get(body, "input_extra"), NULL);
		}
		o_text(o, 'x', json_object_get(body, "input_prefix"));
		o_text(o, 'x', json_object_get(body, "prompt"));
		o_text(o, 'x', json_object_get(body, "input_suffix"));
	} else if (!is_absent(prompt)) {
		if (json_is_string(prompt))
			o_system(o, json_object_get(body, "system"));
		if (is_uniform(prompt) && json_is_object(first))
			json_array_foreach(prompt, i, item) o_message(o, item);
		else
			o_prompt(o, prompt);
	} else if (!is_absent(json_object_get(body, "state"))) {
		o_system(o, json_object_get(body, "instructions"));
		o_document(o, 'q', json_object_get(body, "state"));
	} else {
		o_generate(o, body);
	}
}

static void o_body(struct oracle *o, enum route_endpoint endpoint, json_t *body)
{
	json_t *item;
	size_t i;

	o->stream.n = 0;
	o->is_ids = false;
	o->n_media = 0;
	o->is_system = false;
	o->drops_billing = endpoint == ENDPOINT_MESSAGES;
	switch (endpoint) {
	case ENDPOINT_COMPLETIONS:
		o_prompt(o, json_object_get(body, "prompt"));
		break;
	case ENDPOINT_RESPONSES:
		o_responses(o, body);
		break;
	case ENDPOINT_MESSAGES:
		o_tools(o, 't', json_object_get(body, "tools"));
		o_system(o, json_object_get(body, "system"));
		o_messages(o, body, false);
		break;
	case ENDPOINT_EMBEDDINGS:
		if (!is_absent(json_object_get(body, "input")))
			o_prompt(o, json_object_get(body, "input"));
		else
			o_messages(o, body, true);
		break;
	case ENDPOINT_RERANK:
		o_document(o, 'q', json_object_get(body, "query"));
		json_array_foreach(json_object_get(body, "documents"), i, item)
			o_document(o, 'k', item);
		break;
	case ENDPOINT_SCORE:
		o_score(o, body);
		break;
	case ENDPOINT_TEXT:
		o_any_text(o, body);
		break;
	case ENDPOINT_PLAIN:
		break;
	case ENDPOINT_GENERATE:
		o_generate(o, body);
		break;
	case ENDPOINT_INFERENCE_GENERATE:
		o_prompt(o, json_object_get(body, "token_ids"));
		break;
	case ENDPOINT_TOKENIZE:
		if (is_absent(json_object_get(body, "messages"))) {
			o_prompt(o, json_object_get(body, "prompt"));
			break;
		}
		/* fall through */
	default:
		o_messages(o, body, true);
	}
}

#endif
