/*
 * Reads a server's response, whole or event by event: usage, text, errors, and the name
 * of the worker. Pure.
 */
#ifndef BENCH_REPLY_H
#define BENCH_REPLY_H

#include "base/text.h"

#define REPLY_WORKER_MAX 128
#define REPLY_MESSAGE_MAX 200

struct reply {
	bool keeps_text; /* by the caller: whether text is gathered */
	struct text text;
	bool has_usage, has_cached, has_error, is_done, has_finish;
	uint64_t prompt_tokens, new_tokens, cached_tokens;
	char worker[REPLY_WORKER_MAX];   /* "worker" or "system_fingerprint"; may be "" */
	char message[REPLY_MESSAGE_MAX]; /* of an error; may be "" */
};

/* Empty but for keeps_text; the text's memory stays. */
void reply_clear(struct reply *r);
void reply_free(struct reply *r);

/* A whole answer, of success or failure. ERR_PARSE: no JSON object. */
int reply_read(struct reply *r, struct span body) MUST_CHECK;
/*
 * One event of a stream; "[DONE]" sets is_done. *has_text: it brought text (of any kind,
 * reasoning and tool calls too). ERR_PARSE: no JSON object.
 */
int reply_event(struct reply *r, struct span data, bool *has_text) MUST_CHECK;

/* A copy, cut to n - 1 bytes, that a terminal can show: other bytes are '?'. */
void reply_copy(struct span in, char *out, size_t n);

#endif
