/*
 * Listening sockets that this process was born with. See inherit.h.
 */
#include "control/inherit.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/span.h"
#include "io/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */
#define FDS_MAX 65536

struct inherited_fd {
	int fd; /* -1: claimed */
	char name[INHERIT_NAME_MAX];
	union sock_addr addr;
	bool is_stored;  /* by the service manager */
	bool is_renamed; /* claimed, and is called otherwise from now on */
};

/* ---- names ---- */

void inherit_name(const char *what, const char *text, char out[INHERIT_NAME_MAX])
{
	char *p;

	snprintf(out, INHERIT_NAME_MAX, "%s-%s", what, text);
	for (p = out; *p != '\0'; p++) {
		if (*p == ':' || *p == '=' || *p <= ' ' || *p > '~')
			*p = '_';
	}
}

static bool is_for(const struct inherited_fd *f, const char *what)
{
	size_t n = strlen(what);

	return strncmp(f->name, what, n) == 0 && f->name[n] == '-';
}

/* ---- taking ---- */

static bool is_listening(int fd)
{
	int value = 0;
	socklen_t n = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &n) == 0 && value != 0;
}

static bool make_ours(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
	       fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

static void add(struct inherited *in, int fd, struct span name, bool is_stored)
{
	struct inherited_fd f = {.fd = fd, .is_stored = is_stored};
	socklen_t n = sizeof(f.addr);

	snprintf(f.name, sizeof(f.name), SPAN_FMT, SPAN_ARG(name));
	if (fcntl(fd, F_GETFD) < 0) {
		log_warn("inherited descriptor %d (%s) is not open: ignored", fd, f.name);
		return;
	}
	if (!is_listening(fd) || !make_ours(fd) || getsockname(fd, &f.addr.sa, &n) != 0) {
		log_warn("inherited descriptor %d (%s) is not a listening socket: closed",
			fd, f.name);
		if (is_stored)
			(void)notify_unstore(f.name);
		close(fd);
		return;
	}
	in->items = xrealloc(in->items, (in->n + 1) * sizeof(*in->items));
	in->items[in->n++] = f;
}

static bool number(const char *text, uint64_t max, uint64_t *out)
{
	return text != NULL && span_to_u64(span_str(text), out) == 0 && *out <= max;
}

/* LISTEN_FDS of them from 3 on, if they are meant for this process. */
static void take_listen_fds(struct inherited *in)
{
	const char *names = getenv("LISTEN_FDNAMES");
	struct span rest = span_str(names), name;
	uint64_t pid, n, i;

	if (!number(getenv("LISTEN_PID"), UINT32_MAX, &pid) ||
		pid != (uint64_t)getpid() || !number(getenv("LISTEN_FDS"), FDS_MAX, &n))
		return;
	for (i = 0; i < n; i++) {
		if (names == NULL || !span_next(&rest, ':', &name))
			name = SPAN_LIT("unknown");
		add(in, FIRST_FD + (int)i, name, true);
	}
}

/* "fd=name:fd=name" */
static void take_own_variable(struct inherited *in)
{
	const char *text = getenv(INHERIT_VARIABLE);
	struct span rest = span_str(text), item, fd_text;
	uint64_t fd;

	while (text != NULL && span_next(&rest, ':', &item)) {
		if (!span_next(&item, '=', &fd_text) || span_to_u64(fd_text, &fd) != 0 ||
			fd < FIRST_FD || fd > INT32_MAX) {
			log_warn("%s is malformed: the rest of it is ignored",
				INHERIT_VARIABLE);
			return;
		}
		add(in, (int)fd, item, notify_is_on());
	}
}

void inherit_take(struct inherited *in)
{
	static const char *const variables[] = {
		"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", INHERIT_VARIABLE};
	size_t i;

	*in = (struct inherited){NULL, 0};
	take_listen_fds(in);
	take_own_variable(in);
	for (i = 0; i < ARRAY_LEN(variables); i++)
		unsetenv(variables[i]);
}

int bequest_add(struct bequest *b, int fd, const char *name)
{
	bool is_first = b->text == NULL;
	char *longer;

	if (mem_grow(&b->fds, &b->cap, b->n + 1, sizeof(*b->fds)) != 0)
		return ERR_NOMEM;
	longer = mem_format(
		"%s%s%d=%s", is_first ? "" : b->text, is_first ? "" : ":", fd, name);
	if (longer == NULL)
		return ERR_NOMEM;
	free(b->text);
	b->text = longer;
	b->fds[b->n++] = fd;
	return 0;
}

void bequest_free(struct bequest *b)
{
	free(b->text);
	free(b->fds);
	*b = (struct bequest){0};
}

/* ---- the end ---- */

void inherit_drop(struct inherited *in)
{
	size_t i;

	for (i = 0; i < in->n; i++) {
		if (in->items[i].fd >= 0)
			close(in->items[i].fd);
	}
	free(in->items);
	*in = (struct inherited){NULL, 0};
}

/* Of clients' unix sockets: that of the admin socket is as its owner says. */
static void remove_file(const struct inherited_fd *f)
{
	const struct sockaddr_un *un = (const void *)&f->addr.storage;

	if (is_for(f, INHERIT_CLIENTS) && f->addr.sa.sa_family == AF_UNIX &&
		un->sun_path[0] == '/')
		(void)unlink(un->sun_path);
}

void inherit_close(struct inherited *in)
{
	char text[SOCK_ADDR_TEXT_MAX];
	size_t i;

	for (i = 0; i < in->n; i++) {
		struct inherited_fd *f = &in->items[i];

		/* A socket that the manager has already is not taken under another name:
		 * it forgets the old one first. */
		if (f->is_stored && (f->fd >= 0 || f->is_renamed))
			(void)notify_unstore(f->name);
		if (f->fd < 0)
			continue;
		sock_addr_text(&f->addr, true, text, sizeof(text));
		log_notice("no longer listening on %s (%s)", text, f->name);
		/* Another process may have it too, but none serves it any more. */
		(void)shutdown(f->fd, SHUT_RDWR);
		remove_file(f);
	}
	inherit_drop(in);
}

/* ---- claiming ---- */

static in_port_t *port_in(union sock_addr *a)
{
	return a->sa.sa_family == AF_INET ? &a->in.sin_port : &a->in6.sin6_port;
}

/* But for the port. */
static bool same_host(const union sock_addr *a, const union sock_addr *b)
{
	if (!sock_addr_is_inet(a) || a->sa.sa_family != b->sa.sa_family)
		return false;
	if (a->sa.sa_family == AF_INET)
		return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
	return a->in6.sin6_scope_id == b->in6.sin6_scope_id &&
	       memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof(a->in6.sin6_addr)) ==
		       0;
}

static int take_fd(struct inherited_fd *f)
{
	int fd = f->fd;

	f->fd = -1;
	return fd;
}

int inherit_claim(struct inherited *in, const char *what, const char *text,
	union sock_addr *a, bool *is_stored)
{
	char name[INHERIT_NAME_MAX];
	size_t i;

	inherit_name(what, text, name);
	for (i = 0; in != NULL && i < in->n; i++) {
		struct inherited_fd *f = &in->items[i];
		bool has_name = strcmp(f->name, name) == 0;

		if (f->fd < 0 || !is_for(f, what) || !same_host(&f->addr, a) ||
			(sock_addr_port(a) == 0
					? !has_name
					: sock_addr_port(&f->addr) != sock_addr_port(a)))
			continue;
		*port_in(a) = sock_addr_port(&f->addr);
		f->is_renamed = !has_name;
		*is_stored = f->is_stored && has_name;
		sock_adopt_listener(f->fd);
		return take_fd(f);
	}
	return -1;
}

int inherit_claim_unix(struct inherited *in, const char *what, const char *path)
{
	struct stat st;
	size_t i;

	for (i = 0; in != NULL && i < in->n; i++) {
		struct inherited_fd *f = &in->items[i];
		const struct sockaddr_un *un = (const void *)&f->addr.storage;

		if (f->fd < 0 || !is_for(f, what) || f->addr.sa.sa_family != AF_UNIX ||
			strncmp(un->sun_path, path, sizeof(un->sun_path)) != 0)
			continue;
		/* Its file may have been removed meanwhile: then nobody finds it. */
		if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode))
			return take_fd(f);
	}
	return -1;
}

bool inherit_has_port(const struct inherited *in, const union sock_addr *a)
{
	size_t i;

	for (i = 0; in != NULL && i < in->n; i++) {
		if (sock_addr_is_inet(&in->items[i].addr) &&
			sock_addr_port(&in->items[i].addr) == sock_addr_port(a))
			return true;
	}
	return false;
}
