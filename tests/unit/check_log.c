/*
 * base/log: levels, escaping, length, subjects, limits. Lines go to a datagram socket, so
 * that one read is one write(2).
 */
#include "base/err.h"
#include "base/log.h"
#include "tests/unit/unit.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

static int near_end, far_end;

static void open_ends(void)
{
	int ends[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), 0);
	near_end = ends[0];
	far_end = ends[1];
	log_open(near_end, true);
	log_set_level(LOG_LEVEL_INFO);
	log_set_prefix(NULL);
}

static void close_ends(void)
{
	log_open(STDERR_FILENO, false);
	close(near_end);
	close(far_end);
}

/* The next line, NUL-terminated, without its LF; "" where there is none. */
static const char *next_line(void)
{
	static char line[8192];
	ssize_t n = recv(far_end, line, sizeof(line) - 1, MSG_DONTWAIT);

	if (n <= 0)
		return "";
	line[n] = '\0';
	ck_assert_uint_eq(strlen(line), (size_t)n);
	ck_assert_int_eq(line[n - 1], '\n');
	ck_assert_ptr_eq(strchr(line, '\n'), line + n - 1);
	line[n - 1] = '\0';
	return line;
}

START_TEST(filters_by_level)
{
	log_error("one %d", 1);
	log_debug("unseen");
	log_info("two");
	log_set_level(LOG_LEVEL_ERROR);
	log_warn("unseen");
	log_error("three");
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("four");
	ck_assert_str_eq(next_line(), "<3>one 1");
	ck_assert_str_eq(next_line(), "<6>two");
	ck_assert_str_eq(next_line(), "<3>three");
	ck_assert_str_eq(next_line(), "<7>four");
	ck_assert_str_eq(next_line(), "");
}
END_TEST

/* What is not logged is not computed. */
START_TEST(arguments_are_lazy)
{
	int calls = 0;

	log_debug("%d", ++calls);
	ck_assert_int_eq(calls, 0);
	log_info("%d", ++calls);
	ck_assert_int_eq(calls, 1);
}
END_TEST

START_TEST(stamps_time)
{
	unsigned year, month, day, hour, minute, second, ms;
	int used = 0;

	log_open(near_end, false);
	log_warn("careful");
	ck_assert_int_eq(
		sscanf(next_line(), "%4u-%2u-%2uT%2u:%2u:%2u.%3uZ warn   careful%n",
			&year, &month, &day, &hour, &minute, &second, &ms, &used),
		7);
	ck_assert_int_eq(used, (int)strlen("2026-01-02T03:04:05.678Z warn   careful"));
	ck_assert_uint_ge(year, 2020);
	ck_assert(month >= 1 && month <= 12 && day >= 1 && day <= 31);
}
END_TEST

START_TEST(escapes_lines)
{
	log_info("%s", "a\nb\r\x1b[0m\x7f\xc3\xa4 \"q\" \\");
	ck_assert_str_eq(next_line(), "<6>a\\x0ab\\x0d\\x1b[0m\\x7f\\xc3\\xa4 \"q\" \\");
}
END_TEST

START_TEST(cuts_long_lines)
{
	char text[5000];
	const char *line;

	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_info("%s", text);
	line = next_line();
	ck_assert_uint_le(strlen(line) + 1, 2048);
	ck_assert_uint_gt(strlen(line), 2000);
	ck_assert_str_eq(line + strlen(line) - 4, "a...");
	/* escapes take four bytes and are never cut in two */
	memset(text, '\n', sizeof(text) - 1);
	for (int shift = 0; shift < 4; shift++) {
		log_info("%.*s%s", shift, "xxx", text);
		line = next_line();
		ck_assert_uint_le(strlen(line) + 1, 2048);
		ck_assert_str_eq(line + strlen(line) - 7, "\\x0a...");
	}
}
END_TEST

START_TEST(fits_to_the_byte)
{
	char text[2100];
	size_t longest = 0;

	for (size_t n = 1900; n < sizeof(text); n++) {
		const char *line;

		memset(text, 'a', n);
		text[n] = '\0';
		log_info("%s", text);
		line = next_line();
		if (strcmp(line + 3, text) == 0) {
			ck_assert_uint_eq(longest, n == 1900 ? 0 : n - 1);
			longest = n;
		} else {
			ck_assert_str_eq(line + strlen(line) - 4, "a...");
		}
	}
	ck_assert_uint_gt(longest, 2000);
	ck_assert_uint_lt(longest, 2048);
}
END_TEST

static size_t print_number(const void *subject, char *out, size_t n)
{
	return (size_t)snprintf(out, n, "c=%d\n", *(const int *)subject);
}

static size_t print_much(const void *subject, char *out, size_t n)
{
	(void)subject;
	memset(out, 'p', n);
	return n + 100; /* a careless callback */
}

static size_t print_nothing(const void *subject, char *out, size_t n)
{
	(void)subject, (void)out, (void)n;
	return 0;
}

START_TEST(says_what_it_is_about)
{
	int number = 12;
	const char *line;

	log_at(LOG_LEVEL_INFO, &number, "no callback yet");
	ck_assert_str_eq(next_line(), "<6>no callback yet");
	log_set_prefix(print_number);
	log_at(LOG_LEVEL_INFO, &number, "text");
	ck_assert_str_eq(next_line(), "<6>c=12\\x0a: text");
	log_info("no subject");
	ck_assert_str_eq(next_line(), "<6>no subject");
	log_set_prefix(print_much);
	log_at(LOG_LEVEL_INFO, &number, "text");
	line = next_line();
	ck_assert_str_eq(line + strlen(line) - 7, "p: text");
	log_set_prefix(print_nothing);
	log_at(LOG_LEVEL_INFO, &number, "text");
	ck_assert_str_eq(next_line(), "<6>text");
}
END_TEST

START_TEST(keeps_errno)
{
	errno = ENOENT;
	log_info("open: %m");
	ck_assert_int_eq(errno, ENOENT);
	ck_assert_str_eq(next_line(), "<6>open: No such file or directory");
	log_open(-1, true); /* the write fails */
	log_info("lost");
	ck_assert_int_eq(errno, ENOENT);
}
END_TEST

START_TEST(names_levels)
{
	enum log_level level = LOG_LEVEL_WARN;

	for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
		const char *name = log_level_name((enum log_level)i);

		ck_assert_int_eq(log_level_parse(span_str(name), &level), 0);
		ck_assert_int_eq((int)level, i);
	}
	level = LOG_LEVEL_WARN;
	ck_assert_int_eq(log_level_parse(SPAN_LIT("warning"), &level), ERR_PARSE);
	ck_assert_int_eq(log_level_parse(SPAN_LIT("Info"), &level), ERR_PARSE);
	ck_assert_int_eq(log_level_parse(SPAN_LIT(""), &level), ERR_PARSE);
	ck_assert_int_eq((int)level, LOG_LEVEL_WARN);
}
END_TEST

START_TEST(limits)
{
	struct log_limit state = {0};
	unsigned missed = 77;

	ck_assert(log_limit_ok(&state, 1000, 500, &missed));
	ck_assert_uint_eq(missed, 0);
	missed = 77;
	ck_assert(!log_limit_ok(&state, 1000, 500, &missed));
	ck_assert(!log_limit_ok(&state, 1499, 500, &missed));
	ck_assert_uint_eq(missed, 77);
	ck_assert(log_limit_ok(&state, 1500, 500, &missed));
	ck_assert_uint_eq(missed, 2);
	ck_assert(log_limit_ok(&state, 9000, 500, &missed));
	ck_assert_uint_eq(missed, 0);
}
END_TEST

enum { THREADS = 4, LINES = 50 };

struct writer {
	struct log_limit *limit;
	unsigned allowed, missed;
};

static void *write_lines(void *arg)
{
	struct writer *w = arg;

	for (int i = 0; i < LINES; i++) {
		unsigned missed;

		log_info("thread %d line", i);
		log_debug("unseen");
		log_set_level(LOG_LEVEL_INFO);
		if (log_limit_ok(w->limit, 100, 1000, &missed)) {
			w->allowed++;
			w->missed += missed;
		}
	}
	return NULL;
}

/* Lines of several threads come whole, and only one of them gets through the limit. */
START_TEST(threads_share_it)
{
	struct log_limit limit = {0};
	struct writer writers[THREADS];
	pthread_t threads[THREADS];
	unsigned allowed = 0, missed = 0, last = 0;

	for (int i = 0; i < THREADS; i++) {
		writers[i] = (struct writer){.limit = &limit};
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, write_lines, &writers[i]), 0);
	}
	for (int i = 0; i < THREADS * LINES; i++) {
		char line[256];
		ssize_t n = recv(far_end, line, sizeof(line), 0);

		ck_assert_int_gt(n, 0);
		ck_assert_int_eq(memcmp(line, "<6>thread ", 10), 0);
		ck_assert_int_eq(memcmp(line + n - 5, "line\n", 5), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		allowed += writers[i].allowed;
		missed += writers[i].missed;
	}
	ck_assert_uint_eq(allowed, 1);
	ck_assert(log_limit_ok(&limit, 2000, 1000, &last));
	ck_assert_uint_eq(missed + last, THREADS * LINES - 1);
}
END_TEST

static Suite *log_suite(void)
{
	Suite *suite = suite_create("log");
	TCase *tc = tcase_create("log");

	tcase_add_checked_fixture(tc, open_ends, close_ends);
	tcase_add_test(tc, filters_by_level);
	tcase_add_test(tc, arguments_are_lazy);
	tcase_add_test(tc, stamps_time);
	tcase_add_test(tc, escapes_lines);
	tcase_add_test(tc, cuts_long_lines);
	tcase_add_test(tc, fits_to_the_byte);
	tcase_add_test(tc, says_what_it_is_about);
	tcase_add_test(tc, keeps_errno);
	tcase_add_test(tc, names_levels);
	tcase_add_test(tc, limits);
	tcase_add_test(tc, threads_share_it);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(log_suite())
