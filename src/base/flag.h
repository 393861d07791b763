/*
 * The command line, and the configuration file, of a program whose settings are one table
 * of flags: kvsteer-engine and kvsteer-bench. A row gives name, reader, range, default
 * and help; its key in a file is its name with _ in place of -. (kvsteerd's, which take
 * the spellings of other routers too, are conf_flags.h's.)
 * Messages go to stderr, one line each, behind the program's name.
 */
#ifndef BASE_FLAG_H
#define BASE_FLAG_H

#include "base/base.h"

#include <stdio.h>

struct flag;

/*
 * Reads value into the flag's field. 0; or ERR_PARSE, the field as it was, and in want[n]
 * the expected value.
 */
typedef int flag_read_fn(
	const struct flag *f, const char *value, void *field, char *want, size_t n);

struct flag {
	const char *name; /* "max-num-seqs" */
	const char *arg;  /* for -h; NULL: a switch, which takes no word */
	flag_read_fn *read;
	size_t offset;     /* of the field in the program's struct */
	double min, max;   /* of numbers; of a time its least, in ms */
	const char *deflt; /* the default; "(...)" is only shown; NULL: none */
	const char *help;
};

/* The readers, by the field that each writes. */
flag_read_fn flag_text;   /* const char *: not empty, no control characters; not copied */
flag_read_fn flag_u16;    /* uint16_t */
flag_read_fn flag_u32;    /* uint32_t or unsigned */
flag_read_fn flag_u64;    /* uint64_t */
flag_read_fn flag_real;   /* double */
flag_read_fn flag_time;   /* uint64_t of ms, from a time with a unit */
flag_read_fn flag_on;     /* bool; the text is that of a file: on, off */
flag_read_fn flag_choice; /* unsigned or enum: the word's place in arg, "one|two" */

/* The type that a reader reads, as the manuals call it: "time". */
struct flag_type {
	flag_read_fn *read;
	const char *name;
};

struct flag_set {
	const char *program; /* "kvsteer-engine" */
	const char *about;   /* a sentence for -h */
	const struct flag *flags;
	size_t n;
	const char *section; /* of its files; NULL: it has none, and no -c, -t and -T */
	const struct flag_type *types; /* of the program's own readers */
	size_t n_types;
};

enum { FLAG_FILES_MAX = 16 };

/* The values that were given, as text. The caller zeroes it before its first use. */
struct flag_values {
	const char **given; /* [set->n] on the command line; NULL: not there */
	char **filed;       /* [set->n] in a file */
	const char *files[FLAG_FILES_MAX]; /* -c, in order; of argv */
	size_t n_files;
	bool test, print; /* -t, -T */
};

enum flag_result { FLAG_RUN, FLAG_DONE, FLAG_USAGE };

/*
 * Sets the defaults in *out, which is zeroed, and what argv gives over them.
 * FLAG_DONE: -h or -V was answered on stdout. FLAG_USAGE: stderr says what is wrong.
 * Fields that are texts point into argv or *v; flag_values_free() ends all three results.
 */
enum flag_result flag_parse(const struct flag_set *set, int argc, char **argv, void *out,
	struct flag_values *v) MUST_CHECK;
/*
 * Lays the files of -c, later ones over earlier, between the defaults and what the
 * command line gave. ERR_PARSE: stderr has every error.
 */
int flag_read_files(
	const struct flag_set *set, void *out, struct flag_values *v) MUST_CHECK;
/* Prints the effective settings as a file. A setting without a value is a comment. */
void flag_print(const struct flag_set *set, const struct flag_values *v, FILE *to);
void flag_values_free(const struct flag_set *set, struct flag_values *v);

/*
 * Reads one value. False: stderr says where (NULL: the command line; else "FILE:LINE")
 * and the expected value.
 */
bool flag_set_value(const struct flag_set *set, const struct flag *f, void *out,
	const char *value, const char *where) MUST_CHECK;
/* The row whose name or key (with _) it is; the nearest one where none is; or NULL. */
const struct flag *flag_find(const struct flag_set *set, const char *name);
const struct flag *flag_nearest(const struct flag_set *set, const char *name);
/* Its key in a file, in room, which is returned. */
const char *flag_key(const struct flag *f, char *room, size_t n);
/* Its default where that can be read, else NULL. */
const char *flag_default(const struct flag *f);
/* The type of its values, as manuals call it. */
const char *flag_type(const struct flag_set *set, const struct flag *f);

#endif
