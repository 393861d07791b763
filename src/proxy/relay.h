/*
 * Writes a response to the client as it arrives: the bytes of one read from the worker
 * are on the wire before the next read (no gathering). Re-frames: chunked, by length or
 * until close. Stops the source by its return value when the client is slow (stream's
 * water marks).
 */
#ifndef PROXY_RELAY_H
#define PROXY_RELAY_H

#include "base/base.h"
#include "base/span.h"
#include "http/http_head.h"

struct stream;

struct relay {
	struct stream *to;
	enum http_framing framing;
	uint64_t bytes; /* of body, handed to the client's stream */
	bool is_full;   /* above the high mark: wait for on_writable */
};

/*
 * Sends head (may be empty) and data (may be empty) in one write; last: the body ends
 * here. 0; ERR_CLOSED: the client is gone; ERR_NOMEM: bytes were lost, nothing can
 * follow. is_full is set when the source should rest. Both spans may be reused at once.
 */
int relay_send(struct relay *r, struct span head, struct span data, bool last) MUST_CHECK;

#endif
