/*
 * The list of faults of a configuration, and each fault as one line of text. Values
 * arrive here only when they may be shown. Called by the other conf_*.c files, and by
 * every reader of the list.
 */
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_SHOWN_MAX = 120, MESSAGE_BYTES = 512 };

/* Stands behind the items of a list for which memory ran out. */
static const struct conf_error memory_error = {
	.message = (char *)(uintptr_t) "out of memory",
	.hint = (char *)(uintptr_t) "try again when the machine has memory to spare",
};

void conf_errors_no_memory(struct conf_errors *errors)
{
	if (errors->no_memory)
		return;
	errors->no_memory = true;
	errors->n_errors++;
}

const struct conf_error *conf_errors_at(const struct conf_errors *errors, size_t i)
{
	if (i < errors->n)
		return &errors->items[i];
	return i == errors->n && errors->no_memory ? &memory_error : NULL;
}

const struct conf_error *conf_errors_first(const struct conf_errors *errors)
{
	const struct conf_error *e;

	for (size_t i = 0; (e = conf_errors_at(errors, i)) != NULL; i++)
		if (!e->is_warning)
			return e;
	return NULL;
}

/*
 * Puts a copy without control characters into *out, cut at a UTF-8 border where the text
 * is longer than max. NULL stays NULL. False: out of memory.
 */
static bool copy_shown(const char *text, size_t max, char **out)
{
	size_t n = text != NULL ? strlen(text) : 0, cut = n;

	*out = NULL;
	if (text == NULL)
		return true;
	if (n > max)
		for (cut = max; cut > 0 && ((unsigned char)text[cut] & 0xc0) == 0x80;)
			cut--;
	*out = mem_format("%.*s%s", (int)cut, text, cut < n ? "..." : "");
	if (*out == NULL)
		return false;
	for (char *c = *out; *c != '\0'; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	return true;
}

static void free_item(struct conf_error *e)
{
	free(e->file);
	free(e->key);
	free(e->value);
	free(e->message);
	free(e->hint);
}

/* Copies the texts of `from` into a new item at the end of the list. */
static int add(struct conf_errors *errors, const struct conf_error *from)
{
	struct conf_error item = {.line = from->line, .is_warning = from->is_warning};

	if (!copy_shown(from->file, SIZE_MAX, &item.file) ||
		!copy_shown(from->key, VALUE_SHOWN_MAX, &item.key) ||
		!copy_shown(from->value, VALUE_SHOWN_MAX, &item.value) ||
		!copy_shown(from->message, MESSAGE_BYTES, &item.message) ||
		!copy_shown(from->hint, MESSAGE_BYTES, &item.hint) ||
		mem_grow(&errors->items, &errors->cap, errors->n + 1, sizeof(item)) !=
			0) {
		free_item(&item);
		return ERR_NOMEM;
	}
	errors->items[errors->n++] = item;
	if (!item.is_warning)
		errors->n_errors++;
	return 0;
}

static void add_said(struct conf_errors *errors, const struct conf_error *where,
	const char *fmt, va_list args)
{
	struct conf_error item = *where;
	char message[MESSAGE_BYTES];

	vsnprintf(message, sizeof(message), fmt, args);
	item.message = message;
	if (add(errors, &item) != 0)
		conf_errors_no_memory(errors);
}

/* The texts are only read: add() copies them. */
static struct conf_error place(const char *file, unsigned line, const char *key,
	const char *value, const char *hint)
{
	return (struct conf_error){
		.file = (char *)(uintptr_t)file,
		.line = line,
		.key = (char *)(uintptr_t)key,
		.value = (char *)(uintptr_t)value,
		.hint = (char *)(uintptr_t)hint,
	};
}

void conf_errors_add(struct conf_errors *errors, const char *file, unsigned line,
	const char *key, const char *value, const char *hint, const char *fmt, ...)
{
	struct conf_error where = place(file, line, key, value, hint);
	va_list args;

	va_start(args, fmt);
	add_said(errors, &where, fmt, args);
	va_end(args);
}

void conf_warnings_add(struct conf_errors *errors, const char *file, unsigned line,
	const char *key, const char *value, const char *hint, const char *fmt, ...)
{
	struct conf_error where = place(file, line, key, value, hint);
	va_list args;

	where.is_warning = true;
	va_start(args, fmt);
	add_said(errors, &where, fmt, args);
	va_end(args);
}

void conf_errors_free(struct conf_errors *errors)
{
	for (size_t i = 0; i < errors->n; i++)
		free_item(&errors->items[i]);
	free(errors->items);
	*errors = (struct conf_errors){0};
}

void conf_error_print(const struct conf_error *e, char *out, size_t n)
{
	bool is_flag = e->key != NULL && e->key[0] == '-';
	size_t used = 0;

	out[0] = '\0';
	if (e->file != NULL && e->line > 0)
		used = mem_append(out, n, used, "%s:%u: ", e->file, e->line);
	else if (e->file != NULL)
		used = mem_append(out, n, used, "%s: ", e->file);
	if (e->is_warning)
		used = mem_append(out, n, used, "warning: ");
	if (e->key != NULL && e->value != NULL)
		used = mem_append(out, n, used, "%s%s%s: ", e->key, is_flag ? " " : " = ",
			e->value);
	else if (e->key != NULL)
		used = mem_append(out, n, used, "%s: ", e->key);
	used = mem_append(out, n, used, "%s", e->message);
	if (e->hint != NULL)
		mem_append(out, n, used, "; %s", e->hint);
}

char *conf_error_text(const struct conf_error *e)
{
	char text[CONF_ERROR_TEXT_MAX];

	conf_error_print(e, text, sizeof(text));
	return strdup(text);
}
