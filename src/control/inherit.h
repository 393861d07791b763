/*
 * Listening sockets that this process was born with: from the service manager's
 * descriptor store (LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES, as sd_listen_fds(3) has it),
 * or from the process that this one is to replace (KVSTEER_SOCKETS). A module claims
 * a socket by its purpose and address. Unclaimed sockets are closed at the end.
 * Control thread, at boot. Used by daemon.c, boot.c and listen.c.
 *
 * A name gives a socket's purpose and its address as in the configuration, such as
 * "listen-127.0.0.1_30000" (names may hold no colon); so a socket whose port the kernel
 * chose is found again, too.
 */
#ifndef CONTROL_INHERIT_H
#define CONTROL_INHERIT_H

#include "base/base.h"
#include "io/sock.h"

#define INHERIT_NAME_MAX 200

/* The purposes of sockets: the first words of their names. */
#define INHERIT_CLIENTS "listen"
#define INHERIT_METRICS "metrics"
#define INHERIT_ADMIN "admin"

struct inherited {
	struct inherited_fd *items;
	size_t n;
};

/* Reads the environment, once, and takes its variables away. Never fails: unusable
 * descriptors are logged and closed. */
void inherit_take(struct inherited *in);
/* This process is the main one: closes the rest, and the service manager forgets it. */
void inherit_close(struct inherited *in);
/* Frees the list and leaves the sockets alone: this process will not be the main one. */
void inherit_drop(struct inherited *in);

/* "listen-127.0.0.1_30000" for what = INHERIT_CLIENTS, text = "127.0.0.1:30000". */
void inherit_name(const char *what, const char *text, char out[INHERIT_NAME_MAX]);

/*
 * A socket that listens at *a and is for `what`, and is the caller's from now on; -1:
 * there is none (any more). Where *a has no port, one whose name is that of text and
 * whose address is *a's but for the port; *a then gets it. *is_stored: the service
 * manager has it under this very name. in may be NULL.
 */
int inherit_claim(struct inherited *in, const char *what, const char *text,
	union sock_addr *a, bool *is_stored);
/* The unix socket at path; -1: there is none. */
int inherit_claim_unix(struct inherited *in, const char *what, const char *path);
/* True if a socket with the port of *a is there. */
bool inherit_has_port(const struct inherited *in, const union sock_addr *a);

/* The sockets for a successor: its variable's text, "4=listen-127.0.0.1_30000:5=...", and
 * the descriptors in it, which stay their owners'. */
struct bequest {
	char *text; /* NULL: nothing */
	int *fds;
	size_t n, cap;
};
/* ERR_NOMEM. */
int bequest_add(struct bequest *b, int fd, const char *name) MUST_CHECK;
void bequest_free(struct bequest *b);
#define INHERIT_VARIABLE "KVSTEER_SOCKETS"

#endif
