/*
 * One line per event to stderr (or a file), with syslog priority prefixes ("<6>") when
 * the manager's journal reads it.
 * Thread safe: lines are never mixed (log_out.h). Bytes outside 0x20-0x7e are escaped as \xNN. Never
 * keys, never prompts.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/base.h"
#include "base/span.h"

#include <stdatomic.h>

enum log_level {
	LOG_LEVEL_ERROR,
	LOG_LEVEL_WARN,
	LOG_LEVEL_NOTICE,
	LOG_LEVEL_INFO,
	LOG_LEVEL_DEBUG
};

extern _Atomic int log_level_now; /* read relaxed; written by log_set_level() only */

static inline bool log_is_on(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&log_level_now, memory_order_relaxed);
}

void log_set_level(enum log_level level);
/* "error", "warn", "notice", "info", "debug"; ERR_PARSE else. */
int log_level_parse(struct span name, enum log_level *out) MUST_CHECK;
const char *log_level_name(enum log_level level);

/*
 * Where lines go: fd (default 2), which stays the caller's to close. `prefix` asks for
 * "<N>" syslog prefixes in place of the time stamp and level word (right under systemd:
 * JOURNAL_STREAM is set).
 */
void log_open(int fd, bool syslog_prefix);

/*
 * Called to print what a line is about ("c=12 r=12/3 w=w1 step=forward") from the subject
 * given to log_at(); writes at most n bytes, returns the length. A colon and a blank are
 * put behind it. Not called where the subject is NULL.
 */
typedef size_t log_prefix_fn(const void *subject, char *out, size_t n);
void log_set_prefix(log_prefix_fn *fn);

/*
 * One line, at most 2 KiB (longer ones end in "..."), whatever the level now is: log_at()
 * asks first. Keeps errno; %m works.
 * Bytes outside 0x20-0x7e of the message are escaped as \xNN.
 */
void log_write(enum log_level level, const void *subject, const char *fmt, ...)
	PRINTF_LIKE(3, 4);

/* The message of the last line of level error, "" before the first; always
 * NUL-terminates. */
void log_last_error(char *out, size_t n);

#define log_at(level, subject, ...)                                 \
	do {                                                        \
		if (log_is_on(level))                               \
			log_write((level), (subject), __VA_ARGS__); \
	} while (0)
#define log_error(...) log_at(LOG_LEVEL_ERROR, NULL, __VA_ARGS__)
#define log_warn(...) log_at(LOG_LEVEL_WARN, NULL, __VA_ARGS__)
#define log_notice(...) log_at(LOG_LEVEL_NOTICE, NULL, __VA_ARGS__)
#define log_info(...) log_at(LOG_LEVEL_INFO, NULL, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, NULL, __VA_ARGS__)

/*
 * At most one line each period_ms for each `state` (a static in the caller). True when
 * the caller may log; *missed is the number of lines held back since the last one. For
 * EMFILE and other floods. Thread safe.
 */
struct log_limit {
	_Atomic uint64_t next_ms;
	_Atomic unsigned missed;
};
bool log_limit_ok(
	struct log_limit *state, uint64_t now_ms, unsigned period_ms, unsigned *missed);

#endif
