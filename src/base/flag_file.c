/*
 * The file of a table of flags: one section, whose keys are the flags. All faults of all
 * files are told, not only the first. Called by engine_flags.c.
 */
#include "base/cleanup.h"
#include "base/conf_lex.h"
#include "base/err.h"
#include "base/file.h"
#include "base/flag.h"
#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

enum { FILE_MAX_BYTES = 16 << 20 };

/* The state while one file is read. */
struct reader {
	const struct flag_set *set;
	struct flag_values *values;
	void *out;
	const char *path;
	unsigned *lines; /* [set->n] where this file gave the key; 0: not yet */
	unsigned section_line;
	bool is_ours; /* the section that is open */
	unsigned faults;
};

static void complain(struct reader *r, unsigned line, const char *fmt, ...)
	PRINTF_LIKE(3, 4);

static void complain(struct reader *r, unsigned line, const char *fmt, ...)
{
	scoped_free char *text = NULL;
	va_list args;

	va_start(args, fmt);
	if (vasprintf(&text, fmt, args) < 0)
		text = NULL;
	va_end(args);
	(void)fprintf(stderr, "%s: %s:%u: %s\n", r->set->program, r->path, line,
		text != NULL ? text : err_text(ERR_NOMEM));
	r->faults++;
}

static void take_section(struct reader *r, const struct conf_item *item)
{
	r->is_ours = span_is(item->section, r->set->section);
	if (!r->is_ours)
		complain(r, item->line,
			"[" SPAN_FMT "]: no such section; [%s] is the only one",
			SPAN_ARG(item->section), r->set->section);
	else if (r->section_line > 0)
		complain(r, item->line,
			"[%s]: it began in line %u already; one is enough",
			r->set->section, r->section_line);
	else
		r->section_line = item->line;
}

static void complain_unknown(struct reader *r, unsigned line, const char *key)
{
	const struct flag *near = flag_nearest(r->set, key);
	char name[64];

	if (near == NULL) {
		complain(r, line, "%s: no such key; %s --help lists them as flags", key,
			r->set->program);
		return;
	}
	complain(r, line, "%s: no such key; did you mean %s?", key,
		flag_key(near, name, sizeof(name)));
}

static void take_key(struct reader *r, const struct conf_item *item)
{
	scoped_free char *key = xstrndup(item->key.p, item->key.n);
	scoped_free char *value = NULL, *where = NULL;
	const struct flag *f = flag_find(r->set, key);
	size_t i;

	if (f == NULL) {
		complain_unknown(r, item->line, key);
		return;
	}
	i = (size_t)(f - r->set->flags);
	if (r->lines[i] > 0) {
		complain(r, item->line, "%s: line %u gives it already; keep one", key,
			r->lines[i]);
		return;
	}
	r->lines[i] = item->line;
	value = xstrndup(item->value.n > 0 ? item->value.p : "", item->value.n);
	where = xasprintf("%s:%u", r->path, item->line);
	if (!flag_set_value(r->set, f, r->out, value, where)) {
		r->faults++;
		return;
	}
	free(r->values->filed[i]);
	r->values->filed[i] = take_ptr(value);
}

static int take_item(void *arg, const struct conf_item *item)
{
	struct reader *r = arg;

	switch (item->token) {
	case CONF_TOKEN_ERROR:
		if (item->is_section)
			complain(r, item->line, "%s; write [%s]", item->message,
				r->set->section);
		else
			complain(r, item->line, "%s; %s", item->message, item->hint);
		break;
	case CONF_TOKEN_SECTION:
		take_section(r, item);
		break;
	case CONF_TOKEN_KEY:
		if (r->is_ours)
			take_key(r, item);
		break;
	}
	return 0;
}

static void read_one(struct reader *r)
{
	scoped_free char *text = NULL;
	const char *why;
	size_t n;
	int rc = file_read(r->path, FILE_MAX_BYTES, &text, &n);

	if (rc == 0)
		rc = conf_lex(span_make(text, n), take_item, r);
	if (rc == 0)
		return;
	why = rc == ERR_IO      ? strerror(errno)
	      : rc == ERR_LIMIT ? "larger than 16m"
				: err_text(rc);
	(void)fprintf(
		stderr, "%s: %s: cannot be read: %s\n", r->set->program, r->path, why);
	r->faults++;
}

int flag_read_files(const struct flag_set *set, void *out, struct flag_values *v)
{
	unsigned faults = 0;

	for (size_t i = 0; i < v->n_files; i++) {
		scoped_free unsigned *lines = xcalloc(set->n, sizeof(*lines));
		struct reader r = {.set = set, .values = v, .out = out, .lines = lines};

		r.path = v->files[i];
		read_one(&r);
		faults += r.faults;
	}
	for (size_t i = 0; i < set->n; i++)
		if (v->given[i] != NULL &&
			!flag_set_value(set, &set->flags[i], out, v->given[i], NULL))
			faults++;
	return faults == 0 ? 0 : ERR_PARSE;
}

/* A value as the lexer reads it back. */
static void print_value(const char *value, FILE *to)
{
	size_t n = strlen(value);
	bool is_plain =
		n > 0 && value[0] != '"' && value[0] != ' ' && value[n - 1] != ' ';

	if (is_plain) {
		(void)fputs(value, to);
		return;
	}
	(void)fputc('"', to);
	for (; *value != '\0'; value++) {
		if (*value == '"' || *value == '\\')
			(void)fputc('\\', to);
		(void)fputc(*value, to);
	}
	(void)fputc('"', to);
}

void flag_print(const struct flag_set *set, const struct flag_values *v, FILE *to)
{
	(void)fprintf(to, "[%s]\n", set->section);
	for (size_t i = 0; i < set->n; i++) {
		const struct flag *f = &set->flags[i];
		const char *text = v->given[i] != NULL ? v->given[i] : v->filed[i];
		char key[64];

		if (text == NULL)
			text = flag_default(f);
		(void)fprintf(to, "%s%s = ", text == NULL ? "# " : "",
			flag_key(f, key, sizeof(key)));
		if (text != NULL)
			print_value(text, to);
		else
			(void)fputs(f->deflt != NULL ? f->deflt : "(none)", to);
		(void)fputc('\n', to);
	}
}
