/*
 * Flags by a table: getopt_long over its rows, readers of values, defaults and -h.
 * Nothing is kept between calls. Called by engine_flags.c and bench/flags.c, once each.
 */
#include "base/flag.h"
#include "base/conf_lex.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/word.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>

enum { OPTION_ROW = 256, OPTIONS_BESIDE = 5, HELP_COLUMN = 30 };

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
	struct span wanted = flag_spelling(name, room, sizeof(room));
	const struct flag *best = NULL;
	unsigned least = 0;

	for (size_t i = 0; i < set->n; i++) {
		struct span other = span_str(set->flags[i].name);
		unsigned distance = word_distance(wanted, other);

		if (!word_is_near(wanted, other, distance) ||
			(best != NULL && distance >= least))
			continue;
		best = &set->flags[i];
		least = distance;
	}
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

static void print_help(const struct flag_set *set)
{
	char left[80];

	printf("usage: %s [flags]\n%s\n\n", set->program, set->about);
	if (set->section != NULL) {
		print_row("-c, --config FILE",
			"read a file first; again: another over it", NULL);
		print_row("-t, --test", "test all that, and exit", NULL);
		print_row("-T, --print", "print what holds, as a file, and exit", NULL);
	}
	for (size_t i = 0; i < set->n; i++) {
		const struct flag *f = &set->flags[i];

		(void)snprintf(left, sizeof(left), "--%s%s%s", f->name,
			f->arg != NULL ? " " : "", f->arg != NULL ? f->arg : "");
		print_row(left, f->help, f->deflt);
	}
	print_row("-V, --version", "print the version", NULL);
	print_row("-h, --help", "print this", NULL);
}

/* What getopt_long looks up: the rows in their order, then what every program has. */
static struct option *options_of(const struct flag_set *set)
{
	struct option *options = xcalloc(set->n + OPTIONS_BESIDE + 1, sizeof(*options));
	struct option *o = options;

	for (size_t i = 0; i < set->n; i++)
		*o++ = (struct option){set->flags[i].name,
			set->flags[i].arg != NULL ? required_argument : no_argument, NULL,
			OPTION_ROW};
	*o++ = (struct option){"version", no_argument, NULL, 'V'};
	*o++ = (struct option){"help", no_argument, NULL, 'h'};
	if (set->section != NULL) {
		*o++ = (struct option){"config", required_argument, NULL, 'c'};
		*o++ = (struct option){"test", no_argument, NULL, 't'};
		*o++ = (struct option){"print", no_argument, NULL, 'T'};
	}
	return options;
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

/* c is what getopt_long cannot make sense of; word is the argument that it looked at. */
static enum flag_result refuse(const struct flag_set *set, int c, const char *word)
{
	bool is_long = strncmp(word, "--", 2) == 0;
	const struct flag *near = is_long ? flag_nearest(set, word + 2) : NULL;

	if (c == ':')
		(void)fprintf(
			stderr, "%s: %s requires an argument\n", set->program, word);
	else if (is_long && optopt != 0)
		(void)fprintf(
			stderr, "%s: %s: it takes no argument\n", set->program, word);
	else if (near != NULL)
		(void)fprintf(stderr, "%s: %s: no such flag; did you mean --%s?\n",
			set->program, word, near->name);
	else
		(void)fprintf(stderr, "%s: %s: no such flag\n", set->program, word);
	return FLAG_USAGE;
}

/* Does what one option says; i is its place where it is a row. */
static enum flag_result take_option(const struct flag_set *set, int c, int i, char **argv,
	void *out, struct flag_values *v)
{
	switch (c) {
	case OPTION_ROW:
		v->given[i] = set->flags[i].arg != NULL ? optarg : "on";
		return flag_set_value(set, &set->flags[i], out, v->given[i], NULL)
			       ? FLAG_RUN
			       : FLAG_USAGE;
	case 'V':
		printf("%s " KVSTEER_VERSION "\n", set->program);
		return FLAG_DONE;
	case 'h':
		print_help(set);
		return FLAG_DONE;
	case 'c':
		return take_file(set, optarg, v);
	case 't':
		v->test = true;
		return FLAG_RUN;
	case 'T':
		v->print = true;
		return FLAG_RUN;
	default:
		return refuse(set, c, argv[optind - 1]);
	}
}

enum flag_result flag_parse(const struct flag_set *set, int argc, char **argv, void *out,
	struct flag_values *v)
{
	const char *letters = set->section != NULL ? ":c:tTVh" : ":Vh";
	struct option *options = options_of(set);
	enum flag_result result = FLAG_RUN;
	int c, i = 0;

	v->given = xcalloc(set->n, sizeof(*v->given));
	v->filed = xcalloc(set->n, sizeof(*v->filed));
	set_defaults(set, out);
	optind = 0;
	while (result == FLAG_RUN &&
		(c = getopt_long(argc, argv, letters, options, &i)) != -1)
		result = take_option(set, c, i, argv, out, v);
	if (result == FLAG_RUN && optind < argc) {
		(void)fprintf(
			stderr, "%s: %s: no such argument\n", set->program, argv[optind]);
		result = FLAG_USAGE;
	}
	if (result == FLAG_USAGE)
		(void)fprintf(stderr, "%s --help lists the flags\n", set->program);
	free(options);
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
