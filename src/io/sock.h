/*
 * Sockets: addresses, listening sockets, options, descriptor limits.
 */
#ifndef IO_SOCK_H
#define IO_SOCK_H

#include "base/base.h"
#include "base/ip.h"

#include <netinet/in.h>
#include <sys/socket.h>

union sock_addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_storage storage;
};

#define SOCK_UNSENT_BYTES 131072 /* that the kernel takes of what it cannot send yet */
#define SOCK_BACKLOG 4096 /* connections that wait to be accepted, for each listener */

socklen_t sock_addr_len(const union sock_addr *a);
/* IPv4 or IPv6. */
bool sock_addr_is_inet(const union sock_addr *a);
/* The port of an IP address, in network order; else 0. */
in_port_t sock_addr_port(const union sock_addr *a);
/* "127.0.0.1:80", "[::1]:80"; always NUL-terminates; returns the length. with_port false:
 * the bare address, no brackets. */
size_t sock_addr_text(const union sock_addr *a, bool with_port, char *out, size_t n);
#define SOCK_ADDR_TEXT_MAX 64
/* IP_NONE unless it is an IP address. */
struct ip sock_addr_ip(const union sock_addr *a);
/* IP literals ("127.0.0.1", "::1"), and the paths of unix sockets ("/run/a.sock");
 * ERR_PARSE else. */
int sock_addr_parse(const char *host, uint16_t port, union sock_addr *out) MUST_CHECK;

/*
 * A listening TCP socket: SO_REUSEADDR, SO_REUSEPORT, IPV6_V6ONLY, TCP_NODELAY,
 * SO_KEEPALIVE (30/10/3), TCP_USER_TIMEOUT 60 s, TCP_NOTSENT_LOWAT (all inherited by what
 * it accepts), non-blocking, close-on-exec, backlog 4096. *fd is the caller's. ERR_IO with
 * errno kept.
 */
int sock_listen(const union sock_addr *a, int *fd) MUST_CHECK;
/* The options of what is accepted, for a listening TCP socket that somebody else made. */
void sock_adopt_listener(int fd);
/* A unix stream listener at path with mode; replaces a dead socket file, refuses a live
 * one (ERR_EXISTS). */
int sock_listen_unix(const char *path, mode_t mode, int *fd) MUST_CHECK;
/* Starts a non-blocking connect (options as above; AF_UNIX works too). 0 connected or in
 * progress; ERR_REFUSED, ERR_LIMIT (files, ports), ERR_IO. */
int sock_connect(const union sock_addr *a, int *fd) MUST_CHECK;
/* After writability: 0, or ERR_REFUSED / ERR_TIMEOUT / ERR_LIMIT / ERR_IO from SO_ERROR
 * (left in errno). */
int sock_connect_result(int fd) MUST_CHECK;
/* The next close sends RST (SO_LINGER 0): a truncated message must not look complete. */
void sock_abort_on_close(int fd);
/* accept4 non-blocking close-on-exec; ERR_AGAIN, ERR_LIMIT (EMFILE, ENFILE, ENOBUFS,
 * ENOMEM), ERR_IO (transient: try the next). */
int sock_accept(int listen_fd, int *fd, union sock_addr *peer) MUST_CHECK;
/* Raises RLIMIT_NOFILE to its hard limit where allowed; returns the limit in force. */
unsigned long sock_raise_fd_limit(void);

#endif
