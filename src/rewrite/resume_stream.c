/*
 * Event streams that may go on elsewhere. See resume_stream.h.
 */
#include "rewrite/resume_stream.h"

#include "base/err.h"
#include "route/json_scan.h"
#include "route/json_walk.h"

#include <stdlib.h>

static void watch(struct resume_stream *s)
{
	stream_watch_init(&s->watch);
	stream_watch_begin(&s->watch, s->is_chat ? ENDPOINT_CHAT : ENDPOINT_COMPLETIONS);
}

void resume_stream_init(struct resume_stream *s, bool is_chat)
{
	*s = (struct resume_stream){.is_chat = is_chat};
	watch(s);
}

void resume_stream_free(struct resume_stream *s)
{
	text_free(&s->text);
	text_free(&s->tail);
	text_free(&s->out);
	text_free(&s->error);
	stream_watch_free(&s->watch);
}

static void lose(struct resume_stream *s)
{
	s->is_lost = true;
	text_free(&s->text);
}

/* ---- one event's JSON ---- */

/* The most values of an event that are replaced; they stand in order of place. */
#define CHANGES_MAX 8

struct change {
	uint32_t start, end;
	struct span with;
};

struct event {
	struct json_text json;
	struct change changes[CHANGES_MAX];
	unsigned n_changes;
	char digits[4][24];
	char *delta; /* malloc'd: what a delta becomes */
	bool is_needless;
};

static void change(struct event *e, struct json_value v, struct span with)
{
	unsigned i = e->n_changes++;

	assert(e->n_changes <= CHANGES_MAX);
	for (; i > 0 && e->changes[i - 1].start > v.start; i--)
		e->changes[i] = e->changes[i - 1];
	e->changes[i] = (struct change){v.start, v.end, with};
}

static struct span spelled(const struct event *e, struct json_value v)
{
	return span_make(e->json.base + v.start, v.end - v.start);
}

static bool is_json_object(struct span text)
{
	struct json_scan_opts opts = {0, 0, SIZE_MAX};
	struct json_scan scan;
	struct json_token t;

	if (text.n > UINT32_MAX)
		return false;
	json_scan_init(&scan, opts);
	if (json_scan_next(&scan, text.p, text.n, &t) != SCAN_OPEN_OBJECT ||
		json_scan_next(&scan, text.p, text.n, &t) != SCAN_CLOSE)
		return false;
	return json_scan_next(&scan, text.p, text.n, &t) == SCAN_MORE &&
	       json_scan_is_done(&scan);
}

static bool is_nothing(const struct event *e, struct json_value v)
{
	struct json_cursor c;
	struct json_value item, key;

	switch (v.kind) {
	case JSON_IS_NONE:
	case JSON_IS_NULL:
	case JSON_IS_FALSE:
		return true;
	case JSON_IS_STRING:
		return v.end - v.start == 2;
	case JSON_IS_ARRAY:
		c = json_enter(v);
		return !json_next_item(&e->json, &c, &item);
	case JSON_IS_OBJECT:
		c = json_enter(v);
		return !json_next_member(&e->json, &c, &key, &item);
	default:
		return false;
	}
}

/* The first one seen holds for the whole stream. */
static void keep_name(struct resume_stream *s, struct resume_name *name, struct event *e,
	struct json_value v)
{
	struct span value = spelled(e, v);

	if (v.kind == JSON_IS_NONE)
		return;
	if (name->n > 0) {
		if (s->is_continued)
			change(e, v, span_make(name->p, name->n));
	} else if (value.n <= sizeof(name->p)) {
		memcpy(name->p, value.p, value.n);
		name->n = value.n;
	} else {
		lose(s);
	}
}

static bool read_count(const struct event *e, struct json_value v, uint64_t *n)
{
	return v.kind == JSON_IS_NUMBER && span_to_u64(spelled(e, v), n) == 0;
}

static void change_count(struct event *e, unsigned i, struct json_value v, uint64_t n)
{
	int len = 0;
	char *out = e->digits[i];
	uint64_t tens = 1;

	while (n / tens >= 10)
		tens *= 10;
	for (; tens > 0; tens /= 10)
		out[len++] = (char)('0' + n / tens % 10);
	change(e, v, span_make(out, (size_t)len));
}

static bool read_member(const struct event *e, struct json_value object, struct span name,
	struct json_value *v, uint64_t *n)
{
	json_members(&e->json, object, &name, 1, v);
	return read_count(e, *v, n);
}

/*
 * The prompt's own tokens. Where an earlier worker has told them, that holds. Else the
 * text so far is part of this worker's prompt, and counts as it was counted before: if a
 * tokenizer cuts it otherwise, the difference stands here.
 */
static uint64_t prompt_tokens(struct resume_stream *s, uint64_t counted)
{
	if (!s->has_prompt)
		s->prompt = counted > s->tokens_before ? counted - s->tokens_before : 0;
	s->has_prompt = true;
	return s->prompt;
}

/* Of the text so far this worker may have cached some, too. */
static void change_cached(struct event *e, struct json_value usage, uint64_t prompt)
{
	struct span details = SPAN_LIT("prompt_tokens_details");
	struct json_value v;
	uint64_t cached;

	json_members(&e->json, usage, &details, 1, &v);
	if (v.kind == JSON_IS_OBJECT &&
		read_member(e, v, SPAN_LIT("cached_tokens"), &v, &cached) &&
		cached > prompt)
		change_count(e, 3, v, prompt);
}

/* The text so far was this worker's prompt, and is the client's answer. */
static void change_usage(struct resume_stream *s, struct event *e,
	struct json_value usage, struct json_value completion)
{
	struct json_value v;
	uint64_t prompt, total;

	change_count(e, 0, completion, s->tokens);
	if (!read_member(e, usage, SPAN_LIT("prompt_tokens"), &v, &prompt))
		return;
	prompt = prompt_tokens(s, prompt);
	change_count(e, 1, v, prompt);
	if (read_member(e, usage, SPAN_LIT("total_tokens"), &v, &total))
		change_count(e, 2, v, prompt + s->tokens);
	change_cached(e, usage, prompt);
}

static void read_usage(struct resume_stream *s, struct event *e, struct json_value usage)
{
	struct json_value v;
	uint64_t n;

	if (usage.kind != JSON_IS_OBJECT ||
		!read_member(e, usage, SPAN_LIT("completion_tokens"), &v, &n))
		return;
	s->counts_usage = true;
	s->tokens = s->tokens_before + n;
	if (s->tokens_before > 0)
		change_usage(s, e, usage, v);
	else if (read_member(e, usage, SPAN_LIT("prompt_tokens"), &v, &n))
		prompt_tokens(s, n);
}

static int take_text(struct resume_stream *s, const struct event *e, struct json_value v)
{
	struct span text = json_raw(&e->json, v);

	if (v.kind != JSON_IS_STRING) {
		if (!is_nothing(e, v))
			lose(s);
		return 0;
	}
	if (text.n == 0)
		return 0;
	if (!s->counts_usage)
		s->tokens++;
	if (s->is_lost)
		return 0;
	if (s->text.n + text.n > RESUME_TEXT_MAX) {
		lose(s);
		return 0;
	}
	return text_add(&s->text, text);
}

/* {"content":…} alone, in place of a delta with a role. */
static int drop_role(struct event *e, struct json_value delta, struct json_value content)
{
	static const struct span open = {"{\"content\":", 11};
	struct span value = spelled(e, content);
	size_t n = 0;

	if (content.kind == JSON_IS_NONE) {
		change(e, delta, SPAN_LIT("{}"));
		return 0;
	}
	e->delta = malloc(open.n + value.n + 1);
	if (e->delta == NULL)
		return ERR_NOMEM;
	memcpy(e->delta, open.p, open.n);
	n = open.n;
	memcpy(e->delta + n, value.p, value.n);
	n += value.n;
	e->delta[n++] = '}';
	change(e, delta, span_make(e->delta, n));
	return 0;
}

/* Members besides role and content are text of another kind: reasoning, calls. */
static bool has_more(const struct event *e, struct json_value delta)
{
	struct json_cursor c = json_enter(delta);
	struct json_value key, value;
	char room[JSON_NAME_ROOM];

	while (json_next_member(&e->json, &c, &key, &value)) {
		struct span name = json_name(&e->json, key, room);

		if (!span_is(name, "role") && !span_is(name, "content") &&
			!is_nothing(e, value))
			return true;
	}
	return false;
}

static int read_delta(struct resume_stream *s, struct event *e, struct json_value delta,
	bool is_finishing)
{
	static const struct span names[] = {{"role", 4}, {"content", 7}};
	struct json_value v[2];
	bool is_second;
	int err;

	if (delta.kind != JSON_IS_OBJECT) {
		if (!is_nothing(e, delta))
			lose(s);
		return 0;
	}
	json_members(&e->json, delta, names, 2, v);
	if (has_more(e, delta))
		lose(s);
	is_second = s->is_continued && s->has_role && v[0].kind != JSON_IS_NONE;
	/* Where it speaks without one, none may follow. */
	s->has_role |= v[0].kind == JSON_IS_STRING || !is_nothing(e, v[1]);
	err = take_text(s, e, v[1]);
	if (err != 0 || !is_second)
		return err;
	e->is_needless = is_nothing(e, v[1]) && !is_finishing;
	return drop_role(e, delta, v[1]);
}

static int read_choice(struct resume_stream *s, struct event *e, struct json_value choice)
{
	static const struct span names[] = {{"index", 5}, {"finish_reason", 13},
		{"logprobs", 8}, {"text", 4}, {"delta", 5}};
	struct json_value v[5];
	int err;

	json_members(&e->json, choice, names, 5, v);
	if ((v[0].kind != JSON_IS_NONE && !span_is(spelled(e, v[0]), "0")) ||
		!is_nothing(e, v[2]))
		lose(s);
	err = s->is_chat ? read_delta(s, e, v[4], v[1].kind == JSON_IS_STRING)
			 : take_text(s, e, v[3]);
	s->is_finished |= v[1].kind == JSON_IS_STRING;
	return err;
}

static int read_choices(
	struct resume_stream *s, struct event *e, struct json_value choices)
{
	struct json_cursor c = json_enter(choices);
	struct json_value choice, other;

	if (choices.kind != JSON_IS_ARRAY) {
		if (!is_nothing(e, choices))
			lose(s);
		return 0;
	}
	if (!json_next_item(&e->json, &c, &choice))
		return 0;
	if (choice.kind != JSON_IS_OBJECT || json_next_item(&e->json, &c, &other)) {
		lose(s);
		return 0;
	}
	return read_choice(s, e, choice);
}

static int read_json(struct resume_stream *s, struct event *e)
{
	static const struct span names[] = {{"id", 2}, {"created", 7}, {"model", 5},
		{"choices", 7}, {"usage", 5}, {"error", 5}};
	struct json_value whole = {
		.start = 0, .end = (uint32_t)e->json.len, .kind = JSON_IS_OBJECT};
	struct json_value v[6];
	int err;

	while (whole.start < whole.end && e->json.base[whole.start] != '{')
		whole.start++;
	while (whole.end > whole.start && e->json.base[whole.end - 1] != '}')
		whole.end--;
	json_members(&e->json, whole, names, 6, v);
	if (!is_nothing(e, v[5]))
		lose(s);
	keep_name(s, &s->id, e, v[0]);
	keep_name(s, &s->created, e, v[1]);
	keep_name(s, &s->model, e, v[2]);
	err = read_choices(s, e, v[3]);
	read_usage(s, e, v[4]);
	return err;
}

static int put_changed(struct resume_stream *s, const struct event *e)
{
	size_t at = 0;
	unsigned i;
	int err = 0;

	for (i = 0; i < e->n_changes && err == 0; i++) {
		const struct change *c = &e->changes[i];

		err = text_add(&s->out, span_make(e->json.base + at, c->start - at));
		if (err == 0)
			err = text_add(&s->out, c->with);
		at = c->end;
	}
	return err == 0
		       ? text_add(&s->out, span_make(e->json.base + at, e->json.len - at))
		       : err;
}

/* ---- events ---- */

/* The value of the one data line of an event; false: it has none, or several. */
static bool find_data(struct span event, struct span *data, unsigned *n)
{
	struct span line;

	*n = 0;
	while (span_next(&event, '\n', &line)) {
		if (line.n > 0 && line.p[line.n - 1] == '\r')
			line.n--;
		if (!span_starts(line, SPAN_LIT("data:")))
			continue;
		*data = span_make(line.p + 5, line.n - 5);
		++*n;
	}
	*data = *n == 1 ? span_trim(*data) : span_make(NULL, 0);
	return *n == 1;
}

/* The event says that the worker failed, or comes after that. */
static bool has_error(struct resume_stream *s, struct span event)
{
	stream_watch_feed(&s->watch, event);
	if (s->watch.is_abort && s->abort_was_asked)
		stream_watch_excuse_abort(&s->watch);
	if (s->watch.has_error && !s->has_error) {
		s->has_error = true;
		text_clear(&s->error);
	}
	return s->has_error;
}

/* Takes a whole event; the part that the client gets goes to out. */
static int take_event(struct resume_stream *s, struct span event)
{
	struct event e = {.n_changes = 0};
	struct span data;
	unsigned n;
	int err;

	if (has_error(s, event))
		return text_add(&s->error, event);
	if (!find_data(event, &data, &n) || span_is(data, "[DONE]")) {
		s->is_done |= n == 1;
		if (n > 1)
			lose(s);
		return text_add(&s->out, event);
	}
	if (!is_json_object(data)) {
		lose(s);
		return text_add(&s->out, event);
	}
	e.json = (struct json_text){.base = data.p, .len = data.n};
	err = read_json(s, &e);
	if (err == 0 && !e.is_needless) {
		err = text_add(&s->out, span_make(event.p, (size_t)(data.p - event.p)));
		if (err == 0)
			err = put_changed(s, &e);
		if (err == 0)
			err = text_add(&s->out,
				span_make(data.p + data.n,
					event.n - data.n - (size_t)(data.p - event.p)));
	}
	free(e.delta);
	return err;
}

/* The length of the event that p begins with, its blank line included; 0: it is not
 * whole. Looked for from `from` on. */
static size_t event_length(const struct text *b, size_t at, size_t from)
{
	const char *p = b->p + MAX(at, from), *end = b->p + b->n;

	while ((p = memchr(p, '\n', (size_t)(end - p))) != NULL) {
		p++;
		if (p < end && *p == '\n')
			return (size_t)(p + 1 - b->p) - at;
		if (end - p > 1 && p[0] == '\r' && p[1] == '\n')
			return (size_t)(p + 2 - b->p) - at;
	}
	return 0;
}

static int take_events(struct resume_stream *s, size_t seen)
{
	/* The blank line may have begun with what was seen. */
	size_t from = seen > 2 ? seen - 3 : 0, at = 0, n;
	int err = 0;

	while (err == 0 && at < s->tail.n && (n = event_length(&s->tail, at, from)) > 0) {
		err = take_event(s, span_make(s->tail.p + at, n));
		at += n;
	}
	text_drop(&s->tail, at);
	return err;
}

static int give_up(struct resume_stream *s)
{
	int err = text_add(&s->out, span_make(s->tail.p, s->tail.n));

	lose(s);
	s->is_raw = true;
	text_clear(&s->tail);
	return err;
}

int resume_stream_feed(
	struct resume_stream *s, struct span data, bool last, struct span *out)
{
	size_t seen = s->tail.n;
	int err;

	if (s->is_raw) {
		*out = data;
		return 0;
	}
	text_clear(&s->out);
	err = text_add(&s->tail, data);
	if (err == 0)
		err = take_events(s, seen);
	if (err == 0 && last) {
		err = text_add(&s->out, span_make(s->tail.p, s->tail.n));
		text_clear(&s->tail);
	}
	if (err == 0 && s->tail.n > RESUME_EVENT_MAX)
		err = give_up(s);
	*out = span_make(s->out.p, s->out.n);
	return err;
}

void resume_stream_continue(struct resume_stream *s)
{
	text_clear(&s->tail);
	text_clear(&s->out);
	stream_watch_free(&s->watch);
	watch(s);
	s->has_error = false;
	s->is_continued = true;
	s->tokens_before = s->tokens;
	s->counts_usage = false;
}

static struct span name_of(const struct resume_name *name, struct span otherwise)
{
	return name->n > 0 ? span_make(name->p, name->n) : otherwise;
}

int resume_stream_end(struct resume_stream *s, struct span *out)
{
	const struct span finish[] = {
		SPAN_LIT("data: {\"id\":"),
		name_of(&s->id, SPAN_LIT("\"\"")),
		s->is_chat ? SPAN_LIT(",\"object\":\"chat.completion.chunk\"")
			   : SPAN_LIT(",\"object\":\"text_completion\""),
		SPAN_LIT(",\"created\":"),
		name_of(&s->created, SPAN_LIT("0")),
		SPAN_LIT(",\"model\":"),
		name_of(&s->model, SPAN_LIT("\"\"")),
		s->is_chat ? SPAN_LIT(",\"choices\":[{\"index\":0,\"delta\":{}")
			   : SPAN_LIT(",\"choices\":[{\"index\":0,\"text\":\"\""),
		SPAN_LIT(",\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"),
	};
	size_t i;
	int err = 0;

	text_clear(&s->tail);
	text_clear(&s->out);
	for (i = 0; i < ARRAY_LEN(finish) && err == 0 && !s->is_finished; i++)
		err = text_add(&s->out, finish[i]);
	if (err == 0 && !s->is_done)
		err = text_add(&s->out, SPAN_LIT("data: [DONE]\n\n"));
	s->is_finished = s->is_done = true;
	*out = span_make(s->out.p, s->out.n);
	return err;
}
