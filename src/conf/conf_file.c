/*
 * Reads configuration files into sections and lines. Checks that keys stand in the right
 * section, that values can be read, and that no file sets anything twice. Goes on after a
 * fault, so that one run reports them all. A section may be continued in a later file,
 * whose keys replace those of the files before it; a second one in the same file, or a
 * single-valued key given twice, is an error that names both places. Called by conf.c.
 */
#include "base/cleanup.h"
#include "base/conf_lex.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "conf/conf_source.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX_BYTES = 16 << 20, MESSAGE_BYTES = 512 };

/* The state while one file is read. */
struct reader {
	struct conf_source *source;
	struct conf_errors *errors;
	const char *file;
	size_t section; /* index of the open one; SIZE_MAX: a faulty one, keys are passed
			   over */
};

static void report(struct reader *r, unsigned line, const struct conf_key *key,
	struct span value, const char *message, const char *hint)
{
	scoped_free char *text = span_dup(value);
	bool is_shown = !key->is_secret;

	if (text == NULL) {
		conf_errors_no_memory(r->errors);
		return;
	}
	/* A URL with a password in it is as good as a secret. */
	if (key->type == CONF_TYPE_URL && strchr(text, '@') != NULL)
		is_shown = false;
	conf_errors_add(r->errors, r->file, line, key->name, is_shown ? text : NULL,
		hint[0] != '\0' ? hint : NULL, "%s", message);
}

static bool is_role_word(struct span word, enum role *role)
{
	for (int i = ROLE_PREFILL; i < ROLE_MAX; i++) {
		if (span_is(word, role_name((enum role)i))) {
			*role = (enum role)i;
			return true;
		}
	}
	return false;
}

/* Splits "pool NAME prefill"; 0, or ERR_PARSE or ERR_NOMEM and *fault. */
static int read_section_words(
	struct span text, struct conf_section *out, struct conf_fault *fault)
{
	static const char forms[] =
		"[router], [pool NAME], [pool NAME prefill|decode] or [worker NAME]";
	struct span words[4] = {{NULL, 0}};
	size_t n = 0;

	while (n < 4 && span_next_word(&text, &words[n]))
		n++;
	if (n == 1 && span_is(words[0], "router")) {
		out->kind = SECTION_ROUTER;
		words[1] = SPAN_LIT("");
	} else if (n == 2 && span_is(words[0], "worker")) {
		out->kind = SECTION_WORKER;
	} else if (n == 2 && span_is(words[0], "pool")) {
		out->kind = SECTION_POOL;
	} else if (n == 3 && span_is(words[0], "pool") &&
		   is_role_word(words[2], &out->role)) {
		out->kind = SECTION_POOL_ROLE;
	} else {
		conf_fault_set(fault, "no such section", "%s", forms);
		return ERR_PARSE;
	}
	if (out->kind != SECTION_ROUTER && conf_name_check(words[1], fault) != 0)
		return ERR_PARSE;
	out->name = span_dup(words[1]);
	return out->name != NULL ? 0 : conf_fault_no_memory(fault);
}

static struct conf_section *find_section(
	struct conf_source *source, const struct conf_section *like)
{
	for (size_t i = 0; i < source->n_sections; i++) {
		struct conf_section *s = &source->sections[i];

		if (s->kind == like->kind && s->role == like->role &&
			strcmp(s->name, like->name) == 0)
			return s;
	}
	return NULL;
}

/* Takes the name of `made`, also when memory runs out. */
static int add_section(struct reader *r, struct conf_section *made)
{
	struct conf_source *source = r->source;

	if (mem_grow(&source->sections, &source->cap_sections, source->n_sections + 1,
		    sizeof(*source->sections)) != 0) {
		free(made->name);
		return ERR_NOMEM;
	}
	source->sections[source->n_sections] = *made;
	r->section = source->n_sections++;
	return 0;
}

static int open_section(struct reader *r, const struct conf_item *item)
{
	struct conf_section made = {.file = r->file, .line = item->line};
	struct conf_section *old;
	struct conf_fault fault;
	int rc;

	r->section = SIZE_MAX;
	rc = read_section_words(item->section, &made, &fault);
	if (rc == ERR_NOMEM)
		return rc;
	if (rc != 0) {
		conf_errors_add(r->errors, r->file, item->line, NULL, NULL, fault.hint,
			"[" SPAN_FMT "]: %s", SPAN_ARG(item->section), fault.message);
		return 0;
	}
	old = find_section(r->source, &made);
	if (old == NULL)
		return add_section(r, &made);
	if (old->file == r->file)
		conf_errors_add(r->errors, r->file, item->line, NULL, NULL,
			"put all its keys below the first one",
			"[" SPAN_FMT "]: duplicate section, the first is in line %u",
			SPAN_ARG(item->section), old->line);
	else
		r->section = (size_t)(old - r->source->sections);
	/* From here on a second section in this file is a duplicate of this one. */
	if (old->file != r->file) {
		old->file = r->file;
		old->line = item->line;
	}
	free(made.name);
	return 0;
}

static void free_value(struct conf_line *line)
{
	if (line->key->is_secret)
		mem_wipe(line->value, strlen(line->value));
	free(line->value);
}

const struct conf_line *conf_section_find(
	const struct conf_section *section, const char *key)
{
	for (size_t i = 0; i < section->n_lines; i++)
		if (strcmp(section->lines[i].key->name, key) == 0)
			return &section->lines[i];
	return NULL;
}

int conf_section_add(
	struct conf_section *section, struct conf_line *line, struct span value)
{
	line->value = span_dup(value);
	if (line->value == NULL)
		return ERR_NOMEM;
	if (mem_grow(&section->lines, &section->cap_lines, section->n_lines + 1,
		    sizeof(*line)) != 0) {
		free_value(line);
		return ERR_NOMEM;
	}
	section->lines[section->n_lines++] = *line;
	return 0;
}

void conf_section_free(struct conf_section *section)
{
	for (size_t i = 0; i < section->n_lines; i++)
		free_value(&section->lines[i]);
	free(section->lines);
	free(section->name);
}

/* What the files before this one said of the key. */
static void drop_former(
	struct reader *r, struct conf_section *section, const struct conf_key *key)
{
	size_t kept = 0;

	for (size_t i = 0; i < section->n_lines; i++) {
		struct conf_line *line = &section->lines[i];

		if (line->key == key && line->file != r->file)
			free_value(line);
		else
			section->lines[kept++] = *line;
	}
	section->n_lines = kept;
}

static bool is_duplicate(struct reader *r, const struct conf_section *section,
	const struct conf_item *item, const struct conf_key *key)
{
	const struct conf_line *first = conf_section_find(section, key->name);
	char message[MESSAGE_BYTES];

	if (first == NULL || conf_key_is_list(key))
		return false;
	snprintf(message, sizeof(message), "duplicate key, the first is in line %u",
		first->line);
	report(r, item->line, key, item->value, message, "leave one of them");
	return true;
}

/* The value is not quoted: it may be a secret under a mistyped key. */
static int report_unknown(
	struct reader *r, enum conf_section_kind kind, const struct conf_item *item)
{
	scoped_free char *name = span_dup(item->key);
	char hint[128];

	if (name == NULL)
		return ERR_NOMEM;
	conf_errors_add(r->errors, r->file, item->line, name, NULL,
		conf_key_hint(kind, item->key, hint, sizeof(hint)), "unknown key in %s",
		conf_section_form(kind));
	return 0;
}

static int take_key(struct reader *r, const struct conf_item *item)
{
	struct conf_section *section = &r->source->sections[r->section];
	const struct conf_key *key = conf_key_find(section->kind, item->key);
	struct conf_line line = {.key = key, .file = r->file, .line = item->line};
	scoped_free char *named = NULL;
	struct span value = item->value;
	struct conf_fault fault;
	int rc;

	if (key == NULL)
		return report_unknown(r, section->kind, item);
	if (item->name.n > 0) {
		named = mem_format(SPAN_FMT "=" SPAN_FMT, SPAN_ARG(item->name),
			SPAN_ARG(item->value));
		if (named == NULL)
			return ERR_NOMEM;
		value = span_str(named);
	}
	drop_former(r, section, key);
	line.is_good = !is_duplicate(r, section, item, key);
	line.is_first = conf_section_find(section, key->name) == NULL;
	rc = conf_value_check(key, value, &fault);
	if (rc == ERR_NOMEM)
		return rc;
	if (rc != 0) {
		line.is_good = false;
		report(r, item->line, key, value, fault.message, fault.hint);
	}
	return conf_section_add(section, &line, value);
}

static int take_item(void *arg, const struct conf_item *item)
{
	struct reader *r = arg;

	switch (item->token) {
	case CONF_TOKEN_ERROR:
		conf_errors_add(r->errors, r->file, item->line, NULL, NULL, item->hint,
			"%s", item->message);
		break;
	case CONF_TOKEN_SECTION:
		return open_section(r, item);
	case CONF_TOKEN_KEY:
		return r->section != SIZE_MAX ? take_key(r, item) : 0;
	}
	return 0;
}

/* NULL: out of memory. */
static const char *keep_file_name(struct conf_source *source, const char *path)
{
	char *name = strdup(path);

	if (name == NULL || mem_grow(&source->files, &source->cap_files,
				    source->n_files + 1, sizeof(char *)) != 0) {
		free(name);
		return NULL;
	}
	source->files[source->n_files++] = name;
	return name;
}

/* Opening one would wait for somebody at the other end, maybe for ever. */
static bool is_pipe(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

static const char *read_hint(int error, bool is_main)
{
	switch (error) {
	case ENOENT:
		return is_main ? "name another with -c FILE" : "remove the link";
	case EACCES:
		return "the daemon's user or group must be able to read it";
	case EISDIR:
		return is_main ? "name a file with -c FILE"
			       : "remove it, or give a file that ends in .conf";
	case ELOOP:
		return "a file, or a link to one";
	default:
		return NULL;
	}
}

static void read_file(struct conf_source *source, const char *path, bool is_main,
	struct conf_errors *errors)
{
	struct reader r = {.source = source, .errors = errors, .section = SIZE_MAX};
	scoped_free char *text = NULL;
	size_t n;
	int rc;

	r.file = keep_file_name(source, path);
	if (r.file == NULL) {
		conf_errors_no_memory(errors);
		return;
	}
	if (is_pipe(path)) {
		conf_errors_add(errors, path, 0, NULL, NULL,
			"give a regular file, which a reload can read again",
			"is not a file");
		return;
	}
	rc = file_read(path, FILE_MAX_BYTES, &text, &n);
	if (rc == 0) {
		rc = conf_lex(span_make(text, n), take_item, &r);
		mem_wipe(text, n);
	}
	if (rc == ERR_NOMEM) {
		conf_errors_no_memory(errors);
	} else if (rc == ERR_LIMIT) {
		conf_errors_add(errors, path, 0, NULL, NULL, "up to 16m",
			"the file is too large");
	} else if (rc != 0) {
		conf_errors_add(errors, path, 0, NULL, NULL, read_hint(errno, is_main),
			"cannot be read: %s", strerror(errno));
	}
}

static int is_conf_name(const struct dirent *entry)
{
	struct span name = span_str(entry->d_name);

	return name.p[0] != '.' && span_ends(name, SPAN_LIT(".conf"));
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static void read_folder(
	struct conf_source *source, const char *folder, struct conf_errors *errors)
{
	struct dirent **entries = NULL;
	int n = scandir(folder, &entries, is_conf_name, by_bytes);

	if (n < 0 && errno == ENOMEM)
		conf_errors_no_memory(errors);
	else if (n < 0 && errno != ENOENT)
		conf_errors_add(errors, folder, 0, NULL, NULL,
			errno == ENOTDIR ? "make it a folder, or give it another name"
					 : read_hint(errno, false),
			"cannot be read: %s", strerror(errno));
	for (int i = 0; i < n; i++) {
		scoped_free char *file = mem_format("%s/%s", folder, entries[i]->d_name);

		if (file != NULL)
			read_file(source, file, false, errors);
		else
			conf_errors_no_memory(errors);
		free(entries[i]);
	}
	free(entries);
}

void conf_source_read(
	struct conf_source *source, const char *path, struct conf_errors *errors)
{
	const char *slash = strrchr(path, '/');
	int dir_n = slash != NULL ? (int)(slash - path) + 1 : 0;
	scoped_free char *folder = mem_format("%.*sconf.d", dir_n, path);

	read_file(source, path, true, errors);
	if (folder != NULL)
		read_folder(source, folder, errors);
	else
		conf_errors_no_memory(errors);
}

void conf_source_free(struct conf_source *source)
{
	for (size_t i = 0; i < source->n_sections; i++)
		conf_section_free(&source->sections[i]);
	for (size_t i = 0; i < source->n_files; i++)
		free(source->files[i]);
	free(source->files);
	free(source->sections);
	*source = (struct conf_source){0};
}
