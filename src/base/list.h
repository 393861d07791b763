/*
 * Intrusive lists: libc's sys/queue.h plus the removal-safe loops that glibc leaves out.
 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <sys/queue.h>

#ifndef TAILQ_FOREACH_SAFE
#	define TAILQ_FOREACH_SAFE(var, head, field, next)                     \
		for ((var) = TAILQ_FIRST(head);                                \
			(var) != NULL && ((next) = TAILQ_NEXT(var, field), 1); \
			(var) = (next))
#endif
#ifndef LIST_FOREACH_SAFE
#	define LIST_FOREACH_SAFE(var, head, field, next)                     \
		for ((var) = LIST_FIRST(head);                                \
			(var) != NULL && ((next) = LIST_NEXT(var, field), 1); \
			(var) = (next))
#endif

#endif
