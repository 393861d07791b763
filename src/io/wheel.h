/*
 * One coarse timer wheel for each loop: a deadline is a store. Resolution WHEEL_TICK_MS;
 * a timer fires up to two ticks late, never early. The loop drives it (one timer of its
 * base, armed only while timers exist). Timers are embedded by value in their owner and
 * must be stopped before it goes.
 */
#ifndef IO_WHEEL_H
#define IO_WHEEL_H

#include "base/base.h"
#include "base/list.h"

#define WHEEL_TICK_MS 10

struct wheel;

struct wheel_timer {
	LIST_ENTRY(wheel_timer) link;
	uint64_t due_ms;  /* when it fires; 0: idle */
	uint64_t slot_ms; /* when its slot comes: due_ms rounded up to a tick, or earlier
			   */
	void (*fn)(void *arg);
	void *arg;
};

void wheel_timer_init(struct wheel_timer *t, void (*fn)(void *arg), void *arg);
/* Sets or moves the deadline (past ones fire at the next tick). Moving it later is one
 * store. Timers may be set, moved, stopped and freed in any timer's fn. */
void wheel_set(struct wheel *w, struct wheel_timer *t, uint64_t due_ms);
void wheel_stop(struct wheel *w, struct wheel_timer *t);
static inline bool wheel_is_set(const struct wheel_timer *t)
{
	return t->due_ms != 0;
}

/* For the loop and for tests. */
struct wheel *wheel_new(void);
void wheel_free(struct wheel *w);
/* Fires what is due at now_ms; returns the milliseconds until it wants to be called
 * again, -1 when no timer is set. */
int64_t wheel_advance(struct wheel *w, uint64_t now_ms);
/* When it wants to be called next (maybe too early, never too late); UINT64_MAX when no
 * timer is set. */
uint64_t wheel_wake_ms(const struct wheel *w);

#endif
