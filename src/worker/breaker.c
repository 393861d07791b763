/*
 * Closed, open, half-open. See breaker.h.
 */
#include "worker/breaker.h"

#include <stdio.h>
#include <string.h>

static const char *const state_names[] = {
	[BREAKER_CLOSED] = "closed",
	[BREAKER_HALF_OPEN] = "half-open",
	[BREAKER_OPEN] = "open",
};

const char *breaker_state_name(enum breaker_state s)
{
	return state_names[s];
}

static void lock(struct breaker *b)
{
	int err = pthread_mutex_lock(&b->lock);

	assert(err == 0);
	(void)err;
}

static void unlock(struct breaker *b)
{
	int err = pthread_mutex_unlock(&b->lock);

	assert(err == 0);
	(void)err;
}

static enum breaker_state state_of(const struct breaker *b)
{
	return (enum breaker_state)atomic_load_explicit(&b->state, memory_order_relaxed);
}

static void forget_failures(struct breaker *b)
{
	memset(b->failures, 0, sizeof(b->failures));
	b->bucket = 0;
}

void breaker_init(struct breaker *b, const struct breaker_opts *o)
{
	memset(b, 0, sizeof(*b));
	pthread_mutex_init(&b->lock, NULL);
	b->opts = *o;
}

void breaker_destroy(struct breaker *b)
{
	pthread_mutex_destroy(&b->lock);
}

void breaker_configure(struct breaker *b, const struct breaker_opts *o)
{
	lock(b);
	if (b->opts.window_ms != o->window_ms)
		forget_failures(b);
	b->opts = *o;
	unlock(b);
}

/* ---- the window ---- */

static uint64_t bucket_at(const struct breaker *b, uint64_t now_ms)
{
	return now_ms / MAX(b->opts.window_ms / BREAKER_BUCKETS, UINT64_C(1));
}

/* Buckets between the newest that was used and now are empty. */
static void advance(struct breaker *b, uint64_t now_ms)
{
	uint64_t now = bucket_at(b, now_ms);

	if (now <= b->bucket)
		return;
	if (now - b->bucket >= BREAKER_BUCKETS) {
		memset(b->failures, 0, sizeof(b->failures));
		b->bucket = now;
	}
	while (b->bucket < now)
		b->failures[++b->bucket % BREAKER_BUCKETS] = 0;
}

static unsigned count_failures(struct breaker *b, uint64_t now_ms)
{
	unsigned i, n = 0;

	advance(b, now_ms);
	for (i = 0; i < BREAKER_BUCKETS; i++)
		n += b->failures[i];
	return n;
}

/* ---- what a pick asks ---- */

static bool is_paused(const struct breaker *b, uint64_t now_ms)
{
	return atomic_load_explicit(&b->paused_until_ms, memory_order_relaxed) > now_ms;
}

static bool admits_trial(const struct breaker *b, uint64_t now_ms)
{
	if (state_of(b) == BREAKER_OPEN)
		return now_ms >= b->opened_ms + b->opts.timeout_ms;
	return !b->has_trial;
}

bool breaker_admits(struct breaker *b, uint64_t now_ms)
{
	bool yes;

	if (is_paused(b, now_ms))
		return false;
	if (state_of(b) == BREAKER_CLOSED)
		return true;
	lock(b);
	yes = state_of(b) == BREAKER_CLOSED || admits_trial(b, now_ms);
	unlock(b);
	return yes;
}

bool breaker_is_paused(struct breaker *b, uint64_t now_ms)
{
	return is_paused(b, now_ms) && state_of(b) == BREAKER_CLOSED;
}

bool breaker_begin(struct breaker *b, uint64_t now_ms)
{
	bool is_trial = false;

	if (state_of(b) == BREAKER_CLOSED)
		return false;
	lock(b);
	if (state_of(b) != BREAKER_CLOSED && admits_trial(b, now_ms)) {
		if (state_of(b) == BREAKER_OPEN)
			b->successes = 0;
		atomic_store(&b->state, BREAKER_HALF_OPEN);
		b->has_trial = true;
		is_trial = true;
	}
	unlock(b);
	return is_trial;
}

/* ---- outcomes ---- */

static void open_breaker(struct breaker *b, uint64_t now_ms)
{
	atomic_store(&b->state, BREAKER_OPEN);
	b->opened_ms = now_ms;
	b->successes = 0;
	forget_failures(b);
}

static enum breaker_change judge_trial(struct breaker *b, enum outcome o, uint64_t now_ms)
{
	b->has_trial = false;
	if (o == OUTCOME_FAILURE) {
		open_breaker(b, now_ms);
		return BREAKER_OPENED;
	}
	if (o == OUTCOME_NEUTRAL || ++b->successes < b->opts.success_threshold)
		return BREAKER_SAME;
	atomic_store(&b->state, BREAKER_CLOSED);
	return BREAKER_HAS_CLOSED;
}

static enum breaker_change count_failure(struct breaker *b, uint64_t now_ms)
{
	advance(b, now_ms);
	b->failures[b->bucket % BREAKER_BUCKETS]++;
	if (count_failures(b, now_ms) < b->opts.failure_threshold)
		return BREAKER_SAME;
	open_breaker(b, now_ms);
	return BREAKER_OPENED;
}

static void end_pause(struct breaker *b)
{
	if (atomic_load_explicit(&b->paused_until_ms, memory_order_relaxed) != 0)
		atomic_store(&b->paused_until_ms, 0);
}

enum breaker_change breaker_report(
	struct breaker *b, enum outcome o, bool is_trial, uint64_t now_ms)
{
	enum breaker_change change = BREAKER_SAME;

	if (o == OUTCOME_SUCCESS)
		end_pause(b);
	/* The usual end costs nothing. */
	if (!is_trial && o != OUTCOME_FAILURE)
		return BREAKER_SAME;
	lock(b);
	if (is_trial && state_of(b) == BREAKER_HALF_OPEN && b->has_trial)
		change = judge_trial(b, o, now_ms);
	else if (o == OUTCOME_FAILURE && state_of(b) == BREAKER_CLOSED)
		change = count_failure(b, now_ms);
	unlock(b);
	return change;
}

bool breaker_pause(struct breaker *b, uint64_t until_ms)
{
	uint64_t was = atomic_load(&b->paused_until_ms);

	while (was < until_ms) {
		if (atomic_compare_exchange_weak(&b->paused_until_ms, &was, until_ms))
			return true;
	}
	return false;
}

/* ---- what is shown ---- */

void breaker_change_text(struct breaker *b, enum breaker_change c, bool was_trial,
	const char *why, char *out, size_t n)
{
	struct breaker_opts o;

	lock(b);
	o = b->opts;
	unlock(b);
	if (c == BREAKER_HAS_CLOSED)
		snprintf(out, n, "breaker closed (%u trials in a row succeeded)",
			o.success_threshold);
	else if (was_trial)
		snprintf(out, n, "breaker open again for %.1f s (its trial failed: %s)",
			(double)o.timeout_ms / 1000, why);
	else
		snprintf(out, n,
			"breaker open for %.1f s (%u failures within %.1f s, the last: "
			"%s)",
			(double)o.timeout_ms / 1000, o.failure_threshold,
			(double)o.window_ms / 1000, why);
}

enum breaker_state breaker_state(struct breaker *b, uint64_t now_ms)
{
	enum breaker_state s;

	lock(b);
	s = state_of(b);
	if (s == BREAKER_OPEN && admits_trial(b, now_ms))
		s = BREAKER_HALF_OPEN;
	unlock(b);
	return s;
}

unsigned breaker_failures(struct breaker *b, uint64_t now_ms)
{
	unsigned n;

	lock(b);
	n = count_failures(b, now_ms);
	unlock(b);
	return n;
}

uint64_t breaker_wait_ms(struct breaker *b, uint64_t now_ms)
{
	uint64_t next = atomic_load(&b->paused_until_ms);

	lock(b);
	if (state_of(b) == BREAKER_OPEN)
		next = MAX(next, b->opened_ms + b->opts.timeout_ms);
	unlock(b);
	return next > now_ms ? next - now_ms : 0;
}

void breaker_reset(struct breaker *b)
{
	lock(b);
	atomic_store(&b->state, BREAKER_CLOSED);
	atomic_store(&b->paused_until_ms, 0);
	b->has_trial = false;
	forget_failures(b);
	unlock(b);
}
