/*
 * The body of a request that routing does not need: it goes to the worker as it comes
 * from the client. At most one window of it is held (body.h). Each side waits for the
 * other: a slow worker pauses the client's stream, and a slow client leaves the exchange
 * without a piece. Part of its request (by value), which runs it whenever one side may
 * have moved; one upload spans the exchanges that are tried one after another.
 */
#ifndef PROXY_UPLOAD_H
#define PROXY_UPLOAD_H

#include "base/base.h"
#include "base/fail.h"
#include "http/http_chunk.h"

struct body;
struct budget;
struct client;
struct exchange;

struct upload {
	bool is_on;
	bool is_given;      /* the worker has the held bytes, or is taking them */
	bool is_ended;      /* the last piece was given */
	bool is_begun;      /* the exchange has its first piece */
	bool awaits_client; /* bytes of the body are due */
	char line[HTTP_CHUNK_LINE_MAX];
	size_t offset; /* where the next piece begins in the held bytes */
};

/* From now on b is held only until the worker has it. */
void upload_start(struct upload *u, struct body *b);
/* With a new exchange: from the first byte again. Only while upload_is_repeatable(). */
void upload_rewind(struct upload *u);
/* All bytes that a worker was given are still held. */
bool upload_is_repeatable(const struct upload *u, const struct body *b);
/*
 * Moves bytes until one side must be awaited, or enough was moved for a turn.
 * 0; ERR_CLOSED: the client left; ERR_PARSE and *why.
 */
int upload_run(struct upload *u, struct body *b, struct client *c, struct exchange *ex,
	struct budget *budget, enum fail *why) MUST_CHECK;
/* No exchange takes the client's bytes for now. A client that breaks off is noticed; its
 * bytes are read with the next exchange. */
void upload_pause(struct upload *u, struct client *c);

#endif
