/*
 * Reads again, by name and in any order, the values of a JSON text that json_scan has
 * accepted: members, items, decoded strings.
 *
 * Always true: nothing outside the text is read, and every loop ends, even where the text
 * is not what the scanner said (below its strict depth it is not checked). Long strings
 * and containers are jumped over: `skips` holds their ends, recorded during the scan, in
 * order of start. No recursion, no allocation. Called by route_key.c and route_prompt.c.
 */
#ifndef ROUTE_JSON_WALK_H
#define ROUTE_JSON_WALK_H

#include "base/base.h"
#include "base/span.h"
#include "route/json_scan.h"

/* Strings and containers of at least so many bytes have an entry (containers only down to
 * JSON_SKIP_DEPTH). */
#define JSON_SKIP_BYTES 64
#define JSON_SKIP_DEPTH 8

struct json_skip {
	uint32_t start, end;
	uint32_t next : 31; /* index of the first entry that starts at or after end */
	uint32_t escaped : 1;
};

struct json_text {
	const char *base;
	size_t len;
	const struct json_skip *skips;
	size_t n_skips;
};

enum json_kind {
	JSON_IS_NONE, /* absent */
	JSON_IS_NULL,
	JSON_IS_FALSE,
	JSON_IS_TRUE,
	JSON_IS_NUMBER,
	JSON_IS_STRING,
	JSON_IS_ARRAY,
	JSON_IS_OBJECT
};

/* Bytes [start, end) of the text, quotes and brackets included. All zero: absent. */
struct json_value {
	uint32_t start, end;
	uint32_t skip; /* an entry at or before the first that starts at or after start */
	uint8_t kind;
	bool escaped; /* string: has a backslash */
};

/* Where a walk through a container stands. */
struct json_cursor {
	size_t at, end;
	uint32_t skip;
};

/* Before the first member or item of an object or array; of any other kind: at the end.
 */
struct json_cursor json_enter(struct json_value container);
/* The next item of an array. False at the end. */
bool json_next_item(
	const struct json_text *t, struct json_cursor *c, struct json_value *item);
/* The next member of an object. False at the end. */
bool json_next_member(const struct json_text *t, struct json_cursor *c,
	struct json_value *key, struct json_value *value);

/* The string at c->at (its opening quote), at any depth; c goes behind it. */
struct json_value json_next_string(const struct json_text *t, struct json_cursor *c);
/*
 * The length of the string at `at` (its opening quote) where it has no escape, is below
 * 16 bytes, and 18 bytes of the text are there to look at; else -1, which says nothing.
 */
static inline int json_tiny_string(const struct json_text *t, size_t at)
{
	const char *p = t->base + at + 1, *end;

	if (t->len - at < 18)
		return -1;
	end = json_find_special_near(p, p + 16);
	return end < p + 16 && *end == '"' ? (int)(end - p) : -1;
}
/* A walk over the bytes of one value. */
struct json_cursor json_bytes(struct json_value v);

/* The bytes between the quotes, as spelled; of other kinds the bytes as spelled. */
static inline struct span json_raw(const struct json_text *t, struct json_value v)
{
	if (v.kind != JSON_IS_STRING)
		return span_make(t->base + v.start, v.end - v.start);
	if (v.end - v.start < 2)
		return span_make(t->base + v.start, 0);
	return span_make(t->base + v.start + 1, v.end - v.start - 2);
}
/* A key or a name, decoded: bytes of the text or of out. Empty where it is escaped and
 * longer than 63 bytes, or no string. */
#define JSON_NAME_ROOM 104
struct span json_name(
	const struct json_text *t, struct json_value string, char out[JSON_NAME_ROOM]);
/*
 * Finds members by name in one walk: found[i] is the value of names[i], of duplicates the
 * last (as in Python), kind NONE where absent. If the value is no object, all are
 * absent.
 */
void json_members(const struct json_text *t, struct json_value object,
	const struct span *names, unsigned n, struct json_value *found);

/*
 * Decodes escapes of *raw into out[0, room) and returns the bytes written. Takes from
 * *raw what it has read; stops when less than JSON_DECODE_SLACK bytes of room are left,
 * or *raw is empty. May scribble on out up to room. room is above JSON_DECODE_SLACK.
 */
#define JSON_DECODE_SLACK 40
size_t json_decode(struct span *raw, char *out, size_t room);

#endif
