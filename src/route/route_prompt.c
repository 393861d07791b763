/*
 * The prompt stream of each endpoint (route_prompt.h). Each put_ function appends one
 * thing; the endpoint functions at the end say the order.
 *
 * Always true: the stream depends on the meaning of the JSON, not on its spelling
 * (blanks, escapes, order of members), except inside tools and unknown parts, where
 * member order and numbers count as spelled. No function calls itself.
 */
#include "route/route_prompt.h"

#include "route/route_hash.h"

#include <strings.h>

/* The letters that follow 0xFF. They are part of the public format. */
enum tag {
	TAG_TOOL = 't',     /* JSON of one tool */
	TAG_FUNCTION = 'f', /* JSON of one legacy function */
	TAG_SYSTEM = 's',   /* system or instructions; its texts follow */
	TAG_PREVIOUS = 'p', /* the response that this one continues */
	TAG_MESSAGE = 'm',  /* role; the message's parts follow */
	TAG_NAME = 'n',
	TAG_TEXT = 'x',
	TAG_MEDIA = 'i', /* the digest of media, repeated; inside JSON once */
	TAG_JSON = 'j',  /* something unknown, as JSON */
	TAG_CALL = 'c',  /* id of a tool call */
	TAG_CALL_NAME = 'd',
	TAG_ARGUMENTS = 'a',
	TAG_RESULT = 'r', /* id of the call that a message or part answers */
	TAG_REASONING = 'g',
	TAG_QUERY = 'q',
	TAG_DOCUMENT = 'k',
	TAG_LIST = 'l',  /* the first prompt of a list of strings */
	TAG_STRING = '"' /* either end of a string inside JSON */
};

struct prompt {
	const struct json_text *text;
	const struct json_value *fields;
	const struct route_key_opts *opts;
	unsigned n_media;   /* media parts so far */
	bool is_system;     /* a system prompt is being put: it may begin with BILLING */
	bool drops_billing; /* the API drops a part that does, whole */
	struct route_hash hash;
};

#define NAME(s)                  \
	{                        \
		s, sizeof(s) - 1 \
	}
#define MEMBERS(p, object, names, found) \
	json_members((p)->text, object, names, ARRAY_LEN(names), found)

static bool is_name(const struct prompt *p, struct json_value v, const char *name)
{
	char buffer[JSON_NAME_ROOM];

	return span_is(json_name(p->text, v, buffer), name);
}

static bool is_absent(struct json_value v)
{
	return v.kind <= JSON_IS_NULL;
}

static void put_string(struct prompt *p, struct json_value v)
{
	if (v.kind == JSON_IS_STRING)
		route_hash_string(&p->hash, json_raw(p->text, v), v.escaped);
}

/* A border and a text; nothing where v is no string. */
static void put_text(struct prompt *p, enum tag tag, struct json_value v)
{
	if (v.kind != JSON_IS_STRING)
		return;
	route_hash_tag(&p->hash, tag);
	put_string(p, v);
}

/* A border that stands even where its text is missing. */
static void put_border(struct prompt *p, enum tag tag, struct json_value v)
{
	route_hash_tag(&p->hash, tag);
	put_string(p, v);
}

static void put_digest(struct prompt *p, struct json_value string, size_t bytes)
{
	route_hash_tag(&p->hash, TAG_MEDIA);
	route_hash_digest(&p->hash, json_raw(p->text, string), string.escaped, bytes);
}

/* A media part: the blocks of its own that ROUTE_MEDIA_BYTES explains. */
static void put_media(struct prompt *p, struct json_value string)
{
	bool is_counted = p->n_media < ROUTE_MEDIA_MOST;

	put_digest(p, string, is_counted ? ROUTE_MEDIA_BYTES : ROUTE_DIGEST_BYTES);
	p->n_media += is_counted;
}

/* Whether a string's text begins so; `with` is at most JSON_DECODE_SLACK bytes. */
static bool string_starts(
	const struct prompt *p, struct json_value string, struct span with)
{
	struct span raw = json_raw(p->text, string);
	char start[2 * JSON_DECODE_SLACK];
	size_t n;

	if (raw.n < with.n || (raw.p[0] != with.p[0] && raw.p[0] != '\\'))
		return false;
	if (!string.escaped)
		return span_starts(raw, with);
	n = json_decode(&raw, start, sizeof(start));
	return span_starts(span_make(start, n), with);
}

static bool is_data_url(const struct prompt *p, struct json_value string)
{
	return string_starts(p, string, SPAN_LIT("data:"));
}

/* Claude Code's line at the head of its system prompt. It differs in each request, and
 * engines drop it before they render. */
#define BILLING "x-anthropic-billing-header"
static_assert(sizeof(BILLING) <= JSON_DECODE_SLACK, "string_starts() decodes as much");

/* The bytes of the next escape or byte of a string, as spelled. */
static size_t spelled_bytes(struct span raw, bool *is_line_feed)
{
	*is_line_feed = raw.p[0] == '\n';
	if (raw.p[0] != '\\' || raw.n < 2)
		return 1;
	if (raw.p[1] == 'u' && raw.n >= 6) {
		*is_line_feed = strncasecmp(raw.p + 2, "000a", 4) == 0;
		return 6;
	}
	*is_line_feed = raw.p[1] == 'n';
	return 2;
}

/* What follows the first line feed of a string. */
static struct span after_line(struct span raw)
{
	bool is_line_feed = false;

	while (raw.n > 0 && !is_line_feed) {
		size_t n = spelled_bytes(raw, &is_line_feed);

		raw = span_make(raw.p + n, raw.n - n);
	}
	return raw;
}

/* A text of a message or system prompt, without the line BILLING. */
static void put_said(struct prompt *p, struct json_value v, bool is_part)
{
	struct span rest;

	if (!p->is_system || !string_starts(p, v, SPAN_LIT(BILLING))) {
		put_text(p, TAG_TEXT, v);
		return;
	}
	rest = after_line(json_raw(p->text, v));
	if (rest.n == 0 || (is_part && p->drops_billing))
		return;
	route_hash_tag(&p->hash, TAG_TEXT);
	route_hash_string(&p->hash, rest, v.escaped);
}

/* The next string of *c, between borders. */
static void put_json_string(struct prompt *p, struct json_cursor *c)
{
	struct json_value string = json_next_string(p->text, c);

	if (is_data_url(p, string)) {
		put_digest(p, string, ROUTE_DIGEST_BYTES);
		return;
	}
	put_border(p, TAG_STRING, string);
	route_hash_tag(&p->hash, TAG_STRING);
}

/* The same for most strings, which are short. False: nothing was done. */
static bool put_tiny_string(struct prompt *p, struct json_cursor *c)
{
	static const char border[2] = {(char)0xFF, TAG_STRING};
	const char *string = p->text->base + c->at + 1;
	struct route_hash *h = &p->hash;
	int n = json_tiny_string(p->text, c->at);
	char *out = h->stage + h->used;

	if (n < 0 || (n >= 5 && memcmp(string, "data:", 5) == 0) ||
		h->stage_bytes - h->used < 20)
		return false;
	memcpy(out, border, 2);
	memcpy(out + 2, string, 16);
	memcpy(out + 2 + n, border, 2);
	h->used += (size_t)n + 4;
	h->total += (size_t)n + 4;
	c->at += (size_t)n + 2;
	return true;
}

/* JSON without blanks. The quotes are borders, so that no text can forge them; a data URL
 * is a digest, once: no engine makes an image of it. */
static void put_json(struct prompt *p, struct json_value v)
{
	struct json_cursor c = json_bytes(v);

	while (c.at < c.end) {
		char byte = p->text->base[c.at];

		if (byte == '"') {
			if (!put_tiny_string(p, &c))
				put_json_string(p, &c);
			continue;
		}
		if (byte != ' ' && byte != '\n' && byte != '\r' && byte != '\t')
			route_hash_byte(&p->hash, byte);
		c.at++;
	}
}

/* The same, without the object's own members of these names. */
static void put_json_without(
	struct prompt *p, struct json_value v, const char *const *names)
{
	struct json_cursor c = json_enter(v);
	struct json_value key, value;
	bool is_first = true;

	if (v.kind != JSON_IS_OBJECT) {
		put_json(p, v);
		return;
	}
	route_hash_bytes(&p->hash, "{", 1);
	while (json_next_member(p->text, &c, &key, &value)) {
		const char *const *name = names;

		while (*name != NULL && !is_name(p, key, *name))
			name++;
		if (*name != NULL)
			continue;
		if (!is_first)
			route_hash_bytes(&p->hash, ",", 1);
		is_first = false;
		put_json(p, key);
		route_hash_bytes(&p->hash, ":", 1);
		put_json(p, value);
	}
	route_hash_bytes(&p->hash, "}", 1);
}

static const char *const cache_marks[] = {"cache_control", NULL};

static void put_unknown(struct prompt *p, struct json_value v)
{
	route_hash_tag(&p->hash, TAG_JSON);
	put_json_without(p, v, cache_marks);
}

static void put_tools(struct prompt *p, enum tag tag, struct json_value tools)
{
	struct json_cursor c = json_enter(tools);
	struct json_value tool;

	if (!is_absent(tools) && tools.kind != JSON_IS_ARRAY) {
		route_hash_tag(&p->hash, tag);
		put_json(p, tools);
		return;
	}
	while (json_next_item(p->text, &c, &tool)) {
		route_hash_tag(&p->hash, tag);
		put_json_without(p, tool, cache_marks);
	}
}

/* Arguments and inputs of calls: text, or an object. */
static void put_arguments(struct prompt *p, struct json_value v)
{
	if (is_absent(v))
		return;
	route_hash_tag(&p->hash, TAG_ARGUMENTS);
	if (v.kind == JSON_IS_STRING)
		put_string(p, v);
	else
		put_json(p, v);
}

static void put_reasoning(struct prompt *p, struct json_value v)
{
	static const struct span names[] = {NAME("text")};
	struct json_cursor c = json_enter(v);
	struct json_value item, text;

	put_text(p, TAG_REASONING, v);
	if (v.kind != JSON_IS_ARRAY)
		return;
	while (json_next_item(p->text, &c, &item)) {
		MEMBERS(p, item, names, &text);
		put_text(p, TAG_REASONING, text);
	}
}

enum part_kind {
	PART_UNKNOWN,
	PART_TEXT,
	PART_REASONING,
	PART_MEDIA,
	PART_CALL,
	PART_RESULT
};

enum part_member {
	PART_TYPE,
	PART_ID,
	PART_NAME,
	PART_INPUT,
	PART_TOOL_USE_ID,
	PART_CONTENT,
	PART_TEXT_FIELD,
	PART_REFUSAL,
	PART_THINKING,
	PART_DATA,
	PART_MEMBERS
};

static const struct span part_members[PART_MEMBERS] = {NAME("type"), NAME("id"),
	NAME("name"), NAME("input"), NAME("tool_use_id"), NAME("content"), NAME("text"),
	NAME("refusal"), NAME("thinking"), NAME("data")};

/* clang-format off */
static const struct part_rule {
	const char *type;
	enum part_kind kind;
	enum part_member text; /* TEXT, REASONING: where the text is */
} part_rules[] = {
	{ "text",              PART_TEXT,      PART_TEXT_FIELD },
	{ "input_text",        PART_TEXT,      PART_TEXT_FIELD },
	{ "output_text",       PART_TEXT,      PART_TEXT_FIELD },
	{ "refusal",           PART_TEXT,      PART_REFUSAL },
	{ "thinking",          PART_REASONING, PART_THINKING },
	{ "redacted_thinking", PART_REASONING, PART_DATA },
	{ "reasoning_text",    PART_REASONING, PART_TEXT_FIELD },
	{ "summary_text",      PART_REASONING, PART_TEXT_FIELD },
	{ "tool_use",          PART_CALL,      0 },
	{ "tool_result",       PART_RESULT,    0 },
	{ "image_url",         PART_MEDIA,     0 },
	{ "input_image",       PART_MEDIA,     0 },
	{ "image",             PART_MEDIA,     0 },
	{ "input_audio",       PART_MEDIA,     0 },
	{ "audio_url",         PART_MEDIA,     0 },
	{ "audio",             PART_MEDIA,     0 },
	{ "video_url",         PART_MEDIA,     0 },
	{ "input_video",       PART_MEDIA,     0 },
	{ "video",             PART_MEDIA,     0 },
	{ "file",              PART_MEDIA,     0 },
	{ "input_file",        PART_MEDIA,     0 },
	{ "document",          PART_MEDIA,     0 },
};
/* clang-format on */

static struct part_rule find_rule(const struct prompt *p, const struct json_value *part)
{
	char buffer[JSON_NAME_ROOM];
	struct span type = json_name(p->text, part[PART_TYPE], buffer);

	for (unsigned i = 0; i < ARRAY_LEN(part_rules); i++) {
		if (span_is(type, part_rules[i].type))
			return part_rules[i];
	}
	if (!is_absent(part[PART_TYPE]))
		return (struct part_rule){"", PART_UNKNOWN, 0};
	/* Without a type, as some engines allow. */
	if (part[PART_TEXT_FIELD].kind == JSON_IS_STRING)
		return part_rules[0];
	return (struct part_rule){"", PART_MEDIA, 0};
}

/*
 * The string that names or holds the media of a part: {"image_url": X}, {"image_url":
 * {"url": X}}, {"source": {"data": X}} ... The first of these names that is there counts.
 * Kind NONE where nothing is found.
 */
static struct json_value find_media(const struct prompt *p, struct json_value part)
{
	static const struct span names[] = {NAME("image_url"), NAME("video_url"),
		NAME("audio_url"), NAME("input_audio"), NAME("audio"), NAME("image"),
		NAME("video"), NAME("file"), NAME("source"), NAME("url"), NAME("data"),
		NAME("file_data"), NAME("file_url"), NAME("file_id")};
	struct json_value found[ARRAY_LEN(names)];

	for (unsigned level = 0; level < 2 && part.kind == JSON_IS_OBJECT; level++) {
		unsigned i = 0;

		MEMBERS(p, part, names, found);
		while (i < ARRAY_LEN(names) && is_absent(found[i]))
			i++;
		if (i == ARRAY_LEN(names))
			break;
		part = found[i];
	}
	return part.kind == JSON_IS_STRING ? part : (struct json_value){0};
}

/* Everything that needs no look inside again. False for tool results, whose content is a
 * list of parts. */
static bool put_plain_part(struct prompt *p, struct json_value v, struct part_rule rule,
	const struct json_value *part)
{
	struct json_value media;

	if (rule.kind == PART_RESULT)
		return false;
	if (rule.kind == PART_TEXT && part[rule.text].kind == JSON_IS_STRING) {
		put_said(p, part[rule.text], true);
		return true;
	}
	if (rule.kind == PART_REASONING && part[rule.text].kind == JSON_IS_STRING) {
		put_text(p, TAG_REASONING, part[rule.text]);
		return true;
	}
	if (rule.kind == PART_CALL) {
		put_border(p, TAG_CALL, part[PART_ID]);
		put_text(p, TAG_CALL_NAME, part[PART_NAME]);
		put_arguments(p, part[PART_INPUT]);
		return true;
	}
	media = rule.kind == PART_MEDIA ? find_media(p, v) : (struct json_value){0};
	if (is_absent(media))
		put_unknown(p, v);
	else
		put_media(p, media);
	return true;
}

/* A part of a tool result: there a tool result is unknown. */
static void put_inner_part(struct prompt *p, struct json_value v)
{
	struct json_value part[PART_MEMBERS];

	if (v.kind == JSON_IS_STRING) {
		put_said(p, v, false);
		return;
	}
	MEMBERS(p, v, part_members, part);
	if (v.kind != JSON_IS_OBJECT || !put_plain_part(p, v, find_rule(p, part), part))
		put_unknown(p, v);
}

/* One part, or a list of them. */
static void put_parts(struct prompt *p, struct json_value v,
	void (*put_one)(struct prompt *p, struct json_value v))
{
	struct json_cursor c = json_enter(v);
	struct json_value item;

	if (is_absent(v))
		return;
	if (v.kind != JSON_IS_ARRAY) {
		put_one(p, v);
		return;
	}
	while (json_next_item(p->text, &c, &item))
		put_one(p, item);
}

static void put_part(struct prompt *p, struct json_value v)
{
	struct json_value part[PART_MEMBERS];

	if (v.kind != JSON_IS_OBJECT) {
		put_inner_part(p, v);
		return;
	}
	MEMBERS(p, v, part_members, part);
	if (put_plain_part(p, v, find_rule(p, part), part))
		return;
	put_border(p, TAG_RESULT, part[PART_TOOL_USE_ID]);
	put_parts(p, part[PART_CONTENT], put_inner_part);
}

/* A message's content: text, or parts; null counts as absent, one text part as plain
 * text. */
static void put_content(struct prompt *p, struct json_value v)
{
	put_parts(p, v, put_part);
}

/* {"name", "arguments"}, or of a custom tool {"name", "input"}. */
static void put_function(struct prompt *p, struct json_value v)
{
	enum { F_NAME, F_ARGUMENTS, F_INPUT, F_MAX };
	static const struct span names[F_MAX] = {[F_NAME] = NAME("name"),
		[F_ARGUMENTS] = NAME("arguments"),
		[F_INPUT] = NAME("input")};
	struct json_value found[F_MAX];

	MEMBERS(p, v, names, found);
	put_text(p, TAG_CALL_NAME, found[F_NAME]);
	put_arguments(p, found[is_absent(found[F_ARGUMENTS]) ? F_INPUT : F_ARGUMENTS]);
}

static void put_tool_calls(struct prompt *p, struct json_value calls)
{
	enum { CALL_ID, CALL_FUNCTION, CALL_CUSTOM, CALL_MAX };
	static const struct span names[CALL_MAX] = {[CALL_ID] = NAME("id"),
		[CALL_FUNCTION] = NAME("function"),
		[CALL_CUSTOM] = NAME("custom")};
	struct json_value found[CALL_MAX], call;
	struct json_cursor c = json_enter(calls);

	if (calls.kind != JSON_IS_ARRAY)
		return;
	while (json_next_item(p->text, &c, &call)) {
		MEMBERS(p, call, names, found);
		put_border(p, TAG_CALL, found[CALL_ID]);
		put_function(p, found[is_absent(found[CALL_FUNCTION]) ? CALL_CUSTOM
								      : CALL_FUNCTION]);
	}
}

/* The members of a message that are part of the prompt. */
enum {
	MESSAGE_ROLE,
	MESSAGE_NAME,
	MESSAGE_CONTENT,
	MESSAGE_TOOL_CALLS,
	MESSAGE_FUNCTION_CALL,
	MESSAGE_TOOL_CALL_ID,
	MESSAGE_REASONING_CONTENT,
	MESSAGE_REASONING,
	MESSAGE_MEMBERS
};
static const struct span message_members[MESSAGE_MEMBERS] = {
	[MESSAGE_ROLE] = NAME("role"),
	[MESSAGE_NAME] = NAME("name"),
	[MESSAGE_CONTENT] = NAME("content"),
	[MESSAGE_TOOL_CALLS] = NAME("tool_calls"),
	[MESSAGE_FUNCTION_CALL] = NAME("function_call"),
	[MESSAGE_TOOL_CALL_ID] = NAME("tool_call_id"),
	[MESSAGE_REASONING_CONTENT] = NAME("reasoning_content"),
	[MESSAGE_REASONING] = NAME("reasoning"),
};

static void put_message(struct prompt *p, struct json_value message)
{
	struct json_value found[MESSAGE_MEMBERS];

	if (message.kind != JSON_IS_OBJECT) {
		put_unknown(p, message);
		return;
	}
	MEMBERS(p, message, message_members, found);
	put_border(p, TAG_MESSAGE, found[MESSAGE_ROLE]);
	put_text(p, TAG_NAME, found[MESSAGE_NAME]);
	p->is_system = is_name(p, found[MESSAGE_ROLE], "system");
	put_content(p, found[MESSAGE_CONTENT]);
	p->is_system = false;
	put_tool_calls(p, found[MESSAGE_TOOL_CALLS]);
	if (found[MESSAGE_FUNCTION_CALL].kind == JSON_IS_OBJECT) {
		route_hash_tag(&p->hash, TAG_CALL);
		put_function(p, found[MESSAGE_FUNCTION_CALL]);
	}
	put_text(p, TAG_RESULT, found[MESSAGE_TOOL_CALL_ID]);
	put_reasoning(p, found[MESSAGE_REASONING_CONTENT]);
	put_reasoning(p, found[MESSAGE_REASONING]);
}

static void put_messages(struct prompt *p, struct json_value messages)
{
	struct json_cursor c = json_enter(messages);
	struct json_value message;

	if (messages.kind != JSON_IS_ARRAY)
		return;
	while (json_next_item(p->text, &c, &message))
		put_message(p, message);
}

static void put_system(struct prompt *p, struct json_value system)
{
	if (is_absent(system))
		return;
	route_hash_tag(&p->hash, TAG_SYSTEM);
	p->is_system = true;
	put_content(p, system);
	p->is_system = false;
}

enum item_member {
	ITEM_TYPE,
	ITEM_ROLE,
	ITEM_CALL_ID,
	ITEM_NAME,
	ITEM_ARGUMENTS,
	ITEM_INPUT,
	ITEM_OUTPUT,
	ITEM_SUMMARY,
	ITEM_CONTENT,
	ITEM_MEMBERS
};

static const struct span item_members[ITEM_MEMBERS] = {NAME("type"), NAME("role"),
	NAME("call_id"), NAME("name"), NAME("arguments"), NAME("input"), NAME("output"),
	NAME("summary"), NAME("content")};

static void put_item_unknown(struct prompt *p, struct json_value v, bool is_reference)
{
	static const char *const volatile_members[] = {
		"id", "status", "cache_control", NULL};

	route_hash_tag(&p->hash, TAG_JSON);
	put_json_without(p, v, is_reference ? cache_marks : volatile_members);
}

/* One item of a responses input. */
static void put_item(struct prompt *p, struct json_value v)
{
	struct json_value item[ITEM_MEMBERS];
	char buffer[JSON_NAME_ROOM];
	struct span type;

	MEMBERS(p, v, item_members, item);
	type = json_name(p->text, item[ITEM_TYPE], buffer);
	if (span_is(type, "message") ||
		(is_absent(item[ITEM_TYPE]) && !is_absent(item[ITEM_ROLE]))) {
		put_message(p, v);
	} else if (span_is(type, "function_call") || span_is(type, "custom_tool_call")) {
		put_border(p, TAG_CALL, item[ITEM_CALL_ID]);
		put_text(p, TAG_CALL_NAME, item[ITEM_NAME]);
		put_arguments(p, is_absent(item[ITEM_ARGUMENTS]) ? item[ITEM_INPUT]
								 : item[ITEM_ARGUMENTS]);
	} else if (span_is(type, "function_call_output") ||
		   span_is(type, "custom_tool_call_output")) {
		put_border(p, TAG_RESULT, item[ITEM_CALL_ID]);
		put_parts(p, item[ITEM_OUTPUT], put_inner_part);
	} else if (span_is(type, "reasoning")) {
		put_reasoning(p, item[ITEM_SUMMARY]);
		put_reasoning(p, item[ITEM_CONTENT]);
	} else {
		put_item_unknown(p, v, span_is(type, "item_reference"));
	}
}

static void put_input(struct prompt *p, struct json_value input)
{
	struct json_cursor c = json_enter(input);
	struct json_value item;

	if (input.kind == JSON_IS_STRING) {
		route_hash_tag(&p->hash, TAG_MESSAGE);
		route_hash_bytes(&p->hash, "user", 4);
		put_text(p, TAG_TEXT, input);
		return;
	}
	if (input.kind != JSON_IS_ARRAY)
		return;
	while (json_next_item(p->text, &c, &item))
		put_item(p, item);
}

/* A number as a token id; false where it is none (negative, fraction, too big). */
static bool read_id(const struct json_text *t, struct json_value v, uint32_t *id)
{
	struct span raw = json_raw(t, v);
	uint64_t value = 0;

	if (v.kind != JSON_IS_NUMBER || raw.n > 10)
		return false;
	for (size_t i = 0; i < raw.n; i++) {
		if (raw.p[i] < '0' || raw.p[i] > '9')
			return false;
		value = value * 10 + (uint64_t)(raw.p[i] - '0');
	}
	*id = (uint32_t)value;
	return value <= UINT32_MAX;
}

/* The usual "123, 45," eight bytes at a time; stops before anything else. */
static void put_short_ids(struct prompt *p, struct json_cursor *c)
{
	while (c->end - c->at >= 9) {
		const char *at = p->text->base + c->at;
		uint64_t digits;
		unsigned n = json_count_digits(at, &digits);

		if (n == 0 || n == 8 || at[n] != ',')
			return;
		route_hash_id(&p->hash, json_digits_value(digits, n));
		c->at += n + 1;
		if (at[n + 1] == ' ')
			c->at++;
	}
}

/* A list of token ids. One item that is none, and nothing counts. */
static void put_ids(struct prompt *p, struct json_value ids)
{
	struct json_cursor c = json_enter(ids);
	struct json_value item;
	uint32_t id;

	route_hash_be_ids(&p->hash, p->opts);
	for (;;) {
		put_short_ids(p, &c);
		if (!json_next_item(p->text, &c, &item))
			return;
		if (!read_id(p->text, item, &id)) {
			route_hash_forget(&p->hash);
			return;
		}
		route_hash_id(&p->hash, id);
	}
}

/* Whether all items are of the first one's kind, which must be there. Lists of numbers
 * are judged by put_ids(). */
static bool first_of_list(
	const struct prompt *p, struct json_value list, struct json_value *first)
{
	struct json_cursor c = json_enter(list);
	struct json_value item;

	if (list.kind != JSON_IS_ARRAY || !json_next_item(p->text, &c, first))
		return false;
	while (first->kind != JSON_IS_NUMBER && json_next_item(p->text, &c, &item)) {
		if (item.kind != first->kind)
			return false;
	}
	return true;
}

/* "text", ["text", ...], [ids], [[ids], ...]: of lists the first. */
static void put_prompt(struct prompt *p, struct json_value v)
{
	struct json_value first;

	if (v.kind == JSON_IS_STRING) {
		put_string(p, v);
		return;
	}
	if (!first_of_list(p, v, &first))
		return;
	if (first.kind == JSON_IS_STRING)
		put_text(p, TAG_LIST, first);
	else if (first.kind == JSON_IS_NUMBER)
		put_ids(p, v);
	else if (first.kind == JSON_IS_ARRAY)
		put_ids(p, first);
}

/* A document or text to be scored: a string, or an object with a text, or whatever. */
static void put_document(struct prompt *p, enum tag tag, struct json_value v)
{
	static const struct span names[] = {NAME("text")};
	struct json_value text;

	if (is_absent(v))
		return;
	MEMBERS(p, v, names, &text);
	if (text.kind == JSON_IS_STRING)
		v = text;
	route_hash_tag(&p->hash, tag);
	if (v.kind == JSON_IS_STRING)
		put_string(p, v);
	else
		put_json(p, v);
}

static void put_first_document(struct prompt *p, enum tag tag, struct json_value v)
{
	struct json_value first;

	if (v.kind != JSON_IS_ARRAY)
		put_document(p, tag, v);
	else if (first_of_list(p, v, &first))
		put_document(p, tag, first);
}

static void put_chat(struct prompt *p)
{
	put_tools(p, TAG_TOOL, p->fields[FIELD_TOOLS]);
	put_tools(p, TAG_FUNCTION, p->fields[FIELD_FUNCTIONS]);
	put_messages(p, p->fields[FIELD_MESSAGES]);
}

static void put_completions(struct prompt *p)
{
	put_prompt(p, p->fields[FIELD_PROMPT]);
}

static void put_responses(struct prompt *p)
{
	put_tools(p, TAG_TOOL, p->fields[FIELD_TOOLS]);
	put_system(p, p->fields[FIELD_INSTRUCTIONS]);
	put_text(p, TAG_PREVIOUS, p->fields[FIELD_PREVIOUS]);
	put_input(p, p->fields[FIELD_INPUT]);
}

static void put_anthropic(struct prompt *p)
{
	put_tools(p, TAG_TOOL, p->fields[FIELD_TOOLS]);
	put_system(p, p->fields[FIELD_SYSTEM]);
	put_messages(p, p->fields[FIELD_MESSAGES]);
}

static void put_embeddings(struct prompt *p)
{
	if (is_absent(p->fields[FIELD_INPUT]))
		put_chat(p);
	else
		put_prompt(p, p->fields[FIELD_INPUT]);
}

static void put_rerank(struct prompt *p)
{
	struct json_value documents = p->fields[FIELD_DOCUMENTS], document;
	struct json_cursor c = json_enter(documents);

	put_document(p, TAG_QUERY, p->fields[FIELD_QUERY]);
	if (documents.kind != JSON_IS_ARRAY)
		return;
	while (json_next_item(p->text, &c, &document))
		put_document(p, TAG_DOCUMENT, document);
}

/* The first of these fields that is there; the last of them where none is. */
static struct json_value first_there(
	const struct prompt *p, const enum route_field *fields, size_t n)
{
	size_t i = 0;

	while (i + 1 < n && is_absent(p->fields[fields[i]]))
		i++;
	return p->fields[fields[i]];
}

static void put_score(struct prompt *p)
{
	static const enum route_field queries[] = {
		FIELD_TEXT_1, FIELD_DATA_1, FIELD_QUERIES, FIELD_QUERY};
	static const enum route_field documents[] = {
		FIELD_TEXT_2, FIELD_DATA_2, FIELD_DOCUMENTS, FIELD_ITEMS};

	put_first_document(p, TAG_QUERY, first_there(p, queries, ARRAY_LEN(queries)));
	put_first_document(
		p, TAG_DOCUMENT, first_there(p, documents, ARRAY_LEN(documents)));
}

/* SGLang: images come beside the text, which holds their places. */
static void put_images(struct prompt *p, struct json_value v)
{
	struct json_cursor c = json_enter(v);
	struct json_value item;

	if (v.kind == JSON_IS_STRING)
		put_media(p, v);
	if (v.kind != JSON_IS_ARRAY)
		return;
	while (json_next_item(p->text, &c, &item)) {
		if (item.kind == JSON_IS_STRING)
			put_media(p, item);
	}
}

static void put_generate(struct prompt *p)
{
	struct json_value text = p->fields[FIELD_TEXT];

	if (is_absent(text))
		text = p->fields[FIELD_PROMPT];
	if (is_absent(text)) {
		put_prompt(p, p->fields[FIELD_INPUT_IDS]);
		return;
	}
	if (text.kind == JSON_IS_STRING)
		put_images(p, p->fields[FIELD_IMAGE_DATA]);
	put_prompt(p, text);
}

static void put_inference_generate(struct prompt *p)
{
	put_prompt(p, p->fields[FIELD_TOKEN_IDS]);
}

static void put_tokenize(struct prompt *p)
{
	if (is_absent(p->fields[FIELD_MESSAGES]))
		put_prompt(p, p->fields[FIELD_PROMPT]);
	else
		put_chat(p);
}

/* Of a list of conversations the first. */
static void put_conversation(struct prompt *p, struct json_value messages)
{
	struct json_cursor c = json_enter(messages);
	struct json_value first;

	if (messages.kind == JSON_IS_ARRAY && json_next_item(p->text, &c, &first) &&
		first.kind == JSON_IS_ARRAY)
		messages = first;
	put_messages(p, messages);
}

/* llama.cpp puts the other files in front of the file that is filled in. */
static void put_infill(struct prompt *p)
{
	if (!is_absent(p->fields[FIELD_INPUT_EXTRA])) {
		route_hash_tag(&p->hash, TAG_JSON);
		put_json(p, p->fields[FIELD_INPUT_EXTRA]);
	}
	put_text(p, TAG_TEXT, p->fields[FIELD_INPUT_PREFIX]);
	put_text(p, TAG_TEXT, p->fields[FIELD_PROMPT]);
	put_text(p, TAG_TEXT, p->fields[FIELD_INPUT_SUFFIX]);
}

/* A prompt, or a list of messages. */
static void put_prompt_or_messages(struct prompt *p, struct json_value v)
{
	struct json_value first;

	if (first_of_list(p, v, &first) && first.kind == JSON_IS_OBJECT)
		put_messages(p, v);
	else
		put_prompt(p, v);
}

/* What these APIs call their prompt, the first that is there. */
static void put_any_text(struct prompt *p)
{
	static const enum route_field prompts[] = {
		FIELD_PROMPT, FIELD_INPUT, FIELD_CONTENT, FIELD_TEXTS, FIELD_INPUTS};
	struct json_value prompt = first_there(p, prompts, ARRAY_LEN(prompts));

	if (!is_absent(p->fields[FIELD_MESSAGES])) {
		put_tools(p, TAG_TOOL, p->fields[FIELD_TOOLS]);
		put_conversation(p, p->fields[FIELD_MESSAGES]);
	} else if (!is_absent(p->fields[FIELD_INPUT_PREFIX])) {
		put_infill(p);
	} else if (!is_absent(prompt)) {
		if (prompt.kind == JSON_IS_STRING)
			put_system(p, p->fields[FIELD_SYSTEM]);
		put_prompt_or_messages(p, prompt);
	} else if (!is_absent(p->fields[FIELD_STATE])) {
		put_system(p, p->fields[FIELD_INSTRUCTIONS]);
		put_document(p, TAG_QUERY, p->fields[FIELD_STATE]);
	} else {
		put_generate(p);
	}
}

static void (*const endpoints[ENDPOINT_MAX])(struct prompt *p) = {
	[ENDPOINT_CHAT] = put_chat,
	[ENDPOINT_COMPLETIONS] = put_completions,
	[ENDPOINT_RESPONSES] = put_responses,
	[ENDPOINT_MESSAGES] = put_anthropic,
	[ENDPOINT_EMBEDDINGS] = put_embeddings,
	[ENDPOINT_RERANK] = put_rerank,
	[ENDPOINT_SCORE] = put_score,
	[ENDPOINT_GENERATE] = put_generate,
	[ENDPOINT_INFERENCE_GENERATE] = put_inference_generate,
	[ENDPOINT_TOKENIZE] = put_tokenize,
	[ENDPOINT_TEXT] = put_any_text,
};

int route_prompt_hash(const struct route_scan *scan, const struct json_text *text,
	const struct route_key_opts *opts, struct route_key *key)
{
	struct prompt p;

	p.text = text;
	p.fields = scan->fields;
	p.opts = opts;
	p.n_media = 0;
	p.is_system = false;
	p.drops_billing = scan->endpoint == ENDPOINT_MESSAGES;
	route_hash_begin(&p.hash, opts, key);
	if (endpoints[scan->endpoint] != NULL)
		endpoints[scan->endpoint](&p);
	return route_hash_end(&p.hash);
}
