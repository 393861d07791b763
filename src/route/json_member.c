/*
 * The walk of json_member.h.
 */
#include "route/json_member.h"

/* Only the members themselves, whatever is in them. */
static const struct json_scan_opts shallow = {1, 1, SIZE_MAX};

static enum json_event next_token(struct json_members *it, struct json_token *t)
{
	enum json_event e = json_scan_next(&it->scan, it->text.p, it->text.n, t);

	return e == SCAN_MORE ? SCAN_BAD : e;
}

/* The value that begins with this token: what is in a container is passed over. */
static enum json_event take_value(struct json_members *it, enum json_event kind,
	struct json_token *t, struct json_member *m)
{
	m->kind = kind;
	m->value = (uint32_t)t->start;
	if (kind == SCAN_OPEN_OBJECT || kind == SCAN_OPEN_ARRAY) {
		if (next_token(it, t) != SCAN_CLOSE)
			return SCAN_BAD;
	} else if (kind == SCAN_BAD) {
		return SCAN_BAD;
	}
	m->end = (uint32_t)t->end;
	return SCAN_KEY;
}

enum json_event json_members_begin(struct json_members *it, struct span text)
{
	struct json_token t;

	it->text = text;
	json_scan_init(&it->scan, shallow);
	if (text.n > UINT32_MAX)
		return SCAN_BAD;
	return next_token(it, &t);
}

/* The token that a member or an item begins with. */
static enum json_event next_start(
	struct json_members *it, struct json_token *t, struct json_member *m)
{
	enum json_event e = next_token(it, t);

	if (e != SCAN_BAD)
		m->start = (uint32_t)t->start;
	return e;
}

enum json_event json_members_next(struct json_members *it, struct json_member *m)
{
	struct json_token t;
	enum json_event e = next_start(it, &t, m);

	if (e != SCAN_KEY)
		return e == SCAN_CLOSE ? SCAN_CLOSE : SCAN_BAD;
	m->name = span_make(it->text.p + t.start + 1, t.end - t.start - 2);
	m->is_escaped = t.escaped;
	e = next_token(it, &t);
	return take_value(it, e, &t, m);
}

enum json_event json_items_next(struct json_members *it, struct json_member *m)
{
	struct json_token t;
	enum json_event e = next_start(it, &t, m);

	if (e == SCAN_BAD || e == SCAN_CLOSE)
		return e;
	m->name = span_make(NULL, 0);
	m->is_escaped = false;
	return take_value(it, e, &t, m) == SCAN_KEY ? SCAN_STRING : SCAN_BAD;
}

bool json_members_done(struct json_members *it)
{
	struct json_token t;

	return json_scan_next(&it->scan, it->text.p, it->text.n, &t) == SCAN_MORE &&
	       json_scan_is_done(&it->scan);
}

struct span json_member_name(const struct json_member *m, char out[JSON_NAME_ROOM])
{
	struct span raw = m->name;

	if (!m->is_escaped)
		return raw;
	return span_make(out, json_decode(&raw, out, JSON_NAME_ROOM));
}
