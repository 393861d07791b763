/*
 * Log lines: level, time or syslog prefix, what the line is about, the message; escaped,
 * and handed to log_out.
 * A line never exceeds LINE_BYTES, always ends in LF and holds nothing else outside
 * 0x20-0x7e. Keeps the caller's errno.
 * Settings are atomics, so that any thread may log while the control thread changes the
 * level.
 */
#include "base/log.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log_out.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

enum { LINE_BYTES = 2048 };

_Atomic int log_level_now = LOG_LEVEL_INFO;

static _Atomic bool has_syslog_prefix;
static log_prefix_fn *_Atomic subject_prefix;
static pthread_mutex_t last_error_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[LINE_BYTES];

/* clang-format off */
static const struct {
	const char *name;
	int syslog; /* priority, syslog(3) */
} levels[] = {
	[LOG_LEVEL_ERROR] = { "error", 3 },
	[LOG_LEVEL_WARN] = { "warn", 4 },
	[LOG_LEVEL_NOTICE] = { "notice", 5 },
	[LOG_LEVEL_INFO] = { "info", 6 },
	[LOG_LEVEL_DEBUG] = { "debug", 7 },
};
/* clang-format on */

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&log_level_now, (int)level, memory_order_relaxed);
}

int log_level_parse(struct span name, enum log_level *out)
{
	for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
		if (span_is(name, levels[i].name)) {
			*out = (enum log_level)i;
			return 0;
		}
	}
	return ERR_PARSE;
}

const char *log_level_name(enum log_level level)
{
	return (size_t)level < ARRAY_LEN(levels) ? levels[level].name : "unknown";
}

void log_open(int fd, bool syslog_prefix)
{
	log_out_open(fd);
	atomic_store_explicit(&has_syslog_prefix, syslog_prefix, memory_order_relaxed);
}

void log_set_prefix(log_prefix_fn *fn)
{
	atomic_store_explicit(&subject_prefix, fn, memory_order_release);
}

/*
 * Copies what fits whole, escaping bytes outside 0x20-0x7e; no NUL.
 */
static size_t escape_into(struct span in, char *out, size_t n, bool *is_cut)
{
	static const char hex[] = "0123456789abcdef";
	size_t used = 0;

	*is_cut = false;
	for (size_t i = 0; i < in.n; i++) {
		unsigned char c = (unsigned char)in.p[i];
		bool is_raw = c >= 0x20 && c <= 0x7e;

		if (used + (is_raw ? 1 : 4) > n) {
			*is_cut = true;
			break;
		}
		if (is_raw) {
			out[used++] = (char)c;
			continue;
		}
		out[used++] = '\\';
		out[used++] = 'x';
		out[used++] = hex[c >> 4];
		out[used++] = hex[c & 15];
	}
	return used;
}

static size_t print_head(enum log_level level, char *out, size_t n)
{
	uint64_t wall_ms;
	time_t seconds;
	struct tm tm;
	int used;

	if (atomic_load_explicit(&has_syslog_prefix, memory_order_relaxed))
		return (size_t)snprintf(out, n, "<%d>", levels[level].syslog);
	wall_ms = clock_wall_ms();
	seconds = (time_t)(wall_ms / 1000);
	if (gmtime_r(&seconds, &tm) == NULL)
		tm = (struct tm){.tm_year = 70, .tm_mday = 1};
	used = snprintf(out, n, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ %-6s ",
		tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
		tm.tm_sec, (unsigned)(wall_ms % 1000), levels[level].name);
	return MIN((size_t)used, n - 1);
}

static size_t print_subject(const void *subject, char *out, size_t n)
{
	log_prefix_fn *fn = atomic_load_explicit(&subject_prefix, memory_order_acquire);
	char text[256];
	bool is_cut;
	size_t used;

	if (subject == NULL || fn == NULL)
		return 0;
	used = MIN(fn(subject, text, sizeof(text)), sizeof(text));
	if (used == 0)
		return 0;
	used = escape_into(span_make(text, used), out, n - 2, &is_cut);
	memcpy(out + used, ": ", 2);
	return used + 2;
}

static void keep_error(struct span message)
{
	pthread_mutex_lock(&last_error_lock);
	snprintf(last_error, sizeof(last_error), SPAN_FMT, SPAN_ARG(message));
	pthread_mutex_unlock(&last_error_lock);
}

void log_last_error(char *out, size_t n)
{
	pthread_mutex_lock(&last_error_lock);
	snprintf(out, n, "%s", last_error);
	pthread_mutex_unlock(&last_error_lock);
}

void log_write(enum log_level level, const void *subject, const char *fmt, ...)
{
	static const char cut_mark[] = "...";
	int caller_errno = errno;
	char line[LINE_BYTES], message[LINE_BYTES];
	const size_t room = LINE_BYTES - sizeof(cut_mark); /* the mark and LF stay free */
	bool is_cut;
	va_list args;
	size_t used, begin;
	int n;

	used = print_head(level, line, room);
	begin = used;
	used += print_subject(subject, line + used, room - used);
	errno = caller_errno; /* for %m */
	va_start(args, fmt);
	n = vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	if (n < 0)
		n = 0;
	used += escape_into(span_make(message, MIN((size_t)n, sizeof(message) - 1)),
		line + used, room - used, &is_cut);
	if (is_cut || (size_t)n >= sizeof(message)) {
		memcpy(line + used, cut_mark, sizeof(cut_mark) - 1);
		used += sizeof(cut_mark) - 1;
	}
	if (level == LOG_LEVEL_ERROR)
		keep_error(span_make(line + begin, used - begin));
	line[used++] = '\n';
	log_out(span_make(line, used));
	errno = caller_errno;
}

bool log_limit_ok(
	struct log_limit *state, uint64_t now_ms, unsigned period_ms, unsigned *missed)
{
	uint64_t next = atomic_load_explicit(&state->next_ms, memory_order_relaxed);

	if (now_ms < next || !atomic_compare_exchange_strong(
				     &state->next_ms, &next, now_ms + period_ms)) {
		atomic_fetch_add_explicit(&state->missed, 1, memory_order_relaxed);
		return false;
	}
	*missed = atomic_exchange_explicit(&state->missed, 0, memory_order_relaxed);
	return true;
}
