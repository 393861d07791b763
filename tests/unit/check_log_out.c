/*
 * base/log_out: a reader that stops costs lines, which are counted and told of; a line is
 * whole or is lost.
 */
#include "base/log.h"
#include "base/log_out.h"
#include "base/metric.h"
#include "tests/unit/unit.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WRITERS = 4, FLUSH_MS = 60000 };

static int ends[2];
static int64_t lost_before;

static void open_pipe(void)
{
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	log_open(ends[1], true);
	lost_before = metric_total(METRIC_LOG_LINES_LOST);
}

static void close_pipe(void)
{
	log_open(STDERR_FILENO, false);
	close(ends[0]);
	close(ends[1]);
}

static uint64_t lost(void)
{
	return (uint64_t)(metric_total(METRIC_LOG_LINES_LOST) - lost_before);
}

static const char filler[] = "A line of a log that nobody reads, as long as they are.\n";

/* Until some are lost. */
static uint64_t put_until_lost(void)
{
	uint64_t n = 0;

	while (lost() == 0) {
		log_out(span_str(filler));
		n++;
	}
	return n;
}

static void *write_many(void *arg)
{
	for (int i = 0; i < 20000; i++)
		log_out(span_str(filler));
	return arg;
}

/* Reads on until the other end is closed. */
struct reader {
	char *text;
	size_t n, room;
	pthread_t thread;
};

static void *read_all(void *arg)
{
	struct reader *r = arg;
	ssize_t n;

	while ((n = read(ends[0], r->text + r->n, r->room - r->n)) > 0)
		r->n += (size_t)n;
	return NULL;
}

static void start_reading(struct reader *r)
{
	r->room = 64 * 1024 * 1024;
	r->text = malloc(r->room);
	ck_assert_ptr_nonnull(r->text);
	ck_assert_int_eq(pthread_create(&r->thread, NULL, read_all, r), 0);
}

static void end_reading(struct reader *r)
{
	ck_assert(log_out_flush(FLUSH_MS));
	log_open(STDERR_FILENO, false);
	close(ends[1]);
	ends[1] = -1;
	pthread_join(r->thread, NULL);
}

/* Of whole filler lines; other lines are ours. */
static uint64_t count_filler(const struct reader *r, unsigned *others)
{
	struct span rest = span_make(r->text, r->n), line;
	uint64_t n = 0;

	*others = 0;
	while (rest.n > 0 && span_next(&rest, '\n', &line)) {
		if (line.n == sizeof(filler) - 2 && memcmp(line.p, filler, line.n) == 0)
			n++;
		else if (line.n > 0)
			++*others;
	}
	return n;
}

START_TEST(a_reader_that_stops_holds_up_nobody)
{
	struct reader r = {0};
	pthread_t writers[WRITERS];
	unsigned others;
	uint64_t n;

	log_out_start();
	n = put_until_lost();
	ck_assert_uint_gt(n * (sizeof(filler) - 1), LOG_OUT_BYTES);
	for (int i = 0; i < WRITERS; i++)
		ck_assert_int_eq(pthread_create(&writers[i], NULL, write_many, NULL), 0);
	for (int i = 0; i < WRITERS; i++)
		pthread_join(writers[i], NULL);
	ck_assert(!log_out_flush(1));
	start_reading(&r);
	end_reading(&r);
	ck_assert_uint_eq(count_filler(&r, &others) + lost(), n + WRITERS * 20000);
	ck_assert_uint_ge(others, 1);
	ck_assert_ptr_nonnull(memmem(r.text, r.n, "lines of this log were lost", 27));
	free(r.text);
}
END_TEST

START_TEST(lines_of_threads_are_not_mixed)
{
	struct reader r = {0};
	pthread_t writers[WRITERS];
	unsigned others;

	log_out_start();
	start_reading(&r);
	for (int i = 0; i < WRITERS; i++)
		ck_assert_int_eq(pthread_create(&writers[i], NULL, write_many, NULL), 0);
	for (int i = 0; i < WRITERS; i++)
		pthread_join(writers[i], NULL);
	end_reading(&r);
	ck_assert_uint_eq(count_filler(&r, &others) + lost(), WRITERS * 20000);
	ck_assert_uint_le(others, lost());
	free(r.text);
}
END_TEST

/* Other processes may set it, as it is shared. */
START_TEST(a_descriptor_that_does_not_block_is_waited_for)
{
	struct reader r = {0};
	unsigned others;

	ck_assert_int_eq(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
	log_out_start();
	for (int i = 0; i < 10000; i++)
		log_out(span_str(filler));
	start_reading(&r);
	end_reading(&r);
	ck_assert_uint_eq(count_filler(&r, &others), 10000);
	ck_assert_uint_eq(lost(), 0);
	free(r.text);
}
END_TEST

START_TEST(a_datagram_is_a_line)
{
	int pair[2];
	char line[256];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
	log_open(pair[0], true);
	log_out_start();
	log_out(span_str("one\ntwo\n"));
	ck_assert_int_eq(recv(pair[1], line, sizeof(line), 0), 4);
	ck_assert_int_eq(recv(pair[1], line, sizeof(line), 0), 4);
	close(pair[0]);
	close(pair[1]);
}
END_TEST

START_TEST(lines_that_cannot_be_written_are_counted)
{
	log_open(-1, true);
	log_out(span_str("one\ntwo\n"));
	ck_assert_uint_eq(lost(), 2);
	log_out_start();
	log_out(span_str("three\n"));
	ck_assert(log_out_flush(FLUSH_MS));
	ck_assert_uint_eq(lost(), 3);
}
END_TEST

static Suite *log_out_suite(void)
{
	Suite *s = suite_create("log_out");
	TCase *t = tcase_create("log_out");

	tcase_add_checked_fixture(t, open_pipe, close_pipe);
	tcase_add_test(t, a_reader_that_stops_holds_up_nobody);
	tcase_add_test(t, lines_of_threads_are_not_mixed);
	tcase_add_test(t, a_descriptor_that_does_not_block_is_waited_for);
	tcase_add_test(t, a_datagram_is_a_line);
	tcase_add_test(t, lines_that_cannot_be_written_are_counted);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(log_out_suite())
