/*
 * Walks over the members of one JSON object, or the items of one array, in the order of
 * the text, with the places of each, for those who splice. One forward pass (json_scan),
 * nothing below the members is reported; no allocation. A text that is no JSON ends in
 * SCAN_BAD wherever that shows. Called by kv_transfer.c and kv_split.c.
 */
#ifndef ROUTE_JSON_MEMBER_H
#define ROUTE_JSON_MEMBER_H

#include "base/base.h"
#include "base/span.h"
#include "route/json_scan.h"
#include "route/json_walk.h"

/* Offsets are bytes of the text that the walk began with. */
struct json_member {
	struct span name; /* between its quotes, as spelled; of an item empty */
	bool is_escaped;
	enum json_event kind;       /* of the value */
	uint32_t start, value, end; /* its name's quote, its value, behind that. At the
				       container's end start is the bracket. */
};

struct json_members {
	struct json_scan scan;
	struct span text;
};

/* The kind of the text's value (its first token); SCAN_BAD where there is none. Only
 * after SCAN_OPEN_OBJECT and SCAN_OPEN_ARRAY there is something to walk over. */
enum json_event json_members_begin(struct json_members *it, struct span text);
/* SCAN_KEY: *m is the next member; SCAN_CLOSE: the container ends; else SCAN_BAD. */
enum json_event json_members_next(struct json_members *it, struct json_member *m);
/* The same of an array: SCAN_STRING stands for an item of any kind. */
enum json_event json_items_next(struct json_members *it, struct json_member *m);
/* After SCAN_CLOSE: nothing but blanks follows. */
bool json_members_done(struct json_members *it);

/* The name, decoded; of a long one with escapes only the first bytes, 64 or more. Bytes
 * of the text or of out. */
struct span json_member_name(const struct json_member *m, char out[JSON_NAME_ROOM]);

static inline struct span json_member_value(const struct json_member *m, struct span text)
{
	return span_make(text.p + m->value, m->end - m->value);
}

#endif
