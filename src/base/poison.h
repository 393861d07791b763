/*
 * Memory that nobody may touch for now: on a free list, or of a turn that is over. With
 * AddressSanitizer a use of it is reported as a use after free is; without, these are
 * nothing. Whoever takes the memory again lifts the poison first. free() may be given
 * poisoned memory.
 */
#ifndef BASE_POISON_H
#define BASE_POISON_H

#include "base/base.h"

#if defined(__has_feature)
#	if __has_feature(address_sanitizer)
#		define HAS_POISON 1
#	endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#	define HAS_POISON 1
#endif

#ifdef HAS_POISON
#	include <sanitizer/asan_interface.h>

static inline void poison(const void *p, size_t n)
{
	ASAN_POISON_MEMORY_REGION(p, n);
}

static inline void unpoison(const void *p, size_t n)
{
	ASAN_UNPOISON_MEMORY_REGION(p, n);
}
#else
#	define HAS_POISON 0

static inline void poison(const void *p, size_t n)
{
	(void)p;
	(void)n;
}

static inline void unpoison(const void *p, size_t n)
{
	(void)p;
	(void)n;
}
#endif

#endif
