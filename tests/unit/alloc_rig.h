/*
 * Memory that runs out: the linker replaces the allocators (--wrap, ALLOC_WRAP in
 * tests/local.mk), so only what the program itself asks for can fail. One allocation of
 * the test's own thread fails, chosen by its number. For check_reload_memory.c and
 * check_control_memory.c.
 */
#ifndef UNIT_ALLOC_RIG_H
#define UNIT_ALLOC_RIG_H

#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Thread_local bool alloc_is_armed, alloc_has_failed;
static _Thread_local unsigned alloc_until_failure; /* 0: the next one fails */

/* The n-th allocation from now on fails; n counts from 0. */
static inline void alloc_arm(unsigned n)
{
	alloc_is_armed = true;
	alloc_has_failed = false;
	alloc_until_failure = n;
}

/* Whether one failed. */
static inline bool alloc_disarm(void)
{
	alloc_is_armed = false;
	return alloc_has_failed;
}

static inline bool alloc_fails(void)
{
	if (!alloc_is_armed || alloc_until_failure-- > 0)
		return false;
	alloc_is_armed = false;
	alloc_has_failed = true;
	errno = ENOMEM;
	return true;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from);
FILE *__real_open_memstream(char **text, size_t *n);
int __real_scandir(const char *path, struct dirent ***entries,
	int (*wants)(const struct dirent *entry),
	int (*order)(const struct dirent **a, const struct dirent **b));
int __real_getaddrinfo(const char *host, const char *service,
	const struct addrinfo *hints, struct addrinfo **out);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from);
FILE *__wrap_open_memstream(char **text, size_t *n);
int __wrap_scandir(const char *path, struct dirent ***entries,
	int (*wants)(const struct dirent *entry),
	int (*order)(const struct dirent **a, const struct dirent **b));
int __wrap_getaddrinfo(const char *host, const char *service,
	const struct addrinfo *hints, struct addrinfo **out);
int __wrap_asprintf(char **out, const char *fmt, ...) PRINTF_LIKE(2, 3);
int __wrap___asprintf_chk(char **out, int flag, const char *fmt, ...) PRINTF_LIKE(3, 4);
int __wrap_vasprintf(char **out, const char *fmt, va_list args) PRINTF_LIKE(2, 0);
int __wrap___vasprintf_chk(char **out, int flag, const char *fmt, va_list args)
	PRINTF_LIKE(3, 0);

void *__wrap_malloc(size_t n)
{
	return alloc_fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t count, size_t n)
{
	return alloc_fails() ? NULL : __real_calloc(count, n);
}

void *__wrap_realloc(void *p, size_t n)
{
	return alloc_fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
	return alloc_fails() ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s)
{
	return alloc_fails() ? NULL : __real_strdup(s);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
	return alloc_fails() ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, from);
}

FILE *__wrap_open_memstream(char **text, size_t *n)
{
	return alloc_fails() ? NULL : __real_open_memstream(text, n);
}

int __wrap_scandir(const char *path, struct dirent ***entries,
	int (*wants)(const struct dirent *entry),
	int (*order)(const struct dirent **a, const struct dirent **b))
{
	return alloc_fails() ? -1 : __real_scandir(path, entries, wants, order);
}

int __wrap_getaddrinfo(const char *host, const char *service,
	const struct addrinfo *hints, struct addrinfo **out)
{
	return alloc_fails() ? EAI_MEMORY : __real_getaddrinfo(host, service, hints, out);
}

/* The libc's own function, which calls no wrapped one. */
static inline int alloc_print(char **out, const char *fmt, va_list args)
	PRINTF_LIKE(2, 0);

static inline int alloc_print(char **out, const char *fmt, va_list args)
{
	va_list again;
	int n;

	va_copy(again, args);
	n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	*out = alloc_fails() ? NULL : __real_malloc((size_t)n + 1);
	return *out == NULL ? -1 : vsnprintf(*out, (size_t)n + 1, fmt, args);
}

int __wrap_vasprintf(char **out, const char *fmt, va_list args)
{
	return alloc_print(out, fmt, args);
}

int __wrap___vasprintf_chk(char **out, int flag, const char *fmt, va_list args)
{
	(void)flag;
	return alloc_print(out, fmt, args);
}

int __wrap_asprintf(char **out, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = alloc_print(out, fmt, args);
	va_end(args);
	return n;
}

int __wrap___asprintf_chk(char **out, int flag, const char *fmt, ...)
{
	va_list args;
	int n;

	(void)flag;
	va_start(args, fmt);
	n = alloc_print(out, fmt, args);
	va_end(args);
	return n;
}

#endif
