/*
 * The timer wheel against an oracle: never early, at most two ticks late, whatever the
 * order of setting, moving and stopping.
 */
#include "base/rng.h"
#include "io/wheel.h"
#include "tests/unit/unit.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static struct wheel *wheel;
static uint64_t now_ms;

static void setup(void)
{
	now_ms = 1000000;
	wheel = wheel_new();
	ck_assert_ptr_nonnull(wheel);
}

static void teardown(void)
{
	wheel_free(wheel);
}

struct probe {
	struct wheel_timer timer;
	uint64_t due_ms, set_ms, fired_ms;
	unsigned fired;
	struct probe *other;
	unsigned again;
};

static void on_probe(void *arg)
{
	struct probe *p = arg;

	p->fired++;
	p->fired_ms = now_ms;
}

static void probe_init(struct probe *p, void (*fn)(void *arg))
{
	memset(p, 0, sizeof(*p));
	wheel_timer_init(&p->timer, fn, p);
}

/* The next time to call the wheel, as the loop does it; true while a timer is set. */
static bool step(void)
{
	int64_t wait_ms = wheel_advance(wheel, now_ms);

	if (wait_ms < 0)
		return false;
	ck_assert_int_ge(wait_ms, 0);
	now_ms += (uint64_t)wait_ms;
	return true;
}

START_TEST(an_empty_wheel_sleeps)
{
	struct probe p;

	ck_assert_int_eq(wheel_advance(wheel, now_ms), -1);
	ck_assert_uint_eq(wheel_wake_ms(wheel), UINT64_MAX);
	probe_init(&p, on_probe);
	wheel_set(wheel, &p.timer, now_ms + 50);
	ck_assert_uint_ne(wheel_wake_ms(wheel), UINT64_MAX);
	wheel_stop(wheel, &p.timer);
	wheel_stop(wheel, &p.timer);
	ck_assert(!wheel_is_set(&p.timer));
	now_ms += 100;
	ck_assert_int_eq(wheel_advance(wheel, now_ms), -1);
	ck_assert_uint_eq(p.fired, 0);
}
END_TEST

START_TEST(never_early)
{
	struct probe p;

	probe_init(&p, on_probe);
	wheel_advance(wheel, now_ms);
	for (unsigned i = 0; i < 100; i++) {
		uint64_t due_ms = now_ms + 1 + i;

		wheel_set(wheel, &p.timer, due_ms);
		wheel_advance(wheel, due_ms - 1);
		ck_assert_uint_eq(p.fired, i);
		ck_assert(wheel_is_set(&p.timer));
		now_ms = due_ms + 2 * WHEEL_TICK_MS;
		wheel_advance(wheel, now_ms);
		ck_assert_uint_eq(p.fired, i + 1);
		ck_assert(!wheel_is_set(&p.timer));
	}
}
END_TEST

START_TEST(past_and_zero_deadlines_fire_at_the_next_tick)
{
	struct probe p, q;

	wheel_advance(wheel, now_ms);
	probe_init(&p, on_probe);
	probe_init(&q, on_probe);
	wheel_set(wheel, &p.timer, now_ms - 5000);
	wheel_set(wheel, &q.timer, 0);
	ck_assert(wheel_is_set(&q.timer));
	now_ms += 2 * WHEEL_TICK_MS;
	ck_assert_int_eq(wheel_advance(wheel, now_ms), -1);
	ck_assert_uint_eq(p.fired, 1);
	ck_assert_uint_eq(q.fired, 1);
}
END_TEST

START_TEST(moving_later_keeps_its_slot_and_does_not_fire_early)
{
	struct probe p;
	uint64_t slot_ms;

	wheel_advance(wheel, now_ms);
	probe_init(&p, on_probe);
	wheel_set(wheel, &p.timer, now_ms + 100);
	slot_ms = p.timer.slot_ms;
	for (unsigned i = 0; i < 10; i++)
		wheel_set(wheel, &p.timer, now_ms + 200 + i * 100);
	ck_assert_uint_eq(p.timer.slot_ms, slot_ms);
	wheel_advance(wheel, now_ms + 1099);
	ck_assert_uint_eq(p.fired, 0);
	wheel_advance(wheel, now_ms + 1120);
	ck_assert_uint_eq(p.fired, 1);
}
END_TEST

START_TEST(moving_earlier_fires_earlier)
{
	struct probe p;

	wheel_advance(wheel, now_ms);
	probe_init(&p, on_probe);
	wheel_set(wheel, &p.timer, now_ms + 100000);
	wheel_set(wheel, &p.timer, now_ms + 30);
	ck_assert_uint_le(wheel_wake_ms(wheel), now_ms + 50);
	wheel_advance(wheel, now_ms + 50);
	ck_assert_uint_eq(p.fired, 1);
	ck_assert_int_eq(wheel_advance(wheel, now_ms + 200000), -1);
	ck_assert_uint_eq(p.fired, 1);
}
END_TEST

START_TEST(far_timers_wake_seldom)
{
	struct probe p;
	uint64_t start_ms = now_ms;
	unsigned wakes = 0;

	probe_init(&p, on_probe);
	wheel_advance(wheel, now_ms);
	wheel_set(wheel, &p.timer, now_ms + 3600000);
	while (step())
		wakes++;
	ck_assert_uint_eq(p.fired, 1);
	ck_assert_uint_ge(p.fired_ms, start_ms + 3600000);
	ck_assert_uint_le(p.fired_ms, start_ms + 3600000 + 2 * WHEEL_TICK_MS);
	ck_assert_uint_lt(wakes, 100);
}
END_TEST

START_TEST(a_wheel_left_alone_for_hours_catches_up)
{
	struct probe p[3];

	wheel_advance(wheel, now_ms);
	now_ms += 7 * 3600000ull;
	for (unsigned i = 0; i < ARRAY_LEN(p); i++)
		probe_init(&p[i], on_probe);
	wheel_set(wheel, &p[0].timer, now_ms - 1);
	wheel_set(wheel, &p[1].timer, now_ms + 500);
	wheel_set(wheel, &p[2].timer, now_ms + 90000);
	now_ms += WHEEL_TICK_MS;
	while (step())
		;
	for (unsigned i = 0; i < ARRAY_LEN(p); i++)
		ck_assert_uint_eq(p[i].fired, 1);
	ck_assert_uint_ge(p[1].fired_ms, 1000000 + 7 * 3600000ull + 500);
	ck_assert_uint_ge(p[2].fired_ms, 1000000 + 7 * 3600000ull + 90000);
}
END_TEST

static void on_again(void *arg)
{
	struct probe *p = arg;

	on_probe(p);
	if (p->again-- > 0)
		wheel_set(wheel, &p->timer, now_ms);
}

START_TEST(set_inside_its_callback_does_not_loop_for_ever)
{
	struct probe p;

	wheel_advance(wheel, now_ms);
	probe_init(&p, on_again);
	p.again = 3;
	wheel_set(wheel, &p.timer, now_ms);
	now_ms += WHEEL_TICK_MS;
	wheel_advance(wheel, now_ms);
	ck_assert_uint_eq(p.fired, 1);
	while (step())
		;
	ck_assert_uint_eq(p.fired, 4);
}
END_TEST

static struct probe *survivor;

/* The other one is stopped and its memory goes, though both are due in this very call. */
static void on_kill(void *arg)
{
	struct probe *p = arg;

	on_probe(p);
	survivor = p;
	wheel_stop(wheel, &p->other->timer);
	free(p->other);
}

START_TEST(an_owner_freed_in_anothers_callback)
{
	for (unsigned gap_ms = 0; gap_ms <= 3 * WHEEL_TICK_MS; gap_ms += WHEEL_TICK_MS) {
		struct probe *a = malloc(sizeof(*a)), *b = malloc(sizeof(*b));

		probe_init(a, on_kill);
		probe_init(b, on_kill);
		a->other = b;
		b->other = a;
		wheel_set(wheel, &a->timer, now_ms + 10);
		wheel_set(wheel, &b->timer, now_ms + 10 + gap_ms);
		now_ms += 100;
		ck_assert_int_eq(wheel_advance(wheel, now_ms), -1);
		ck_assert_uint_eq(survivor->fired, 1);
		free(survivor);
	}
}
END_TEST

/* Moves the other one, which is due in the same call, to later. */
static void on_push(void *arg)
{
	struct probe *p = arg;

	on_probe(p);
	if (p->other->fired == 0)
		wheel_set(wheel, &p->other->timer, now_ms + 1000);
}

START_TEST(pushed_back_in_anothers_callback)
{
	struct probe a, b;
	uint64_t pushed_ms;

	probe_init(&a, on_push);
	probe_init(&b, on_push);
	a.other = &b;
	b.other = &a;
	wheel_set(wheel, &a.timer, now_ms + 10);
	wheel_set(wheel, &b.timer, now_ms + 10);
	now_ms += 100;
	pushed_ms = now_ms;
	wheel_advance(wheel, now_ms);
	ck_assert_uint_eq(a.fired + b.fired, 1);
	while (step())
		;
	ck_assert_uint_eq(a.fired, 1);
	ck_assert_uint_eq(b.fired, 1);
	ck_assert_uint_ge(MAX(a.fired_ms, b.fired_ms), pushed_ms + 1000);
}
END_TEST

enum { MANY = 10000 };

static struct probe many[MANY];
static struct rng rng;

/* A spread that has near, middle and far deadlines, and now and then one in the past. */
static uint64_t any_due_ms(void)
{
	static const uint64_t spans_ms[] = {30, 1000, 40950, 41000, 200000};

	return now_ms - 20 +
	       rng_below(&rng, spans_ms[rng_below(&rng, ARRAY_LEN(spans_ms))]);
}

static void set_many(struct probe *p)
{
	p->due_ms = any_due_ms();
	p->set_ms = now_ms;
	wheel_set(wheel, &p->timer, p->due_ms);
}

static void stop_many(struct probe *p)
{
	p->due_ms = 0;
	wheel_stop(wheel, &p->timer);
}

static void on_many(void *arg)
{
	struct probe *p = arg;

	if (p->due_ms == 0)
		ck_abort_msg("fired though not set");
	if (p->due_ms > now_ms)
		ck_abort_msg("early by %ju ms", (uintmax_t)(p->due_ms - now_ms));
	p->due_ms = 0;
	p->fired++;
	if (rng_below(&rng, 4) == 0)
		set_many(&many[rng_below(&rng, MANY)]);
	else if (rng_below(&rng, 4) == 0)
		stop_many(&many[rng_below(&rng, MANY)]);
}

/* Nothing that the oracle says was due two ticks ago may still be set. */
static void check_none_is_late(void)
{
	for (unsigned i = 0; i < MANY; i++) {
		const struct probe *p = &many[i];

		if (wheel_is_set(&p->timer) != (p->due_ms != 0))
			ck_abort_msg("the oracle disagrees on what is set");
		if (p->due_ms != 0 &&
			MAX(p->due_ms, p->set_ms) + 2 * WHEEL_TICK_MS <= now_ms)
			ck_abort_msg("late by %ju ms", (uintmax_t)(now_ms - p->due_ms));
	}
}

START_TEST(ten_thousand_timers_against_an_oracle)
{
	unsigned long fired = 0;

	rng_seed(&rng, 20240607);
	wheel_advance(wheel, now_ms);
	for (unsigned i = 0; i < MANY; i++)
		probe_init(&many[i], on_many);
	for (unsigned round = 0; round < 50; round++) {
		for (unsigned i = 0; i < 200; i++) {
			struct probe *p = &many[rng_below(&rng, MANY)];

			if (rng_below(&rng, 5) == 0)
				stop_many(p);
			else
				set_many(p);
		}
		/* as the loop calls it: when it asked to be called, or a bit later */
		for (unsigned i = 0; i < 20 && wheel_wake_ms(wheel) != UINT64_MAX; i++) {
			now_ms = MAX(now_ms, wheel_wake_ms(wheel)) + rng_below(&rng, 3);
			wheel_advance(wheel, now_ms);
			check_none_is_late();
		}
	}
	while (step()) {
		wheel_advance(wheel, now_ms);
		check_none_is_late();
	}
	for (unsigned i = 0; i < MANY; i++)
		fired += many[i].fired;
	ck_assert_uint_gt(fired, 5000);
}
END_TEST

static Suite *wheel_suite(void)
{
	Suite *s = suite_create("wheel");
	TCase *t = tcase_create("wheel");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, an_empty_wheel_sleeps);
	tcase_add_test(t, never_early);
	tcase_add_test(t, past_and_zero_deadlines_fire_at_the_next_tick);
	tcase_add_test(t, moving_later_keeps_its_slot_and_does_not_fire_early);
	tcase_add_test(t, moving_earlier_fires_earlier);
	tcase_add_test(t, far_timers_wake_seldom);
	tcase_add_test(t, a_wheel_left_alone_for_hours_catches_up);
	tcase_add_test(t, set_inside_its_callback_does_not_loop_for_ever);
	tcase_add_test(t, an_owner_freed_in_anothers_callback);
	tcase_add_test(t, pushed_back_in_anothers_callback);
	tcase_add_test(t, ten_thousand_timers_against_an_oracle);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(wheel_suite())
