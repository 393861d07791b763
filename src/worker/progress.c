/*
 * Stalled and degraded, by completion progress. See progress.h.
 */
#include "worker/progress.h"

#include <stdlib.h>
#include <string.h>

void progress_reset(struct progress *p)
{
	memset(p, 0, sizeof(*p));
}

/* ---- samples ---- */

static void start_slice(struct progress *p, uint64_t now_ms)
{
	p->slice_ms = now_ms;
	p->slice_events = p->events;
	p->stream_ms = 0;
	p->tokens = 0;
	p->has_tokens = true;
}

/* Stream time that makes a rate. */
static uint64_t enough_ms(const struct progress_opts *o)
{
	return MIN(o->degraded_window_ms / PROGRESS_SLICES,
		(uint64_t)PROGRESS_MIN_STREAM_MS);
}

static void end_slice(struct progress *p, const struct progress_opts *o, uint64_t now_ms)
{
	double events = (double)(p->events - p->slice_events);

	p->rate = p->stream_ms > 0 && p->stream_ms >= enough_ms(o)
			  ? events * 1000 / (double)p->stream_ms
			  : -1;
	p->whole_rate = p->rate;
	p->is_counted = p->has_tokens;
	if (p->rate >= 0 && p->has_tokens)
		p->whole_rate = MAX(p->rate, p->tokens * 1000 / (double)p->stream_ms);
	start_slice(p, now_ms);
}

static void see_first(
	struct progress *p, const struct progress_sample *s, uint64_t now_ms)
{
	p->is_seen = true;
	p->bytes = s->bytes;
	p->events = s->events;
	p->completions = s->completions;
	p->moved_ms = s->in_flight > 0 ? now_ms : 0;
	p->sampled_ms = now_ms;
	p->rate = p->whole_rate = -1;
	start_slice(p, now_ms);
}

static void note_tokens(
	struct progress *p, const struct progress_sample *s, uint64_t now_ms)
{
	p->has_tokens &= s->has_tokens;
	if (s->has_tokens)
		p->tokens += s->token_rate * (double)(now_ms - p->sampled_ms) / 1000;
}

static void note_movement(
	struct progress *p, const struct progress_sample *s, uint64_t now_ms)
{
	bool has_moved = s->bytes != p->bytes || s->completions != p->completions;

	p->bytes = s->bytes;
	p->events = s->events;
	p->completions = s->completions;
	if (has_moved)
		p->proof_ms = now_ms;
	if (s->in_flight == 0)
		p->moved_ms = 0;
	else if (has_moved || p->moved_ms == 0)
		p->moved_ms = now_ms;
}

/* True: a slice became whole. */
static bool take_sample(struct progress *p, const struct progress_sample *s,
	const struct progress_opts *o, uint64_t now_ms)
{
	if (!p->is_seen) {
		see_first(p, s, now_ms);
		return false;
	}
	note_movement(p, s, now_ms);
	p->stream_ms += s->streams * (now_ms - p->sampled_ms);
	p->trial_stream_ms += s->streams * (now_ms - p->sampled_ms);
	note_tokens(p, s, now_ms);
	p->sampled_ms = now_ms;
	if (now_ms - p->slice_ms < o->degraded_window_ms / PROGRESS_SLICES)
		return false;
	end_slice(p, o, now_ms);
	return true;
}

/* ---- the peers ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* What a worker's last slice is judged by, and its peers' then: tokens are compared where
 * its engine counts them, which may hold them back, or send several in an event. */
static double rate_of(const struct progress *p, bool is_counted)
{
	return is_counted ? p->whole_rate : p->rate;
}

/* The median rate of the peers whose last slice counts and that are not degraded or
 * stalled themselves; < 0: none. Workers beyond PEERS_MAX are left out: enough for a
 * median. */
#define PEERS_MAX 256
static double peer_median(struct progress *const *group, unsigned n, unsigned self)
{
	double rates[PEERS_MAX];
	unsigned i, k = 0;

	for (i = 0; i < n && k < PEERS_MAX; i++) {
		if (i != self && group[i]->is_seen && group[i]->rate >= 0 &&
			group[i]->verdict == PROGRESS_FINE)
			rates[k++] = rate_of(group[i], group[self]->is_counted);
	}
	if (k == 0)
		return -1;
	qsort(rates, k, sizeof(rates[0]), by_value);
	return k % 2 == 1 ? rates[k / 2] : (rates[k / 2 - 1] + rates[k / 2]) / 2;
}

static bool a_peer_progressed(
	struct progress *const *group, unsigned n, unsigned self, uint64_t since_ms)
{
	unsigned i;

	for (i = 0; i < n; i++) {
		if (i != self && group[i]->proof_ms > since_ms)
			return true;
	}
	return false;
}

/* ---- trials ---- */

static uint64_t back_off_ms(const struct progress *p)
{
	uint64_t wait_ms = PROGRESS_TRIAL_MS;
	unsigned i;

	for (i = 0; i < p->trials && wait_ms < PROGRESS_TRIAL_MAX_MS; i++)
		wait_ms *= 2;
	return MIN(wait_ms, (uint64_t)PROGRESS_TRIAL_MAX_MS);
}

/* The back-off begins when a trial ends, which may have hung for long. */
static void put_off_trial(
	struct progress *p, const struct progress_sample *s, uint64_t now_ms)
{
	if (p->verdict != PROGRESS_FINE && p->trials > 0 && s->in_flight > 0)
		p->trial_ms = MAX(p->trial_ms, now_ms + back_off_ms(p));
}

/* ---- verdicts ---- */

static void set_verdict(struct progress *p, enum progress_verdict v, uint64_t now_ms)
{
	p->verdict = v;
	p->since_ms = now_ms;
	p->slow_ms = 0;
	p->stale = 0;
	p->trials = 0;
	p->trial_ms = v == PROGRESS_FINE ? 0 : now_ms + PROGRESS_TRIAL_MS;
}

static bool is_stalled(struct progress *const *group, unsigned n, unsigned self,
	const struct progress_opts *o, uint64_t now_ms)
{
	const struct progress *p = group[self];
	uint64_t age_ms = progress_age_ms(p, now_ms);

	if (o->stall_timeout_ms == 0 || age_ms < o->stall_timeout_ms)
		return false;
	return age_ms >= 2 * o->stall_timeout_ms ||
	       a_peer_progressed(group, n, self, p->moved_ms);
}

static bool is_slow(const struct progress *p, const struct progress_opts *o)
{
	return rate_of(p, p->is_counted) < o->degraded_ratio * p->median;
}

/* After each whole slice. */
static void weigh_slice(struct progress *p, const struct progress_opts *o, double median)
{
	if (p->rate < 0 || median < 0) {
		if (++p->stale >= PROGRESS_STALE_SLICES)
			p->slow_ms = 0;
		return;
	}
	p->stale = 0;
	p->median = median;
	p->slow_ms =
		is_slow(p, o) ? p->slow_ms + o->degraded_window_ms / PROGRESS_SLICES : 0;
}

static bool is_degraded(const struct progress *p, const struct progress_opts *o)
{
	return o->degraded_ratio > 0 && p->slow_ms >= o->degraded_window_ms;
}

static bool trial_was_quick(const struct progress *p, const struct progress_opts *o)
{
	return p->trials > 0 && p->completions > p->trial_completions &&
	       p->trial_stream_ms < enough_ms(o);
}

static bool has_recovered(
	const struct progress *p, const struct progress_opts *o, bool has_slice)
{
	if (p->verdict == PROGRESS_STALLED)
		return p->proof_ms > p->since_ms || o->stall_timeout_ms == 0;
	/* The slice must have begun after the verdict. */
	return o->degraded_ratio <= 0 || trial_was_quick(p, o) ||
	       (has_slice && p->stale == 0 && !is_slow(p, o));
}

static bool judge_one(struct progress *const *group, unsigned n, unsigned self,
	const struct progress_opts *o, bool has_slice, uint64_t now_ms)
{
	struct progress *p = group[self];
	enum progress_verdict was = p->verdict;

	if (has_slice)
		weigh_slice(p, o, peer_median(group, n, self));
	if (was != PROGRESS_STALLED && is_stalled(group, n, self, o, now_ms))
		set_verdict(p, PROGRESS_STALLED, now_ms);
	else if (was == PROGRESS_FINE && is_degraded(p, o))
		set_verdict(p, PROGRESS_DEGRADED, now_ms);
	else if (was != PROGRESS_FINE && has_recovered(p, o, has_slice))
		set_verdict(p, PROGRESS_FINE, now_ms);
	return p->verdict != was;
}

unsigned progress_judge(struct progress *const *group, const struct progress_sample *now,
	const struct progress_opts *opts, unsigned n, uint64_t now_ms)
{
	unsigned i, changed = 0;

	/* All are sampled before any is judged: nobody is compared with yesterday. */
	for (i = 0; i < n; i++)
		group[i]->has_slice = take_sample(group[i], &now[i], &opts[i], now_ms);
	for (i = 0; i < n; i++) {
		changed += judge_one(group, n, i, &opts[i], group[i]->has_slice, now_ms);
		put_off_trial(group[i], &now[i], now_ms);
	}
	return changed;
}

/* ---- what is shown, and trials ---- */

uint64_t progress_age_ms(const struct progress *p, uint64_t now_ms)
{
	return p->moved_ms == 0 || now_ms < p->moved_ms ? 0 : now_ms - p->moved_ms;
}

bool progress_trial_due(const struct progress *p, unsigned in_flight, uint64_t now_ms)
{
	return p->verdict != PROGRESS_FINE && in_flight == 0 && p->trial_ms != 0 &&
	       now_ms >= p->trial_ms;
}

void progress_trial_begun(struct progress *p, uint64_t now_ms)
{
	p->trials++;
	p->trial_completions = p->completions;
	p->trial_stream_ms = 0;
	p->trial_ms = now_ms + back_off_ms(p);
}
