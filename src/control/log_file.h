/*
 * The destination of log lines: stderr, to the journal with priorities, or to a file that
 * SIGUSR1 opens again after it was renamed. Called by daemon.c.
 */
#ifndef CONTROL_LOG_FILE_H
#define CONTROL_LOG_FILE_H

#include "base/base.h"

/* Starts logging to stderr. */
void log_file_start(void);
/*
 * Opens the file that stderr was at start under its name again. ERR_UNSUPPORTED: stderr
 * is no file; ERR_IO: it cannot be opened, which was logged, and the old one stays.
 */
int log_file_reopen(void) MUST_CHECK;

#endif
