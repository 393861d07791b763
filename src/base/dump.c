/*
 * The rows of --dump-tables. See dump.h. Called by the mains of the four programs, each
 * for its own tables.
 */
#include "base/dump.h"
#include "base/flag.h"
#include "base/metric.h"

#include <stdio.h>
#include <string.h>

#define TYPE_LINE SPAN_LIT("# TYPE ")
/* The labels of a family that the scrape has no line of: no manual says that. */
#define UNSEEN "?"

bool dump_is_asked(int argc, char **argv)
{
	return argc == 2 && strcmp(argv[1], "--dump-tables") == 0;
}

void dump_fields(const char *const *fields, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf("%s%s", i > 0 ? "\t" : "", fields[i] != NULL ? fields[i] : "none");
	printf("\n");
}

void dump_flags(const struct flag_set *set)
{
	char key[64];

	for (size_t i = 0; i < set->n; i++) {
		const struct flag *f = &set->flags[i];
		const char *type = flag_type(set, f), *deflt = flag_default(f);

		dump_row("flag", f->name, type, deflt);
		if (set->section != NULL)
			dump_row("key", set->section, flag_key(f, key, sizeof(key)), type,
				deflt, "restart");
	}
}

/* The names in {a="1",b="2"}, as "a,b". Values that a program prints of itself hold no
 * comma, quote or brace. */
static void read_labels(struct span braces, char *out, size_t n)
{
	struct span label, name;
	size_t used = 0;

	out[0] = '\0';
	while (span_next(&braces, ',', &label)) {
		bool has_value = span_next(&label, '=', &name);

		if (!has_value || span_is(name, "le"))
			continue;
		used += (size_t)snprintf(out + used, n - used, "%s" SPAN_FMT,
			used > 0 ? "," : "", SPAN_ARG(name));
	}
}

/* The text between the braces of a sample; empty if it has none. */
static struct span braces_of(struct span line)
{
	const char *open = memchr(line.p, '{', line.n);
	const char *close =
		open != NULL ? memchr(open, '}', line.n - (size_t)(open - line.p)) : NULL;

	return close != NULL ? span_make(open + 1, (size_t)(close - open) - 1)
			     : span_make("", 0);
}

struct family {
	char name[128], type[32], labels[128];
};

static void family_begin(struct family *f, struct span line)
{
	struct span word;

	line = span_make(line.p + TYPE_LINE.n, line.n - TYPE_LINE.n);
	(void)span_next(&line, ' ', &word);
	snprintf(f->name, sizeof(f->name), SPAN_FMT, SPAN_ARG(word));
	snprintf(f->type, sizeof(f->type), SPAN_FMT, SPAN_ARG(line));
	snprintf(f->labels, sizeof(f->labels), "%s", UNSEEN);
}

static void family_end(const struct family *f)
{
	if (f->name[0] != '\0')
		dump_row("metric", f->name, f->type,
			f->labels[0] != '\0' ? f->labels : NULL);
}

void dump_metrics(const struct text *scrape)
{
	struct span rest = span_make(scrape->p, scrape->n), line;
	struct family f = {"", "", ""};

	while (span_next(&rest, '\n', &line)) {
		if (span_starts(line, TYPE_LINE)) {
			family_end(&f);
			family_begin(&f, line);
		} else if (strcmp(f.labels, UNSEEN) == 0 && line.n > 0 &&
			   line.p[0] != '#') {
			read_labels(braces_of(line), f.labels, sizeof(f.labels));
		}
	}
	family_end(&f);
}

void dump_signal(int signo)
{
	char name[32];

	snprintf(name, sizeof(name), "SIG%s", sigabbrev_np(signo));
	dump_row("signal", name);
}

void dump_exits(int last)
{
	char number[16];

	for (int i = 0; i <= last; i++) {
		snprintf(number, sizeof(number), "%d", i);
		dump_row("exit", number);
	}
}

void dump_failures(void)
{
	char status[16];

	for (int i = FAIL_NONE + 1; i < FAIL_MAX; i++) {
		snprintf(status, sizeof(status), "%d", fail_status((enum fail)i));
		dump_row("failure", fail_code((enum fail)i), status);
	}
}
