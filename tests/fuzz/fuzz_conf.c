/*
 * Fuzz target: conf_lex, and the words of values, over any bytes. Beyond not crashing it
 * holds the lexer to what its header says: lines rise, each gives at most one item, spans
 * lie within bounds, keys are clean, errors say what is wrong.
 */
#include "base/conf_lex.h"
#include "base/err.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

struct seen {
	unsigned line, lines;
	size_t room;
};

/* Not assert(): the name says which promise broke, in every build. */
static void promise(bool is_kept)
{
	if (!is_kept)
		abort();
}

/* Reads each byte of the span, so that the sanitizer sees one out of bounds. */
static void check_span(struct span text, size_t room)
{
	volatile char last = 0;

	promise(text.n <= room);
	for (size_t i = 0; i < text.n; i++) {
		last = text.p[i];
		promise(last != '\0' && last != '\n' && last != '\r');
	}
}

static bool is_key_char(char c)
{
	return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
}

static void check_words(struct span value)
{
	const char *hint = NULL;
	uint64_t number = 42;
	bool is_on;
	int rc = conf_duration_ms(value, &number, &hint);

	promise(rc == 0 ||
		((rc == ERR_PARSE || rc == ERR_RANGE) && number == 42 && hint != NULL));
	number = 42;
	hint = NULL;
	rc = conf_size(value, &number, &hint);
	promise(rc == 0 ||
		((rc == ERR_PARSE || rc == ERR_RANGE) && number == 42 && hint != NULL));
	rc = conf_bool(value, &is_on);
	promise(rc == 0 || rc == ERR_PARSE);
}

static int check_item(void *arg, const struct conf_item *item)
{
	struct seen *seen = arg;

	promise(item->line > seen->line && item->line <= seen->lines);
	seen->line = item->line;
	switch (item->token) {
	case CONF_TOKEN_SECTION:
		promise(item->section.n > 0);
		check_span(item->section, seen->room);
		break;
	case CONF_TOKEN_KEY:
		promise(item->key.n > 0);
		for (size_t i = 0; i < item->key.n; i++)
			promise(is_key_char(item->key.p[i]));
		check_span(item->value, seen->room);
		check_span(item->name, seen->room);
		check_words(item->value);
		break;
	case CONF_TOKEN_ERROR:
		promise(item->message != NULL && item->hint != NULL);
		break;
	}
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	struct seen seen = {.lines = 1, .room = n};
	struct span text = span_make((const char *)bytes, n);

	for (size_t i = 0; i < n; i++)
		seen.lines += bytes[i] == '\n';
	promise(conf_lex(text, check_item, &seen) == 0);
	check_words(text);
	return 0;
}
