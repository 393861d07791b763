/*
 * Unix sockets that clients connect to (listen = unix:/path). There is one socket for all
 * threads, each of which has a descriptor of it. Who may connect the permissions of its
 * folder say. Called by listen.c and preflight.c.
 */
#ifndef CONTROL_LISTEN_UNIX_H
#define CONTROL_LISTEN_UNIX_H

#include "base/base.h"

struct inherited;

/* "/path" of "unix:/path"; NULL: text is another address. */
const char *listen_unix_path(const char *text);
/* 0: a socket may be made there, also in place of one on which nobody listens. ERR_IO
 * with errno, EADDRINUSE if another listens, EEXIST if what is there is no socket. */
int listen_unix_check(const char *path) MUST_CHECK;
/* The socket that a predecessor left, else a new one (*is_new). ERR_IO with errno. */
int listen_unix_open(
	const char *path, struct inherited *in, int *fd, bool *is_new) MUST_CHECK;
/* True if the process that made the socket there has ended, and something keeps it: a
 * service manager, for the next start. */
bool listen_unix_is_kept(const char *path);

#endif
