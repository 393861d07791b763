/*
 * base/flag: readers and their ranges, the command line, files under it, and what is said
 * about faults. A program of ten flags stands for the real ones.
 */
#include "base/err.h"
#include "base/flag.h"
#include "tests/unit/unit.h"

#include <string.h>

struct settings {
	const char *name;
	uint16_t port;
	unsigned seqs;
	uint64_t count, wait_ms, never_ms;
	double rate;
	bool is_quiet;
	unsigned color;
	const char *alias;
};

#define FIELD(f) offsetof(struct settings, f)

/* clang-format off */
static const struct flag rows[] = {
	{ "name", "NAME", flag_text, FIELD(name), 0, 0, "sim", "a name" },
	{ "port", "N", flag_u16, FIELD(port), 0, 65535, "8000", "a port" },
	{ "max-num-seqs", "N", flag_u32, FIELD(seqs), 1, 1000, "256", "how many" },
	{ "count", "N", flag_u64, FIELD(count), 5, 1e15, "7", "a large one" },
	{ "wait", "TIME", flag_time, FIELD(wait_ms), 0, 0, "30s", "a time" },
	{ "span", "TIME", flag_time, FIELD(never_ms), 1, 0, "1ms", "a time above 0" },
	{ "rate", "R", flag_real, FIELD(rate), 0.5, 1e6, "1", "a real number" },
	{ "quiet", NULL, flag_on, FIELD(is_quiet), 0, 0, NULL, "a switch" },
	{ "color", "red|green|blue", flag_choice, FIELD(color), 0, 0, "green", "a choice" },
	{ "alias", "NAME", flag_text, FIELD(alias), 0, 0, "(the name)", "another name" },
};
/* clang-format on */

static const struct flag_set with_file = {.program = "prog",
	.about = "It does.",
	.flags = rows,
	.n = ARRAY_LEN(rows),
	.section = "prog"};
static const struct flag_set without_file = {
	.program = "prog", .about = "It does.", .flags = rows, .n = ARRAY_LEN(rows)};

static struct settings got;
static struct flag_values values;
static char said[8192]; /* on stderr, then on stdout */

static void collect(FILE *file, char *out, size_t n)
{
	size_t used;

	rewind(file);
	used = fread(out, 1, n - 1, file);
	out[used] = '\0';
	(void)fclose(file);
}

/* Runs with words as argv; what is printed goes to said. */
static enum flag_result run_set(const struct flag_set *set, const char *const *words)
{
	char *argv[64] = {"prog"};
	enum flag_result result;
	int argc = 1, old_err, old_out;
	FILE *file = tmpfile();

	ck_assert_ptr_nonnull(file);
	for (; words[argc - 1] != NULL; argc++)
		argv[argc] = (char *)words[argc - 1];
	flag_values_free(set, &values);
	got = (struct settings){0};
	(void)fflush(stdout);
	old_err = dup(STDERR_FILENO);
	old_out = dup(STDOUT_FILENO);
	ck_assert_int_ge(dup2(fileno(file), STDERR_FILENO), 0);
	ck_assert_int_ge(dup2(fileno(file), STDOUT_FILENO), 0);
	result = flag_parse(set, argc, argv, &got, &values);
	if (result == FLAG_RUN && flag_read_files(set, &got, &values) != 0)
		result = FLAG_USAGE;
	(void)fflush(stdout);
	ck_assert_int_ge(dup2(old_err, STDERR_FILENO), 0);
	ck_assert_int_ge(dup2(old_out, STDOUT_FILENO), 0);
	close(old_err);
	close(old_out);
	collect(file, said, sizeof(said));
	return result;
}

#define run(...) run_set(&with_file, (const char *const[]){__VA_ARGS__, NULL})
#define says(part) \
	ck_assert_msg(strstr(said, part) != NULL, "'%s' lacks '%s'", said, part)

/* A file of that text; its name is overwritten by the next but one. */
static const char *file_of(const char *text)
{
	static char names[2][64];
	static unsigned turn;
	char *name = names[turn++ % 2];
	FILE *file;

	(void)snprintf(
		name, sizeof(names[0]), "/tmp/check_flag.%d.%u", (int)getpid(), turn % 2);
	file = fopen(name, "w");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_ge(fputs(text, file), 0);
	ck_assert_int_eq(fclose(file), 0);
	return name;
}

static void remove_files(void)
{
	char name[64];

	for (unsigned i = 0; i < 2; i++) {
		(void)snprintf(
			name, sizeof(name), "/tmp/check_flag.%d.%u", (int)getpid(), i);
		(void)unlink(name);
	}
	flag_values_free(&with_file, &values);
}

START_TEST(defaults)
{
	ck_assert_int_eq(run(NULL), FLAG_RUN);
	ck_assert_str_eq(got.name, "sim");
	ck_assert_uint_eq(got.port, 8000);
	ck_assert_uint_eq(got.seqs, 256);
	ck_assert_uint_eq(got.count, 7);
	ck_assert_uint_eq(got.wait_ms, 30000);
	ck_assert_uint_eq(got.never_ms, 1);
	ck_assert(got.rate == 1);
	ck_assert(!got.is_quiet);
	ck_assert_uint_eq(got.color, 1);
	ck_assert_ptr_null(got.alias);
	ck_assert_str_eq(said, "");
}
END_TEST

START_TEST(every_reader)
{
	ck_assert_int_eq(
		run("--name", "x y", "--port=0", "--max-num-seqs", "1000", "--count",
			"1000000000000000", "--wait", "0", "--span", "2h", "--rate",
			"0.5", "--quiet", "--color", "blue", "--alias", "-"),
		FLAG_RUN);
	ck_assert_str_eq(got.name, "x y");
	ck_assert_uint_eq(got.port, 0);
	ck_assert_uint_eq(got.seqs, 1000);
	ck_assert_uint_eq(got.count, 1000000000000000);
	ck_assert_uint_eq(got.wait_ms, 0);
	ck_assert_uint_eq(got.never_ms, 7200000);
	ck_assert(got.rate == 0.5);
	ck_assert(got.is_quiet);
	ck_assert_uint_eq(got.color, 2);
	ck_assert_str_eq(got.alias, "-");
	ck_assert_ptr_nonnull(values.given[0]);
	ck_assert_int_eq(run("--port", "1", "--port", "2"), FLAG_RUN);
	ck_assert_uint_eq(got.port, 2);
	ck_assert_ptr_null(values.given[0]);
}
END_TEST

START_TEST(faulty_values)
{
	static const struct {
		const char *flag, *value, *says;
	} cases[] = {
		{"--name", "", "--name '': it must not be empty"},
		{"--name", "a\nb", "without control characters"},
		{"--port", "65536",
			"--port 65536: a whole number from 0 to 65535 is expected"},
		{"--port", "", "--port '': a whole number"},
		{"--port", "+1", "a whole number"},
		{"--port", "1 ", "a whole number"},
		{"--port", "0x10", "a whole number"},
		{"--max-num-seqs", "0", "from 1 to 1000"},
		{"--max-num-seqs", "4294967297", "from 1 to 1000"},
		{"--count", "4", "from 5 to 1000000000000000"},
		{"--count", "18446744073709551616", "from 5 to"},
		{"--wait", "5", "with a unit"},
		{"--wait", "5d", "with a unit"},
		{"--wait", "99999999999999999999h", "a shorter time is expected"},
		{"--span", "0", "a time above 0"},
		{"--rate", "0.4", "a number from 0.5 to 1000000 is expected"},
		{"--rate", "nan", "a number from"},
		{"--rate", "inf", "a number from"},
		{"--rate", "1e999", "a number from"},
		{"--rate", "2x", "a number from"},
		{"--rate", "", "a number from"},
		{"--color", "gree", "red|green|blue is expected"},
		{"--color", "red|green", "red|green|blue is expected"},
		{"--color", "", "red|green|blue is expected"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		ck_assert_int_eq(run(cases[i].flag, cases[i].value), FLAG_USAGE);
		says(cases[i].says);
		says("prog --help lists the flags\n");
	}
}
END_TEST

START_TEST(faulty_lines)
{
	static const struct {
		const char *first, *second, *says;
	} cases[] = {
		{"--prot", "1", "prog: --prot: no such flag; did you mean --port?\n"},
		{"--max_num_seqs", "1", "did you mean --max-num-seqs?"},
		{"--wholly-other", NULL, "prog: --wholly-other: no such flag\n"},
		{"--port", NULL, "prog: --port requires an argument\n"},
		{"--quiet=yes", NULL, "prog: --quiet=yes: it takes no argument\n"},
		{"--help=1", NULL, "prog: --help=1: it takes no argument\n"},
		{"-x", NULL, "prog: -x: no such flag\n"},
		{"-tx", NULL, "prog: -x: no such flag\n"},
		{"-c", NULL, "prog: -c requires an argument\n"},
		{"-tc", NULL, "prog: -c requires an argument\n"},
		{"--co", "1", "prog: --co: no such flag"},
		{"word", NULL, "prog: word: no such argument\n"},
		{"--", "word", "prog: word: no such argument\n"},
		{"--quiet", "yes", "prog: yes: no such argument\n"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		ck_assert_int_eq(run(cases[i].first, cases[i].second), FLAG_USAGE);
		says(cases[i].says);
	}
	for (size_t i = 0; i < 3; i++) {
		const char *const words[] = {i == 0   ? "-t"
					     : i == 1 ? "-T"
						      : "--config",
			NULL};

		ck_assert_int_eq(run_set(&without_file, words), FLAG_USAGE);
		says("no such flag");
	}
}
END_TEST

START_TEST(help_and_version)
{
	ck_assert_int_eq(run("--help"), FLAG_DONE);
	says("usage: prog [flags]\nIt does.\n");
	says("  --max-num-seqs N              how many (256)\n");
	says("  --quiet                       a switch\n");
	says("  --alias NAME                  another name (the name)\n");
	says("  -c, --config FILE");
	ck_assert_int_eq(run("-V"), FLAG_DONE);
	says("prog " KVSTEER_VERSION "\n");
	ck_assert_int_eq(
		run_set(&without_file, (const char *const[]){"-h", NULL}), FLAG_DONE);
	ck_assert_ptr_null(strstr(said, "--config"));
}
END_TEST

START_TEST(files_lie_between)
{
	const char *under = file_of("# a comment\n[prog]\nport = 1\nmax_num_seqs = 2\n"
				    "name = \"a \\\"b\"\nquiet = on\n");
	const char *over = file_of("[prog]\nmax_num_seqs = 3\nrate = 4\n");

	ck_assert_int_eq(run("--rate", "5", "-c", under, "-c", over), FLAG_RUN);
	ck_assert_uint_eq(got.port, 1);
	ck_assert_uint_eq(got.seqs, 3);
	ck_assert_str_eq(got.name, "a \"b");
	ck_assert(got.rate == 5);
	ck_assert(got.is_quiet);
	ck_assert_int_eq(run("-c", under), FLAG_RUN);
	ck_assert_uint_eq(got.seqs, 2);
	ck_assert_int_eq(run("-c", "/dev/null", "-t", "-T"), FLAG_RUN);
	ck_assert(values.test && values.print);
	ck_assert_int_eq(run("-tTc", under, "--max-n", "9"), FLAG_RUN);
	ck_assert(values.test && values.print);
	ck_assert_uint_eq(got.port, 1);
	ck_assert_uint_eq(got.seqs, 9);
	remove_files();
}
END_TEST

START_TEST(faulty_files)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"[prog]\nprot = 1\n", ":2: prot: no such key; did you mean port?\n"},
		{"[prog]\nsomething_else = 1\n",
			":2: something_else: no such key; prog --help"},
		{"[prog]\nmax-num-seqs = 1\n", ":2: bad character in the key"},
		{"[prog]\n\nport = 99999\n", ":3: port = 99999: a whole number from 0"},
		{"[prog]\nmax_num_seqs = 0\n",
			":2: max_num_seqs = 0: a whole number from 1"},
		{"[prog]\nport = 1\nport = 1\n", ":3: port: line 2 gives it already"},
		{"[prog]\n[prog]\n", ":2: [prog]: it began in line 1 already"},
		{"[router]\nport = 1\n",
			":1: [router]: no such section; [prog] is the only one"},
		{"port = 1\n", ":1: key before any section; write [prog]\n"},
		{"[prog\n", ":1: section without its closing bracket; write [prog]\n"},
		{"[prog]\nquiet = maybe\n", ":2: quiet = maybe: on or off is expected\n"},
		{"[prog]\nname =\n", ":2: name = : it must not be empty\n"},
		{"[prog]\nname = \xff\n", ":2: invalid UTF-8"},
		{"[prog]\nname\n", ":2: neither a section nor key = value"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		ck_assert_int_eq(run("-c", file_of(cases[i].text)), FLAG_USAGE);
		says(cases[i].says);
	}
	ck_assert_int_eq(run("-c", file_of("[prog]\na = 1\nport = x\n")), FLAG_USAGE);
	says(":2: a: no such key");
	says(":3: port = x");
	ck_assert_int_eq(run("-c", "/nonexistent"), FLAG_USAGE);
	says("prog: /nonexistent: cannot be read: No such file or directory\n");
	ck_assert_int_eq(run("-c", "/"), FLAG_USAGE);
	says("prog: /: cannot be read: Is a directory\n");
	remove_files();
}
END_TEST

START_TEST(too_many_files)
{
	const char *words[2 * FLAG_FILES_MAX + 3] = {NULL};

	for (size_t i = 0; i < 2 * FLAG_FILES_MAX; i += 2) {
		words[i] = "-c";
		words[i + 1] = "/dev/null";
	}
	ck_assert_int_eq(run_set(&with_file, words), FLAG_RUN);
	words[2 * FLAG_FILES_MAX] = "-c";
	words[2 * FLAG_FILES_MAX + 1] = "/dev/null";
	ck_assert_int_eq(run_set(&with_file, words), FLAG_USAGE);
	says("at most 16 files");
	flag_values_free(&with_file, &values);
}
END_TEST

/* What is printed says the same when it is read. */
START_TEST(print_is_read_back)
{
	char text[2][2048];

	for (int i = 0; i < 2; i++) {
		enum flag_result result =
			i == 0 ? run("--name", " \"a\\b ", "--wait", "5s", "--quiet")
			       : run("-c", file_of(text[0]));
		FILE *file = tmpfile();

		ck_assert_int_eq(result, FLAG_RUN);
		ck_assert_str_eq(got.name, " \"a\\b ");
		ck_assert_uint_eq(got.wait_ms, 5000);
		ck_assert(got.is_quiet);
		flag_print(&with_file, &values, file);
		collect(file, text[i], sizeof(text[i]));
	}
	ck_assert_str_eq(text[0], text[1]);
	ck_assert_ptr_nonnull(
		strstr(text[0], "[prog]\nname = \" \\\"a\\\\b \"\nport = 8000\n"));
	ck_assert_ptr_nonnull(strstr(text[0], "\n# alias = (the name)\n"));
	remove_files();
}
END_TEST

START_TEST(names)
{
	char key[64];

	ck_assert_ptr_eq(flag_find(&with_file, "max_num_seqs"), &rows[2]);
	ck_assert_ptr_eq(flag_find(&with_file, "max-num-seqs"), &rows[2]);
	ck_assert_ptr_null(flag_find(&with_file, "max-num-seq"));
	ck_assert_ptr_eq(flag_nearest(&with_file, "max-num-seq"), &rows[2]);
	ck_assert_ptr_null(flag_nearest(&with_file, ""));
	ck_assert_str_eq(flag_key(&rows[2], key, sizeof(key)), "max_num_seqs");
	ck_assert_ptr_null(flag_default(&rows[9]));
	ck_assert_ptr_null(flag_default(&rows[7]));
	ck_assert_str_eq(flag_default(&rows[1]), "8000");
}
END_TEST

static Suite *flag_suite(void)
{
	Suite *suite = suite_create("flag");
	TCase *tc = tcase_create("flag");

	tcase_add_test(tc, defaults);
	tcase_add_test(tc, every_reader);
	tcase_add_test(tc, faulty_values);
	tcase_add_test(tc, faulty_lines);
	tcase_add_test(tc, help_and_version);
	tcase_add_test(tc, files_lie_between);
	tcase_add_test(tc, faulty_files);
	tcase_add_test(tc, too_many_files);
	tcase_add_test(tc, print_is_read_back);
	tcase_add_test(tc, names);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(flag_suite())
