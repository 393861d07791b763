/*
 * The list of what is wrong with a configuration, and each item as one line of text.
 * Values arrive here only when they may be shown. Called by the other conf_*.c files and
 * whoever prints.
 */
#include "base/cleanup.h"
#include "base/mem.h"
#include "conf/conf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_SHOWN_MAX = 120 };

/* A copy without control characters; long ones are cut at a UTF-8 border. */
static char *shown_copy(const char *text, size_t max)
{
	size_t n;
	char *copy;

	if (text == NULL)
		return NULL;
	n = strlen(text);
	if (n <= max) {
		copy = xstrdup(text);
	} else {
		n = max;
		while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
			n--;
		copy = xasprintf("%.*s...", (int)n, text);
	}
	for (char *c = copy; *c != '\0'; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	return copy;
}

static void add(struct conf_errors *errors, struct conf_error item)
{
	errors->items = xrealloc(errors->items, (errors->n + 1) * sizeof(*errors->items));
	errors->items[errors->n++] = item;
	if (!item.is_warning)
		errors->n_errors++;
}

static struct conf_error make_item(const char *file, unsigned line, const char *key,
	const char *value, const char *hint, const char *fmt, va_list args)
{
	struct conf_error item = {.line = line};
	char message[512];

	vsnprintf(message, sizeof(message), fmt, args);
	item.file = file != NULL ? xstrdup(file) : NULL;
	item.key = shown_copy(key, VALUE_SHOWN_MAX);
	item.value = shown_copy(value, VALUE_SHOWN_MAX);
	item.message = shown_copy(message, sizeof(message));
	item.hint = shown_copy(hint, sizeof(message));
	return item;
}

void conf_errors_add(struct conf_errors *errors, const char *file, unsigned line,
	const char *key, const char *value, const char *hint, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	add(errors, make_item(file, line, key, value, hint, fmt, args));
	va_end(args);
}

void conf_warnings_add(struct conf_errors *errors, const char *file, unsigned line,
	const char *key, const char *value, const char *hint, const char *fmt, ...)
{
	struct conf_error item;
	va_list args;

	va_start(args, fmt);
	item = make_item(file, line, key, value, hint, fmt, args);
	va_end(args);
	item.is_warning = true;
	add(errors, item);
}

void conf_errors_free(struct conf_errors *errors)
{
	for (size_t i = 0; i < errors->n; i++) {
		struct conf_error *e = &errors->items[i];

		free(e->file);
		free(e->key);
		free(e->value);
		free(e->message);
		free(e->hint);
	}
	free(errors->items);
	*errors = (struct conf_errors){0};
}

char *conf_error_text(const struct conf_error *e)
{
	bool is_flag = e->key != NULL && e->key[0] == '-';
	scoped_free char *place = NULL, *what = NULL;

	if (e->file != NULL && e->line > 0)
		place = xasprintf("%s:%u: ", e->file, e->line);
	else if (e->file != NULL)
		place = xasprintf("%s: ", e->file);
	if (e->key != NULL && e->value != NULL)
		what = xasprintf("%s%s%s: ", e->key, is_flag ? " " : " = ", e->value);
	else if (e->key != NULL)
		what = xasprintf("%s: ", e->key);
	return xasprintf("%s%s%s%s%s%s", place != NULL ? place : "",
		e->is_warning ? "warning: " : "", what != NULL ? what : "", e->message,
		e->hint != NULL ? "; " : "", e->hint != NULL ? e->hint : "");
}
