/*
 * The thread's cached monotonic clock.
 * While a thread's clock is frozen by clock_set(), neither reading nor updating moves it.
 * clock_us(), clock_turn_us() and clock_wall_ms() are never frozen: they measure, they do
 * not decide.
 */
#include "base/clock.h"

#include <time.h>

static _Thread_local uint64_t cached_ms, cached_us;
static _Thread_local bool is_frozen;

static uint64_t read_us(clockid_t id)
{
	struct timespec ts = {0};
	int rc = clock_gettime(id, &ts);

	assert(rc == 0);
	(void)rc;
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

uint64_t clock_now_ms(void)
{
	return cached_ms;
}

uint64_t clock_update(void)
{
	if (!is_frozen) {
		cached_us = read_us(CLOCK_MONOTONIC);
		cached_ms = cached_us / 1000u;
	}
	return cached_ms;
}

uint64_t clock_us(void)
{
	return read_us(CLOCK_MONOTONIC);
}

uint64_t clock_turn_us(void)
{
	return is_frozen || cached_us == 0 ? clock_us() : cached_us;
}

uint64_t clock_wall_ms(void)
{
	return read_us(CLOCK_REALTIME) / 1000u;
}

void clock_set(uint64_t now_ms)
{
	is_frozen = now_ms != 0;
	cached_ms = now_ms;
	if (!is_frozen)
		clock_update();
}
