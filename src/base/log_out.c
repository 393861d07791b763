/*
 * Lines wait in one buffer while the thread writes the other one; then the two change
 * places. A line is taken whole or is lost. See log_out.h.
 */
#include "base/log_out.h"

#include "base/log.h"
#include "base/metric.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static _Atomic int out_fd = STDERR_FILENO;
static _Thread_local bool is_writer; /* this is the thread */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_lines = PTHREAD_COND_INITIALIZER;
static pthread_cond_t is_idle = PTHREAD_COND_INITIALIZER;
/* Under the lock. */
static bool has_thread, is_writing;
static char buffers[2][LOG_OUT_BYTES];
static unsigned filling; /* the other one is being written */
static size_t used;
static uint64_t lost;

static struct span behind(struct span s, size_t n)
{
	return span_make(s.p + n, s.n - n);
}

static uint64_t lines_in(struct span s)
{
	uint64_t n = 0;

	for (size_t i = 0; i < s.n; i++)
		n += s.p[i] == '\n';
	return n;
}

static void count_lost(uint64_t lines)
{
	if (lines > 0)
		metric_add(METRIC_LOG_LINES_LOST, (int64_t)lines);
}

/* ---- writing ---- */

static int fd_now(void)
{
	return atomic_load_explicit(&out_fd, memory_order_relaxed);
}

/* A datagram holds one line: what reads it takes it for one. */
static bool wants_single_lines(int fd)
{
	int type;
	socklen_t n = sizeof(type);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_DGRAM;
}

/* Another process may have made the descriptor non-blocking. */
static bool may_go_on(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLOUT};

	if (errno == EAGAIN)
		(void)poll(&wait, 1, -1);
	return errno == EINTR || errno == EAGAIN;
}

/* A full disk or a closed pipe has nowhere to say so: the lines are lost. */
static void write_bytes(int fd, struct span s)
{
	while (s.n > 0) {
		ssize_t n = write(fd, s.p, s.n);

		if (n < 0 && may_go_on(fd))
			continue;
		if (n <= 0)
			break;
		s = behind(s, (size_t)n);
	}
	count_lost(lines_in(s));
}

static void write_lines(struct span s)
{
	int fd = fd_now();

	if (!wants_single_lines(fd)) {
		write_bytes(fd, s);
		return;
	}
	while (s.n > 0) {
		const char *end = memchr(s.p, '\n', s.n);
		size_t n = end != NULL ? (size_t)(end - s.p) + 1 : s.n;

		write_bytes(fd, span_make(s.p, n));
		s = behind(s, n);
	}
}

/* ---- the thread ---- */

/* Written at once, where the gap is. */
static void say_lost(uint64_t lines)
{
	if (lines > 0)
		log_warn("%llu line%s of this log were lost: its reader did not keep up",
			(unsigned long long)lines, lines == 1 ? "" : "s");
}

static void *run_thread(void *arg)
{
	struct span lines;
	uint64_t missed;

	is_writer = true;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (used == 0)
			pthread_cond_wait(&has_lines, &lock);
		lines = span_make(buffers[filling], used);
		missed = lost;
		filling = 1 - filling;
		used = 0;
		lost = 0;
		is_writing = true;
		pthread_mutex_unlock(&lock);
		write_lines(lines);
		say_lost(missed);
		pthread_mutex_lock(&lock);
		is_writing = false;
		if (used == 0)
			pthread_cond_broadcast(&is_idle);
	}
	return arg;
}

/* Signals are the other threads' to take. */
static bool start_thread(void)
{
	sigset_t all, before;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	error = pthread_create(&thread, NULL, run_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error == 0 && pthread_detach(thread) == 0;
}

void log_out_start(void)
{
	bool is_started;

	pthread_mutex_lock(&lock);
	is_started = has_thread = has_thread || start_thread();
	pthread_mutex_unlock(&lock);
	if (!is_started)
		log_warn("no thread for the log: a reader that stops will stop the "
			 "process, too");
}

/* ---- what the others call ---- */

void log_out_open(int fd)
{
	atomic_store_explicit(&out_fd, fd, memory_order_relaxed);
}

/* The part of them that has room; a line is not divided. */
static struct span fitting(struct span lines)
{
	size_t room = LOG_OUT_BYTES - used;

	if (lines.n <= room)
		return lines;
	while (room > 0 && lines.p[room - 1] != '\n')
		room--;
	return span_make(lines.p, room);
}

static uint64_t put_locked(struct span lines)
{
	/* After a loss nothing is taken until the thread has told of it: a gap is in one
	 * place. */
	struct span in = lost == 0 ? fitting(lines) : span_make(lines.p, 0);
	uint64_t missed = lines_in(behind(lines, in.n));

	memcpy(buffers[filling] + used, in.p, in.n);
	used += in.n;
	lost += missed;
	pthread_cond_signal(&has_lines);
	return missed;
}

void log_out(struct span lines)
{
	uint64_t missed = 0;
	bool is_queued;

	pthread_mutex_lock(&lock);
	is_queued = has_thread && !is_writer;
	if (is_queued)
		missed = put_locked(lines);
	pthread_mutex_unlock(&lock);
	if (!is_queued)
		write_lines(lines);
	count_lost(missed);
}

bool log_out_flush(unsigned wait_ms)
{
	struct timespec until;
	bool is_done;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += wait_ms / 1000;
	until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	pthread_mutex_lock(&lock);
	while ((used > 0 || is_writing) &&
		pthread_cond_clockwait(&is_idle, &lock, CLOCK_MONOTONIC, &until) == 0)
		;
	is_done = used == 0 && !is_writing;
	pthread_mutex_unlock(&lock);
	return is_done;
}
