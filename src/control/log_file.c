/*
 * The destination of log lines. See log_file.h.
 */
#include "control/log_file.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[PATH_MAX]; /* of the file that stderr is; empty: it is none */

/* JOURNAL_STREAM is "device:inode" of the stream; it is inherited by children whose
 * stderr goes elsewhere. */
static bool is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	if (stream == NULL || sscanf(stream, "%llu:%llu", &device, &inode) != 2)
		return false;
	return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device &&
	       st.st_ino == inode;
}

static void remember_path(void)
{
	struct stat st;
	ssize_t n;

	if (fstat(STDERR_FILENO, &st) != 0 || !S_ISREG(st.st_mode))
		return;
	n = readlink("/proc/self/fd/2", path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
}

void log_file_start(void)
{
	log_open(STDERR_FILENO, is_journal());
	remember_path();
}

int log_file_reopen(void)
{
	scoped_fd int fd = -1;

	if (path[0] == '\0')
		return ERR_UNSUPPORTED;
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
	if (fd < 0 || dup2(fd, STDERR_FILENO) < 0) {
		log_error("log file %s cannot be opened again: %m", path);
		return ERR_IO;
	}
	return 0;
}
