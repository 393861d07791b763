/*
 * Flags by a table: a walk over argv by its rows, readers of values, defaults and -h.
 * Nothing is kept between calls. Called by engine_flags.c and bench/flags.c, once each.
 */
#include "base/flag.h"
#include "base/args.h"
#include "base/conf_lex.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/word.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

enum { HELP_COLUMN = 30 };

/* ---- readers ---- */

static int expect(char *want, size_t n, const char *fmt, ...) PRINTF_LIKE(3, 4);

static int expect(char *want, size_t n, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(want, n, fmt, args);
	va_end(args);
	return ERR_PARSE;
}

int flag_text(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	(void)f;
	if (*value == '\0')
		return expect(want, n, "it must not be empty");
	for (const char *p = value; *p != '\0'; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return expect(
				want, n, "text without control characters is expected");
	*(const char **)field = value;
	return 0;
}

static int read_whole(
	const struct flag *f, const char *value, uint64_t *out, char *want, size_t n)
{
	if (span_to_u64(span_str(value), out) == 0 && (double)*out >= f->min &&
		(double)*out <= f->max)
		return 0;
	return expect(
		want, n, "a whole number from %.0f to %.0f is expected", f->min, f->max);
}

int flag_u16(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	uint64_t number;
	int rc = read_whole(f, value, &number, want, n);

	assert(f->max <= UINT16_MAX);
	if (rc == 0)
		*(uint16_t *)field = (uint16_t)number;
	return rc;
}

int flag_u32(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	uint64_t number;
	int rc = read_whole(f, value, &number, want, n);

	static_assert(sizeof(unsigned) == sizeof(uint32_t), "one reader for both");
	assert(f->max <= UINT32_MAX);
	if (rc == 0)
		*(uint32_t *)field = (uint32_t)number;
	return rc;
}

int flag_u64(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	uint64_t number;
	int rc = read_whole(f, value, &number, want, n);

	if (rc == 0)
		*(uint64_t *)field = number;
	return rc;
}

int flag_real(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	char *end;
	double number;

	errno = 0;
	number = strtod(value, &end);
	if (end == value || *end != '\0' || errno != 0 ||
		!(number >= f->min && number <= f->max))
		return expect(
			want, n, "a number from %g to %.0f is expected", f->min, f->max);
	*(double *)field = number;
	return 0;
}

int flag_time(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	const char *hint = "";
	uint64_t ms;

	if (conf_duration_ms(span_str(value), &ms, &hint) != 0)
		return expect(want, n, "%s is expected", hint);
	if ((double)ms < f->min)
		return expect(want, n, "a time above 0 is expected");
	*(uint64_t *)field = ms;
	return 0;
}

int flag_on(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	(void)f;
	if (conf_bool(span_str(value), field) != 0)
		return expect(want, n, "on or off is expected");
	return 0;
}

int flag_choice(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	struct span rest = span_str(f->arg), word;

	for (unsigned i = 0; span_next(&rest, '|', &word); i++) {
		if (!span_is(word, value))
			continue;
		*(unsigned *)field = i;
		return 0;
	}
	return expect(want, n, "%s is expected", f->arg);
}

/* ---- one value ---- */

bool flag_set_value(const struct flag_set *set, const struct flag *f, void *out,
	const char *value, const char *where)
{
	char want[160] = "", key[64];

	if (f->read(f, value, (char *)out + f->offset, want, sizeof(want)) == 0)
		return true;
	if (where == NULL)
		(void)fprintf(stderr, "%s: --%s %s: %s\n", set->program, f->name,
			*value != '\0' ? value : "''", want);
	else
		(void)fprintf(stderr, "%s: %s: %s = %s: %s\n", set->program, where,
			flag_key(f, key, sizeof(key)), value, want);
	return false;
}

const char *flag_key(const struct flag *f, char *room, size_t n)
{
	(void)snprintf(room, n, "%s", f->name);
	for (char *c = room; *c != '\0'; c++)
		if (*c == '-')
			*c = '_';
	return room;
}

const char *flag_default(const struct flag *f)
{
	return f->deflt == NULL || f->deflt[0] == '(' ? NULL : f->deflt;
}

static const struct flag_type types[] = {{flag_text, "text"}, {flag_u16, "count"},
	{flag_u32, "count"}, {flag_u64, "count"}, {flag_real, "number"},
	{flag_time, "time"}, {flag_on, "switch"}, {flag_choice, "word"}};

static const char *find_type(const struct flag_type *list, size_t n, flag_read_fn *read)
{
	for (size_t i = 0; i < n; i++)
		if (list[i].read == read)
			return list[i].name;
	return NULL;
}

const char *flag_type(const struct flag_set *set, const struct flag *f)
{
	const char *own = find_type(set->types, set->n_types, f->read);

	return own != NULL ? own : find_type(types, ARRAY_LEN(types), f->read);
}

static void set_defaults(const struct flag_set *set, void *out)
{
	for (size_t i = 0; i < set->n; i++) {
		const char *deflt = flag_default(&set->flags[i]);
		bool ok = deflt == NULL ||
			  flag_set_value(set, &set->flags[i], out, deflt, NULL);

		assert(ok);
	}
}

/* ---- names ---- */

/* The name as a flag has it: a key's _ is a flag's -. */
static struct span flag_spelling(const char *name, char *room, size_t n)
{
	size_t len = 0;

	for (; name[len] != '\0' && name[len] != '=' && len + 1 < n; len++)
		room[len] = name[len] == '_' ? '-' : name[len];
	return span_make(room, len);
}

const struct flag *flag_find(const struct flag_set *set, const char *name)
{
	char room[64];
	struct span wanted = flag_spelling(name, room, sizeof(room));

	for (size_t i = 0; i < set->n; i++)
		if (span_is(wanted, set->flags[i].name))
			return &set->flags[i];
	return NULL;
}

const struct flag *flag_nearest(const struct flag_set *set, const char *name)
{
	char room[64];
	struct word_search search = {.wanted = flag_spelling(name, room, sizeof(room))};
	const struct flag *best = NULL;

	for (size_t i = 0; i < set->n; i++)
		if (word_is_nearest(&search, span_str(set->flags[i].name)))
			best = &set->flags[i];
	return best;
}

/* ---- the command line ---- */

static void print_row(const char *left, const char *help, const char *deflt)
{
	printf("  %-*s%s%s", HELP_COLUMN, left, strlen(left) < HELP_COLUMN ? "" : "  ",
		help);
	if (deflt != NULL)
		printf(deflt[0] == '(' ? " %s" : " (%s)", deflt);
	printf("\n");
}

/* The flags that every program has besides its rows. */
static const struct own_flag {
	char letter;
	const char *name, *arg, *help;
	bool of_files; /* of those that read files */
} own_flags[] = {
	{'c', "config", "FILE", "read this file first; repeat to read another over it",
		true},
	{'t', "test", NULL, "test the configuration and exit", true},
	{'T', "print", NULL, "print the effective configuration and exit", true},
	{'V', "version", NULL, "print the version and exit", false},
	{'h', "help", NULL, "print this and exit", false},
};

static void print_own(const struct own_flag *o)
{
	char left[80];

	(void)snprintf(left, sizeof(left), "-%c, --%s%s%s", o->letter, o->name,
		o->arg != NULL ? " " : "", o->arg != NULL ? o->arg : "");
	print_row(left, o->help, NULL);
}

static void print_help(const struct flag_set *set)
{
	char left[80];

	printf("usage: %s [flags]\n%s\n\n", set->program, set->about);
	for (size_t i = 0; i < ARRAY_LEN(own_flags); i++)
		if (own_flags[i].of_files && set->section != NULL)
			print_own(&own_flags[i]);
	for (size_t i = 0; i < set->n; i++) {
		const struct flag *f = &set->flags[i];

		(void)snprintf(left, sizeof(left), "--%s%s%s", f->name,
			f->arg != NULL ? " " : "", f->arg != NULL ? f->arg : "");
		print_row(left, f->help, f->deflt);
	}
	for (size_t i = 0; i < ARRAY_LEN(own_flags); i++)
		if (!own_flags[i].of_files)
			print_own(&own_flags[i]);
}

static enum flag_result take_file(
	const struct flag_set *set, const char *path, struct flag_values *v)
{
	if (v->n_files == FLAG_FILES_MAX) {
		(void)fprintf(stderr, "%s: -c %s: at most %d files are expected\n",
			set->program, path, FLAG_FILES_MAX);
		return FLAG_USAGE;
	}
	v->files[v->n_files++] = path;
	return FLAG_RUN;
}

static enum flag_result refuse(
	const struct flag_set *set, const char *name, const char *why)
{
	(void)fprintf(stderr, "%s: %s%s\n", set->program, name, why);
	return FLAG_USAGE;
}

static enum flag_result refuse_unknown(const struct flag_set *set, const struct arg *arg)
{
	const struct flag *near =
		arg->kind == ARG_LONG ? flag_nearest(set, arg->name.p + 2) : NULL;
	char why[96] = ": no such flag";

	if (near != NULL)
		(void)snprintf(why, sizeof(why), ": no such flag; did you mean --%s?",
			near->name);
	return refuse(set, arg->name.p, why);
}

static enum flag_result take_row(const struct flag_set *set, const struct flag *f,
	const char *value, void *out, struct flag_values *v)
{
	v->given[f - set->flags] = value;
	return flag_set_value(set, f, out, value, NULL) ? FLAG_RUN : FLAG_USAGE;
}

static enum flag_result take_own(
	const struct flag_set *set, char letter, const char *value, struct flag_values *v)
{
	switch (letter) {
	case 'V':
		printf("%s " KVSTEER_VERSION "\n", set->program);
		return FLAG_DONE;
	case 'h':
		print_help(set);
		return FLAG_DONE;
	case 'c':
		return take_file(set, value, v);
	case 't':
		v->test = true;
		return FLAG_RUN;
	default:
		v->print = true;
		return FLAG_RUN;
	}
}

/* The meaning of a flag of the command line: one of the two; else it is unknown. */
struct meant {
	const struct flag *row;
	const struct own_flag *own;
};

static bool is_own_of(const struct flag_set *set, const struct own_flag *o)
{
	return !o->of_files || set->section != NULL;
}

static struct meant find_letter(const struct flag_set *set, char letter)
{
	for (size_t i = 0; i < ARRAY_LEN(own_flags); i++)
		if (own_flags[i].letter == letter && is_own_of(set, &own_flags[i]))
			return (struct meant){NULL, &own_flags[i]};
	return (struct meant){NULL, NULL};
}

/* A name may be cut short as long as one flag alone begins like that. */
static struct meant find_long(const struct flag_set *set, struct span name)
{
	struct meant found = {NULL, NULL};
	unsigned n = 0;

	for (size_t i = 0; i < set->n; i++) {
		const struct flag *f = &set->flags[i];

		if (span_is(name, f->name))
			return (struct meant){f, NULL};
		if (strncmp(f->name, name.p, name.n) == 0 && ++n == 1)
			found.row = f;
	}
	for (size_t i = 0; i < ARRAY_LEN(own_flags); i++) {
		const struct own_flag *o = &own_flags[i];

		if (is_own_of(set, o) && span_is(name, o->name))
			return (struct meant){NULL, o};
		if (is_own_of(set, o) && strncmp(o->name, name.p, name.n) == 0 &&
			++n == 1)
			found.own = o;
	}
	return n == 1 ? found : (struct meant){NULL, NULL};
}

static enum flag_result take_flag(const struct flag_set *set, struct args *args,
	const struct arg *arg, void *out, struct flag_values *v)
{
	struct meant meant =
		arg->kind == ARG_LETTER
			? find_letter(set, arg->letter)
			: find_long(set, span_make(arg->name.p + 2, arg->name.n - 2));
	const char *takes, *value;

	if (meant.row == NULL && meant.own == NULL)
		return refuse_unknown(set, arg);
	takes = meant.row != NULL ? meant.row->arg : meant.own->arg;
	value = takes != NULL ? args_value(args, arg) : "on";
	if (value == NULL)
		return refuse(set, arg->name.p, " requires an argument");
	if (takes == NULL && arg->kind == ARG_LONG && arg->attached != NULL)
		return refuse(set, arg->name.p, ": it takes no argument");
	if (meant.row != NULL)
		return take_row(set, meant.row, value, out, v);
	return take_own(set, meant.own->letter, value, v);
}

enum flag_result flag_parse(const struct flag_set *set, int argc, char **argv, void *out,
	struct flag_values *v)
{
	enum flag_result result = FLAG_RUN;
	const char *stray = NULL;
	struct args args;
	struct arg arg;

	v->given = xcalloc(set->n, sizeof(*v->given));
	v->filed = xcalloc(set->n, sizeof(*v->filed));
	set_defaults(set, out);
	args_begin(&args, argc, argv);
	while (result == FLAG_RUN && args_next(&args, &arg)) {
		if (arg.kind != ARG_WORD)
			result = take_flag(set, &args, &arg, out, v);
		else if (stray == NULL)
			stray = arg.name.p;
	}
	if (result == FLAG_RUN && stray != NULL)
		result = refuse(set, stray, ": no such argument");
	if (result == FLAG_USAGE)
		(void)fprintf(stderr, "%s --help lists the flags\n", set->program);
	return result;
}

void flag_values_free(const struct flag_set *set, struct flag_values *v)
{
	for (size_t i = 0; v->filed != NULL && i < set->n; i++)
		free(v->filed[i]);
	free(v->filed);
	free(v->given);
	*v = (struct flag_values){0};
}
