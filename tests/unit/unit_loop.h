/*
 * Turning a loop in a test until something holds, and a listening port that the kernel
 * chose. Nothing sleeps; a deadline of 20 s, which no passing test comes near, ends one
 * that hangs.
 */
#ifndef UNIT_UNIT_LOOP_H
#define UNIT_UNIT_LOOP_H

#include "base/clock.h"
#include "io/loop.h"
#include "io/sock.h"
#include "tests/unit/unit.h"

#include <string.h>

#define UNIT_DEADLINE_US 20000000u

#define TURN_UNTIL(l, condition)                                                      \
	do {                                                                          \
		uint64_t end_us_ = clock_us() + UNIT_DEADLINE_US;                     \
		while (!(condition)) {                                                \
			ck_assert_msg(clock_us() < end_us_, "never: %s", #condition); \
			loop_turn((l), 100);                                          \
		}                                                                     \
	} while (0)

/* Turns that find nothing to do: whatever spins would be called again and again. */
static inline void turn_idle(struct loop *l, int turns)
{
	for (int i = 0; i < turns; i++)
		loop_turn(l, 1);
}

/* 127.0.0.1 and a listening descriptor on a port of the kernel's. */
static inline int listen_any(union sock_addr *a)
{
	socklen_t n = sizeof(*a);
	int fd = -1;

	ck_assert_int_eq(sock_addr_parse("127.0.0.1", 0, a), 0);
	ck_assert_int_eq(sock_listen(a, &fd), 0);
	ck_assert_int_eq(getsockname(fd, &a->sa, &n), 0);
	return fd;
}

#endif
