/*
 * Unix sockets that clients connect to. See listen_unix.h.
 */
#include "control/listen_unix.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/span.h"
#include "control/inherit.h"
#include "io/sock.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODE 0666 /* as open as a TCP address of this machine */

const char *listen_unix_path(const char *text)
{
	return span_starts(span_str(text), SPAN_LIT("unix:/")) ? text + 5 : NULL;
}

/* A connection to who listens there; -1 with errno. */
static int dial(const char *path)
{
	union sock_addr a;
	int fd;

	if (sock_addr_parse(path, 0, &a) != 0) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return sock_connect(&a, &fd) == 0 ? fd : -1;
}

static int check_folder(const char *path)
{
	scoped_free char *folder = span_dup(span_str(path));
	char *slash = folder != NULL ? strrchr(folder, '/') : NULL;

	if (slash == NULL) {
		errno = ENOMEM;
		return ERR_IO;
	}
	slash[slash == folder] = '\0';
	return access(folder, W_OK | X_OK) == 0 ? 0 : ERR_IO;
}

static bool is_no_socket(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode);
}

int listen_unix_check(const char *path)
{
	scoped_fd int fd = dial(path);

	if (is_no_socket(path))
		errno = EEXIST;
	else if (fd >= 0)
		errno = EADDRINUSE;
	else if (errno == ECONNREFUSED || errno == ENOENT)
		return check_folder(path);
	return ERR_IO;
}

int listen_unix_open(const char *path, struct inherited *in, int *fd, bool *is_new)
{
	int err, more;

	*is_new = false;
	*fd = inherit_claim_unix(in, INHERIT_CLIENTS, path);
	/* Any more are the same one. */
	while ((more = inherit_claim_unix(in, INHERIT_CLIENTS, path)) >= 0)
		close(more);
	if (*fd >= 0)
		return 0;
	err = sock_listen_unix(path, MODE, fd);
	if (err == ERR_EXISTS)
		errno = is_no_socket(path) ? EEXIST : EADDRINUSE;
	*is_new = err == 0;
	return err == 0 ? 0 : ERR_IO;
}

bool listen_unix_is_kept(const char *path)
{
	scoped_fd int fd = dial(path);
	struct ucred maker;
	socklen_t n = sizeof(maker);

	return fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &n) == 0 &&
	       maker.pid > 0 && kill(maker.pid, 0) != 0 && errno == ESRCH;
}
