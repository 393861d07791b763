/*
 * Bodies that are asked anew. See resume_body.h.
 */
#include "rewrite/resume_body.h"

#include "base/err.h"
#include "route/json_scan.h"

#include <stddef.h>
#include <stdlib.h>

/* A member of the body's object. */
struct member {
	struct span name;
	bool is_escaped;
	enum json_event kind; /* of its value */
	struct resume_place place;
};

/* ---- reading ---- */

enum rule {
	MUST_BE_TRUE,
	MUST_BE_ONE, /* or absent */
	MUST_BE_OFF, /* absent, null, false, or empty */
	MUST_NOT_BE_FALSE,
	MUST_BE_NUMBER, /* digits alone; or absent */
	MUST_BE_TEXT    /* a string, or a list that is not empty: as the endpoint says */
};

#define NOWHERE SIZE_MAX
#define PLACE(field) offsetof(struct resume_body, field)

/* clang-format off */
static const struct known {
	const char *name;
	enum rule rule;
	size_t place; /* in struct resume_body */
} known[] = {
	{"stream", MUST_BE_TRUE, NOWHERE},
	{"prompt", MUST_BE_TEXT, PLACE(text)},
	{"messages", MUST_BE_TEXT, PLACE(text)},
	{"max_tokens", MUST_BE_NUMBER, PLACE(max_tokens)},
	{"max_completion_tokens", MUST_BE_NUMBER, PLACE(max_completion_tokens)},
	{"min_tokens", MUST_BE_NUMBER, PLACE(min_tokens)},
	{"continue_final_message", MUST_BE_OFF, PLACE(continue_final)},
	{"add_generation_prompt", MUST_NOT_BE_FALSE, PLACE(add_prompt)},
	/* More than one text. */
	{"n", MUST_BE_ONE, NOWHERE},
	{"best_of", MUST_BE_ONE, NOWHERE},
	{"use_beam_search", MUST_BE_OFF, NOWHERE},
	/* More than text in the answer. */
	{"echo", MUST_BE_OFF, NOWHERE},
	{"logprobs", MUST_BE_OFF, NOWHERE},
	{"prompt_logprobs", MUST_BE_OFF, NOWHERE},
	{"return_token_ids", MUST_BE_OFF, NOWHERE},
	{"return_tokens_as_token_ids", MUST_BE_OFF, NOWHERE},
	{"return_hidden_states", MUST_BE_OFF, NOWHERE},
	{"tools", MUST_BE_OFF, NOWHERE},
	{"functions", MUST_BE_OFF, NOWHERE},
	{"audio", MUST_BE_OFF, NOWHERE},
	{"modalities", MUST_BE_OFF, NOWHERE},
	/* A grammar, which would begin anew. */
	{"response_format", MUST_BE_OFF, NOWHERE},
	{"structured_outputs", MUST_BE_OFF, NOWHERE},
	{"guided_json", MUST_BE_OFF, NOWHERE},
	{"guided_regex", MUST_BE_OFF, NOWHERE},
	{"guided_choice", MUST_BE_OFF, NOWHERE},
	{"guided_grammar", MUST_BE_OFF, NOWHERE},
	{"json_schema", MUST_BE_OFF, NOWHERE},
	{"regex", MUST_BE_OFF, NOWHERE},
	{"ebnf", MUST_BE_OFF, NOWHERE},
	{"structural_tag", MUST_BE_OFF, NOWHERE},
	/* A prompt that is more, or less, than its text. */
	{"suffix", MUST_BE_OFF, NOWHERE},
	{"prompt_embeds", MUST_BE_OFF, NOWHERE},
	{"input_ids", MUST_BE_OFF, NOWHERE},
	{"input_embeds", MUST_BE_OFF, NOWHERE},
	{"truncate_prompt_tokens", MUST_BE_OFF, NOWHERE},
	{"session_params", MUST_BE_OFF, NOWHERE},
	/* It is bound to one worker. */
	{"kv_transfer_params", MUST_BE_OFF, NOWHERE},
	{"bootstrap_host", MUST_BE_OFF, NOWHERE},
	{"bootstrap_room", MUST_BE_OFF, NOWHERE},
};
/* clang-format on */

static struct span spelled(struct span body, struct resume_place p)
{
	return span_make(body.p + p.start, p.end - p.start);
}

/* Nothing between its quotes or brackets. */
static bool is_empty(struct span value)
{
	size_t i;

	if (value.n < 2 || (value.p[0] != '"' && value.p[0] != '[' && value.p[0] != '{'))
		return false;
	for (i = 1; i + 1 < value.n; i++) {
		if (value.p[0] == '"' || !json_is_blank(value.p[i]))
			return false;
	}
	return true;
}

static bool is_number(struct span value)
{
	uint64_t n;

	return span_to_u64(value, &n) == 0 && n <= INT32_MAX;
}

static bool has_text(const struct member *m, struct span value, bool is_chat)
{
	if (span_is(m->name, "messages") != is_chat)
		return true; /* the other endpoint's name says nothing here */
	return m->kind == (is_chat ? SCAN_OPEN_ARRAY : SCAN_STRING) &&
	       (!is_chat || !is_empty(value));
}

static bool is_allowed(
	const struct member *m, enum rule rule, struct span value, bool is_chat)
{
	switch (rule) {
	case MUST_BE_TRUE:
		return m->kind == SCAN_TRUE;
	case MUST_BE_ONE:
		return m->kind == SCAN_NULL || span_is(value, "1");
	case MUST_BE_OFF:
		return m->kind == SCAN_NULL || m->kind == SCAN_FALSE || is_empty(value);
	case MUST_NOT_BE_FALSE:
		return m->kind == SCAN_NULL || m->kind == SCAN_TRUE;
	case MUST_BE_NUMBER:
		return m->kind == SCAN_NULL || is_number(value);
	default:
		return has_text(m, value, is_chat);
	}
}

/* False: it cannot be asked anew. seen: bits of those that were there. */
static bool take_member(
	const struct member *m, struct span body, struct resume_body *b, uint64_t *seen)
{
	size_t i;

	static_assert(ARRAY_LEN(known) <= 64, "a bit for each");
	if (m->is_escaped)
		return false;
	for (i = 0; i < ARRAY_LEN(known); i++) {
		if (span_is(m->name, known[i].name))
			break;
	}
	if (i == ARRAY_LEN(known))
		return true;
	if ((*seen & 1ULL << i) != 0 ||
		!is_allowed(m, known[i].rule, spelled(body, m->place), b->is_chat))
		return false;
	*seen |= 1ULL << i;
	if (known[i].rule == MUST_BE_TEXT && span_is(m->name, "messages") != b->is_chat)
		return true;
	if (known[i].place != NOWHERE)
		*(struct resume_place *)((char *)b + known[i].place) = m->place;
	return true;
}

/* The next member; or SCAN_CLOSE at the object's end, its place in m; or SCAN_BAD. */
static enum json_event next_member(
	struct json_scan *s, struct span body, struct member *m)
{
	struct json_token t;
	enum json_event e = json_scan_next(s, body.p, body.n, &t);

	m->place = (struct resume_place){(uint32_t)t.start, (uint32_t)t.end};
	if (e == SCAN_CLOSE)
		return SCAN_CLOSE;
	if (e != SCAN_KEY)
		return SCAN_BAD;
	m->name = span_make(body.p + t.start + 1, t.end - t.start - 2);
	m->is_escaped = t.escaped;
	m->kind = json_scan_next(s, body.p, body.n, &t);
	m->place = (struct resume_place){(uint32_t)t.start, (uint32_t)t.end};
	if (m->kind == SCAN_OPEN_OBJECT || m->kind == SCAN_OPEN_ARRAY) {
		if (json_scan_next(s, body.p, body.n, &t) != SCAN_CLOSE)
			return SCAN_BAD;
		m->place.end = (uint32_t)t.end;
	}
	return m->kind == SCAN_MORE || m->kind == SCAN_BAD ? SCAN_BAD : SCAN_KEY;
}

static uint64_t number_at(struct span body, struct resume_place p)
{
	uint64_t n = 0;

	return p.end > 0 && span_to_u64(spelled(body, p), &n) == 0 ? n : 0;
}

/* The newer name goes first, as engines have it. */
static void read_limits(struct span body, struct resume_body *b)
{
	uint64_t newer = number_at(body, b->max_completion_tokens);
	uint64_t older = number_at(body, b->max_tokens);

	b->limit = b->is_chat && newer > 0 ? newer : older;
	if (b->limit == 0 && !b->is_chat)
		b->limit = RESUME_COMPLETION_TOKENS;
	b->has_limit = b->limit > 0;
	b->min_tokens_value = number_at(body, b->min_tokens);
}

bool resume_body_read(struct span body, bool is_chat, struct resume_body *out)
{
	/* Only the members themselves, whatever is in them. */
	struct json_scan_opts opts = {1, 1, SIZE_MAX};
	struct json_scan s;
	struct json_token t;
	struct member m;
	enum json_event e;
	uint64_t seen = 0;

	*out = (struct resume_body){.is_chat = is_chat};
	json_scan_init(&s, opts);
	if (body.n > UINT32_MAX ||
		json_scan_next(&s, body.p, body.n, &t) != SCAN_OPEN_OBJECT)
		return false;
	while ((e = next_member(&s, body, &m)) == SCAN_KEY) {
		if (!take_member(&m, body, out, &seen))
			return false;
	}
	if (e != SCAN_CLOSE || json_scan_next(&s, body.p, body.n, &t) != SCAN_MORE ||
		!json_scan_is_done(&s))
		return false;
	out->end_at = m.place.start;
	read_limits(body, out);
	return (seen & 1) != 0 && out->text.end > 0;
}

/* ---- asking anew ---- */

uint64_t resume_body_left(const struct resume_body *b, uint64_t tokens)
{
	if (!b->has_limit)
		return UINT64_MAX;
	return b->limit > tokens ? b->limit - tokens : 0;
}

#define EDITS_MAX 8

/* The bytes at [at, at + drop) are replaced by three spans. */
struct edit {
	uint32_t at, drop;
	struct span put[3];
};

struct edits {
	struct edit list[EDITS_MAX];
	unsigned n;
	char digits[3][24];
	unsigned n_digits;
};

/* In order of place; of one place in the order of asking. */
static struct edit *add_edit(struct edits *e, uint32_t at, uint32_t drop)
{
	unsigned i = e->n++;

	assert(e->n <= EDITS_MAX);
	for (; i > 0 && e->list[i - 1].at > at; i--)
		e->list[i] = e->list[i - 1];
	e->list[i] = (struct edit){.at = at, .drop = drop};
	return &e->list[i];
}

static void replace(struct edits *e, struct resume_place p, struct span with)
{
	add_edit(e, p.start, p.end - p.start)->put[0] = with;
}

static struct span digits(struct edits *e, uint64_t n)
{
	char *out = e->digits[e->n_digits++];
	size_t len = 0, i;
	char text[24];

	do {
		text[len++] = (char)('0' + n % 10);
		n /= 10;
	} while (n > 0);
	for (i = 0; i < len; i++)
		out[i] = text[len - 1 - i];
	return span_make(out, len);
}

/* Replaces the value, or adds the member at the end: name is ",\"name\":". */
static void set_member(struct edits *e, const struct resume_body *b,
	struct resume_place p, struct span name, struct span value)
{
	struct edit *added;

	if (p.end > 0) {
		replace(e, p, value);
		return;
	}
	added = add_edit(e, b->end_at, 0);
	added->put[0] = name;
	added->put[1] = value;
}

static void edit_limits(struct edits *e, const struct resume_body *b, uint64_t tokens)
{
	uint64_t left = resume_body_left(b, tokens), min = b->min_tokens_value;

	if (min > 0)
		replace(e, b->min_tokens, digits(e, min > tokens ? min - tokens : 0));
	if (!b->has_limit)
		return;
	/* Where both are said, what is left of the one that counts is right for both. */
	if (b->max_completion_tokens.end > 0)
		replace(e, b->max_completion_tokens, digits(e, left));
	if (b->max_tokens.end > 0 || b->max_completion_tokens.end == 0)
		set_member(e, b, b->max_tokens, SPAN_LIT(",\"max_tokens\":"),
			digits(e, left));
}

static void edit_text(struct edits *e, const struct resume_body *b, struct span text)
{
	struct edit *edit = add_edit(e, b->text.end - 1, 0);

	if (!b->is_chat) {
		edit->put[0] = text;
		return;
	}
	edit->put[0] = SPAN_LIT(",{\"role\":\"assistant\",\"content\":\"");
	edit->put[1] = text;
	edit->put[2] = SPAN_LIT("\"}");
	set_member(e, b, b->continue_final, SPAN_LIT(",\"continue_final_message\":"),
		SPAN_LIT("true"));
	set_member(e, b, b->add_prompt, SPAN_LIT(",\"add_generation_prompt\":"),
		SPAN_LIT("false"));
}

static size_t put(char *out, struct span s)
{
	if (s.n > 0)
		memcpy(out, s.p, s.n);
	return s.n;
}

static size_t splice(const struct edits *e, struct span body, char *out)
{
	size_t at = 0, n = 0;
	unsigned i, j;

	for (i = 0; i < e->n; i++) {
		const struct edit *edit = &e->list[i];

		n += put(out + n, span_make(body.p + at, edit->at - at));
		for (j = 0; j < ARRAY_LEN(edit->put); j++)
			n += put(out + n, edit->put[j]);
		at = edit->at + edit->drop;
	}
	return n + put(out + n, span_make(body.p + at, body.n - at));
}

int resume_body_make(const struct resume_body *b, struct span body, struct span text,
	uint64_t tokens, char **out, size_t *n)
{
	struct edits e = {.n = 0};
	size_t room = body.n + 1;
	unsigned i, j;

	assert(text.n > 0 && resume_body_left(b, tokens) > 0);
	edit_text(&e, b, text);
	edit_limits(&e, b, tokens);
	for (i = 0; i < e.n; i++) {
		for (j = 0; j < ARRAY_LEN(e.list[i].put); j++)
			room += e.list[i].put[j].n;
	}
	*out = malloc(room);
	if (*out == NULL)
		return ERR_NOMEM;
	*n = splice(&e, body, *out);
	return 0;
}
