/*
 * Socket addresses, options and descriptors, straight over the system calls.
 * Every descriptor made here is non-blocking and close-on-exec; where a call fails, none
 * stays open and errno is the kernel's. Used by listener, upstream, stream, admin and
 * resolve.
 */
#include "io/sock.h"
#include "base/err.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define KEEPALIVE_IDLE_S 30
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES 3
#define USER_TIMEOUT_MS 60000

static const struct sockaddr_un *unix_part(const union sock_addr *a)
{
	return (const struct sockaddr_un *)(const void *)&a->storage;
}

in_port_t sock_addr_port(const union sock_addr *a)
{
	if (a->sa.sa_family == AF_INET)
		return a->in.sin_port;
	return a->sa.sa_family == AF_INET6 ? a->in6.sin6_port : 0;
}

socklen_t sock_addr_len(const union sock_addr *a)
{
	switch (a->sa.sa_family) {
	case AF_INET:
		return sizeof(a->in);
	case AF_INET6:
		return sizeof(a->in6);
	case AF_UNIX:
		return (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
				   strnlen(unix_part(a)->sun_path,
					   sizeof(unix_part(a)->sun_path) - 1) +
				   1);
	default:
		return sizeof(a->storage);
	}
}

/* The length that is really in out, from the return value of snprintf(). */
static size_t text_len(int len, size_t n)
{
	if (len < 0 || n == 0)
		return 0;
	return (size_t)len < n ? (size_t)len : n - 1;
}

size_t sock_addr_text(const union sock_addr *a, bool with_port, char *out, size_t n)
{
	char bare[INET6_ADDRSTRLEN];

	if (a->sa.sa_family == AF_INET) {
		inet_ntop(AF_INET, &a->in.sin_addr, bare, sizeof(bare));
		if (with_port)
			return text_len(
				snprintf(out, n, "%s:%u", bare, ntohs(a->in.sin_port)),
				n);
	} else if (a->sa.sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &a->in6.sin6_addr, bare, sizeof(bare));
		if (with_port)
			return text_len(snprintf(out, n, "[%s]:%u", bare,
						ntohs(a->in6.sin6_port)),
				n);
	} else {
		return text_len(
			snprintf(out, n, "%s", a->sa.sa_family == AF_UNIX ? "unix" : "?"),
			n);
	}
	return text_len(snprintf(out, n, "%s", bare), n);
}

struct ip sock_addr_ip(const union sock_addr *a)
{
	if (a->sa.sa_family == AF_INET)
		return ip_v4(&a->in.sin_addr);
	if (a->sa.sa_family == AF_INET6)
		return ip_v6(&a->in6.sin6_addr);
	return (struct ip){.family = IP_NONE};
}

static int parse_unix_path(const char *path, union sock_addr *out)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	size_t n = strlen(path) + 1;

	if (n > sizeof(un.sun_path))
		return ERR_PARSE;
	memcpy(un.sun_path, path, n);
	memset(out, 0, sizeof(*out));
	memcpy(&out->storage, &un, sizeof(un));
	return 0;
}

int sock_addr_parse(const char *host, uint16_t port, union sock_addr *out)
{
	union sock_addr a;

	memset(&a, 0, sizeof(a));
	if (host[0] == '/')
		return parse_unix_path(host, out);
	if (inet_pton(AF_INET, host, &a.in.sin_addr) == 1) {
		a.in.sin_family = AF_INET;
		a.in.sin_port = htons(port);
	} else if (inet_pton(AF_INET6, host, &a.in6.sin6_addr) == 1) {
		a.in6.sin6_family = AF_INET6;
		a.in6.sin6_port = htons(port);
	} else {
		return ERR_PARSE;
	}
	*out = a;
	return 0;
}

static void close_keep_errno(int fd)
{
	int saved = errno;

	close(fd);
	errno = saved;
}

static bool is_shortage(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static bool set_int(int fd, int level, int option, int value)
{
	return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

static bool set_tcp_options(int fd)
{
	return set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1) &&
	       set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1) &&
	       set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S) &&
	       set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S) &&
	       set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES) &&
	       set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
}

/* What the kernel holds of a peer that reads nothing is this much, and not megabytes. It
 * bounds what is not sent yet, so a fast peer has as large a window as ever. */
static bool set_send_bound(int fd)
{
	return set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, SOCK_UNSENT_BYTES);
}

void sock_adopt_listener(int fd)
{
	(void)(set_tcp_options(fd) && set_send_bound(fd));
}

bool sock_addr_is_inet(const union sock_addr *a)
{
	return a->sa.sa_family == AF_INET || a->sa.sa_family == AF_INET6;
}

int sock_listen(const union sock_addr *a, int *fd)
{
	int s = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (s < 0)
		return ERR_IO;
	if (!set_int(s, SOL_SOCKET, SO_REUSEADDR, 1) ||
		!set_int(s, SOL_SOCKET, SO_REUSEPORT, 1) ||
		(a->sa.sa_family == AF_INET6 &&
			!set_int(s, IPPROTO_IPV6, IPV6_V6ONLY, 1)) ||
		!set_tcp_options(s) || !set_send_bound(s) ||
		bind(s, &a->sa, sock_addr_len(a)) != 0 || listen(s, SOCK_BACKLOG) != 0) {
		close_keep_errno(s);
		return ERR_IO;
	}
	*fd = s;
	return 0;
}

/* 0: path is a socket that nobody listens on. ERR_EXISTS: it is in use, or no socket. */
static int check_dead_socket(const struct sockaddr_un *un)
{
	struct stat st;
	int s, rc, error;

	if (lstat(un->sun_path, &st) != 0)
		return errno == ENOENT ? 0 : ERR_IO;
	if (!S_ISSOCK(st.st_mode))
		return ERR_EXISTS;
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s < 0)
		return ERR_IO;
	rc = connect(s, (const struct sockaddr *)un, sizeof(*un));
	error = errno;
	close(s);
	errno = error;
	return rc != 0 && error == ECONNREFUSED ? 0 : ERR_EXISTS;
}

static int bind_unix(int s, const struct sockaddr_un *un)
{
	int err;

	if (bind(s, (const struct sockaddr *)un, sizeof(*un)) == 0)
		return 0;
	if (errno != EADDRINUSE)
		return ERR_IO;
	err = check_dead_socket(un);
	if (err != 0)
		return err;
	if (unlink(un->sun_path) != 0 && errno != ENOENT)
		return ERR_IO;
	if (bind(s, (const struct sockaddr *)un, sizeof(*un)) == 0)
		return 0;
	return errno == EADDRINUSE ? ERR_EXISTS : ERR_IO;
}

int sock_listen_unix(const char *path, mode_t mode, int *fd)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int s, err;

	if (path[0] == '\0' || strlen(path) >= sizeof(un.sun_path)) {
		errno = ENAMETOOLONG;
		return ERR_IO;
	}
	memcpy(un.sun_path, path, strlen(path) + 1);
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s < 0)
		return ERR_IO;
	/* The file is born with the mode of the socket less the umask, so it is never too
	 * open. */
	err = fchmod(s, mode) == 0 ? bind_unix(s, &un) : ERR_IO;
	if (err == 0 && (chmod(path, mode) != 0 || listen(s, SOCK_BACKLOG) != 0))
		err = ERR_IO;
	if (err != 0) {
		close_keep_errno(s);
		return err;
	}
	*fd = s;
	return 0;
}

static int connect_error(int error)
{
	switch (error) {
	case ECONNREFUSED:
	case EAGAIN: /* a unix socket's backlog is full */
		return ERR_REFUSED;
	case ETIMEDOUT:
		return ERR_TIMEOUT;
	default:
		return is_shortage(error) || error == EADDRNOTAVAIL ? ERR_LIMIT : ERR_IO;
	}
}

int sock_connect(const union sock_addr *a, int *fd)
{
	int s = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int err;

	if (s < 0)
		return is_shortage(errno) ? ERR_LIMIT : ERR_IO;
	if (sock_addr_is_inet(a) && !set_tcp_options(s)) {
		close_keep_errno(s);
		return ERR_IO;
	}
	/* Interrupted, a connect goes on by itself. */
	if (connect(s, &a->sa, sock_addr_len(a)) != 0 && errno != EINPROGRESS &&
		errno != EINTR) {
		err = connect_error(errno);
		close_keep_errno(s);
		return err;
	}
	*fd = s;
	return 0;
}

int sock_connect_result(int fd)
{
	int error = 0;
	socklen_t n = sizeof(error);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
		error = errno;
	errno = error;
	return error == 0 ? 0 : connect_error(error);
}

void sock_abort_on_close(int fd)
{
	struct linger at_once = {.l_onoff = 1, .l_linger = 0};

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

int sock_accept(int listen_fd, int *fd, union sock_addr *peer)
{
	union sock_addr a;
	socklen_t n = sizeof(a);
	int s;

	memset(&a, 0, sizeof(a));
	do
		s = accept4(listen_fd, &a.sa, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
	while (s < 0 && errno == EINTR);
	if (s < 0) {
		if (errno == EAGAIN || errno == EWOULDBLOCK)
			return ERR_AGAIN;
		return is_shortage(errno) ? ERR_LIMIT : ERR_IO;
	}
	*fd = s;
	*peer = a;
	return 0;
}

unsigned long sock_raise_fd_limit(void)
{
	struct rlimit limit, raised;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return 0;
	raised = limit;
	raised.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
		return (unsigned long)raised.rlim_cur;
	return (unsigned long)limit.rlim_cur;
}
