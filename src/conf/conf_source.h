/*
 * A configuration as it was written: sections and lines with their places, before
 * anything is resolved. Built by conf_file.c from files; conf.c adds what the command
 * line gave (conf_flags.h) and resolves both. Lives during one conf_load.
 */
#ifndef CONF_CONF_SOURCE_H
#define CONF_CONF_SOURCE_H

#include "conf/conf_table.h"

struct conf_line {
	const struct conf_key *key;
	char *value;
	const char *file; /* owned by the source */
	unsigned line;
	bool is_good;  /* its value can be read and is no duplicate: apply it */
	bool is_first; /* of a list key in this section: it replaces what was inherited */
};

struct conf_section {
	enum conf_section_kind kind;
	char *name; /* "" for [router] */
	enum role role;
	const char *file;
	unsigned line;
	struct conf_line *lines;
	size_t n_lines, cap_lines;
};

struct conf_source {
	struct conf_section *sections; /* one for each place, merged over the files */
	size_t n_sections, cap_sections;
	char **files;
	size_t n_files, cap_files;
};

/* Reads path and the conf.d/ *.conf beside it. Every fault goes to *errors, a lack of
 * memory too; good lines are kept. */
void conf_source_read(
	struct conf_source *source, const char *path, struct conf_errors *errors);
void conf_source_free(struct conf_source *source);

/* The line of that key in the section, or NULL. */
const struct conf_line *conf_section_find(
	const struct conf_section *section, const char *key);

/* Appends the line with a copy of the value. ERR_NOMEM. */
int conf_section_add(struct conf_section *section, struct conf_line *line,
	struct span value) MUST_CHECK;
/* Frees what the section holds. */
void conf_section_free(struct conf_section *section);

/* conf_place.c: line is where a value of [router] stands; copied. ERR_NOMEM. */
int conf_place_add(struct conf *c, const struct conf_line *line) MUST_CHECK;
/* A flag gives the key's value. */
void conf_place_forget(struct conf *c, const struct conf_key *key);
void conf_place_free(struct conf *c);

#endif
