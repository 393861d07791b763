/*
 * The client's side of a connection: the lent input buffer. See client.h.
 */
#include "proxy/client.h"

#include "base/err.h"
#include "proxy/io_thread.h"

#include <stdlib.h>

ssize_t client_read(struct client *c, char *to, size_t n)
{
	ssize_t got;

	if (!c->can_read)
		return ERR_AGAIN;
	got = stream_read(&c->stream, to, n);
	if (got > 0) {
		/* A short read has emptied the socket: the next readiness is an event of
		 * its own. */
		c->can_read = (size_t)got == n;
		return got;
	}
	c->can_read = false;
	if (got == ERR_AGAIN)
		return ERR_AGAIN;
	c->saw_eof = true;
	c->is_broken = got != ERR_CLOSED;
	return ERR_CLOSED;
}

int client_reserve(struct client *c, size_t want)
{
	char *bigger;

	if (want <= c->cap)
		return 0;
	if (c->buf == NULL && want <= IO_IN_BYTES) {
		c->buf = io_block_get(c->t);
		c->cap = c->buf != NULL ? IO_IN_BYTES : 0;
		return c->buf != NULL ? 0 : ERR_NOMEM;
	}
	bigger = malloc(want);
	if (bigger == NULL)
		return ERR_NOMEM;
	if (c->len > 0)
		memcpy(bigger, c->buf, c->len);
	if (c->buf != NULL && c->cap == IO_IN_BYTES)
		io_block_put(c->t, c->buf);
	else
		free(c->buf);
	c->buf = bigger;
	c->cap = want;
	return 0;
}

ssize_t client_fill(struct client *c)
{
	ssize_t got;

	if (c->buf == NULL && client_reserve(c, IO_IN_BYTES) != 0)
		return ERR_NOMEM;
	if (c->len == c->cap)
		return ERR_LIMIT;
	got = client_read(c, c->buf + c->len, c->cap - c->len);
	if (got > 0)
		c->len += (size_t)got;
	return got;
}

void client_cut(struct client *c, size_t from, size_t n)
{
	assert(from + n <= c->len);
	if (n == 0)
		return;
	memmove(c->buf + from, c->buf + from + n, c->len - from - n);
	c->len -= n;
}

void client_consume(struct client *c, size_t n)
{
	client_cut(c, 0, n);
}

void client_drop_buffer(struct client *c)
{
	if (c->buf == NULL)
		return;
	if (c->cap == IO_IN_BYTES)
		io_block_put(c->t, c->buf);
	else
		free(c->buf);
	c->buf = NULL;
	c->len = c->cap = 0;
}

void client_return_buffer(struct client *c)
{
	if (c->len == 0)
		client_drop_buffer(c);
}
