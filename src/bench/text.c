/*
 * Growing runs of bytes. See text.h. Called by everything in bench/.
 */
#include "bench/text.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

char *text_room(struct text *t, size_t n)
{
	if (t->failed || n > SIZE_MAX / 2 - t->n ||
		mem_grow(&t->p, &t->cap, t->n + n + 1, 1) != 0) {
		t->failed = true;
		return NULL;
	}
	return t->p + t->n;
}

void text_add(struct text *t, struct span s)
{
	char *to = s.n > 0 ? text_room(t, s.n) : NULL;

	if (to == NULL)
		return;
	memcpy(to, s.p, s.n);
	t->n += s.n;
}

void text_printf(struct text *t, const char *fmt, ...)
{
	va_list args, again;
	char *to;
	int n;

	va_start(args, fmt);
	va_copy(again, args);
	n = vsnprintf(NULL, 0, fmt, args);
	to = n < 0 ? NULL : text_room(t, (size_t)n + 1);
	if (to != NULL) {
		(void)vsnprintf(to, (size_t)n + 1, fmt, again);
		t->n += (size_t)n;
	} else {
		t->failed = true;
	}
	va_end(again);
	va_end(args);
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

void text_free(struct text *t)
{
	free(t->p);
	*t = (struct text){0};
}
