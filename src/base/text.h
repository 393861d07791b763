/*
 * A growing run of bytes: bodies, answers, metrics, events. Where something was added
 * last, p[n] is NUL. Once memory is out it stays `failed` and takes no more, so that
 * callers may ask once at the end.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include "base/base.h"
#include "base/span.h"

struct text {
	char *p; /* owned; NULL while nothing was added */
	size_t n, cap;
	bool failed;
};

/* 0 or ERR_NOMEM, as `failed` says. */
int text_add(struct text *t, struct span s);
void text_printf(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The characters of a JSON string, without its quotes; bytes from 0x80 pass as they are.
 */
void text_add_json(struct text *t, struct span s);
/* Room for n more bytes and the NUL, which the caller adds and counts; NULL: failed. */
char *text_room(struct text *t, size_t n);
/* Forgets the first n bytes. */
void text_drop(struct text *t, size_t n);
static inline struct span text_span(const struct text *t)
{
	return span_make(t->p, t->n);
}
/* Empty again; the memory stays. */
static inline void text_clear(struct text *t)
{
	t->n = 0;
	t->failed = false;
}
void text_free(struct text *t); /* empty, as at first */

#endif
