/*
 * Monotonic milliseconds, cached per thread so that one turn of a loop reads the kernel's
 * clock once. Tests freeze it with clock_set(). Pure code (the rooms from conf to pool)
 * never calls this: it takes now_ms as an argument.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include "base/base.h"

/* The cached time of this thread (0 before the first clock_update()). */
uint64_t clock_now_ms(void);
/* Reads the kernel's CLOCK_MONOTONIC into this thread's cache and returns it. */
uint64_t clock_update(void);
/* Uncached, for measuring: CLOCK_MONOTONIC in microseconds. */
uint64_t clock_us(void);
/* clock_us() as of this thread's last clock_update(): the time at which the loop saw the
 * events of this turn. Uncached while the clock is frozen, or before the first update. */
uint64_t clock_turn_us(void);
/* Wall clock, milliseconds since the epoch, for logs. */
uint64_t clock_wall_ms(void);
/*
 * Freezes this thread's clock at now_ms (tests); clock_set(0) thaws it and updates the
 * cache.
 */
void clock_set(uint64_t now_ms);

#endif
