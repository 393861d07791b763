/*
 * The way out of log lines: a descriptor, and, in a daemon, a thread that writes to it.
 * A reader that stops (a full pipe, a journal under pressure, a disk that hangs) holds
 * up that thread alone: lines wait in a buffer of LOG_OUT_BYTES, and those that find it
 * full are lost and counted (kvsteer_log_lines_lost_total); a warning says how many once
 * there is room again.
 * The descriptor stays blocking: O_NONBLOCK would hold for everybody who shares it.
 * Called by log.c, access_log.c and the daemons.
 */
#ifndef BASE_LOG_OUT_H
#define BASE_LOG_OUT_H

#include "base/base.h"
#include "base/span.h"

/* Of lines that wait, and once more of those that are being written. */
#define LOG_OUT_BYTES (1024 * 1024)

/* fd stays the caller's to close. */
void log_out_open(int fd);

/* Whole lines, each with its LF. Never blocks while the thread runs; writes by itself
 * before log_out_start(). Thread safe. Keeps no errno. */
void log_out(struct span lines);

/* Starts the thread, once a process. Where there is no memory for one it warns, and
 * callers go on writing themselves. */
void log_out_start(void);

/* Waits until all is written, wait_ms at most. False: something was not, and is lost. */
bool log_out_flush(unsigned wait_ms);

#endif
