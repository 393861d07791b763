/*
 * The timer wheel: SLOTS lists of timers, one each tick, and a bitmap of the lists that
 * are not empty. Always true: a timer hangs in the slot of slot_ms, which lies in
 * [first_tick, first_tick + SLOTS) and is never after due_ms rounded up to a tick; a
 * timer whose deadline is farther off hangs in between and is hung again when its slot
 * comes. No set timer's slot comes before wake_tick. Driven by loop; timers are set by
 * connections, requests, probes.
 */
#include "io/wheel.h"

#include <stdlib.h>

#define SLOTS 4096u /* about 41 s: so seldom does a far timer wake an idle daemon */
#define WORD_BITS 64u
#define NO_TICK UINT64_MAX

LIST_HEAD(slot_list, wheel_timer);

struct wheel {
	uint64_t first_tick; /* ticks before it have been fired */
	uint64_t wake_tick;  /* NO_TICK, or no later than the earliest slot in use */
	uint64_t used[SLOTS / WORD_BITS];
	struct slot_list slots[SLOTS];
};

struct wheel *wheel_new(void)
{
	struct wheel *w = calloc(1, sizeof(*w));

	if (w != NULL)
		w->wake_tick = NO_TICK;
	return w;
}

void wheel_free(struct wheel *w)
{
	free(w);
}

void wheel_timer_init(struct wheel_timer *t, void (*fn)(void *arg), void *arg)
{
	*t = (struct wheel_timer){.fn = fn, .arg = arg};
}

static void mark_used(struct wheel *w, unsigned slot)
{
	w->used[slot / WORD_BITS] |= UINT64_C(1) << slot % WORD_BITS;
}

static void mark_empty(struct wheel *w, unsigned slot)
{
	w->used[slot / WORD_BITS] &= ~(UINT64_C(1) << slot % WORD_BITS);
}

static void hang(struct wheel *w, struct wheel_timer *t)
{
	uint64_t tick = t->due_ms / WHEEL_TICK_MS + (t->due_ms % WHEEL_TICK_MS != 0);
	unsigned slot;

	if (tick < w->first_tick)
		tick = w->first_tick;
	else if (tick - w->first_tick >= SLOTS)
		tick = w->first_tick + SLOTS - 1;
	slot = tick % SLOTS;
	t->slot_ms = tick * WHEEL_TICK_MS;
	LIST_INSERT_HEAD(&w->slots[slot], t, link);
	mark_used(w, slot);
	if (tick < w->wake_tick)
		w->wake_tick = tick;
}

static void unhang(struct wheel *w, struct wheel_timer *t)
{
	unsigned slot = t->slot_ms / WHEEL_TICK_MS % SLOTS;

	LIST_REMOVE(t, link);
	if (LIST_EMPTY(&w->slots[slot]))
		mark_empty(w, slot);
}

void wheel_set(struct wheel *w, struct wheel_timer *t, uint64_t due_ms)
{
	bool is_hanging = t->due_ms != 0;

	assert(t->fn != NULL);
	if (due_ms == 0)
		due_ms = 1; /* 0 would read as idle */
	t->due_ms = due_ms;
	if (is_hanging) {
		if (due_ms > t->slot_ms || t->slot_ms - due_ms < WHEEL_TICK_MS)
			return;
		unhang(w, t);
	}
	hang(w, t);
}

void wheel_stop(struct wheel *w, struct wheel_timer *t)
{
	if (t->due_ms == 0)
		return;
	t->due_ms = 0;
	unhang(w, t);
}

/* Takes the slot's list off the wheel first: what the callbacks hang comes into it anew.
 */
static void fire_slot(struct wheel *w, unsigned slot, uint64_t now_ms)
{
	struct slot_list firing = w->slots[slot];
	struct wheel_timer *t;

	if (LIST_EMPTY(&firing))
		return;
	LIST_FIRST(&firing)->link.le_prev = &LIST_FIRST(&firing);
	LIST_INIT(&w->slots[slot]);
	mark_empty(w, slot);
	while ((t = LIST_FIRST(&firing)) != NULL) {
		LIST_REMOVE(t, link);
		if (t->due_ms > now_ms) {
			hang(w, t);
			continue;
		}
		t->due_ms = 0;
		t->fn(t->arg);
	}
}

/* The first slot in use at or after tick, seen round the wheel; NO_TICK: none. */
static uint64_t next_used(const struct wheel *w, uint64_t tick)
{
	unsigned from = tick % SLOTS, word = from / WORD_BITS;
	uint64_t bits = w->used[word] & (~UINT64_C(0) << from % WORD_BITS);

	for (unsigned i = 0; i <= SLOTS / WORD_BITS; i++) {
		if (bits != 0) {
			unsigned slot =
				word * WORD_BITS + (unsigned)__builtin_ctzll(bits);

			return tick + (slot - from) % SLOTS;
		}
		word = (word + 1) % (SLOTS / WORD_BITS);
		bits = w->used[word];
	}
	return NO_TICK;
}

int64_t wheel_advance(struct wheel *w, uint64_t now_ms)
{
	uint64_t now_tick = now_ms / WHEEL_TICK_MS, tick = w->first_tick, end;

	if (now_tick >= w->first_tick) {
		/* Each slot once, though the last call may be hours ago. */
		end = now_tick - tick >= SLOTS ? tick + SLOTS : now_tick + 1;
		w->first_tick = now_tick + 1;
		for (tick = next_used(w, tick); tick < end; tick = next_used(w, tick + 1))
			fire_slot(w, tick % SLOTS, now_ms);
	}
	w->wake_tick = next_used(w, w->first_tick);
	if (w->wake_tick == NO_TICK)
		return -1;
	return (int64_t)(w->wake_tick * WHEEL_TICK_MS - now_ms);
}

uint64_t wheel_wake_ms(const struct wheel *w)
{
	return w->wake_tick == NO_TICK ? UINT64_MAX : w->wake_tick * WHEEL_TICK_MS;
}
