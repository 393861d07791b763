/*
 * Reads a request body once as it arrives (route_scan.h): json_scan's tokens in, field
 * spans and skips out.
 */
#include "route/route_scan.h"

#include "base/mem.h"

#include <stdlib.h>

/* 3 KiB of skips are kept from one body to the next. */
#define KEPT_SKIPS 256

static const struct span field_names[FIELD_MAX] = {
#define X(name, key) [FIELD_##name] = {key, sizeof(key) - 1},
	ROUTE_FIELDS(X)
#undef X
};

struct route_scan *route_scan_new(void)
{
	struct route_scan *s = calloc(1, sizeof(*s));

	if (s != NULL)
		route_scan_begin(s, ENDPOINT_OTHER);
	return s;
}

void route_scan_free(struct route_scan *s)
{
	if (s == NULL)
		return;
	free(s->skips);
	free(s);
}

void route_scan_begin(struct route_scan *s, enum route_endpoint endpoint)
{
	struct json_scan_opts opts = {1, JSON_SKIP_DEPTH, JSON_SKIP_BYTES};

	s->endpoint = endpoint;
	s->is_form = false;
	s->is_object = false;
	s->has_failed = endpoint == ENDPOINT_OTHER;
	s->field = FIELD_NONE;
	s->has_suspect = false;
	memset(s->fields, 0, sizeof(s->fields));
	s->n_skips = 0;
	if (s->cap_skips > KEPT_SKIPS) {
		free(s->skips);
		s->skips = NULL;
		s->cap_skips = 0;
	}
	json_scan_init(&s->json, opts);
}

bool route_scan_begin_form(
	struct route_scan *s, enum route_endpoint endpoint, struct span content_type)
{
	route_scan_begin(s, endpoint);
	s->is_form = form_scan_begin(&s->form, content_type);
	s->model = s->model_end = 0;
	return s->is_form;
}

/* Such a name, or an object in which engines look for one. The first bytes do: whoever
 * asks then looks for himself. */
static bool is_suspect(struct span name)
{
	switch (name.n > 0 ? name.p[0] : '\0') {
	case 'b':
		return span_starts(name, SPAN_LIT("bootstrap_"));
	case 'd':
		return span_starts(name, SPAN_LIT("disagg")) ||
		       span_starts(name, SPAN_LIT("decode_tp_"));
	case 'e':
		return span_starts(name, SPAN_LIT("extra_args")) ||
		       span_starts(name, SPAN_LIT("ec_transfer_"));
	case 'k':
		return span_starts(name, SPAN_LIT("kv_transfer_"));
	case 's':
		return span_starts(name, SPAN_LIT("sampling_params"));
	case 'v':
		return span_starts(name, SPAN_LIT("vllm_xargs"));
	default:
		return false;
	}
}

bool route_scan_may_transfer(const struct route_scan *s)
{
	if (s->is_form)
		return s->has_suspect;
	return s->has_suspect || s->has_failed || !s->is_object ||
	       !json_scan_is_done(&s->json);
}

static enum route_field find_field(
	struct route_scan *s, const char *base, const struct json_token *token)
{
	struct json_text text = {base, token->end, NULL, 0};
	struct json_value key = {
		.start = (uint32_t)token->start,
		.end = (uint32_t)token->end,
		.kind = JSON_IS_STRING,
		.escaped = token->escaped,
	};

	char buffer[JSON_NAME_ROOM];
	struct span name = json_name(&text, key, buffer);

	for (unsigned i = 0; i < FIELD_MAX; i++) {
		if (name.n == field_names[i].n &&
			memcmp(name.p, field_names[i].p, name.n) == 0)
			return (enum route_field)i;
	}
	s->has_suspect |= is_suspect(name);
	return FIELD_NONE;
}

static int add_skip(struct route_scan *s, size_t start, size_t end, bool escaped)
{
	int err = mem_grow(&s->skips, &s->cap_skips, s->n_skips + 1, sizeof(*s->skips));

	if (err < 0)
		return err;
	s->skips[s->n_skips] = (struct json_skip){
		.start = (uint32_t)start,
		.end = (uint32_t)end,
		.next = (uint32_t)s->n_skips + 1,
		.escaped = escaped,
	};
	s->n_skips++;
	return 0;
}

/* The container ends. A short one has no long string inside, so its entry is the last. */
static void close_skip(struct route_scan *s, const struct json_token *token)
{
	uint32_t i = s->open_skip[token->depth];

	if (token->end - s->skips[i].start < JSON_SKIP_BYTES) {
		assert(i + 1 == s->n_skips);
		s->n_skips = i;
		return;
	}
	s->skips[i].end = (uint32_t)token->end;
	s->skips[i].next = (uint32_t)s->n_skips;
}

static enum json_kind kind_of(enum json_event event)
{
	switch (event) {
	case SCAN_STRING:
		return JSON_IS_STRING;
	case SCAN_NUMBER:
		return JSON_IS_NUMBER;
	case SCAN_TRUE:
		return JSON_IS_TRUE;
	case SCAN_FALSE:
		return JSON_IS_FALSE;
	case SCAN_OPEN_OBJECT:
		return JSON_IS_OBJECT;
	case SCAN_OPEN_ARRAY:
		return JSON_IS_ARRAY;
	default:
		return JSON_IS_NULL;
	}
}

/* A value of depth 1 begins; scalars end with the same token, containers with their
 * CLOSE. */
static void begin_field(
	struct route_scan *s, enum json_event event, const struct json_token *token)
{
	s->fields[s->field] = (struct json_value){
		.start = (uint32_t)token->start,
		.end = (uint32_t)token->end,
		.skip = (uint32_t)s->n_skips,
		.kind = (uint8_t)kind_of(event),
		.escaped = token->escaped,
	};
}

static int take_value(
	struct route_scan *s, enum json_event event, const struct json_token *token)
{
	if (s->field == FIELD_NONE)
		return 0;
	if (event == SCAN_CLOSE) {
		if (token->depth == 1)
			s->fields[s->field].end = (uint32_t)token->end;
		close_skip(s, token);
		return 0;
	}
	if (token->depth == 1)
		begin_field(s, event, token);
	if (event == SCAN_OPEN_OBJECT || event == SCAN_OPEN_ARRAY) {
		s->open_skip[token->depth] = (uint32_t)s->n_skips;
		return add_skip(s, token->start, token->end, false);
	}
	if (event == SCAN_STRING && token->end - token->start >= JSON_SKIP_BYTES)
		return add_skip(s, token->start, token->end, token->escaped);
	return 0;
}

static int take_token(struct route_scan *s, const char *base, enum json_event event,
	const struct json_token *token)
{
	if (token->depth == 0) {
		if (event == SCAN_OPEN_OBJECT)
			s->is_object = true;
		else if (event != SCAN_CLOSE)
			s->has_failed = true;
		s->field = FIELD_NONE;
		return 0;
	}
	if (event == SCAN_KEY) {
		s->field = find_field(s, base, token);
		return 0;
	}
	return take_value(s, event, token);
}

/* The last model counts, as in Python's servers. */
static void feed_form(struct route_scan *s, const char *base, size_t to)
{
	struct form_field f;

	while (form_scan_next(&s->form, base, to, &f)) {
		s->has_suspect |= is_suspect(f.name);
		if (f.is_file || !span_is(f.name, "model"))
			continue;
		s->model = f.value;
		s->model_end = f.end;
	}
}

struct route_scan_name route_scan_model(const struct route_scan *s)
{
	const struct json_value *v = &s->fields[FIELD_MODEL];

	if (s->is_form)
		return (struct route_scan_name){s->model, s->model_end - s->model};
	if (v->kind != JSON_IS_STRING || v->end - v->start < 2)
		return (struct route_scan_name){0, 0};
	return (struct route_scan_name){v->start + 1, v->end - v->start - 2};
}

static void move(uint32_t *at, uint32_t from, uint32_t by)
{
	if (*at >= from)
		*at += by; /* modulo 2^32: by may stand for less */
}

void route_scan_replaced(struct route_scan *s, struct route_scan_name was, size_t n)
{
	uint32_t from = (uint32_t)(was.at + was.n), by = (uint32_t)(n - was.n);

	s->model_end += n - was.n;
	for (unsigned i = 0; i < FIELD_MAX; i++) {
		move(&s->fields[i].start, from, by);
		move(&s->fields[i].end, from, by);
	}
	for (size_t i = 0; i < s->n_skips; i++) {
		uint32_t start = s->skips[i].start, end = s->skips[i].end;

		move(&start, from, by);
		move(&end, from, by);
		s->skips[i].start = start;
		s->skips[i].end = end;
	}
	s->fields[FIELD_MODEL].escaped = false;
	if (!s->is_form)
		s->json.at += n - was.n;
}

int route_scan_feed(struct route_scan *s, const char *base, size_t from, size_t to)
{
	struct json_token token;
	enum json_event event;

	if (s->is_form) {
		feed_form(s, base, to);
		return 0;
	}
	assert(s->has_failed || s->json.at == from);
	(void)from;
	while (!s->has_failed) {
		event = json_scan_next(&s->json, base, to, &token);
		if (event == SCAN_MORE)
			return 0;
		if (event == SCAN_BAD) {
			s->has_failed = true;
		} else {
			int err = take_token(s, base, event, &token);

			if (err < 0)
				return err;
		}
	}
	return 0;
}
