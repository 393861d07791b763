/*
 * The fault of connects that hang. With a backlog of 0 the kernel holds one connection
 * for accept(2), and drops the SYN of all others. Called by serve.c.
 */
#include "lab/hang.h"
#include "base/log.h"
#include "io/sock.h"

#include <sys/socket.h>
#include <unistd.h>

void hang_init(struct hang *h)
{
	h->is_on = false;
	for (size_t i = 0; i < HANG_FILLERS; i++)
		h->fds[i] = -1;
}

static void fill(struct hang *h, int listen_fd)
{
	union sock_addr a;
	socklen_t len = sizeof(a);

	if (listen(listen_fd, 0) != 0 || getsockname(listen_fd, &a.sa, &len) != 0) {
		log_warn("the fault hang_connect: %m");
		return;
	}
	for (size_t i = 0; i < HANG_FILLERS; i++) {
		if (sock_connect(&a, &h->fds[i]) != 0)
			h->fds[i] = -1;
	}
}

static void empty(struct hang *h, int listen_fd)
{
	for (size_t i = 0; i < HANG_FILLERS; i++) {
		if (h->fds[i] >= 0)
			close(h->fds[i]);
		h->fds[i] = -1;
	}
	if (listen_fd >= 0 && listen(listen_fd, SOCK_BACKLOG) != 0)
		log_warn("the fault hang_connect: %m");
}

void hang_set(struct hang *h, int listen_fd, bool on)
{
	if (on == h->is_on)
		return;
	h->is_on = on;
	if (on)
		fill(h, listen_fd);
	else
		empty(h, listen_fd);
}
