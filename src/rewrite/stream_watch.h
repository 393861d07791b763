/*
 * What a worker says in an event stream, told as its bytes pass: the first event that
 * holds content, an error, the end. Pure; called by proxy/upstream_read.c.
 *
 * An engine sends the header of a stream, comments, pings and the role of who speaks
 * before it has computed anything: none of that is content. Events of a shape that is not
 * known are content, and a stream that had one is never said to lack its end.
 *
 * Always true: bytes are looked at, never changed; less than STREAM_WATCH_KEPT of them
 * are kept. After the first content an event with the lead and the trail of the one
 * before costs two comparisons.
 */
#ifndef REWRITE_STREAM_WATCH_H
#define REWRITE_STREAM_WATCH_H

#include "base/base.h"
#include "base/span.h"
#include "base/text.h"
#include "route/route_key.h"

/* Of half an event. What is longer goes by and is not understood. */
#define STREAM_WATCH_KEPT (64u << 10)
#define STREAM_WATCH_SHAPE 160
/* A chat's events differ from an error's within so many bytes: data: {"id":"... */
#define STREAM_WATCH_LEAD 16

/* Of an event that is too long: after a line feed, after that and a carriage return. */
enum stream_watch_line { LINE_GOES_ON, LINE_BEGINS, LINE_MAY_END };

struct stream_watch {
	enum route_endpoint endpoint;
	bool is_on;       /* false: nothing is looked at, and all else is false */
	bool has_content; /* also: an end, or an error that the client made */
	bool has_end;     /* its terminator, or the reason why it ends */
	bool has_error;   /* the engine's own */
	bool is_abort;    /* all of the error is that it aborted the request */
	bool is_strange;
	bool is_alike;    /* the last bytes: one event, in the shape of the one before */
	struct text half; /* of an event */
	bool is_too_long; /* the event that goes by; nothing of it is kept */
	enum stream_watch_line line;
	/* The shape of events that say nothing but content; n_trail 0: not known. n_end: of
	 * the trail, from its first line feed on. */
	size_t n_lead, n_trail, n_end;
	char lead[STREAM_WATCH_SHAPE], trail[STREAM_WATCH_SHAPE];
};

/* No stream: nothing is looked at. */
static inline void stream_watch_init(struct stream_watch *w)
{
	w->is_on = w->has_content = w->has_end = w->has_error = w->is_strange = false;
	w->is_abort = w->is_alike = false;
	w->half = (struct text){0};
	w->is_too_long = false;
	w->n_trail = 0;
}
/* An event stream follows, in answer to a request of this endpoint. */
static inline void stream_watch_begin(
	struct stream_watch *w, enum route_endpoint endpoint)
{
	w->is_on = true;
	w->endpoint = endpoint;
}
void stream_watch_free(struct stream_watch *w);

/* Streams of this endpoint have content, errors and an end that are known. */
bool stream_watch_knows(enum route_endpoint endpoint);

static inline bool stream_watch_has_lead(const struct stream_watch *w, const char *p)
{
	/* A length that is known is compared without a call. */
	return w->n_lead == STREAM_WATCH_LEAD ? memcmp(p, w->lead, STREAM_WATCH_LEAD) == 0
					      : memcmp(p, w->lead, w->n_lead) == 0;
}
/* The length of the event that text begins with, if it looks like the one before; 0: it
 * does not, or is not whole. */
static inline size_t stream_watch_alike(const struct stream_watch *w, struct span text)
{
	size_t least = w->n_lead + w->n_trail;
	const char *feed, *end;

	if (w->n_trail == 0 || w->half.n > 0 || text.n < least ||
		!stream_watch_has_lead(w, text.p))
		return 0;
	feed = memchr(text.p + w->n_lead, '\n', text.n - w->n_lead);
	if (feed == NULL || (size_t)(text.p + text.n - feed) < w->n_end)
		return 0;
	end = feed + w->n_end;
	if ((size_t)(end - text.p) < least ||
		memcmp(end - w->n_trail, w->trail, w->n_trail) != 0)
		return 0;
	return (size_t)(end - text.p);
}
void stream_watch_read(struct stream_watch *w, struct span data);
/* The next bytes. */
static inline void stream_watch_feed(struct stream_watch *w, struct span data)
{
	w->is_alike = data.n > 0 && stream_watch_alike(w, data) == data.n;
	if (!w->is_alike)
		stream_watch_read(w, data);
}

/* What a body is by its beginning: an error's object, if the rest fits. */
enum stream_watch_guess { OBJECT_IS_OTHER, OBJECT_MAY_BE_ERROR, OBJECT_IS_LIKE_ERROR };
enum stream_watch_guess stream_watch_guess(struct span text);
/* The next bytes of an answer that is no stream. One that is an error object, which
 * engines may give with status 200, is known at its last byte; any other has content from
 * its first bytes on. */
void stream_watch_object(struct stream_watch *w, struct span data, bool last);
/* is_abort, and somebody has asked for that: it is an end like others. */
void stream_watch_excuse_abort(struct stream_watch *w);

/* What was said so far: nothing that answers the request. */
static inline bool stream_watch_is_silent(const struct stream_watch *w)
{
	return !w->has_content && !w->has_error;
}
/* It may end here: it says why, or nothing is known of its ends. */
static inline bool stream_watch_is_whole(const struct stream_watch *w)
{
	return !w->is_on || w->has_end || w->has_error || w->is_strange;
}
/* The last event is not whole. */
static inline bool stream_watch_is_amid(const struct stream_watch *w)
{
	return w->half.n > 0 || w->is_too_long;
}

#endif
