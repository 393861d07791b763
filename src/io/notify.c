/*
 * One datagram to the service manager for each message, over the socket that
 * NOTIFY_SOCKET names. Holds no state; without NOTIFY_SOCKET everything succeeds
 * silently. Called on the control thread.
 */
#include "io/notify.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/span.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SEND_TIMEOUT_S 1 /* the manager may be busy, but not for ever */
#define TEXT_MAX 4096
#define FDS_A_MESSAGE 64 /* the kernel takes 253 */

union fd_room {
	char bytes[CMSG_SPACE(FDS_A_MESSAGE * sizeof(int))];
	struct cmsghdr align;
};

/* The address that NOTIFY_SOCKET names. 0 and *len (0: there is no manager), or ERR_*. */
static int manager_address(struct sockaddr_un *un, socklen_t *len)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t n;

	*un = (struct sockaddr_un){.sun_family = AF_UNIX};
	*len = 0;
	if (path == NULL || path[0] == '\0')
		return 0;
	n = strlen(path);
	if (path[0] != '/' && path[0] != '@')
		return ERR_UNSUPPORTED;
	if (n >= sizeof(un->sun_path))
		return ERR_RANGE;
	memcpy(un->sun_path, path, n);
	if (path[0] == '@')
		un->sun_path[0] =
			'\0'; /* an abstract name is as long as the address says */
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
	return 0;
}

/* Puts descriptors beside a message; room is theirs. */
static void attach(struct msghdr *msg, union fd_room *room, const int *fds, size_t n)
{
	struct cmsghdr *c;

	msg->msg_control = room->bytes;
	msg->msg_controllen = CMSG_SPACE(n * sizeof(int));
	memset(room, 0, sizeof(*room));
	c = CMSG_FIRSTHDR(msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
}

static int send_message(struct sockaddr_un *un, socklen_t un_len, const char *text,
	const int *fds, size_t n_fds)
{
	struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
	struct iovec iov = {.iov_base = (char *)text, .iov_len = strlen(text)};
	struct msghdr msg = {
		.msg_name = un, .msg_namelen = un_len, .msg_iov = &iov, .msg_iovlen = 1};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	union fd_room room;
	ssize_t n;

	if (fd < 0)
		return ERR_IO;
	if (n_fds > 0)
		attach(&msg, &room, fds, n_fds);
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	do
		n = sendmsg(fd, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	close(fd);
	return n == (ssize_t)iov.iov_len ? 0 : ERR_IO;
}

static int tell(const char *text, const int *fds, size_t n)
{
	struct sockaddr_un un;
	socklen_t len;
	int err = manager_address(&un, &len);

	return err != 0 || len == 0 ? err : send_message(&un, len, text, fds, n);
}

bool notify_is_on(void)
{
	struct sockaddr_un un;
	socklen_t len;

	return manager_address(&un, &len) == 0 && len > 0;
}

int notify_send(const char *text)
{
	return tell(text, NULL, 0);
}

int notify_sendf(const char *fmt, ...)
{
	char text[TEXT_MAX];
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof(text))
		return ERR_RANGE;
	return notify_send(text);
}

int notify_reloading(void)
{
	return notify_sendf("RELOADING=1\nMONOTONIC_USEC=%ju", (uintmax_t)clock_us());
}

int notify_store(const char *name, const int *fds, size_t n)
{
	char text[TEXT_MAX];
	int len = snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);

	if (len < 0 || (size_t)len >= sizeof(text))
		return ERR_RANGE;
	while (n > 0) {
		size_t part = MIN(n, (size_t)FDS_A_MESSAGE);
		int err = tell(text, fds, part);

		if (err != 0)
			return err;
		fds += part;
		n -= part;
	}
	return 0;
}

int notify_unstore(const char *name)
{
	return notify_sendf("FDSTOREREMOVE=1\nFDNAME=%s", name);
}

uint64_t notify_watchdog_us(void)
{
	const char *us_text = getenv("WATCHDOG_USEC"), *pid_text = getenv("WATCHDOG_PID");
	uint64_t us, pid;

	if (us_text == NULL || span_to_u64(span_str(us_text), &us) != 0)
		return 0;
	if (pid_text != NULL &&
		(span_to_u64(span_str(pid_text), &pid) != 0 || pid != (uint64_t)getpid()))
		return 0;
	return us;
}
