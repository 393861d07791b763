/*
 * Allocate-or-die for the start of a program, checked growth for a running one, and wiping
 * of secrets. The x* functions never return NULL: they end the process instead.
 */
#include "base/mem.h"
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void NORETURN die_of_memory(void)
{
	static const char line[] = "out of memory\n";
	ssize_t written = write(STDERR_FILENO, line, sizeof(line) - 1);

	(void)written; /* nothing is left to tell it to */
	abort();
}

void *xmalloc(size_t size)
{
	void *p = malloc(size > 0 ? size : 1);

	if (p == NULL)
		die_of_memory();
	return p;
}

void *xcalloc(size_t count, size_t size)
{
	void *p = count > 0 && size > 0 ? calloc(count, size) : calloc(1, 1);

	if (p == NULL)
		die_of_memory();
	return p;
}

void *xrealloc(void *p, size_t size)
{
	void *q = realloc(p, size > 0 ? size : 1);

	if (q == NULL)
		die_of_memory();
	return q;
}

char *xstrdup(const char *s)
{
	return xstrndup(s, strlen(s));
}

char *xstrndup(const char *s, size_t n)
{
	size_t len = strnlen(s, n);
	char *copy = xmalloc(len + 1);

	memcpy(copy, s, len);
	copy[len] = '\0';
	return copy;
}

/* NULL: out of memory. */
static char *format(const char *fmt, va_list args)
{
	char *text;

	return vasprintf(&text, fmt, args) < 0 ? NULL : text;
}

char *xasprintf(const char *fmt, ...)
{
	va_list args;
	char *text;

	va_start(args, fmt);
	text = format(fmt, args);
	va_end(args);
	if (text == NULL)
		die_of_memory();
	return text;
}

char *mem_format(const char *fmt, ...)
{
	va_list args;
	char *text;

	va_start(args, fmt);
	text = format(fmt, args);
	va_end(args);
	return text;
}

size_t mem_append(char *out, size_t n, size_t used, const char *fmt, ...)
{
	va_list args;
	int wrote;

	va_start(args, fmt);
	wrote = vsnprintf(out + used, n - used, fmt, args);
	va_end(args);
	return wrote > 0 ? MIN(used + (size_t)wrote, n - 1) : used;
}

int mem_grow(void *items, size_t *cap, size_t want, size_t elem_size)
{
	size_t room = *cap, bytes;
	void *old, *grown;

	assert(elem_size > 0);
	if (want <= room)
		return 0;
	if (__builtin_mul_overflow(room, 2u, &room) || room < want)
		room = want;
	room = MAX(room, (size_t)8);
	if (__builtin_mul_overflow(room, elem_size, &bytes) || bytes > PTRDIFF_MAX)
		return ERR_NOMEM;
	/* items is the address of some T *: copied, since T ** is not void ** */
	memcpy(&old, items, sizeof(old));
	grown = realloc(old, bytes);
	if (grown == NULL)
		return ERR_NOMEM;
	memcpy(items, &grown, sizeof(grown));
	*cap = room;
	return 0;
}

void mem_wipe(void *p, size_t n)
{
	if (n > 0)
		explicit_bzero(p, n);
}
