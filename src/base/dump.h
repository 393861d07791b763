/*
 * The output of the hidden flag --dump-tables: a program's own tables, for the lints that
 * compare the manuals with them. One row a line, fields separated by tabs, the row's kind
 * first; a field that is not set is "none".
 *
 *	key	section, name, type, default, reload or restart
 *	flag	name, type, default
 *	metric	name, type, labels separated by commas
 *	signal	name
 *	exit	number
 *	command	name
 *	failure	code, status
 *	route	path, label, methods, action, endpoint, shape, marks, source
 */
#ifndef BASE_DUMP_H
#define BASE_DUMP_H

#include "base/base.h"

struct flag_set;
struct text;

/* Whether --dump-tables is all that the command line says. */
bool dump_is_asked(int argc, char **argv);

void dump_fields(const char *const *fields, size_t n);
/* NULL: "none". */
#define dump_row(...)                                   \
	dump_fields((const char *const[]){__VA_ARGS__}, \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* The flags of a table and, where it reads files, its keys. */
void dump_flags(const struct flag_set *set);
/* The families of a scrape; labels as their first line has them, without buckets'
 * "le". */
void dump_metrics(const struct text *scrape);
void dump_signal(int signo);
/* Exit codes from 0 to the last. */
void dump_exits(int last);
void dump_failures(void);

#endif
