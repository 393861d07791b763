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

static uint64_t successes(const struct breaker *b)
{
	return atomic_load_explicit(&b->successes, memory_order_relaxed);
}

static void set_culprit(struct breaker *b, uint32_t tenant)
{
	atomic_store(&b->others_succeed, false);
	atomic_store(&b->culprit, tenant);
}

/* From here on all buckets of the window are empty, and begin now. */
static void clear_buckets(struct breaker *b)
{
	unsigned i;

	for (i = 0; i < BREAKER_BUCKETS; i++)
		b->buckets[i] = (struct breaker_bucket){.successes_before = successes(b)};
}

static void forget_failures(struct breaker *b)
{
	clear_buckets(b);
	b->bucket = 0;
	b->run = 0;
	set_culprit(b, BREAKER_NO_TENANT);
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

static struct breaker_bucket *bucket_of(struct breaker *b, uint64_t number)
{
	return &b->buckets[number % BREAKER_BUCKETS];
}

/* Buckets between the newest that was used and now are empty. */
static void advance(struct breaker *b, uint64_t now_ms)
{
	uint64_t now = bucket_at(b, now_ms);

	if (now <= b->bucket)
		return;
	if (now - b->bucket >= BREAKER_BUCKETS) {
		clear_buckets(b);
		b->bucket = now;
	}
	while (b->bucket < now)
		*bucket_of(b, ++b->bucket) =
			(struct breaker_bucket){.successes_before = successes(b)};
}

struct window {
	unsigned failures, statuses;
	uint64_t successes;
};

static struct window look_back(struct breaker *b, uint64_t now_ms)
{
	struct window w = {0};
	unsigned i;

	advance(b, now_ms);
	for (i = 0; i < BREAKER_BUCKETS; i++) {
		w.failures += b->buckets[i].failures;
		w.statuses += b->buckets[i].statuses;
	}
	w.successes = successes(b) - bucket_of(b, b->bucket + 1)->successes_before;
	return w;
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

bool breaker_is_by_status(struct breaker *b)
{
	bool yes;

	if (state_of(b) == BREAKER_CLOSED)
		return false;
	lock(b);
	yes = state_of(b) != BREAKER_CLOSED && b->is_by_status;
	unlock(b);
	return yes;
}

bool breaker_wants_trial(struct breaker *b, uint64_t now_ms, bool *is_overdue)
{
	bool yes;

	if (state_of(b) == BREAKER_CLOSED || is_paused(b, now_ms))
		return false;
	lock(b);
	yes = state_of(b) != BREAKER_CLOSED && admits_trial(b, now_ms);
	*is_overdue = now_ms >= b->opened_ms + 2 * b->opts.timeout_ms;
	unlock(b);
	return yes;
}

static bool take_trial(struct breaker *b, uint64_t now_ms)
{
	bool is_trial = false;

	lock(b);
	if (state_of(b) != BREAKER_CLOSED && admits_trial(b, now_ms)) {
		atomic_store(&b->state, BREAKER_HALF_OPEN);
		b->has_trial = true;
		is_trial = true;
	}
	unlock(b);
	return is_trial;
}

struct breaker_ticket breaker_begin(struct breaker *b, uint32_t tenant, uint64_t now_ms)
{
	return (struct breaker_ticket){
		.is_trial = state_of(b) != BREAKER_CLOSED && take_trial(b, now_ms),
		.openings = atomic_load_explicit(&b->openings, memory_order_relaxed),
		.tenant = tenant,
	};
}

/* ---- outcomes ---- */

static void open_breaker(struct breaker *b, bool is_by_status, uint64_t now_ms)
{
	atomic_fetch_add(&b->openings, 1);
	atomic_store(&b->state, BREAKER_OPEN);
	b->opened_ms = now_ms;
	b->closing = 0;
	b->has_trial = false;
	b->is_by_status = is_by_status;
	forget_failures(b);
}

static void note_culprit(struct breaker *b, uint32_t tenant, bool is_first)
{
	if (is_first)
		set_culprit(b, tenant);
	else if (atomic_load(&b->culprit) != tenant)
		set_culprit(b, BREAKER_NO_TENANT);
}

/* A failure that has left the window is in no run. */
static void note_run(struct breaker *b, enum outcome o, const struct window *before)
{
	b->run = MIN(b->run, before->failures);
	if (b->run_successes != successes(b) || o == OUTCOME_STATUS)
		b->run = 0;
	b->run_successes = successes(b);
	b->run += o == OUTCOME_FAILURE;
}

/* It has failed often enough, and it is not just that one tenant makes it fail. */
static bool is_enough(struct breaker *b, const struct window *w)
{
	/* In quarters. */
	uint64_t failed = 4 * (uint64_t)(w->failures - w->statuses) + w->statuses;
	uint64_t ended = 4 * (w->failures + w->successes);

	if (atomic_load(&b->culprit) != BREAKER_NO_TENANT &&
		atomic_load(&b->others_succeed))
		return false;
	return b->run >= b->opts.failure_threshold ||
	       (w->failures >= b->opts.failure_threshold &&
		       failed * 100 >= ended * b->opts.failure_percent);
}

static enum breaker_change count_failure(
	struct breaker *b, enum outcome o, uint32_t tenant, uint64_t now_ms)
{
	struct window w = look_back(b, now_ms);
	struct breaker_bucket *newest = bucket_of(b, b->bucket);

	note_culprit(b, tenant, w.failures == 0);
	note_run(b, o, &w);
	newest->failures++;
	newest->statuses += o == OUTCOME_STATUS;
	w.failures++;
	w.statuses += o == OUTCOME_STATUS;
	if (!is_enough(b, &w))
		return BREAKER_SAME;
	b->opened_by = w.failures;
	open_breaker(b, w.statuses == w.failures, now_ms);
	return BREAKER_OPENED;
}

static enum breaker_change count_success(struct breaker *b)
{
	if (++b->closing < b->opts.success_threshold)
		return BREAKER_SAME;
	atomic_store(&b->state, BREAKER_CLOSED);
	b->has_trial = false;
	return BREAKER_HAS_CLOSED;
}

static enum breaker_change judge_trial(struct breaker *b, enum outcome o, uint64_t now_ms)
{
	b->has_trial = false;
	switch (o) {
	case OUTCOME_NEUTRAL:
		return BREAKER_SAME;
	case OUTCOME_SUCCESS:
		return count_success(b);
	case OUTCOME_STATUS:
	case OUTCOME_FAILURE:
		break;
	}
	open_breaker(b, o == OUTCOME_STATUS, now_ms);
	return BREAKER_OPENED;
}

static bool is_failure(enum outcome o)
{
	return o == OUTCOME_STATUS || o == OUTCOME_FAILURE;
}

static enum breaker_change judge(struct breaker *b, enum outcome o,
	const struct breaker_ticket *ticket, uint64_t now_ms)
{
	bool is_of_now = ticket != NULL && ticket->openings == atomic_load(&b->openings);

	if (state_of(b) == BREAKER_CLOSED)
		return is_failure(o) ? count_failure(b, o,
					       ticket != NULL ? ticket->tenant
							      : BREAKER_NO_TENANT,
					       now_ms)
				     : BREAKER_SAME;
	if (!is_of_now)
		return BREAKER_SAME;
	if (ticket->is_trial && b->has_trial)
		return judge_trial(b, o, now_ms);
	return o == OUTCOME_SUCCESS ? count_success(b) : BREAKER_SAME;
}

static void end_pause(struct breaker *b)
{
	if (atomic_load_explicit(&b->paused_until_ms, memory_order_relaxed) != 0)
		atomic_store(&b->paused_until_ms, 0);
}

static void note_success(struct breaker *b, uint32_t tenant)
{
	uint32_t culprit = atomic_load_explicit(&b->culprit, memory_order_relaxed);

	end_pause(b);
	atomic_fetch_add_explicit(&b->successes, 1, memory_order_relaxed);
	if (culprit != BREAKER_NO_TENANT && culprit != tenant)
		atomic_store(&b->others_succeed, true);
}

enum breaker_change breaker_report(struct breaker *b, enum outcome o,
	const struct breaker_ticket *ticket, uint64_t now_ms)
{
	enum breaker_change change;

	if (o == OUTCOME_SUCCESS)
		note_success(b, ticket != NULL ? ticket->tenant : BREAKER_NO_TENANT);
	/* The usual end costs no more. */
	if (state_of(b) == BREAKER_CLOSED && !is_failure(o))
		return BREAKER_SAME;
	lock(b);
	if (b->opts.counts_5xx && o == OUTCOME_STATUS)
		o = OUTCOME_FAILURE;
	change = judge(b, o, ticket, now_ms);
	unlock(b);
	return change;
}

void breaker_sweep(struct breaker *b, uint64_t now_ms)
{
	lock(b);
	advance(b, now_ms);
	unlock(b);
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
	unsigned opened_by;

	lock(b);
	o = b->opts;
	opened_by = b->opened_by;
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
			(double)o.timeout_ms / 1000, opened_by,
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
	n = look_back(b, now_ms).failures;
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
	atomic_fetch_add(&b->openings, 1);
	b->has_trial = false;
	forget_failures(b);
	unlock(b);
}
