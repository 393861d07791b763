/*
 * Watches the progress of workers. See watch.h.
 *
 * Always true: between two ticks the members lie in groups, each of them peers of one
 * pool, role and list of models, side by side; changes since then are sorted in before
 * the next tick. A verdict changes in progress_judge() only.
 */
#include "fleet/watch.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "io/loop.h"
#include "io/wheel.h"
#include "pool/pool.h"
#include "worker/progress.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MAX_MS 500
#define TICK_MIN_MS (2 * WHEEL_TICK_MS)
#define TICKS_A_STALL 4   /* samples in a stall_timeout, at least */
#define TICKS_A_WINDOW 20 /* and in a degraded_window: two in a slice */

struct member {
	struct pool *pool;
	struct worker *worker;
	enum progress_verdict was;
	uint64_t was_since_ms;
};

struct watch {
	struct loop *loop;
	watch_fn *fn;
	void *arg;
	struct wheel_timer timer;
	bool is_sorted;
	uint64_t every_ms;
	struct member *members;
	size_t n, cap;
	/* Scratch of a tick, with room for as many as members has room for. */
	struct progress **group;
	struct progress_sample *samples;
	struct progress_opts *opts;
	size_t cap_group, cap_samples, cap_opts;
};

/* ---- groups ---- */

static int compare_models(const struct conf_list *a, const struct conf_list *b)
{
	size_t i;
	int order = 0;

	if (a->n != b->n)
		return a->n < b->n ? -1 : 1;
	for (i = 0; order == 0 && i < a->n; i++)
		order = strcmp(a->items[i], b->items[i]);
	return order;
}

static int compare(const struct member *a, const struct member *b)
{
	if (a->pool != b->pool)
		return (uintptr_t)a->pool < (uintptr_t)b->pool ? -1 : 1;
	if (a->worker->role != b->worker->role)
		return a->worker->role < b->worker->role ? -1 : 1;
	return compare_models(&a->worker->conf->models, &b->worker->conf->models);
}

static int compare_members(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	int order = compare(x, y);

	if (order != 0)
		return order;
	return x->worker->id < y->worker->id ? -1 : x->worker->id > y->worker->id;
}

/* As often as the shortest of the limits needs. */
static uint64_t tick_ms(const struct watch *watch)
{
	uint64_t every_ms = TICK_MAX_MS;
	size_t i;

	for (i = 0; i < watch->n; i++) {
		const struct worker_opts *o = &watch->members[i].worker->conf->opts;

		if (o->stall_timeout_ms > 0)
			every_ms = MIN(every_ms, o->stall_timeout_ms / TICKS_A_STALL);
		if (o->degraded_ratio > 0)
			every_ms = MIN(every_ms, o->degraded_window_ms / TICKS_A_WINDOW);
	}
	return MAX(every_ms, (uint64_t)TICK_MIN_MS);
}

static void sort_members(struct watch *watch)
{
	if (watch->is_sorted)
		return;
	watch->is_sorted = true;
	watch->every_ms = tick_ms(watch);
	if (watch->n > 0)
		qsort(watch->members, watch->n, sizeof(*watch->members), compare_members);
}

/* Where the group that begins at i ends. */
static size_t group_end(const struct watch *watch, size_t i)
{
	size_t end = i + 1;

	while (end < watch->n && compare(&watch->members[i], &watch->members[end]) == 0)
		end++;
	return end;
}

/* ---- samples ---- */

static unsigned without(unsigned all, unsigned some)
{
	return all - MIN(all, some);
}

/* Tokens that the engine reports count as bytes do: a response that is not streamed shows
 * nothing else until it is complete. */
static void sample(const struct worker *w, uint64_t now_ms, struct progress_sample *out)
{
	unsigned held = atomic_load_explicit(&w->relay.held, memory_order_relaxed);

	*out = (struct progress_sample){
		.in_flight = without(worker_load(w), held),
		.streams = without(worker_streams(w), held),
		.bytes = atomic_load_explicit(&w->relay.bytes, memory_order_relaxed) +
			 atomic_load_explicit(
				 &w->report.engine_steps, memory_order_relaxed),
		.events = atomic_load_explicit(&w->relay.events, memory_order_relaxed),
		.has_tokens = now_ms < w->report.engine_rate_until_ms,
		.token_rate = w->report.engine_rate,
		.completions =
			atomic_load_explicit(&w->guard.completions, memory_order_relaxed),
	};
}

/* One was given the request that it was offered: before the sample that may show its end.
 */
static void note_trial(struct worker *w, uint64_t now_ms)
{
	if (atomic_load(&w->trial) != TRIAL_TAKEN)
		return;
	progress_trial_begun(&w->watch.progress, now_ms);
	atomic_store(&w->trial, TRIAL_NONE);
}

static void offer_trial(struct worker *w, uint64_t now_ms)
{
	bool is_due = progress_trial_due(&w->watch.progress, worker_load(w), now_ms);
	int was = is_due ? TRIAL_NONE : TRIAL_OFFERED;

	(void)atomic_compare_exchange_strong(
		&w->trial, &was, is_due ? TRIAL_OFFERED : TRIAL_NONE);
}

static void take_samples(struct watch *watch, size_t from, size_t to, uint64_t now_ms)
{
	size_t i;

	for (i = from; i < to; i++) {
		struct member *m = &watch->members[i];
		struct worker *w = m->worker;
		const struct worker_opts *o = &w->conf->opts;

		note_trial(w, now_ms);
		m->was = w->watch.progress.verdict;
		m->was_since_ms = w->watch.progress.since_ms;
		watch->group[i - from] = &w->watch.progress;
		watch->opts[i - from] = (struct progress_opts){
			o->stall_timeout_ms, o->degraded_ratio, o->degraded_window_ms};
		sample(w, now_ms, &watch->samples[i - from]);
	}
}

/* ---- verdicts ---- */

static double secs(uint64_t ms)
{
	return (double)ms / 1000;
}

static void say_stalled(struct worker *w, bool is_alone, uint64_t now_ms)
{
	snprintf(w->watch.verdict_reason, sizeof(w->watch.verdict_reason),
		"no byte for %.1f s with %u in flight%s",
		secs(progress_age_ms(&w->watch.progress, now_ms)), worker_load(w),
		is_alone ? "" : " while peers progress");
}

static void say_degraded(struct worker *w)
{
	snprintf(w->watch.verdict_reason, sizeof(w->watch.verdict_reason),
		"%.2f events/s and stream for %.1f s with %u in flight, median of its "
		"peers %.2f",
		w->watch.progress.rate, secs(w->conf->opts.degraded_window_ms),
		worker_load(w), w->watch.progress.median);
}

static void say_fine(struct worker *w, const struct member *m, uint64_t now_ms)
{
	double after = secs(now_ms - m->was_since_ms);

	if (m->was == PROGRESS_STALLED)
		snprintf(w->watch.verdict_reason, sizeof(w->watch.verdict_reason),
			"it answers again, %.1f s after it was found stalled", after);
	else if (w->watch.progress.has_slice && w->watch.progress.rate >= 0)
		snprintf(w->watch.verdict_reason, sizeof(w->watch.verdict_reason),
			"%.2f events/s and stream again after %.1f s, median of its "
			"peers %.2f",
			w->watch.progress.rate, after, w->watch.progress.median);
	else
		snprintf(w->watch.verdict_reason, sizeof(w->watch.verdict_reason),
			"it answered its trial quickly, %.1f s after it was found "
			"degraded",
			after);
}

static void tell(struct watch *watch, const struct member *m, uint64_t now_ms)
{
	struct worker *w = m->worker;

	switch (w->watch.progress.verdict) {
	case PROGRESS_STALLED:
		say_stalled(w,
			progress_age_ms(&w->watch.progress, now_ms) >=
				2 * w->conf->opts.stall_timeout_ms,
			now_ms);
		break;
	case PROGRESS_DEGRADED:
		say_degraded(w);
		break;
	case PROGRESS_FINE:
		say_fine(w, m, now_ms);
		break;
	}
	watch->fn(watch->arg, m->pool, w);
}

static void judge_group(struct watch *watch, size_t from, size_t to, uint64_t now_ms)
{
	unsigned changed;
	size_t i;

	take_samples(watch, from, to, now_ms);
	changed = progress_judge(
		watch->group, watch->samples, watch->opts, (unsigned)(to - from), now_ms);
	for (i = from; i < to; i++) {
		const struct member *m = &watch->members[i];

		if (changed > 0 && m->worker->watch.progress.verdict != m->was)
			tell(watch, m, now_ms);
		offer_trial(m->worker, now_ms);
	}
}

static void on_tick(void *arg)
{
	struct watch *watch = arg;
	uint64_t now_ms = clock_now_ms();
	size_t i, end;

	sort_members(watch);
	for (i = 0; i < watch->n; i = end) {
		end = group_end(watch, i);
		judge_group(watch, i, end, now_ms);
	}
	if (watch->n > 0)
		wheel_set(
			loop_wheel(watch->loop), &watch->timer, now_ms + watch->every_ms);
}

/* ---- members ---- */

void watch_reconfigured(struct watch *watch)
{
	watch->is_sorted = false;
	if (watch->n > 0)
		wheel_set(loop_wheel(watch->loop), &watch->timer, clock_now_ms());
}

int watch_make_room(struct watch *watch, size_t more)
{
	size_t want = watch->n + more;

	if (mem_grow(&watch->members, &watch->cap, want, sizeof(*watch->members)) != 0 ||
		mem_grow(&watch->group, &watch->cap_group, want,
			sizeof(struct progress *)) != 0 ||
		mem_grow(&watch->samples, &watch->cap_samples, want,
			sizeof(*watch->samples)) != 0)
		return ERR_NOMEM;
	return mem_grow(&watch->opts, &watch->cap_opts, want, sizeof(*watch->opts));
}

void watch_add(struct watch *watch, struct pool *p, struct worker *w)
{
	assert(watch->n < watch->cap);
	watch->members[watch->n++] = (struct member){.pool = p, .worker = w};
	watch_reconfigured(watch);
}

void watch_drop(struct watch *watch, struct worker *w)
{
	size_t i;

	for (i = 0; i < watch->n && watch->members[i].worker != w; i++)
		;
	if (i == watch->n)
		return;
	watch->members[i] = watch->members[--watch->n];
	watch->is_sorted = false;
	if (watch->n == 0)
		wheel_stop(loop_wheel(watch->loop), &watch->timer);
}

struct watch *watch_new(struct loop *l, watch_fn *fn, void *arg)
{
	struct watch *watch = calloc(1, sizeof(*watch));

	if (watch == NULL)
		return NULL;
	watch->loop = l;
	watch->fn = fn;
	watch->arg = arg;
	wheel_timer_init(&watch->timer, on_tick, watch);
	return watch;
}

void watch_free(struct watch *watch)
{
	if (watch == NULL)
		return;
	wheel_stop(loop_wheel(watch->loop), &watch->timer);
	free(watch->members);
	free(watch->group);
	free(watch->samples);
	free(watch->opts);
	free(watch);
}
