/*
 * Scoped release for lifetimes that end when the function returns, and take_ptr() to hand
 * one out.
 * Never for anything that an event will touch later (STYLE: explicit destructor there).
 */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free_p(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_fd_p(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void cleanup_file_p(FILE **f)
{
	if (*f != NULL)
		fclose(*f);
}

#define scoped_free __attribute__((cleanup(cleanup_free_p)))
#define scoped_fd __attribute__((cleanup(cleanup_fd_p)))
#define scoped_file __attribute__((cleanup(cleanup_file_p)))

/* Hands a scoped pointer out: returns its value and nulls the variable. */
#define take_ptr(p)                         \
	({                                  \
		__typeof__(p) _taken = (p); \
		(p) = NULL;                 \
		_taken;                     \
	})

#endif
