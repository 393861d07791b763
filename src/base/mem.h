/*
 * Allocate-or-die for startup and configuration, and overflow-checked sizes.
 * Code on the request path uses malloc and checks; it never calls the x* functions.
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

/*
 * Makes room for `want` elements in the array *items of *cap elements, doubling. 0 or
 * ERR_NOMEM (then *items and *cap are as they were). For request-path arrays.
 */
int mem_grow(void *items, size_t *cap, size_t want, size_t elem_size) MUST_CHECK;

/* Wipes secrets in a way the compiler keeps. */
void mem_wipe(void *p, size_t n);

#endif
