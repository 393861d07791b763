/*
 * What a worker says in an event stream. See stream_watch.h.
 */
#include "rewrite/stream_watch.h"

#include "route/json_walk.h"

/* So much is added to half an event at a time. */
#define PIECE ((size_t)16 << 10)

void stream_watch_free(struct stream_watch *w)
{
	text_free(&w->half);
}

bool stream_watch_knows(enum route_endpoint endpoint)
{
	return route_generates(endpoint);
}

static void note_strange(struct stream_watch *w)
{
	w->is_strange = w->has_content = true;
}

static void note_end(struct stream_watch *w)
{
	w->has_end = w->has_content = true;
}

/* ---- JSON ---- */

static bool is_nothing(const struct json_text *t, struct json_value v)
{
	struct json_cursor c = json_enter(v);
	struct json_value key, item;

	switch (v.kind) {
	case JSON_IS_NONE:
	case JSON_IS_NULL:
	case JSON_IS_FALSE:
		return true;
	case JSON_IS_STRING:
		return v.end - v.start <= 2;
	case JSON_IS_ARRAY:
		return !json_next_item(t, &c, &item);
	case JSON_IS_OBJECT:
		return !json_next_member(t, &c, &key, &item);
	default:
		return false;
	}
}

static bool is_text(const struct json_text *t, struct json_value v, const char *text)
{
	return v.kind == JSON_IS_STRING && span_is(json_raw(t, v), text);
}

/* ---- errors ---- */

/* What engines and providers call an error that the request itself makes, wherever it is
 * sent: by part of its name. */
static bool is_clients_name(struct span name)
{
	static const char *const parts[] = {"invalid", "BadRequest", "bad_request",
		"NotFound", "not_found", "Unprocessable", "Validation", "validation",
		"authentication", "permission", "rate_limit", "too_large",
		"context_length"};
	size_t i;

	for (i = 0; name.n > 0 && i < ARRAY_LEN(parts); i++) {
		if (memmem(name.p, name.n, parts[i], strlen(parts[i])) != NULL)
			return true;
	}
	return false;
}

/* error: an object with a message, a code or a type; or a string. A status among them
 * decides. */
static void note_error(
	struct stream_watch *w, const struct json_text *t, struct json_value error)
{
	static const struct span names[] = {
		{"code", 4}, {"status_code", 11}, {"type", 4}};
	struct json_value v[3];
	uint64_t status = 0;
	bool is_clients;
	unsigned i;

	json_members(t, error, names, 3, v);
	for (i = 0; i < 2; i++) {
		if (v[i].kind == JSON_IS_NUMBER && status == 0 &&
			span_to_u64(json_raw(t, v[i]), &status) != 0)
			status = 0;
	}
	is_clients = status >= 400 && status < 500;
	if (status < 400 || status > 599)
		is_clients =
			is_clients_name(v[2].kind == JSON_IS_STRING
						? json_raw(t, v[2])
						: span_make(NULL, 0)) ||
			is_clients_name(v[0].kind == JSON_IS_STRING ? json_raw(t, v[0])
								    : span_make(NULL, 0));
	if (is_clients) {
		note_end(w);
		return;
	}
	w->has_error = true;
	w->is_abort = false;
}

/* ---- one event's JSON ---- */

/* Somebody's request, or the engine's own doing: the word does not say. SGLang's object
 * does: with its status null, an engine was asked for it. */
static void note_abort(
	struct stream_watch *w, const struct json_text *t, struct json_value finish)
{
	static const struct span names[] = {{"status_code", 11}};
	struct json_value status;
	bool had_error = w->has_error;

	json_members(t, finish, names, 1, &status);
	if (status.kind == JSON_IS_NULL) {
		note_end(w);
		return;
	}
	note_error(w, t, finish);
	w->is_abort = w->has_error && !had_error && status.kind != JSON_IS_NUMBER;
}

/* A string; or SGLang's object with a type. */
static void read_finish(
	struct stream_watch *w, const struct json_text *t, struct json_value finish)
{
	static const struct span names[] = {{"type", 4}};
	struct json_value type = finish;

	if (finish.kind == JSON_IS_OBJECT)
		json_members(t, finish, names, 1, &type);
	if (type.kind != JSON_IS_STRING)
		return;
	if (is_text(t, type, "abort"))
		note_abort(w, t, finish);
	else if (is_text(t, type, "error"))
		note_error(w, t, finish);
	else
		note_end(w);
}

/* Anything but the role of who speaks. */
static bool has_delta(const struct json_text *t, struct json_value delta)
{
	struct json_cursor c = json_enter(delta);
	struct json_value key, value;
	char room[JSON_NAME_ROOM];

	if (delta.kind != JSON_IS_OBJECT)
		return !is_nothing(t, delta);
	while (json_next_member(t, &c, &key, &value)) {
		if (!span_is(json_name(t, key, room), "role") && !is_nothing(t, value))
			return true;
	}
	return false;
}

static void read_choices(
	struct stream_watch *w, const struct json_text *t, struct json_value choices)
{
	static const struct span names[] = {
		{"finish_reason", 13}, {"delta", 5}, {"text", 4}, {"token_ids", 9}};
	struct json_cursor c = json_enter(choices);
	struct json_value choice, v[4];

	if (choices.kind != JSON_IS_ARRAY) {
		note_strange(w);
		return;
	}
	while (json_next_item(t, &c, &choice)) {
		json_members(t, choice, names, 4, v);
		w->has_content |= has_delta(t, v[1]) || !is_nothing(t, v[2]) ||
				  !is_nothing(t, v[3]);
		read_finish(w, t, v[0]);
	}
}

/* SGLang's own: one object, or one of a list of prompts. */
static void read_generated(
	struct stream_watch *w, const struct json_text *t, struct json_value meta)
{
	static const struct span names[] = {{"finish_reason", 13}};
	struct json_value finish;

	json_members(t, meta, names, 1, &finish);
	w->has_content = true;
	if (meta.kind == JSON_IS_OBJECT)
		read_finish(w, t, finish);
	else
		note_strange(w);
}

/* Of /v1/messages. */
static void read_message(struct stream_watch *w, const struct json_text *t,
	struct span type, struct json_value delta)
{
	static const struct span names[] = {{"stop_reason", 11}};
	struct json_value stop;

	json_members(t, delta, names, 1, &stop);
	if (span_is(type, "message_stop") || stop.kind == JSON_IS_STRING)
		note_end(w);
	else if (span_is(type, "content_block_delta") || span_is(type, "message_delta"))
		w->has_content = true;
	else if (!span_is(type, "message_start") && !span_is(type, "ping") &&
		 !span_starts(type, SPAN_LIT("content_block_")))
		note_strange(w);
}

static void read_failed_response(
	struct stream_watch *w, const struct json_text *t, struct json_value response)
{
	static const struct span names[] = {{"error", 5}};
	struct json_value error;

	json_members(t, response, names, 1, &error);
	note_error(w, t, error);
}

/* Of /v1/responses. */
static void read_response(struct stream_watch *w, const struct json_text *t,
	struct span type, struct json_value response)
{
	if (span_is(type, "response.failed"))
		read_failed_response(w, t, response);
	else if (span_is(type, "response.completed") ||
		 span_is(type, "response.incomplete") ||
		 span_is(type, "response.cancelled"))
		note_end(w);
	else if (span_ends(type, SPAN_LIT(".delta")))
		w->has_content = true;
	else if (!span_starts(type, SPAN_LIT("response.")))
		note_strange(w);
}

/* is_error: the event's name says so. */
static void read_json(struct stream_watch *w, struct span data, bool is_error)
{
	static const struct span names[] = {{"error", 5}, {"type", 4}, {"object", 6},
		{"choices", 7}, {"meta_info", 9}, {"response", 8}, {"delta", 5}};
	struct json_text t = {.base = data.p, .len = data.n};
	struct json_value whole = {.end = (uint32_t)data.n, .kind = JSON_IS_OBJECT};
	struct json_value v[7];
	struct span type;

	json_members(&t, whole, names, ARRAY_LEN(names), v);
	type = v[1].kind == JSON_IS_STRING ? json_raw(&t, v[1]) : span_make(NULL, 0);
	if (!is_nothing(&t, v[0])) {
		note_error(w, &t, v[0]);
		return;
	}
	if (is_error || span_is(type, "error") || is_text(&t, v[2], "error")) {
		note_error(w, &t, whole);
		return;
	}
	switch (w->endpoint) {
	case ENDPOINT_CHAT:
	case ENDPOINT_COMPLETIONS:
	case ENDPOINT_INFERENCE_GENERATE:
		read_choices(w, &t, v[3]);
		break;
	case ENDPOINT_GENERATE:
		read_generated(w, &t, v[4]);
		break;
	case ENDPOINT_MESSAGES:
		read_message(w, &t, type, v[6]);
		break;
	default:
		read_response(w, &t, type, v[5]);
	}
}

/* ---- events ---- */

struct event {
	struct span name, data; /* of the first line of data */
	unsigned n_data;
	bool is_error;
};

static struct event split(struct span text)
{
	struct event e = {0};
	struct span line;

	while (span_next(&text, '\n', &line)) {
		bool is_error = span_starts(line, SPAN_LIT("error:")); /* llama.cpp */
		size_t skip = is_error ? 6 : 5;

		if (is_error || span_starts(line, SPAN_LIT("data:"))) {
			if (e.n_data++ == 0)
				e.data = span_trim_all(
					span_make(line.p + skip, line.n - skip));
			e.is_error |= is_error;
		} else if (span_starts(line, SPAN_LIT("event:"))) {
			e.name = span_trim_all(span_make(line.p + 6, line.n - 6));
		}
	}
	e.is_error |= span_is(e.name, "error");
	return e;
}

static const char *find(struct span in, struct span what)
{
	return in.n > 0 ? memmem(in.p, in.n, what.p, what.n) : NULL;
}

/* Of each "finish_reason", in any spacing: null. *first: where the first is; NULL: there
 * is none. */
static bool is_unfinished(struct span data, const char **first)
{
	static const struct span name = {"\"finish_reason\"", 15};
	const char *at;

	*first = NULL;
	while ((at = find(data, name)) != NULL) {
		if (*first == NULL)
			*first = at;
		data = span_make(at + name.n, (size_t)(data.p + data.n - at) - name.n);
		while (data.n > 0 && (*data.p == ' ' || *data.p == ':'))
			data = span_make(data.p + 1, data.n - 1);
		if (!span_starts(data, SPAN_LIT("null")))
			return false;
		if (data.n < name.n)
			break;
	}
	return true;
}

static bool has_types(const struct stream_watch *w)
{
	return w->endpoint == ENDPOINT_RESPONSES || w->endpoint == ENDPOINT_MESSAGES;
}

/* Where the type of a piece of content ends; NULL: it is of another type. */
static const char *type_end(struct span data)
{
	static const struct span type = {"delta\"", 6};
	const char *at = find(span_make(data.p, MIN(data.n, (size_t)80)), type);

	return at != NULL ? at + type.n : NULL;
}

/* What comes after the first content is content, unless it has a sign of more. *trail:
 * from where on events of this shape are alike; NULL: it has none. */
static bool has_sign(
	const struct stream_watch *w, const struct event *e, const char **trail)
{
	struct span head = span_make(e->data.p, MIN(e->data.n, (size_t)64));

	*trail = NULL;
	if (e->is_error)
		return true;
	if (has_types(w)) {
		*trail = e->data.p + e->data.n - 1;
		return type_end(e->data) == NULL ||
		       find(e->data, SPAN_LIT("\"stop_reason\"")) != NULL;
	}
	return find(head, SPAN_LIT("\"error\"")) != NULL ||
	       !is_unfinished(e->data, trail);
}

/* The event was content alone: so is what looks the same. */
static void note_shape(struct stream_watch *w, struct span text, const struct event *e,
	const char *trail)
{
	const char *end = text.p + text.n;
	const char *lead = has_types(w) ? type_end(e->data) : text.p + STREAM_WATCH_LEAD;

	w->n_trail = 0;
	/* Who takes transfers out of a response looks at no event that is like this. */
	if (find(text, SPAN_LIT("kv_transfer_params")) != NULL)
		return;
	if (w->endpoint == ENDPOINT_GENERATE || trail == NULL || lead > trail ||
		end - trail > STREAM_WATCH_SHAPE || lead - text.p > STREAM_WATCH_SHAPE)
		return;
	w->n_lead = (size_t)(lead - text.p);
	w->n_trail = (size_t)(end - trail);
	w->n_end = (size_t)(end - (const char *)memchr(trail, '\n', w->n_trail));
	memcpy(w->lead, text.p, w->n_lead);
	memcpy(w->trail, trail, w->n_trail);
}

/* ---- the first content, as most engines spell it ---- */

static bool ends_in(const char *begin, const char *end, struct span what)
{
	return (size_t)(end - begin) >= what.n &&
	       memcmp(end - what.n, what.p, what.n) == 0;
}

static bool has(const char *p, const char *end, char c)
{
	return memchr(p, c, (size_t)(end - p)) != NULL;
}

/* Behind the bracket of the whole's own "choices", if no object and no list comes before
 * it; else NULL. */
static const char *first_choice(struct span data)
{
	const char *at = memchr(data.p, '[', data.n);

	if (at == NULL || at + 1 == data.p + data.n || at[1] != '{' ||
		!(ends_in(data.p, at, SPAN_LIT(",\"choices\":")) ||
			ends_in(data.p, at, SPAN_LIT("{\"choices\":"))) ||
		has(data.p + 1, at, '{') || has(data.p + 1, at, '\\'))
		return NULL;
	return at + 2;
}

/* Behind the quote that the choice's text begins with; else NULL. */
static const char *text_of_choice(
	enum route_endpoint endpoint, const char *choice, const char *end)
{
	struct span name = endpoint == ENDPOINT_CHAT
				   ? SPAN_LIT("\"delta\":{\"content\":\"")
				   : SPAN_LIT("\"text\":\"");
	const char *at = choice;

	/* "index":0, may come before it: members of its own alone. */
	while ((size_t)(end - at) > name.n &&
		(*at != '"' || memcmp(at, name.p, name.n) != 0)) {
		if (*at == '{' || *at == '}' || *at == '[' || *at == '\\')
			return NULL;
		at++;
	}
	if ((size_t)(end - at) <= name.n || (at > choice && at[-1] != ','))
		return NULL;
	return at + name.n;
}

/* True: read_json() would find content in it, or a sign. Costs less than a walk. */
static bool begins_with_text(enum route_endpoint endpoint, struct span data)
{
	const char *end = data.p + data.n, *text;

	if (endpoint != ENDPOINT_CHAT && endpoint != ENDPOINT_COMPLETIONS)
		return false;
	text = first_choice(data);
	if (text != NULL)
		text = text_of_choice(endpoint, text, end);
	return text != NULL && *text != '"' && find(data, SPAN_LIT("error\"")) == NULL;
}

/* It is content and nothing else. */
static bool is_plain(
	const struct stream_watch *w, const struct event *e, const char **trail)
{
	return (w->has_content || begins_with_text(w->endpoint, e->data)) &&
	       !has_sign(w, e, trail);
}

/* The bytes are of an event: a comment, data, event, error, id or retry. */
static bool may_be_event(struct span text)
{
	return memchr(":deir\r\n", text.p[0], 7) != NULL;
}

/* A whole event, its blank line included. */
static void take_event(struct stream_watch *w, struct span text)
{
	struct event e = split(text);
	const char *trail;

	/* Seen in pieces, its first ones told the same. */
	if (!may_be_event(text))
		note_strange(w);
	if (span_is(e.name, "ping") || (e.n_data == 0 && e.name.n == 0))
		return;
	if (!stream_watch_knows(w->endpoint)) {
		note_strange(w);
	} else if (span_is(e.data, "[DONE]")) {
		note_end(w);
	} else if (e.n_data != 1 || e.data.n < 2 || e.data.p[0] != '{' ||
		   e.data.n > UINT32_MAX) {
		note_strange(w);
		w->has_error |= e.is_error;
	} else if (is_plain(w, &e, &trail)) {
		w->has_content = true;
		note_shape(w, text, &e, trail);
	} else {
		read_json(w, e.data, e.is_error);
	}
}

/* The length of the event that text begins with, its blank line included; 0: it is not
 * whole. Looked for from `from` on. */
static size_t event_length(struct span text, size_t from)
{
	const char *p = text.p + from, *end = text.p + text.n;

	while (p < end && (p = memchr(p, '\n', (size_t)(end - p))) != NULL) {
		p++;
		if (p < end && *p == '\n')
			return (size_t)(p + 1 - text.p);
		if (end - p > 1 && p[0] == '\r' && p[1] == '\n')
			return (size_t)(p + 2 - text.p);
	}
	return 0;
}

/* All whole events of text; returns the bytes that they have. */
static size_t take_events(struct stream_watch *w, struct span text, size_t from)
{
	size_t at = 0, n;

	while (at < text.n) {
		struct span rest = span_make(text.p + at, text.n - at);

		n = stream_watch_alike(w, rest);
		if (n == 0) {
			n = event_length(rest, from > at ? from - at : 0);
			if (n == 0)
				break;
			take_event(w, span_make(rest.p, n));
		}
		at += n;
	}
	return at;
}

/* False: it is too long. */
static bool keep_half(struct stream_watch *w, struct span rest)
{
	if (rest.n == 0)
		return true;
	if (w->half.n == 0 && !may_be_event(rest))
		note_strange(w);
	return w->half.n + rest.n <= STREAM_WATCH_KEPT && text_add(&w->half, rest) == 0;
}

/* ---- events that are too long ---- */

/* Up to its blank line. Returns the bytes of data that are its. */
static size_t go_by(struct stream_watch *w, struct span data)
{
	size_t i;

	for (i = 0; i < data.n; i++) {
		char c = data.p[i];
		enum stream_watch_line was = w->line;

		w->line = c == '\n'                         ? LINE_BEGINS
			  : c == '\r' && was == LINE_BEGINS ? LINE_MAY_END
							    : LINE_GOES_ON;
		if (c == '\n' && was != LINE_GOES_ON) {
			w->is_too_long = false;
			return i + 1;
		}
	}
	return data.n;
}

/* What was kept of it is forgotten. */
static void begin_to_go_by(struct stream_watch *w)
{
	note_strange(w);
	w->is_too_long = true;
	w->n_trail = 0;
	w->line = LINE_GOES_ON;
	go_by(w, text_span(&w->half));
	text_clear(&w->half);
}

/* ---- */

/* The rest of the event that has begun, and what else comes with it. Returns the bytes of
 * data that were taken. */
static size_t go_on(struct stream_watch *w, struct span data)
{
	/* The blank line may have begun with what was seen. */
	size_t seen = w->half.n > 2 ? w->half.n - 3 : 0, n = MIN(data.n, PIECE), used;

	if (!keep_half(w, span_make(data.p, n))) {
		begin_to_go_by(w);
		return 0;
	}
	used = take_events(w, text_span(&w->half), seen);
	text_drop(&w->half, used);
	if (used > 0 && w->half.n > 0 && !may_be_event(text_span(&w->half)))
		note_strange(w);
	return n;
}

/* Events from their beginning on. Returns the bytes of data that were taken. */
static size_t begin(struct stream_watch *w, struct span data)
{
	size_t used = take_events(w, data, 0);

	if (keep_half(w, span_make(data.p + used, data.n - used)))
		return data.n;
	begin_to_go_by(w);
	return used;
}

/* ---- an answer that is one object ---- */

/* Passes blanks and then word. False: other bytes come first. What is not there yet may
 * come. */
static bool pass_word(struct span *text, const char *word, bool *is_there)
{
	size_t n = strlen(word);

	while (text->n > 0 && memchr(" \t\r\n", *text->p, 4) != NULL)
		*text = span_make(text->p + 1, text->n - 1);
	*is_there = text->n >= n;
	n = MIN(n, text->n);
	if (n > 0 && memcmp(text->p, word, n) != 0)
		return false;
	*text = span_make(text->p + n, text->n - n);
	return true;
}

/* text begins with these words; as far as it is there: OBJECT_MAY_BE_ERROR. */
static enum stream_watch_guess compare(
	struct span text, const char *const *words, size_t n)
{
	bool is_there = true;
	size_t i;

	for (i = 0; i < n && is_there; i++) {
		if (!pass_word(&text, words[i], &is_there))
			return OBJECT_IS_OTHER;
	}
	return is_there ? OBJECT_IS_LIKE_ERROR : OBJECT_MAY_BE_ERROR;
}

enum stream_watch_guess stream_watch_guess(struct span text)
{
	static const char *const error[] = {"{", "\"error\"", ":"};
	static const char *const object[] = {"{", "\"object\"", ":", "\"error\""};
	enum stream_watch_guess g;

	/* Most answers begin with {"id". */
	if (text.n > 2 && text.p[0] == '{' && text.p[1] == '"' && text.p[2] != 'e' &&
		text.p[2] != 'o')
		return OBJECT_IS_OTHER;
	g = compare(text, error, ARRAY_LEN(error));
	return g != OBJECT_IS_OTHER ? g : compare(text, object, ARRAY_LEN(object));
}

void stream_watch_object(struct stream_watch *w, struct span data, bool last)
{
	if (w->has_content)
		return;
	if (w->half.n + data.n == 0) {
		w->has_content = last;
		return;
	}
	if ((w->half.n == 0 && stream_watch_guess(data) == OBJECT_IS_OTHER) ||
		w->half.n + data.n > STREAM_WATCH_KEPT || text_add(&w->half, data) != 0 ||
		stream_watch_guess(text_span(&w->half)) == OBJECT_IS_OTHER) {
		w->has_content = true;
	} else if (last && w->half.n > 0) {
		read_json(w, span_trim_all(text_span(&w->half)), false);
		w->has_content |= !w->has_error;
	}
}

void stream_watch_excuse_abort(struct stream_watch *w)
{
	w->is_abort = w->has_error = false;
	note_end(w);
}

void stream_watch_read(struct stream_watch *w, struct span data)
{
	while (data.n > 0) {
		size_t n = w->is_too_long  ? go_by(w, data)
			   : w->half.n > 0 ? go_on(w, data)
					   : begin(w, data);

		data = span_make(data.p + n, data.n - n);
	}
}
