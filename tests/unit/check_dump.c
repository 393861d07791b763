/*
 * Rows of --dump-tables: fields, the families of a scrape, and what asks for them. That
 * the programs' rows are those of their manuals is tests/lint's to say.
 */
#include "base/dump.h"
#include "base/metric.h"
#include "tests/unit/unit.h"

#include <signal.h>
#include <string.h>

static char said[4096];
static FILE *file;
static int old_out;

static void set_up(void)
{
	file = tmpfile();
	ck_assert_ptr_nonnull(file);
	(void)fflush(stdout);
	old_out = dup(STDOUT_FILENO);
	ck_assert_int_ge(dup2(fileno(file), STDOUT_FILENO), 0);
}

/* What was printed since set_up(), which it ends. */
static const char *printed(void)
{
	size_t n;

	(void)fflush(stdout);
	ck_assert_int_ge(dup2(old_out, STDOUT_FILENO), 0);
	close(old_out);
	rewind(file);
	n = fread(said, 1, sizeof(said) - 1, file);
	said[n] = '\0';
	(void)fclose(file);
	return said;
}

START_TEST(a_field_that_is_not_set_is_none)
{
	dump_row("key", "pool", NULL, "x y");
	dump_row("exit", "0");
	dump_signal(SIGHUP);
	dump_exits(1);
	ck_assert_str_eq(printed(), "key\tpool\tnone\tx y\nexit\t0\nsignal\tSIGHUP\n"
				    "exit\t0\nexit\t1\n");
}
END_TEST

START_TEST(families_have_a_type_and_labels)
{
	struct text text = {0};

	metric_family(&text, "plain_total", "counter", "Without labels");
	text_printf(&text, "plain_total 1\n");
	metric_family(&text, "some", "gauge", "With labels, {not=these}");
	text_printf(&text, "some{worker=\"w\",state=\"up\"} 1\nsome{other=\"o\"} 0\n");
	metric_family(&text, "unseen", "gauge", "Without a line");
	metric_family(&text, "seconds", "histogram", "Buckets");
	text_printf(&text, "seconds_bucket{model=\"m\",le=\"1\"} 0\nseconds_sum 0\n");
	metric_family(&text, "last", "histogram", "Buckets alone");
	text_printf(&text, "last_bucket{le=\"1\"} 0\n");
	dump_metrics(&text);
	text_free(&text);
	ck_assert_str_eq(printed(), "metric\tplain_total\tcounter\tnone\n"
				    "metric\tsome\tgauge\tworker,state\n"
				    "metric\tunseen\tgauge\t?\n"
				    "metric\tseconds\thistogram\tmodel\n"
				    "metric\tlast\thistogram\tnone\n");
}
END_TEST

START_TEST(it_is_asked_for_alone)
{
	char *alone[] = {"p", "--dump-tables", NULL};
	char *more[] = {"p", "--dump-tables", "-t", NULL}, *none[] = {"p", NULL};

	(void)printed();
	ck_assert(dump_is_asked(2, alone));
	ck_assert(!dump_is_asked(3, more));
	ck_assert(!dump_is_asked(1, none));
}
END_TEST

static Suite *dump_suite(void)
{
	Suite *s = suite_create("dump");
	TCase *tc = tcase_create("dump");

	tcase_add_checked_fixture(tc, set_up, NULL);
	tcase_add_test(tc, a_field_that_is_not_set_is_none);
	tcase_add_test(tc, families_have_a_type_and_labels);
	tcase_add_test(tc, it_is_asked_for_alone);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(dump_suite())
