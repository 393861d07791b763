/*
 * Secrets that stand in a file or are a credential of the service manager.
 */
#include "base/cleanup.h"
#include "base/mem.h"
#include "conf/conf.h"
#include "conf/conf_flags.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define W "[worker a]\nurl = http://h:1\n"

static char folder[64], main_file[96], key_file[96];
static struct conf_errors errors;
static struct conf *conf;

static void write_text(const char *path, const char *text, size_t n, mode_t mode)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(text, 1, n, f), n);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(chmod(path, mode), 0);
}

static void write_key(const char *text, mode_t mode)
{
	write_text(key_file, text, strlen(text), mode);
}

static void set_up(void)
{
	snprintf(folder, sizeof(folder), "/tmp/check_conf_secret.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(main_file, sizeof(main_file), "%s/kvsteer.conf", folder);
	snprintf(key_file, sizeof(key_file), "%s/key", folder);
	errors = (struct conf_errors){0};
	conf = NULL;
	unsetenv("CREDENTIALS_DIRECTORY");
}

static void tear_down(void)
{
	conf_unref(conf);
	conf_errors_free(&errors);
	unlink(key_file);
	rmdir(key_file);
	unlink(main_file);
	rmdir(folder);
}

/* The whole file, but for %s, which is the key's file. */
static int load(const char *form, mode_t mode)
{
	char *text = mem_format("%.*s%s%s", (int)strcspn(form, "%"), form,
		strchr(form, '%') != NULL ? key_file : "",
		strchr(form, '%') != NULL ? strchr(form, '%') + 2 : "");

	ck_assert_ptr_nonnull(text);
	write_text(main_file, text, strlen(text), mode);
	free(text);
	return conf_load(main_file, NULL, &errors, &conf);
}

static void refused(const char *form, const char *message, const char *hint)
{
	ck_assert_int_ne(load(form, 0600), 0);
	ck_assert_uint_eq(errors.n_errors, 1);
	ck_assert_msg(strstr(errors.items[0].message, message) != NULL, "%s",
		errors.items[0].message);
	ck_assert_msg(
		strstr(errors.items[0].hint, hint) != NULL, "%s", errors.items[0].hint);
	ck_assert_ptr_null(errors.items[0].value);
}

static const char admin[] = "[router]\nadmin_key = file:%s\n" W;

START_TEST(a_file_has_the_secret_in_its_one_line)
{
	static const char *const texts[] = {"s3cret", "s3cret\n", "s3cret\r\n"};

	write_key(texts[_i], 0640);
	ck_assert_int_eq(load(admin, 0640), 0);
	ck_assert_str_eq(conf->router.admin_key, "s3cret");
	ck_assert_uint_eq(errors.n, 0);
}
END_TEST

START_TEST(workers_have_theirs_too)
{
	write_key("k1\n", 0600);
	ck_assert_int_eq(load(W "worker_key = file:%s\n", 0600), 0);
	ck_assert_str_eq(conf->workers[0].worker_key, "k1");
}
END_TEST

START_TEST(a_credential_is_a_file_of_the_service_manager)
{
	write_key("from systemd\n", 0600);
	setenv("CREDENTIALS_DIRECTORY", folder, 1);
	ck_assert_int_eq(load("[router]\nhash_secret = credential:key\n" W, 0644), 0);
	ck_assert_str_eq(conf->router.hash_secret, "from systemd");
	ck_assert_uint_eq(errors.n, 0);
}
END_TEST

static const struct {
	const char *form, *key, *message, *hint;
	mode_t mode;
} bad[] = {
	{admin, NULL, "cannot be read: No such file", "must be able to read", 0},
	{admin, "", "is empty", "write the secret", 0600},
	{admin, "\n", "is empty", "write the secret", 0600},
	{admin, "a\nb\n", "more than one line", "one line", 0600},
	{admin, "a b", "cannot be sent", "ASCII", 0600},
	{admin, "abc", "can be written by every user", "chmod o-rw", 0602},
	{"[router]\nadmin_key = file:key\n" W, "abc", "whole path", "file:/etc", 0600},
	{"[router]\nadmin_key = file:\n" W, "abc", "whole path", "file:/etc", 0600},
	{"[router]\nadmin_key = credential:key\n" W, "abc", "gave none", "LoadCredential",
		0600},
	{"[router]\nadmin_key = credential:a/b\n" W, "abc", "not the name",
		"LoadCredential", 0600},
	{"[router]\nadmin_key = credential:..\n" W, "abc", "not the name",
		"LoadCredential", 0600},
};

START_TEST(what_is_no_secret_is_refused)
{
	if (bad[_i].key != NULL)
		write_key(bad[_i].key, bad[_i].mode);
	refused(bad[_i].form, bad[_i].message, bad[_i].hint);
}
END_TEST

START_TEST(folders_and_big_files_are_refused)
{
	static char big[5000];

	ck_assert_int_eq(mkdir(key_file, 0700), 0);
	refused(admin, "not a regular file", "one line");
	rmdir(key_file);
	conf_errors_free(&errors);
	errors = (struct conf_errors){0};
	memset(big, 'x', sizeof(big));
	write_text(key_file, big, sizeof(big), 0600);
	refused(admin, "too large for a secret", "up to 4k");
}
END_TEST

START_TEST(files_that_all_may_read_are_warned_of)
{
	write_key("abc", 0644);
	ck_assert_int_eq(load(admin, 0644), 0);
	ck_assert_uint_eq(errors.n, 1);
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "the secret's file"));
	conf_unref(take_ptr(conf));
	conf_errors_free(&errors);
	errors = (struct conf_errors){0};
	ck_assert_int_eq(
		load("[router]\nadmin_key = abc\nhash_secret = none\n" W, 0644), 0);
	ck_assert_uint_eq(errors.n, 1);
	ck_assert_str_eq(errors.items[0].key, "admin_key");
	ck_assert_ptr_nonnull(strstr(errors.items[0].hint, "chmod o-r"));
}
END_TEST

START_TEST(a_file_with_a_secret_that_all_may_write_is_refused)
{
	ck_assert_int_ne(load("[router]\nadmin_key = abc\n" W, 0646), 0);
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "every user may write"));
	conf_errors_free(&errors);
	errors = (struct conf_errors){0};
	ck_assert_int_eq(load(W, 0646), 0); /* without one it is the operator's affair */
}
END_TEST

/* Who may add a worker may not have the daemon's files sent to it. */
START_TEST(the_admin_api_reads_no_files)
{
	struct conf_pair pairs[] = {{"url", "http://h:2"}, {"worker_key", NULL}};
	struct worker_conf w;
	char value[128];

	write_key("abc", 0600);
	ck_assert_int_eq(load(W, 0600), 0);
	snprintf(value, sizeof(value), "file:%s", key_file);
	pairs[1].value = value;
	ck_assert_int_ne(conf_worker_make(conf, "b", pairs, 2, &errors, &w), 0);
	ck_assert_uint_eq(errors.n_errors, 1);
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "names a file"));
}
END_TEST

static Suite *conf_secret_suite(void)
{
	Suite *s = suite_create("conf_secret");
	TCase *tc = tcase_create("conf_secret");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_loop_test(tc, a_file_has_the_secret_in_its_one_line, 0, 3);
	tcase_add_test(tc, workers_have_theirs_too);
	tcase_add_test(tc, a_credential_is_a_file_of_the_service_manager);
	tcase_add_loop_test(tc, what_is_no_secret_is_refused, 0, ARRAY_LEN(bad));
	tcase_add_test(tc, folders_and_big_files_are_refused);
	tcase_add_test(tc, files_that_all_may_read_are_warned_of);
	tcase_add_test(tc, a_file_with_a_secret_that_all_may_write_is_refused);
	tcase_add_test(tc, the_admin_api_reads_no_files);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(conf_secret_suite())
