/*
 * base/file: files of any length, those whose length nobody says, the limit, and what
 * cannot be read.
 */
#include "base/err.h"
#include "base/file.h"
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>

static char name[64];

static void write_bytes(size_t n)
{
	FILE *file;

	(void)snprintf(name, sizeof(name), "/tmp/check_file.%d", (int)getpid());
	file = fopen(name, "w");
	ck_assert_ptr_nonnull(file);
	for (size_t i = 0; i < n; i++)
		ck_assert_int_ne(fputc((int)(i * 7 % 256), file), EOF);
	ck_assert_int_eq(fclose(file), 0);
}

static void check_read(size_t n)
{
	char *text = NULL;
	size_t got = 1;

	write_bytes(n);
	ck_assert_int_eq(file_read(name, 1 << 20, &text, &got), 0);
	ck_assert_uint_eq(got, n);
	for (size_t i = 0; i < n; i++)
		ck_assert_int_eq((unsigned char)text[i], (int)(i * 7 % 256));
	free(text);
	unlink(name);
}

START_TEST(any_length)
{
	check_read(0);
	check_read(1);
	check_read(65535);
	check_read(65536);
	check_read(65537);
	check_read(300000);
}
END_TEST

START_TEST(limit)
{
	char *text = NULL;
	size_t n = 7;

	write_bytes(1000);
	ck_assert_int_eq(file_read(name, 1000, &text, &n), 0);
	free(text);
	text = NULL;
	n = 7;
	ck_assert_int_eq(file_read(name, 999, &text, &n), ERR_LIMIT);
	ck_assert_ptr_null(text);
	ck_assert_uint_eq(n, 7);
	unlink(name);
	/* It never ends. */
	ck_assert_int_eq(file_read("/dev/zero", 100000, &text, &n), ERR_LIMIT);
}
END_TEST

START_TEST(no_length_is_said)
{
	char *text = NULL;
	size_t n = 0;

	ck_assert_int_eq(file_read("/proc/self/status", 1 << 20, &text, &n), 0);
	ck_assert_uint_gt(n, 100);
	ck_assert_int_eq(memcmp(text, "Name:", 5), 0);
	free(text);
}
END_TEST

START_TEST(unreadable)
{
	char *text = NULL;
	size_t n;

	errno = 0;
	ck_assert_int_eq(file_read("/nonexistent/file", 100, &text, &n), ERR_IO);
	ck_assert_int_eq(errno, ENOENT);
	ck_assert_int_eq(file_read("/", 100, &text, &n), ERR_IO);
	ck_assert_int_eq(errno, EISDIR);
	ck_assert_ptr_null(text);
}
END_TEST

static Suite *file_suite(void)
{
	Suite *suite = suite_create("file");
	TCase *tc = tcase_create("file");

	tcase_add_test(tc, any_length);
	tcase_add_test(tc, limit);
	tcase_add_test(tc, no_length_is_said);
	tcase_add_test(tc, unreadable);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(file_suite())
