/*
 * Sockets of the benches' own programs, mock_worker and stream_delay: what both do alike.
 * An error of the machine ends the program. Not part of the product.
 */
#ifndef BENCH_MOCK_NET_H
#define BENCH_MOCK_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* The head of a response that is an event stream in chunks. */
#define MOCK_STREAM_HEAD                                                            \
	"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: " \
	"chunked\r\n\r\n"

static inline void mock_fail(const char *what)
{
	perror(what);
	exit(1);
}

/* arg comes with each event of fd. */
static inline void mock_watch(int epoll_fd, int fd, void *arg)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = arg};

	if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
		mock_fail("epoll_ctl");
}

/* All of it, by trying again: a bench's peer reads. A peer that is gone is not told of. */
static inline void mock_send(int fd, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t sent = write(fd, p, n);

		if (sent < 0 && errno == EAGAIN)
			continue;
		if (sent <= 0)
			return;
		p += sent;
		n -= (size_t)sent;
	}
}

/* A listening socket on the loopback; its port, the kernel's, is printed. */
static inline int mock_listen(void)
{
	struct sockaddr_in a = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) != 0 ||
		listen(fd, 4096) != 0 ||
		getsockname(fd, (struct sockaddr *)&a, &len) != 0)
		mock_fail("listen");
	printf("%u\n", ntohs(a.sin_port));
	fflush(stdout);
	return fd;
}

/* A connection that does not block; -1: none waits. */
static inline int mock_accept(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;

	if (fd >= 0)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

/* A timer that is readable every us. */
static inline int mock_timer(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	struct itimerspec every = {t, t};
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);

	if (fd < 0 || timerfd_settime(fd, 0, &every, NULL) != 0)
		mock_fail("timerfd");
	return fd;
}

/* One event as a chunk, into out; returns its length. */
static inline size_t mock_event(char *out, size_t n, const char *data, int len)
{
	return (size_t)snprintf(out, n, "%x\r\n%.*s\r\n", len, len, data);
}

#endif
