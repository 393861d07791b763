/*
 * The client's side of a connection, as the request sees it: the stream, and the input
 * buffer that is lent while bytes are there. Owned by conn (embedded by value); the
 * request on it borrows it. buf[0] is the first byte of the current request.
 */
#ifndef PROXY_CLIENT_H
#define PROXY_CLIENT_H

#include "base/base.h"
#include "base/span.h"
#include "http/http_forwarded.h"
#include "io/stream.h"

struct io_thread;

struct client {
	struct stream stream;
	struct io_thread *t;
	/* Called by an exchange when it has something for the request on this connection:
	 * conn runs it. */
	void (*run)(void *client);
	char *buf; /* NULL: not lent */
	size_t len, cap;
	bool can_read; /* the descriptor may have bytes that we have not asked for */
	bool saw_eof;  /* FIN seen, or the connection broke (is_broken) */
	bool is_broken;
	bool is_late; /* it came when the daemon was stopping: no worker for it */
	struct http_who peer;
	uint64_t id;
};

/* Reads once into the buffer's free end. > 0 bytes; ERR_AGAIN; ERR_CLOSED (saw_eof is
 * set); ERR_LIMIT: no room; ERR_NOMEM. */
ssize_t client_fill(struct client *c) MUST_CHECK;
/* Reads once to where the caller wants it (a body buffer). As client_fill. */
ssize_t client_read(struct client *c, char *to, size_t n) MUST_CHECK;
/* Room for at least want bytes in all. ERR_NOMEM. */
int client_reserve(struct client *c, size_t want) MUST_CHECK;
/* Drops the first n bytes. */
void client_consume(struct client *c, size_t n);
/* Cuts [from, from + n) out. */
void client_cut(struct client *c, size_t from, size_t n);
/* Gives the buffer back when it is empty. */
void client_return_buffer(struct client *c);
void client_drop_buffer(struct client *c);

#endif
