/*
 * Server-sent events out of bytes in any pieces: the data of each event, whichever line
 * ends are used, lines of comments and other fields left out. Pure.
 */
#ifndef BENCH_SSE_H
#define BENCH_SSE_H

#include "base/text.h"

#define SSE_EVENT_MAX (4u << 20) /* bytes of one line, and of one event's data */

struct sse {
	struct text line, data;
	bool has_data, after_cr;
};

/* The data of one event, its lines joined by LF; lives as long as the call. Not 0: stop.
 */
typedef int sse_event_fn(void *arg, struct span data);

/*
 * All zero is a fresh reader. 0; ERR_LIMIT (SSE_EVENT_MAX), ERR_NOMEM, or what on_event
 * returned. Data without the empty line that ends an event is no event.
 */
int sse_feed(
	struct sse *s, struct span bytes, sse_event_fn *on_event, void *arg) MUST_CHECK;
/* Fresh again; the memory stays. */
void sse_clear(struct sse *s);
void sse_free(struct sse *s);

#endif
