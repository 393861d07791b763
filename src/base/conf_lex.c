/*
 * INI text to items with exact line numbers, and the words that values are made of:
 * durations, sizes, on/off.
 * Each line gives at most one item; a faulty line gives one ERROR item and the next line
 * is read as if nothing had been.
 * Keys below a faulty section line are checked but not handed on, since their section is
 * unknown.
 * Pure: nothing is kept between calls. Called by conf.c and the engine's configuration.
 */
#include "base/conf_lex.h"
#include "base/err.h"

#include <stdlib.h>

enum { LINE_MAX_BYTES = 1 << 20 };

enum section_seen { SECTION_NONE, SECTION_GOOD, SECTION_FAULTY };

struct lexer {
	struct span rest;
	unsigned line;
	enum section_seen seen;
	/*
	 * Unquoted values that differ from the text. All of them together are shorter
	 * than it.
	 */
	char *unquoted;
	size_t unquoted_used, unquoted_room;
	struct conf_item item;
};

static int report(struct lexer *lex, const char *message, const char *hint)
{
	lex->item.token = CONF_TOKEN_ERROR;
	lex->item.message = message;
	lex->item.hint = hint;
	return ERR_PARSE;
}

/*
 * Bytes of the well-formed UTF-8 sequence at p (RFC 3629: no overlong forms, no
 * surrogates), 0 if there is none.
 */
static size_t utf8_length(const unsigned char *p, size_t n)
{
	unsigned char low = 0x80, high = 0xbf;
	size_t len;

	if (p[0] < 0x80)
		return 1;
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return 0;
	len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	if (n < len)
		return 0;
	if (p[0] == 0xe0)
		low = 0xa0;
	else if (p[0] == 0xed)
		high = 0x9f;
	else if (p[0] == 0xf0)
		low = 0x90;
	else if (p[0] == 0xf4)
		high = 0x8f;
	if (p[1] < low || p[1] > high)
		return 0;
	for (size_t i = 2; i < len; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	return len;
}

static bool is_utf8(struct span text)
{
	const unsigned char *p = (const unsigned char *)text.p;

	for (size_t at = 0; at < text.n;) {
		size_t len = utf8_length(p + at, text.n - at);

		if (len == 0)
			return false;
		at += len;
	}
	return true;
}

static bool has_control(struct span text)
{
	for (size_t i = 0; i < text.n; i++) {
		unsigned char c = (unsigned char)text.p[i];

		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return true;
	}
	return false;
}

static bool has_byte(struct span text, char c)
{
	return text.n > 0 && memchr(text.p, c, text.n) != NULL;
}

static int check_bytes(struct lexer *lex, struct span line)
{
	if (line.n > LINE_MAX_BYTES)
		return report(
			lex, "line longer than 1 MiB", "spread lists over several lines");
	if (has_byte(line, '\0'))
		return report(lex, "NUL byte in the line", "save the file as UTF-8 text");
	if (has_byte(line, '\r'))
		return report(lex, "carriage return inside the line",
			"end lines with LF or CR LF");
	if (has_control(line))
		return report(lex, "control character in the line",
			"remove it; only tabs and printable text are read");
	if (!is_utf8(line))
		return report(lex, "invalid UTF-8", "save the file as UTF-8");
	return 0;
}

static int report_section(struct lexer *lex, const char *message, const char *hint)
{
	lex->item.is_section = true;
	return report(lex, message, hint);
}

/* line begins with '['. */
static int lex_section(struct lexer *lex, struct span line)
{
	const char *close = memchr(line.p, ']', line.n);
	struct span name;
	size_t used;

	lex->seen = SECTION_FAULTY;
	if (close == NULL)
		return report_section(lex, "section without its closing bracket",
			"write [router], [pool NAME] or [worker NAME]");
	used = (size_t)(close + 1 - line.p);
	if (span_trim(span_make(close + 1, line.n - used)).n > 0)
		return report(lex, "text after the section's closing bracket",
			"comments stand on lines of their own");
	name = span_trim(span_make(line.p + 1, used - 2));
	if (name.n == 0)
		return report_section(lex, "section without a name",
			"write [router], [pool NAME] or [worker NAME]");
	lex->seen = SECTION_GOOD;
	lex->item.token = CONF_TOKEN_SECTION;
	lex->item.section = name;
	return 0;
}

/* Room for n more unquoted bytes; NULL when out of memory. */
static char *unquoted_place(struct lexer *lex, size_t n)
{
	if (lex->unquoted == NULL) {
		lex->unquoted = malloc(lex->unquoted_room);
		if (lex->unquoted == NULL)
			return NULL;
	}
	assert(lex->unquoted_used + n <= lex->unquoted_room);
	return lex->unquoted + lex->unquoted_used;
}

/* The bytes between the quotes, without the backslashes. */
static int unescape(struct lexer *lex, struct span inside, struct span *value)
{
	char *place = unquoted_place(lex, inside.n);
	size_t used = 0;

	if (place == NULL)
		return ERR_NOMEM;
	for (size_t i = 0; i < inside.n; i++) {
		if (inside.p[i] == '\\')
			i++;
		place[used++] = inside.p[i];
	}
	lex->unquoted_used += used;
	*value = span_make(place, used);
	return 0;
}

/* text begins with '"'. */
static int unquote(struct lexer *lex, struct span text, struct span *value)
{
	bool has_escape = false;
	struct span inside;
	size_t at = 1;

	while (at < text.n && text.p[at] != '"') {
		if (text.p[at] == '\\') {
			has_escape = true;
			at++;
			if (at < text.n && text.p[at] != '"' && text.p[at] != '\\')
				return report(lex, "unknown escape in the quoted value",
					"only \\\" and \\\\ are escapes");
		}
		at++;
	}
	if (at >= text.n)
		return report(lex, "quoted value without its closing quote",
			"end the value with \" on the same line");
	if (at + 1 < text.n)
		return report(lex, "text after the closing quote",
			"write \\\" for a quote inside; "
			"comments stand on lines of their own");
	inside = span_make(text.p + 1, at - 1);
	if (has_escape)
		return unescape(lex, inside, value);
	*value = inside;
	return 0;
}

static bool is_key_name(struct span key)
{
	for (size_t i = 0; i < key.n; i++) {
		char c = key.p[i];

		if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'))
			return false;
	}
	return true;
}

/* The one key that has a name behind it. */
static struct span cut_name(struct span *key)
{
	static const struct span named = {"alias", 5};
	struct span name;

	if (!span_starts(*key, named) || key->n == named.n ||
		strchr(" \t", key->p[named.n]) == NULL)
		return span_make(NULL, 0);
	name = span_trim(span_make(key->p + named.n, key->n - named.n));
	key->n = named.n;
	return name;
}

static int lex_key(struct lexer *lex, struct span line)
{
	const char *equals = memchr(line.p, '=', line.n);
	struct span key, value;
	int rc;

	if (equals == NULL)
		return report(lex, "neither a section nor key = value",
			"write key = value; comments begin with # or ;");
	key = span_trim(span_make(line.p, (size_t)(equals - line.p)));
	value = span_trim(span_make(equals + 1, line.n - (size_t)(equals + 1 - line.p)));
	if (key.n == 0)
		return report(lex, "no key before the =", "write key = value");
	lex->item.name = cut_name(&key);
	if (!is_key_name(key))
		return report(lex, "bad character in the key",
			"keys are made of a-z, 0-9 and _");
	if (lex->seen == SECTION_NONE)
		return report_section(
			lex, "key before any section", "begin with a section: [router]");
	if (value.n > 0 && value.p[0] == '"') {
		rc = unquote(lex, value, &value);
		if (rc != 0)
			return rc;
	}
	lex->item.token = CONF_TOKEN_KEY;
	lex->item.key = key;
	lex->item.value = value;
	return 0;
}

/* Cuts the next line off, without LF or CR LF. False at the end of the text. */
static bool next_line(struct lexer *lex, struct span *line)
{
	bool ends_in_lf = has_byte(lex->rest, '\n');

	if (!span_next(&lex->rest, '\n', line))
		return false;
	if (ends_in_lf && line->n > 0 && line->p[line->n - 1] == '\r')
		line->n--;
	lex->line++;
	return true;
}

/* Sets *has_item and lex->item for one line; only ERR_NOMEM is a failure of the whole. */
static int lex_line(struct lexer *lex, struct span line, bool *has_item)
{
	int rc = check_bytes(lex, line);
	bool is_section = false;

	if (rc == 0) {
		line = span_trim(line);
		if (line.n == 0 || line.p[0] == '#' || line.p[0] == ';') {
			*has_item = false;
			return 0;
		}
		is_section = line.p[0] == '[';
		rc = is_section ? lex_section(lex, line) : lex_key(lex, line);
	}
	if (rc == ERR_NOMEM)
		return rc;
	*has_item = rc != 0 || is_section || lex->seen == SECTION_GOOD;
	return 0;
}

static int lex_all(struct lexer *lex, conf_item_fn *on_item, void *arg)
{
	struct span line;

	while (next_line(lex, &line)) {
		bool has_item;
		int rc;

		lex->item = (struct conf_item){.line = lex->line};
		rc = lex_line(lex, line, &has_item);
		if (rc == 0 && has_item)
			rc = on_item(arg, &lex->item);
		if (rc != 0)
			return rc;
	}
	return 0;
}

int conf_lex(struct span text, conf_item_fn *on_item, void *arg)
{
	static const struct span bom = {"\xef\xbb\xbf", 3};
	struct lexer lex = {.rest = text, .unquoted_room = text.n};
	int rc;

	if (span_starts(text, bom))
		lex.rest = span_make(text.p + bom.n, text.n - bom.n);
	rc = lex_all(&lex, on_item, arg);
	free(lex.unquoted);
	return rc;
}

struct unit {
	const char *word;
	uint64_t factor;
};

static int give_hint(int err, const char *text, const char **hint)
{
	if (hint != NULL)
		*hint = text;
	return err;
}

/* Splits "16m" into digits and unit; *factor stays 0 where the unit is unknown. */
static int parse_with_unit(struct span value, const struct unit *units, size_t n_units,
	uint64_t *number, uint64_t *factor)
{
	struct span digits = value, word;

	digits.n = 0;
	while (digits.n < value.n && value.p[digits.n] >= '0' && value.p[digits.n] <= '9')
		digits.n++;
	if (digits.n == 0)
		return ERR_PARSE;
	word = span_make(value.p + digits.n, value.n - digits.n);
	*factor = 0;
	for (size_t i = 0; i < n_units; i++)
		if (span_is(word, units[i].word))
			*factor = units[i].factor;
	return span_to_u64(digits, number);
}

int conf_duration_ms(struct span value, uint64_t *ms, const char **hint)
{
	static const struct unit units[] = {
		{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
	static const char wanted[] =
		"a whole number with a unit: 250ms, 5s, 2m, 1h; or 0";
	uint64_t number, factor, product;
	int rc = parse_with_unit(value, units, ARRAY_LEN(units), &number, &factor);

	if (rc == ERR_PARSE)
		return give_hint(rc, wanted, hint);
	if (rc == 0 && factor == 0 && span_is(value, "0"))
		factor = 1;
	if (factor == 0)
		return give_hint(ERR_PARSE, wanted, hint);
	if (rc != 0 || __builtin_mul_overflow(number, factor, &product))
		return give_hint(ERR_RANGE, "a shorter time", hint);
	*ms = product;
	return 0;
}

int conf_size(struct span value, uint64_t *bytes, const char **hint)
{
	static const struct unit units[] = {
		{"", 1}, {"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}};
	static const char wanted[] =
		"a whole number of bytes, or with k, m or g: 65536, 64k, 16m, 1g";
	uint64_t number, factor, product;
	int rc = parse_with_unit(value, units, ARRAY_LEN(units), &number, &factor);

	if (rc == ERR_PARSE || factor == 0)
		return give_hint(ERR_PARSE, wanted, hint);
	if (rc != 0 || __builtin_mul_overflow(number, factor, &product))
		return give_hint(ERR_RANGE, "a smaller size", hint);
	*bytes = product;
	return 0;
}

int conf_bool(struct span value, bool *out)
{
	static const char *const words[][2] = {
		{"off", "on"}, {"no", "yes"}, {"false", "true"}, {"0", "1"}};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		for (int is_on = 0; is_on < 2; is_on++) {
			if (span_is(value, words[i][is_on])) {
				*out = is_on == 1;
				return 0;
			}
		}
	}
	return ERR_PARSE;
}
