/*
 * INI text to (section, key, value, line). Ours because no packaged lexer reports exact
 * lines (see ARCHITECTURE.md).
 * Lexis: "[kind name part]" sections; "key = value", or for the key alias
 * "alias NAME = value"; '#' or ';' at a line's start is a
 * comment; values run to the end of the line, trimmed, with optional double quotes (\"
 * and \\ inside); UTF-8 (a BOM at the start is skipped), LF or CRLF; no line limit below
 * 64 KiB (we take 1 MiB).
 * Called by conf.c and the engine's configuration.
 */
#ifndef BASE_CONF_LEX_H
#define BASE_CONF_LEX_H

#include "base/base.h"
#include "base/span.h"

enum conf_token { CONF_TOKEN_SECTION, CONF_TOKEN_KEY, CONF_TOKEN_ERROR };

struct conf_item {
	enum conf_token token;
	unsigned line; /* from 1 */
	/* SECTION: the words between the brackets, trimmed ("pool default prefill") */
	struct span section;
	struct span key;     /* KEY */
	struct span name;    /* KEY: what "alias NAME = ..." names; else empty */
	struct span value;   /* KEY: unquoted */
	const char *message; /* ERROR: static text saying what is wrong */
	const char *hint;    /* ERROR: static text saying what is accepted */
	/* ERROR: a section is faulty or missing; the hint names kvsteerd's sections */
	bool is_section;
};

/*
 * Feeds the items of text, in order, to on_item; goes on after an ERROR item with the
 * next line, so that all errors are reported. Stops early when on_item returns non-zero
 * and returns that; ERR_NOMEM when out of memory. Spans live as long as the call. Keys
 * below a faulty section line are checked but not handed on: their section is unknown.
 */
typedef int conf_item_fn(void *arg, const struct conf_item *item);
int conf_lex(struct span text, conf_item_fn *on_item, void *arg) MUST_CHECK;

/*
 * Durations: "5s", "250ms", "2m", "1h", "0"; sizes: "16m", "64k", "1g", bare bytes.
 * ERR_PARSE or ERR_RANGE, and *hint (static text; hint may be NULL) says what is
 * accepted.
 */
int conf_duration_ms(struct span value, uint64_t *ms, const char **hint) MUST_CHECK;
int conf_size(struct span value, uint64_t *bytes, const char **hint) MUST_CHECK;
/* on/off, yes/no, true/false, 1/0 */
int conf_bool(struct span value, bool *out) MUST_CHECK;

#endif
