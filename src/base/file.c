/*
 * Reading a file to its end, whatever its length says. Holds nothing between calls.
 */
#include "base/file.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

/* Twice as much room, or some to begin with. */
static int grow(char **bytes, size_t *room)
{
	size_t more = *room == 0 ? 65536 : *room * 2;
	char *grown = realloc(*bytes, more);

	if (grown == NULL)
		return ERR_NOMEM;
	*bytes = grown;
	*room = more;
	return 0;
}

int file_read(const char *path, size_t max_bytes, char **text, size_t *n)
{
	scoped_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	scoped_free char *bytes = NULL;
	size_t used = 0, room = 0;
	ssize_t got = 1;

	if (fd < 0)
		return ERR_IO;
	while (got > 0) {
		if (used == room && grow(&bytes, &room) != 0)
			return ERR_NOMEM;
		got = read(fd, bytes + used, room - used);
		if (got < 0 && errno != EINTR)
			return ERR_IO;
		if (got < 0)
			got = 1;
		else
			used += (size_t)got;
		if (used > max_bytes)
			return ERR_LIMIT;
	}
	*text = take_ptr(bytes);
	*n = used;
	return 0;
}
