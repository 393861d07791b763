/*
 * The event stream of a completion or a chat, as it passes: the text so far, and, where
 * it went on elsewhere, the events of the second worker made to go on from the first's.
 * Pure; called by proxy/resume.c.
 *
 * Always true: only whole events are handed on, so that a break never leaves half of one
 * with the client; text holds exactly the text of the events handed on, as long as
 * is_lost is false. In a continuation, id, created and model become the first stream's;
 * the role, which the client has, is dropped; and usage counts the tokens before it as
 * part of the response, in which total is the sum of the two other counts.
 */
#ifndef REWRITE_RESUME_STREAM_H
#define REWRITE_RESUME_STREAM_H

#include "base/base.h"
#include "base/span.h"
#include "base/text.h"
#include "rewrite/stream_watch.h"

#define RESUME_TEXT_MAX (1u << 20)  /* of text, as it is spelled in JSON */
#define RESUME_EVENT_MAX (1u << 20) /* a longer event goes through as it comes */
#define RESUME_NAME_MAX 300

/* A JSON value as it was spelled; n 0: not seen yet. */
struct resume_name {
	char p[RESUME_NAME_MAX];
	size_t n;
};

struct resume_stream {
	bool is_chat;
	bool is_lost; /* something came that cannot be continued */
	bool is_raw;  /* nor understood: bytes go through as they come */
	bool has_role, is_finished, is_done; /* role, finish_reason, [DONE] seen */
	bool is_continued;                   /* a second worker, or a later one */
	struct resume_name id, created, model;
	struct text text;
	uint64_t tokens;        /* so far */
	uint64_t tokens_before; /* of the workers before this one */
	bool counts_usage;      /* this worker says how many */
	bool has_prompt;        /* a worker said how many the prompt has */
	uint64_t prompt;
	struct text tail, out;
	struct stream_watch watch; /* of this worker's events */
	bool abort_was_asked;      /* what it says of an abort is no error */
	bool has_error;            /* it said that it failed: in these events */
	struct text error;
};

void resume_stream_init(struct resume_stream *s, bool is_chat);
void resume_stream_free(struct resume_stream *s);
/*
 * Bytes from the worker. *out: what the client gets, alive until the next call. last:
 * nothing follows, and what is no whole event goes too. ERR_NOMEM: the stream cannot go
 * on.
 */
int resume_stream_feed(struct resume_stream *s, struct span data, bool last,
	struct span *out) MUST_CHECK;
/* Another worker goes on. Half an event is forgotten. */
void resume_stream_continue(struct resume_stream *s);
/* Nothing but the end is missing: the events that make it. ERR_NOMEM. */
int resume_stream_end(struct resume_stream *s, struct span *out) MUST_CHECK;

#endif
