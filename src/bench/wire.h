/*
 * HTTP/1.1 exchanges with one server over as many connections as there are exchanges at a
 * time: kept alive and used again, or a new one each. One loop; nothing is locked.
 */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include "base/base.h"
#include "base/span.h"

struct addr_list;
struct http_head;
struct loop;
struct wire;
struct wire_trip; /* one exchange */

enum wire_end {
	WIRE_OK,
	WIRE_REFUSED,     /* no address took the connection */
	WIRE_UNREACHABLE, /* the same, for another reason than a refusal */
	WIRE_TIMEOUT,
	WIRE_RESET,    /* closed before the first byte of an answer */
	WIRE_BROKEN,   /* closed within the answer */
	WIRE_PROTOCOL, /* no valid HTTP/1.1 */
	WIRE_STOPPED,  /* on_body said so */
	WIRE_LOCAL,    /* no memory, descriptors or ports here */
	WIRE_END_MAX
};
const char *wire_end_text(enum wire_end end); /* "refused", ... */

/* Called in this order, never from inside wire_send(). Any may send or cancel others. */
struct wire_ops {
	/* A final head: base holds its bytes, during the call. */
	void (*on_head)(void *arg, const char *base, const struct http_head *h);
	/* A piece of the body, without its chunking. Not 0: ends by WIRE_STOPPED. */
	int (*on_body)(void *arg, struct span data);
	/* Once, the last call. The trip is gone. */
	void (*on_end)(void *arg, enum wire_end end);
};

struct wire_counts {
	uint64_t connects, resent, bytes_in, bytes_out;
};

/* Takes a reference of addrs. timeout_ms is for each exchange whole (0: none). */
struct wire *wire_new(struct loop *l, struct addr_list *addrs, uint64_t timeout_ms,
	bool new_connections);
void wire_free(struct wire *w); /* no trip may be under way; NULL is fine */
/*
 * Starts an exchange. head (complete, for a request with this body) and body stay the
 * caller's and as they are until the end. One that a kept connection swallowed without an
 * answer is sent again, once, on a new connection. NULL: no memory.
 */
struct wire_trip *wire_send(struct wire *w, struct span head, struct span body,
	const struct wire_ops *ops, void *arg) MUST_CHECK;
void wire_cancel(struct wire_trip *t); /* no callback afterwards; not from its own */
struct wire_counts wire_counts(const struct wire *w);

#endif
