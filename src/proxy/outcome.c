/*
 * Tells breakers how exchanges end. See outcome.h.
 */
#include "proxy/outcome.h"

#include "base/clock.h"
#include "base/log.h"
#include "proxy/upstream.h"
#include "worker/guard.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- Retry-After ---- */

/* RFC 9110, 5.6.7: the form that is sent, and the two that once were. */
static const char *const date_forms[] = {
	"%a, %d %b %Y %H:%M:%S GMT",
	"%A, %d-%b-%y %H:%M:%S GMT",
	"%a %b %e %H:%M:%S %Y",
};

static bool read_date(const char *text, uint64_t *ms)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(date_forms); i++) {
		struct tm tm = {0};
		const char *end = strptime(text, date_forms[i], &tm);
		time_t at = end != NULL && *end == '\0' ? timegm(&tm) : -1;

		if (at < 0)
			continue;
		*ms = (uint64_t)at * 1000;
		return true;
	}
	return false;
}

static uint64_t retry_after_ms(struct span value, uint64_t wall_ms)
{
	char text[40];
	uint64_t secs, at_ms;

	if (span_to_u64(value, &secs) == 0)
		return MIN(secs, UINT64_C(1) + OUTCOME_PAUSE_MAX_MS) * 1000;
	if (value.n >= sizeof(text))
		return 0;
	memcpy(text, value.p, value.n);
	text[value.n] = '\0';
	return read_date(text, &at_ms) && at_ms > wall_ms ? at_ms - wall_ms : 0;
}

/* False: it asks for no rest. */
static bool pause_worker(struct worker *w, const struct http_head *a,
	struct span retry_after, const void *request)
{
	uint64_t ms = MIN(retry_after_ms(retry_after, clock_wall_ms()),
		(uint64_t)OUTCOME_PAUSE_MAX_MS);

	if (ms > 0 && breaker_pause(&w->breaker, clock_now_ms() + ms))
		log_at(LOG_LEVEL_INFO, request,
			"worker %s answered %d: no requests to it for %.1f s "
			"(Retry-After)",
			w->name, a->status, (double)ms / 1000);
	return ms > 0;
}

/* ---- outcomes ---- */

static void report(struct guard *g, enum outcome o, const char *why)
{
	struct worker *w = g->worker;
	bool was_trial = g->ticket.is_trial;
	enum breaker_change change = guard_report(g, o, clock_now_ms());
	char text[160];

	if (change == BREAKER_SAME)
		return;
	breaker_change_text(&w->breaker, change, was_trial, why, text, sizeof(text));
	log_at(change == BREAKER_OPENED ? LOG_LEVEL_WARN : LOG_LEVEL_NOTICE, NULL,
		"worker %s: %s", w->name, text);
}

/* The words of engines and gateways with a full queue; of llama.cpp also those of a
 * server that loads its model. */
static const char *const busy_words[] = {
	"overload",
	"queue is full",
	"queue full",
	"queue_full",
	"too many",
	"at capacity",
	"is busy",
	"busy",
	"rate limit",
	"rate_limit",
	"no slot",
	"exhausted",
	"try again later",
	"loading model",
};

static bool speaks_of_load(struct span body)
{
	char text[1024];
	size_t n = MIN(body.n, sizeof(text) - 1), i;

	for (i = 0; i < n; i++)
		text[i] = body.p[i] != '\0' ? body.p[i] : ' ';
	text[n] = '\0';
	for (i = 0; i < ARRAY_LEN(busy_words); i++)
		if (strcasestr(text, busy_words[i]) != NULL)
			return true;
	return false;
}

static enum outcome outcome_of(
	const struct exchange *ex, int status, bool has_retry_after)
{
	if (status < 500 || status == 529)
		return OUTCOME_NEUTRAL;
	if (status == 503 && (has_retry_after || speaks_of_load(exchange_at_hand(ex))))
		return OUTCOME_NEUTRAL;
	return OUTCOME_STATUS;
}

void outcome_header(struct guard *g, const struct exchange *ex, const struct http_head *a,
	const char *base, bool *has_paused, const void *request)
{
	const struct http_field *f;
	char why[32];

	if (a->status < 400)
		return;
	f = http_head_find(a, FIELD_RETRY_AFTER);
	if (f != NULL && !*has_paused && (a->status == 429 || a->status == 503))
		*has_paused =
			pause_worker(g->worker, a, http_field_value(base, f), request);
	if (a->status >= 500)
		atomic_fetch_add_explicit(
			&g->worker->guard.errors, 1, memory_order_relaxed);
	else if (a->status != 429 && a->status != 408)
		atomic_fetch_add_explicit(
			&g->worker->guard.refusals, 1, memory_order_relaxed);
	snprintf(why, sizeof(why), "status %d", a->status);
	report(g, outcome_of(ex, a->status, f != NULL), why);
}

/* The worker's own, and not what the operator wanted cut, nor a silence that may be
 * work, nor a limit of ours that a request ran into. */
static bool is_failure(const struct exchange *ex, enum fail why)
{
	return fail_is_workers(why) && why != FAIL_WORKER_PREFILL_TOO_LARGE &&
	       (ex == NULL || (!exchange_was_overlong(ex) && !exchange_was_excused(ex)));
}

void outcome_end(struct guard *g, const struct exchange *ex, enum fail why)
{
	if (why == FAIL_NONE) {
		atomic_fetch_add_explicit(
			&g->worker->guard.completions, 1, memory_order_relaxed);
		guard_time(g, clock_turn_us());
		report(g, OUTCOME_SUCCESS, "");
		return;
	}
	if (ex == NULL || !exchange_never_dialed(ex))
		atomic_fetch_add_explicit(
			&g->worker->guard.failures[why], 1, memory_order_relaxed);
	report(g, is_failure(ex, why) ? OUTCOME_FAILURE : OUTCOME_NEUTRAL,
		fail_code(why));
}
