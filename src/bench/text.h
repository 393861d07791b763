/*
 * A growing run of bytes: request bodies, answers, lines. Once memory is out it stays
 * `failed` and takes no more, so that callers ask once at the end.
 */
#ifndef BENCH_TEXT_H
#define BENCH_TEXT_H

#include "base/base.h"
#include "base/span.h"

struct text {
	char *p; /* owned; NULL while nothing was added */
	size_t n, cap;
	bool failed;
};

void text_add(struct text *t, struct span s);
void text_printf(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The characters of a JSON string, without its quotes; bytes from 0x80 pass as they are.
 */
void text_add_json(struct text *t, struct span s);
/* Room for n more bytes at the end, to be filled by the caller; NULL: failed. */
char *text_room(struct text *t, size_t n);
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
void text_free(struct text *t);

#endif
