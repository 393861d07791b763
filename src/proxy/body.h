/*
 * A request's body: collected whole, in one contiguous piece; or, where routing does not
 * need it, held only until the worker has it (body_stream). A small one with a length
 * stays where it was read, behind its head in the client's buffer; others get their own
 * memory, counted in the request's budget. Owned by the request.
 */
#ifndef PROXY_BODY_H
#define PROXY_BODY_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "http/http_chunk.h"
#include "http/http_head.h"

struct budget;
struct client;
struct io_thread;

#define BODY_DISCARD_MAX 65536 /* read from a refused request, to keep its connection */
#define BODY_WINDOW 65536      /* of one that is streamed */

struct body {
	enum http_framing framing; /* as the client sent it */
	uint64_t expected;         /* HTTP_BODY_LENGTH */
	uint64_t limit;
	bool is_inline, is_discarded, is_complete, is_streamed;
	size_t head_len; /* where body bytes begin in the client's buffer */
	char *own;
	size_t len, cap, counted; /* len: bytes that are held, or stand in for them */
	uint64_t total;           /* bytes that came, decoded */
	bool has_dropped;         /* streamed: some bytes are held no more */
	struct http_chunk chunk;
};

/* limit: max_body_size. FAIL_NONE, or why it must be refused before a byte is read (too
 * large). */
enum fail body_start(struct body *b, const struct http_head *h, uint64_t limit);
/* From now on bytes are only counted, up to BODY_DISCARD_MAX. */
void body_discard(struct body *b);
/*
 * From now on body_read() holds at most BODY_WINDOW bytes and, while it holds that many,
 * reads nothing; the caller sends them and calls body_drop().
 */
void body_stream(struct body *b);
/* Streamed: the worker has the held bytes. A body behind its head stays there, and may be
 * sent again. */
void body_drop(struct body *b);
/* Streamed: body_read() would read. */
bool body_has_room(const struct body *b);
/*
 * One round of reading. 0: complete; ERR_AGAIN; ERR_CLOSED: the client left; ERR_PARSE
 * and *why.
 */
int body_read(struct body *b, struct client *c, struct budget *budget,
	enum fail *why) MUST_CHECK;
/* The bytes that are held. */
struct span body_bytes(const struct body *b, const struct client *c);
/* The same, where the router changes what it sends on. */
char *body_memory(struct body *b, struct client *c);
/* In a whole body: text stands in the place of its bytes [at, at + n). ERR_PARSE and
 * *why. */
int body_replace(struct body *b, struct client *c, struct budget *budget, size_t at,
	size_t n, struct span text, enum fail *why) MUST_CHECK;
/* Bytes at the front of the client's buffer that head and body take. */
size_t body_used(const struct body *b);
void body_free(struct body *b, struct io_thread *t, struct budget *budget);

#endif
