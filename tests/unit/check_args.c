/*
 * base/args: argv as getopt's users write it, told flag by flag.
 */
#include "base/args.h"
#include "tests/unit/unit.h"

#include <stdio.h>
#include <string.h>

/* Flags with a value: -c, -n, --config. All others are switches. */
static bool takes_value(const struct arg *arg)
{
	return arg->letter == 'c' || arg->letter == 'n' ||
	       (arg->kind == ARG_LONG && span_is(arg->name, "--config"));
}

/* "t c=FILE word" of an argv. */
static const char *told(char **argv)
{
	static char text[256];
	struct args args;
	struct arg arg;
	size_t n = 0;
	int argc = 0;

	while (argv[argc] != NULL)
		argc++;
	text[0] = '\0';
	args_begin(&args, argc, argv);
	while (args_next(&args, &arg)) {
		const char *value = takes_value(&arg) ? args_value(&args, &arg) : NULL;

		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s" SPAN_FMT,
			n > 0 ? " " : "", SPAN_ARG(arg.name));
		if (takes_value(&arg))
			n += (size_t)snprintf(text + n, sizeof(text) - n, "=%s",
				value != NULL ? value : "(none)");
		if (arg.letter == 'x')
			args_drop_letters(&args);
	}
	return text;
}

#define tells(wanted, ...) \
	ck_assert_str_eq(told((char *[]){"program", __VA_ARGS__, NULL}), wanted)

START_TEST(letters_alone_and_together)
{
	tells("-t -T", "-t", "-T");
	tells("-t -T", "-tT");
	tells("-t -T -c=FILE word", "-tTc", "FILE", "word");
	tells("-t -c=FILE", "-tcFILE");
	tells("-c=FILE -t", "-cFILE", "-t");
	tells("-c=-t", "-c", "-t");
	tells("-b -n=1 top", "-bn1", "top");
	tells("-t -c=(none)", "-tc");
}
END_TEST

START_TEST(what_follows_an_unknown_letter_is_not_read)
{
	tells("-t -x -T", "-txsecret", "-T");
	tells("-x", "-x");
}
END_TEST

START_TEST(long_flags)
{
	tells("--config=FILE --test", "--config", "FILE", "--test");
	tells("--config=FILE", "--config=FILE");
	tells("--config= word", "--config=", "word");
	tells("--config=a=b", "--config=a=b");
	tells("--test", "--test=yes");
	tells("--config=(none)", "--config");
}
END_TEST

START_TEST(words)
{
	tells("a - b", "a", "-", "b");
	tells("-t -T --x", "-t", "--", "-T", "--x");
	tells("", "--");
	tells("--", "--", "--");
	ck_assert_str_eq(told((char *[]){"program", NULL}), "");
}
END_TEST

static Suite *args_suite(void)
{
	Suite *suite = suite_create("args");
	TCase *tc = tcase_create("args");

	tcase_add_test(tc, letters_alone_and_together);
	tcase_add_test(tc, what_follows_an_unknown_letter_is_not_read);
	tcase_add_test(tc, long_flags);
	tcase_add_test(tc, words);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(args_suite())
