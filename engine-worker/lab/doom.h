/*
 * A moment at which something is to go wrong: to the microsecond, where the loop's own
 * timers have ticks of 10 ms.
 */
#ifndef ENGINE_LAB_DOOM_H
#define ENGINE_LAB_DOOM_H

#include "base/base.h"

struct doom;
struct loop;

/* fn(arg) may free it. NULL: no memory, or no descriptor. */
struct doom *doom_new(struct loop *l, void (*fn)(void *arg), void *arg);
void doom_free(struct doom *d); /* NULL is fine */

/* In so many milliseconds from now, once. One that is set already stays as it is. */
void doom_set(struct doom *d, uint64_t ms);

#endif
