/*
 * Growing runs of bytes. See text.h.
 */
#include "base/text.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_ROOM 256 /* most of what is printed fits, and is formatted once */

char *text_room(struct text *t, size_t n)
{
	if (t->failed || n > SIZE_MAX / 2 - t->n ||
		mem_grow(&t->p, &t->cap, t->n + n + 1, 1) != 0) {
		t->failed = true;
		return NULL;
	}
	return t->p + t->n;
}

int text_add(struct text *t, struct span s)
{
	if (t->failed || s.n == 0)
		return t->failed ? ERR_NOMEM : 0;
	if (s.n >= t->cap - t->n && text_room(t, s.n) == NULL)
		return ERR_NOMEM;
	memcpy(t->p + t->n, s.p, s.n);
	t->n += s.n;
	t->p[t->n] = '\0';
	return 0;
}

void text_printf(struct text *t, const char *fmt, ...)
{
	char *to = text_room(t, LINE_ROOM);
	va_list args;
	int n;

	if (to == NULL)
		return;
	va_start(args, fmt);
	n = vsnprintf(to, t->cap - t->n, fmt, args);
	va_end(args);
	if (n >= 0 && (size_t)n >= t->cap - t->n) {
		to = text_room(t, (size_t)n);
		if (to == NULL)
			return;
		va_start(args, fmt);
		n = vsnprintf(to, (size_t)n + 1, fmt, args);
		va_end(args);
	}
	if (n < 0)
		t->failed = true;
	else
		t->n += (size_t)n;
}

static bool is_plain(unsigned char b)
{
	return b >= 0x20 && b != '"' && b != '\\';
}

void text_add_json(struct text *t, struct span s)
{
	for (size_t at = 0, end; at < s.n; at = end) {
		for (end = at; end < s.n && is_plain((unsigned char)s.p[end]); end++)
			;
		text_add(t, span_make(s.p + at, end - at));
		if (end < s.n)
			text_printf(t, "\\u%04x", (unsigned char)s.p[end++]);
	}
}

void text_drop(struct text *t, size_t n)
{
	assert(n <= t->n);
	t->n -= n;
	if (n > 0 && t->n > 0)
		memmove(t->p, t->p + n, t->n);
	if (n > 0)
		t->p[t->n] = '\0';
}

void text_free(struct text *t)
{
	free(t->p);
	*t = (struct text){0};
}
