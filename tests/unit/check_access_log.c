/*
 * Access lines into a file: both formats to the byte, what foreign text becomes, when
 * lines are written, and that a line is whole whatever a client sends.
 */
#include "base/clock.h"
#include "base/log.h"
#include "io/wheel.h"
#include "proxy/access_log.h"
#include "tests/unit/unit_loop.h"

#include <signal.h>
#include <sys/stat.h>

static struct loop *loop;
static struct access_log *log_;
static int fd = -1;
static char *text; /* of the file, after read_back() */

static int make_file(void)
{
	char path[] = "/tmp/check_access_log.XXXXXX";
	int file = mkstemp(path);

	ck_assert_int_ge(file, 0);
	unlink(path);
	return file;
}

static void set_up(void)
{
	loop = loop_new();
	ck_assert_ptr_nonnull(loop);
	clock_update();
	fd = make_file();
	log_open(fd, false);
	log_ = access_log_new(loop);
	ck_assert_ptr_nonnull(log_);
	text = NULL;
}

static void tear_down(void)
{
	access_log_free(log_);
	access_log_free(NULL);
	log_open(STDERR_FILENO, false);
	log_ = NULL;
	loop_free(loop);
	close(fd);
	free(text);
	clock_set(0);
}

static size_t written(void)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	return (size_t)st.st_size;
}

/* What the file holds, as a string; the last one read is freed. */
static const char *read_back(void)
{
	size_t n = written();

	free(text);
	text = calloc(1, n + 1);
	ck_assert_int_eq(pread(fd, text, n, 0), n);
	return text;
}

static struct access_line plain_line(void)
{
	return (struct access_line){
		.request_id = SPAN_LIT("r1"),
		.client = SPAN_LIT("127.0.0.1"),
		.tenant = "acme",
		.method = SPAN_LIT("POST"),
		.path = SPAN_LIT("/v1/chat/completions"),
		.model = SPAN_LIT("m"),
		.route = "chat",
		.worker = "gpu1",
		.reason = "prefix_hit",
		.matched = 3,
		.blocks = 40,
		.status = 200,
		.why = FAIL_NONE,
		.bytes_in = 1234,
		.bytes_out = 18446744073709551615u,
		.queue_us = 1,
		.ttft_us = 20304,
		.total_us = 1500000,
		.retries = 1,
	};
}

/* Behind the stamp, whose form is checked: 2026-01-02T03:04:05.678Z */
static const char *after_stamp(const char *p, const char *before)
{
	static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";

	ck_assert_msg(strncmp(p, before, strlen(before)) == 0, "%s", p);
	p += strlen(before);
	for (size_t i = 0; form[i] != '\0'; i++, p++) {
		if (form[i] == 'd')
			ck_assert_msg(*p >= '0' && *p <= '9', "%s", p);
		else
			ck_assert_int_eq(*p, form[i]);
	}
	return p;
}

START_TEST(text_line)
{
	struct access_line a = plain_line();

	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	ck_assert_uint_eq(written(), 0);
	access_log_flush(log_);
	ck_assert_str_eq(after_stamp(read_back(), "time="),
		" id=r1 client=127.0.0.1 tenant=acme method=POST"
		" path=/v1/chat/completions"
		" route=chat model=m worker=gpu1 policy=prefix_hit matched=3 blocks=40"
		" status=200 end=ok in=1234 out=18446744073709551615 retries=1"
		" queue_ms=0.001 ttft_ms=20.304 total_ms=1500.000\n");
}
END_TEST

START_TEST(json_line)
{
	struct access_line a = plain_line();

	access_log_line(log_, LOG_FORMAT_JSON, &a);
	access_log_flush(log_);
	ck_assert_str_eq(after_stamp(read_back(), "{\"time\":\""),
		"\",\"id\":\"r1\",\"client\":\"127.0.0.1\",\"tenant\":\"acme\","
		"\"method\":\"POST\","
		"\"path\":\"/v1/chat/completions\",\"route\":\"chat\",\"model\":\"m\","
		"\"worker\":\"gpu1\",\"policy\":\"prefix_hit\",\"matched\":3,"
		"\"blocks\":40,\"status\":200,\"end\":\"ok\",\"in\":1234,"
		"\"out\":18446744073709551615,\"retries\":1,\"queue_ms\":0.001,"
		"\"ttft_ms\":20.304,\"total_ms\":1500.000}\n");
}
END_TEST

/* Only where there was such a leg. */
START_TEST(a_prefill_is_told_at_the_end)
{
	struct access_line a = plain_line();

	a.prefill = "p0";
	a.prefill_reason = "no_match";
	a.prefill_us = 12345;
	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	access_log_line(log_, LOG_FORMAT_JSON, &a);
	access_log_flush(log_);
	ck_assert_ptr_nonnull(strstr(read_back(),
		" total_ms=1500.000 prefill=p0 prefill_policy=no_match "
		"prefill_ms=12.345\n"));
	ck_assert_ptr_nonnull(strstr(text, "\"total_ms\":1500.000,\"prefill\":\"p0\","
					   "\"prefill_policy\":\"no_match\","
					   "\"prefill_ms\":12.345}\n"));
}
END_TEST

START_TEST(c12_what_prefill_had_cached_is_told)
{
	struct access_line a = plain_line();

	a.prefill = "p0";
	a.prefill_reason = "no_match";
	a.has_prefill_cached = true;
	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	a.prefill_cached = 256;
	a.prefill_tokens = 2048;
	access_log_line(log_, LOG_FORMAT_JSON, &a);
	access_log_flush(log_);
	ck_assert_ptr_nonnull(
		strstr(read_back(), " prefill_ms=0.000 prefill_cached=0\n"));
	ck_assert_ptr_nonnull(strstr(text, "\"prefill_ms\":0.000,\"prefill_cached\":256,"
					   "\"prefill_tokens\":2048}\n"));
}
END_TEST

START_TEST(what_is_absent_is_a_dash)
{
	struct access_line a = {.route = "none", .why = FAIL_CLIENT_GONE};

	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	access_log_flush(log_);
	ck_assert_str_eq(after_stamp(read_back(), "time="),
		" id=- client=- tenant=- method=- path=- route=none model=- worker=- "
		"policy=-"
		" matched=0 blocks=0 status=0 end=client_gone in=0 out=0 retries=0"
		" queue_ms=0.000 ttft_ms=0.000 total_ms=0.000\n");
}
END_TEST

/* Nothing that a client sends ends a line, a field or a string. */
START_TEST(foreign_text_is_escaped)
{
	struct access_line a = plain_line();

	a.path = SPAN_LIT("/a b\"c\\d\ne\r\x1b[1m\x7f\xc3\xa9\0z");
	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	access_log_flush(log_);
	ck_assert_ptr_nonnull(strstr(read_back(),
		" path=/a\\u0020b\\u0022c\\u005cd\\u000ae\\u000d\\u001b[1m\\u007f"
		"\\u00c3\\u00a9\\u0000z route="));
	ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
	access_log_line(log_, LOG_FORMAT_JSON, &a);
	access_log_flush(log_);
	ck_assert_ptr_nonnull(
		strstr(read_back(), "\"path\":\"/a b\\u0022c\\u005cd\\u000a"));
}
END_TEST

/* Every foreign field as long and as strange as it may be: still one whole line. */
START_TEST(the_longest_line_is_whole)
{
	char strange[600], worker[65];
	struct access_line a = plain_line();
	size_t n;

	memset(strange, '\xe4', sizeof(strange));
	memset(worker, 'w', 64);
	worker[64] = '\0';
	a.request_id = a.client = a.method = a.path = a.model =
		span_make(strange, sizeof(strange));
	a.worker = worker;
	a.matched = a.blocks = UINT32_MAX;
	a.queue_us = a.ttft_us = a.total_us = a.bytes_in = UINT64_MAX;
	access_log_line(log_, LOG_FORMAT_JSON, &a);
	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	access_log_flush(log_);
	n = strlen(read_back());
	ck_assert_ptr_nonnull(strstr(text, "\"total_ms\":18446744073709551.615}\n"));
	ck_assert_int_eq(text[n - 1], '\n');
	ck_assert_ptr_nonnull(strstr(text, " total_ms=18446744073709551.615\n"));
}
END_TEST

/* A failure of ours is written at once, with what waited; one of the client's is not. */
START_TEST(failures_of_ours_are_written_at_once)
{
	struct access_line a = plain_line();

	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	a.why = FAIL_PATH_NOT_FOUND;
	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	ck_assert_uint_eq(written(), 0);
	a.why = FAIL_NO_WORKER;
	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	ck_assert_ptr_nonnull(strstr(read_back(), "end=no_worker"));
	ck_assert_ptr_nonnull(strstr(text, "end=ok"));
	ck_assert_ptr_nonnull(strstr(text, "end=path_not_found"));
}
END_TEST

/* After a second, by the wheel; and again for lines that came later. */
START_TEST(lines_are_written_after_a_second)
{
	struct access_line a = plain_line();
	uint64_t now = clock_now_ms();
	size_t n;

	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	wheel_advance(loop_wheel(loop), now + 900);
	ck_assert_uint_eq(written(), 0);
	wheel_advance(loop_wheel(loop), now + 1050);
	n = written();
	ck_assert_uint_gt(n, 0);
	wheel_advance(loop_wheel(loop), now + 3000);
	ck_assert_uint_eq(written(), n);
	clock_set(now + 3000);
	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	wheel_advance(loop_wheel(loop), now + 4050);
	ck_assert_uint_eq(written(), 2 * n);
}
END_TEST

/* The buffer fills: whole lines go, in order, none twice. */
START_TEST(many_lines_keep_their_order)
{
	enum { LINES = 2000 };
	char id[16];
	struct access_line a = plain_line();
	const char *p;

	for (int i = 0; i < LINES; i++) {
		a.request_id = span_make(id, (size_t)snprintf(id, sizeof(id), "n%d.", i));
		access_log_line(log_, LOG_FORMAT_TEXT, &a);
	}
	ck_assert_uint_gt(written(), 0);
	access_log_flush(log_);
	p = read_back();
	for (int i = 0; i < LINES; i++) {
		size_t n = (size_t)snprintf(id, sizeof(id), " id=n%d.", i);

		p = after_stamp(p, "time=");
		ck_assert_msg(strncmp(p, id, n) == 0, "line %d", i);
		p = strchr(p, '\n');
		ck_assert_ptr_nonnull(p);
		p++;
	}
	ck_assert_int_eq(*p, '\0');
}
END_TEST

/* The end of the pipe is gone: lines are lost, nothing else is. */
START_TEST(a_closed_pipe_costs_lines_only)
{
	struct access_line a = plain_line();
	struct access_log *piped;
	int ends[2];

	signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(pipe(ends), 0);
	log_open(ends[1], false);
	piped = access_log_new(loop);
	ck_assert_int_eq(dup2(ends[1], ends[0]), ends[0]); /* nobody reads */
	for (int i = 0; i < 1000; i++)
		access_log_line(piped, LOG_FORMAT_TEXT, &a);
	ck_assert_int_eq(dup2(fd, ends[1]), ends[1]); /* as SIGUSR1 does */
	close(ends[0]);
	access_log_flush(piped);
	access_log_line(piped, LOG_FORMAT_TEXT, &a);
	access_log_free(piped);
	log_open(fd, false);
	close(ends[1]);
	after_stamp(read_back(), "time=");
}
END_TEST

START_TEST(free_writes_what_is_left)
{
	struct access_line a = plain_line();

	access_log_line(log_, LOG_FORMAT_TEXT, &a);
	access_log_free(log_);
	log_ = NULL;
	ck_assert_uint_gt(written(), 0);
}
END_TEST

static Suite *access_log_suite(void)
{
	Suite *s = suite_create("access_log");
	TCase *tc = tcase_create("access_log");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, text_line);
	tcase_add_test(tc, json_line);
	tcase_add_test(tc, a_prefill_is_told_at_the_end);
	tcase_add_test(tc, c12_what_prefill_had_cached_is_told);
	tcase_add_test(tc, what_is_absent_is_a_dash);
	tcase_add_test(tc, foreign_text_is_escaped);
	tcase_add_test(tc, the_longest_line_is_whole);
	tcase_add_test(tc, failures_of_ours_are_written_at_once);
	tcase_add_test(tc, lines_are_written_after_a_second);
	tcase_add_test(tc, many_lines_keep_their_order);
	tcase_add_test(tc, a_closed_pipe_costs_lines_only);
	tcase_add_test(tc, free_writes_what_is_left);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(access_log_suite())
