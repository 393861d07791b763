/*
 * Memory: allocate-or-die for the start of a program, overflow-checked growth, wiping.
 * The x* functions end the process when memory runs out. Code that a running daemon can
 * reach never calls them; it uses malloc or the functions below them, and checks.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include "base/base.h"

void *xmalloc(size_t size);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *p, size_t size);
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n);
char *xasprintf(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* A new string that the caller frees; NULL when memory runs out. */
char *mem_format(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Appends to the text of `used` bytes in out[n]; what has no room is cut. Returns the new
 * length. */
size_t mem_append(char *out, size_t n, size_t used, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

/*
 * Makes room for `want` elements in the array *items of *cap elements, doubling. 0 or
 * ERR_NOMEM (then *items and *cap are as they were). For request-path arrays.
 */
int mem_grow(void *items, size_t *cap, size_t want, size_t elem_size) MUST_CHECK;

/* Wipes secrets in a way the compiler keeps. */
void mem_wipe(void *p, size_t n);

#endif
