/*
 * Where the values of [router] stand, for faults that show only when they are used; and
 * what is in a configuration's place without being one.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_flags.h"
#include "unit.h"

#include <string.h>
#include <sys/stat.h>

#define W "[worker a]\nurl = http://h:1\n"

static char folder[64];
static char main_file[96], conf_d[96], second_file[128];
static struct conf_errors errors;
static struct conf *conf;

static void write_text(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

static void set_up(void)
{
	snprintf(folder, sizeof(folder), "/tmp/check_conf_place.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(main_file, sizeof(main_file), "%s/kvsteer.conf", folder);
	snprintf(conf_d, sizeof(conf_d), "%s/conf.d", folder);
	snprintf(second_file, sizeof(second_file), "%s/a.conf", conf_d);
	errors = (struct conf_errors){0};
	conf = NULL;
}

static void tear_down(void)
{
	conf_unref(conf);
	conf_errors_free(&errors);
	unlink(second_file);
	if (rmdir(conf_d) != 0)
		unlink(conf_d);
	unlink(main_file);
	ck_assert_int_eq(rmdir(folder), 0);
}

/* That key, with that item, stands in that file's line; NULL and 0: nowhere. */
static void stands(const char *key, const char *item, const char *file, unsigned line)
{
	unsigned got = 7;
	const char *at = conf_place(conf, key, item, &got);

	if (file == NULL)
		ck_assert_ptr_null(at);
	else
		ck_assert_pstr_eq(at, file);
	ck_assert_uint_eq(got, line);
}

static void write_both(void)
{
	ck_assert_int_eq(mkdir(conf_d, 0700), 0);
	write_text(second_file, "[router]\n\nadmin_socket = /b\n");
	write_text(main_file, "[router]\nadmin_socket = /a\nlisten = :1 :2\n\n"
			      "listen = :3\nhash_secret = s\n" W);
}

START_TEST(every_item_of_a_list_has_its_line)
{
	write_both();
	ck_assert_int_eq(conf_load(main_file, NULL, &errors, &conf), 0);
	stands("admin_socket", "/b", second_file, 3);
	stands("listen", ":2", main_file, 3);
	stands("listen", ":3", main_file, 5);
	stands("listen", NULL, main_file, 3);
	stands("listen", ":5", NULL, 0);
	stands("metrics_listen", NULL, NULL, 0);
	/* a secret is no more than its line */
	stands("hash_secret", "x", main_file, 6);
}
END_TEST

START_TEST(what_a_flag_gives_stands_in_no_file)
{
	char *argv[] = {(char *)"kvsteerd", (char *)"--listen", (char *)":2", NULL};
	struct conf_flags flags = {0};

	write_both();
	ck_assert_int_eq(conf_flags_parse(3, argv, &errors, &flags), 0);
	ck_assert_int_eq(conf_load(main_file, &flags, &errors, &conf), 0);
	stands("listen", ":2", NULL, 0);
	stands("admin_socket", NULL, second_file, 3);
	conf_flags_free(&flags);
}
END_TEST

static void refuses(const char *file, const char *message, const char *hint)
{
	ck_assert_int_eq(conf_load(main_file, NULL, &errors, &conf), ERR_PARSE);
	ck_assert_uint_ge(errors.n_errors, 1);
	ck_assert_str_eq(errors.items[0].file, file);
	ck_assert_msg(strstr(errors.items[0].message, message) != NULL, "%s",
		errors.items[0].message);
	ck_assert_msg(
		strstr(errors.items[0].hint, hint) != NULL, "%s", errors.items[0].hint);
}

/* Without a word, nobody would ever see what is below it. */
START_TEST(a_file_in_place_of_conf_d_is_refused)
{
	write_text(main_file, W);
	write_text(conf_d, "");
	refuses(conf_d, "Not a directory", "make it a folder");
}
END_TEST

/* Reading it would wait for its other end: a reload would hang, and all with it. */
START_TEST(a_pipe_is_refused_at_once)
{
	ck_assert_int_eq(mkfifo(main_file, 0600), 0);
	refuses(main_file, "is not a file", "a reload");
}
END_TEST

static Suite *conf_place_suite(void)
{
	Suite *suite = suite_create("conf_place");
	TCase *all = tcase_create("all");

	tcase_add_checked_fixture(all, set_up, tear_down);
	tcase_add_test(all, every_item_of_a_list_has_its_line);
	tcase_add_test(all, what_a_flag_gives_stands_in_no_file);
	tcase_add_test(all, a_file_in_place_of_conf_d_is_refused);
	tcase_add_test(all, a_pipe_is_refused_at_once);
	suite_add_tcase(suite, all);
	return suite;
}

UNIT_MAIN(conf_place_suite())
