/*
 * One datagram to the service manager for each message, over the socket that
 * NOTIFY_SOCKET names. Holds no state; without NOTIFY_SOCKET everything succeeds
 * silently. Called on the control thread.
 */
#include "io/notify.h"
#include "base/clock.h"
#include "base/err.h"

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

static int send_text(const struct sockaddr_un *un, socklen_t un_len, const char *text)
{
	struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ssize_t n;

	if (fd < 0)
		return ERR_IO;
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	do
		n = sendto(fd, text, strlen(text), MSG_NOSIGNAL,
			(const struct sockaddr *)un, un_len);
	while (n < 0 && errno == EINTR);
	close(fd);
	return n == (ssize_t)strlen(text) ? 0 : ERR_IO;
}

int notify_send(const char *text)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	size_t n;

	if (path == NULL || path[0] == '\0')
		return 0;
	n = strlen(path);
	if (path[0] != '/' && path[0] != '@')
		return ERR_UNSUPPORTED;
	if (n >= sizeof(un.sun_path))
		return ERR_RANGE;
	memcpy(un.sun_path, path, n);
	if (path[0] == '@')
		un.sun_path[0] =
			'\0'; /* an abstract name is as long as the address says */
	return send_text(
		&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n), text);
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
