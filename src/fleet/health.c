/*
 * Liveness probes and worker states. See health.h.
 *
 * Each host (a worker, or all the ranks behind one URL) has one entry with one timer. A
 * turn of it: look the name up if that is due, take the addresses that are allowed, ask
 * one of them for health_path, judge the answer, set the timer again. A good probe is
 * followed by a report (report.h). A worker that is about to become healthy is asked for
 * its models first, and after a failure for its start time, so that its state is known
 * before the first request. Always true: an entry has at most one probe under way; its
 * timer is set, or a look-up or a probe is under way that sets it.
 *
 * A worker's state is made of two things: whether its process is alive, which its entry
 * holds (starting, loading, sleeping, draining, healthy, suspect, unhealthy), and for
 * those that are, what its answers do (stalled, degraded: watch.h), which ranks of one process do
 * not share. Suspect is who failed a probe, but not yet health_failures of them; a failed
 * probe does not count while bytes come, and begins the count anew; only a good one ends
 * the suspicion.
 */
#include "fleet/health.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "base/rng.h"
#include "fleet/address.h"
#include "fleet/host.h"
#include "fleet/models.h"
#include "fleet/numbering.h"
#include "fleet/questions.h"
#include "fleet/report.h"
#include "fleet/says.h"
#include "fleet/watch.h"
#include "io/fetch.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/resolve.h"
#include "io/wheel.h"
#include "worker/model_set.h"
#include "worker/worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STARTING_EVERY_MS 250 /* a worker that never answered is tried this often */
#define DOUBTED_EVERY_MS 1000 /* so is one that refused a connect */
#define MODELS_EVERY_MS 30000 /* each healthy worker's list is read again */
#define MODELS_MAX_BYTES (4u << 20)
#define SAYS_MAX_BYTES 4096 /* of what it says of its state */

struct health {
	struct loop *loop;
	struct fetcher *fetcher;
	struct resolver *resolver;
	struct models *models;
	struct watch *watch;
	struct rng rng;
	TAILQ_HEAD(, entry) entries, spares; /* spares: for workers to come */
	size_t n, n_spare;
	bool is_list_stale; /* memory was short when the models were to be published */
	void (*on_change)(void *arg);
	void *arg;
};

struct entry {
	TAILQ_ENTRY(entry) link;
	struct health *h;
	struct host_seat *seat; /* for the worker that a spare entry was made for */
	struct host host;
	enum worker_state state; /* as its probes say: of all its workers */
	char reason[sizeof(((struct worker *)NULL)->probe.reason)];
	struct report *report;
	struct numbering *numbering;
	struct questions questions;
	struct addr_list
		*known; /* what the name stands for, before worker_cidrs; NULL: not yet */
	bool is_literal, is_asking;
	uint64_t asked_ms;
	struct wheel_timer timer;
	uint64_t started_ms; /* of the last turn */
	struct fetch *probe, *models_fetch;
	bool is_list_long; /* its models were more than is read, and this was said */
	int probe_status;  /* of the last probe, a good one */
	bool was_refused;  /* since the last good probe */
	bool has_moved;    /* to other addresses altogether, likewise */
	unsigned failures, successes; /* in a row */
	uint64_t failed_ms;           /* when the last of them was counted */
	bool is_doubt_known;          /* that its workers are in doubt */
	bool is_absence_told;         /* that it has not come up */
	bool is_rising;               /* healthy as soon as its models are there */
	bool is_listed;               /* its models are in the published list */
	char rise_reason[64];
	struct js *models;
	uint64_t models_ms; /* when they were asked for; 0: never */
};

static void on_timer(void *arg);
static void rise_if_ready(struct entry *e);

struct models *health_models(struct health *h)
{
	return h->models;
}

static const struct worker_opts *opts(const struct entry *e)
{
	return &host_worker(&e->host)->conf->opts;
}

static const char *name_of(const struct entry *e)
{
	return host_worker(&e->host)->group;
}

/* ---- models ---- */

/* Without memory the last list stays, until a probe ends. */
static void publish_models(struct health *h)
{
	const struct js **parts = calloc(h->n + 1, sizeof(*parts));
	struct entry *e;
	size_t n = 0;

	h->is_list_stale = parts == NULL;
	if (parts == NULL)
		return;
	TAILQ_FOREACH (e, &h->entries, link) {
		if (e->is_listed)
			parts[n++] = e->models;
	}
	h->is_list_stale = models_publish(h->models, parts, n) != 0;
	free(parts);
}

/* A request that names no model means the only one that the pool's workers have. */
static void tell_pool(struct health *h, struct pool *p)
{
	struct models_only only = {0};
	struct entry *e;

	TAILQ_FOREACH (e, &h->entries, link) {
		if (e->host.pool == p)
			models_only_add(&only, e->models);
	}
	pool_set_only_model(p, only.id);
}

static void list_models(struct entry *e, bool is_listed)
{
	if (e->is_listed == is_listed)
		return;
	e->is_listed = is_listed;
	publish_models(e->h);
}

/* ---- states ---- */

/* It is alive, by what it says, and no use now. */
static bool is_resting(const struct entry *e)
{
	return e->state == WORKER_LOADING || e->state == WORKER_SLEEPING ||
	       e->state == WORKER_DRAINING;
}

static bool is_down(const struct entry *e)
{
	return e->state == WORKER_STARTING || e->state == WORKER_UNHEALTHY ||
	       is_resting(e);
}

static enum worker_state state_of(const struct entry *e, const struct worker *w)
{
	if (is_down(e) || w->watch.progress.verdict == PROGRESS_FINE)
		return e->state;
	return w->watch.progress.verdict == PROGRESS_STALLED ? WORKER_STALLED
							     : WORKER_DEGRADED;
}

static bool is_judged(const struct entry *e, const struct worker *w)
{
	return state_of(e, w) != e->state;
}

static void set_reason(struct entry *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

static void set_reason(struct entry *e, const char *fmt, ...)
{
	struct host_seat *seat;
	va_list args;

	va_start(args, fmt);
	vsnprintf(e->reason, sizeof(e->reason), fmt, args);
	va_end(args);
	HOST_FOREACH(seat, &e->host)
	if (!is_judged(e, seat->worker))
		memcpy(seat->worker->probe.reason, e->reason, sizeof(e->reason));
}

static void log_change(const char *name, enum worker_state from, enum worker_state to,
	const char *reason)
{
	bool is_good = to == WORKER_HEALTHY || to == WORKER_SUSPECT ||
		       to == WORKER_LOADING || to == WORKER_SLEEPING ||
		       to == WORKER_DRAINING;

	log_at(is_good ? LOG_LEVEL_NOTICE : LOG_LEVEL_WARN, NULL,
		"worker %s %s -> %s (%s)", name, worker_state_name(from),
		worker_state_name(to), reason);
}

static enum worker_state shown(const struct worker *w)
{
	return (enum worker_state)atomic_load(&w->health);
}

/* All ranks of the process change alike, so the change is logged once. */
static bool changes_as_one(const struct entry *e)
{
	const struct worker *first = host_worker(&e->host);
	const struct host_seat *seat;

	HOST_FOREACH(seat, &e->host)
	{
		const struct worker *w = seat->worker;

		if (shown(w) != shown(first) || state_of(e, w) != state_of(e, first))
			return false;
	}
	return true;
}

static bool show_state(struct entry *e, struct worker *w, const char *name)
{
	enum worker_state from = shown(w), to = state_of(e, w);

	if (from == to)
		return false;
	if (is_judged(e, w))
		memcpy(w->probe.reason, w->watch.verdict_reason, sizeof(w->probe.reason));
	atomic_store(&w->health, to);
	w->probe.state_since_ms = clock_now_ms();
	if (name != NULL)
		log_change(name, from, to, w->probe.reason);
	return true;
}

/* The one place where a worker's health changes; its reason was set before. The models
 * first: who reads in the log that it is out is not told them any more. */
static void show_states(struct entry *e)
{
	bool is_one = changes_as_one(e), has_changed = false;
	struct host_seat *seat;

	list_models(e, !is_down(e));
	HOST_FOREACH(seat, &e->host)
	{
		struct worker *w = seat->worker;
		bool is_first = w == host_worker(&e->host);

		has_changed |= show_state(e, w,
			!is_one    ? w->name
			: is_first ? w->group
				   : NULL);
	}
	if (has_changed)
		e->h->on_change(e->h->arg);
}

/* It takes traffic again: slow_start begins. */
static void start_warming(const struct entry *e)
{
	struct host_seat *seat;

	HOST_FOREACH(seat, &e->host)
	atomic_store(&seat->worker->probe.warm_since_ms, clock_now_ms());
}

static void set_state(struct entry *e, enum worker_state to)
{
	bool was_down = is_down(e);

	if (e->state == to)
		return;
	e->state = to;
	if (to != WORKER_SUSPECT) {
		e->failures = 0;
		e->successes = 0;
	}
	if (was_down && !is_down(e))
		start_warming(e);
	show_states(e);
}

static const char *ordinal(unsigned n)
{
	if (n % 100 >= 11 && n % 100 <= 13)
		return "th";
	return n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
}

/* Bytes came from it recently, or while the probe waited: it is alive, whatever the probe
 * says. */
static bool is_answering(const struct entry *e)
{
	uint64_t last_ms = 0, now_ms = clock_now_ms();
	uint64_t recent_ms = MAX(opts(e)->health_interval_ms, opts(e)->health_timeout_ms);
	struct host_seat *seat;

	HOST_FOREACH(seat, &e->host)
	last_ms = MAX(last_ms, atomic_load(&seat->worker->relay.last_byte_ms));
	return !is_down(e) && last_ms != 0 && last_ms + recent_ms >= now_ms;
}

/* A connect to one of its workers failed (reach.h). */
static bool is_doubted(const struct entry *e)
{
	const struct host_seat *seat;

	HOST_FOREACH(seat, &e->host)
	if (reach_is_doubted(&seat->worker->reach))
		return true;
	return false;
}

/* It was reached. True: connects failed before. */
static bool end_doubt(struct entry *e)
{
	struct host_seat *seat;
	bool was_doubted = false;

	e->is_doubt_known = false;
	HOST_FOREACH(seat, &e->host)
	was_doubted |= reach_prove(&seat->worker->reach);
	return was_doubted;
}

static void judge_failures(struct entry *e)
{
	bool is_out = e->failures >= opts(e)->health_failures;

	if (is_out && e->state == WORKER_STARTING && !e->is_absence_told) {
		log_warn("worker %s: has not come up: %s; probes go on", name_of(e),
			e->reason);
		e->is_absence_told = true;
	}
	if (is_resting(e) ? !is_out : is_down(e))
		return;
	set_state(e, is_out ? WORKER_UNHEALTHY : WORKER_SUSPECT);
}

/* A worker in doubt is probed more often, and is not unhealthy sooner for that. */
static void count_failure(struct entry *e)
{
	uint64_t now_ms = clock_now_ms(), least_ms = opts(e)->health_interval_ms * 8 / 10;

	if (e->failures > 0 && is_doubted(e) && now_ms < e->failed_ms + least_ms)
		return;
	e->failures++;
	e->failed_ms = now_ms;
}

static void probe_failed(struct entry *e, const char *why)
{
	e->is_rising = false;
	e->successes = 0;
	if (is_answering(e)) {
		e->failures = 0;
		set_reason(e, "probe failed (%s), but it is answering requests", why);
		log_debug("worker %s: %s", name_of(e), e->reason);
		return;
	}
	count_failure(e);
	e->host.addr_turn++;
	questions_start_anew(&e->questions);
	report_start_anew(e->report);
	set_reason(e, "%s, %u%s failure", why, e->failures, ordinal(e->failures));
	judge_failures(e);
}

/* ---- what else is asked of a worker ---- */

static struct fetch *ask(
	struct entry *e, const char *path, size_t max_body, fetch_done_fn *fn)
{
	struct host_ask what = {.path = path,
		.max_body = max_body,
		.timeout_ms = opts(e)->health_timeout_ms};

	return host_fetch(&e->host, e->h->fetcher, &what, fn, e);
}

/* Without memory the last lists stay, until the next answer. */
static void tell_workers(struct entry *e)
{
	struct model_set *set, *adapters;
	struct host_seat *seat;

	if (models_set(e->models, &set) != 0)
		return;
	if (models_adapters(e->models, &adapters) == 0) {
		HOST_FOREACH(seat, &e->host)
		pool_set_adapters(e->host.pool, seat->worker, adapters);
		model_set_unref(adapters);
	}
	HOST_FOREACH(seat, &e->host)
	pool_set_models(e->host.pool, seat->worker, set);
	model_set_unref(set);
}

static void set_models(struct entry *e, struct js *models)
{
	js_free(e->models);
	e->models = models;
	tell_workers(e);
	if (e->is_listed)
		publish_models(e->h);
	tell_pool(e->h, e->host.pool);
}

/* A refresh that fails leaves what is known; an answer that is no list empties it. */
static void on_models(void *arg, const struct fetch_answer *a)
{
	struct entry *e = arg;
	struct js *models = NULL;

	e->models_fetch = NULL;
	if (a->result == FETCH_TOO_BIG && !e->is_list_long)
		log_warn(
			"worker %s: its /v1/models is larger than %u MiB and is not read",
			name_of(e), MODELS_MAX_BYTES >> 20);
	e->is_list_long = a->result == FETCH_TOO_BIG;
	if (a->result == FETCH_OK &&
		(!host_said_yes(a) || models_parse(a->body, &models) == 0))
		set_models(e, models);
	rise_if_ready(e);
}

static void ask_models(struct entry *e)
{
	if (e->models_fetch != NULL)
		return;
	e->models_ms = clock_now_ms();
	e->models_fetch = ask(e, "/v1/models", MODELS_MAX_BYTES, on_models);
}

/* True: its engine is being asked. */
static bool number_ranks(struct entry *e)
{
	return numbering_ask(e->numbering, report_first_rank(e->report), e->models);
}

/* A process that was restarted is judged anew. */
static void on_report(void *arg)
{
	struct entry *e = arg;

	show_states(e);
	if (e->is_rising)
		rise_if_ready(e);
	else
		(void)number_ranks(e);
}

static void on_numbered(void *arg)
{
	rise_if_ready(arg);
}

static void rise_if_ready(struct entry *e)
{
	if (!e->is_rising || e->models_fetch != NULL)
		return;
	/* One that was down may be another process now; a new one has no cache to forget.
	 */
	if ((e->state == WORKER_UNHEALTHY || numbering_is_open(e->numbering)) &&
		report_is_asking(e->report))
		return;
	if (number_ranks(e))
		return;
	e->is_rising = false;
	set_reason(e, "%s", e->rise_reason);
	set_state(e, WORKER_HEALTHY);
}

static void start_rising(struct entry *e)
{
	e->is_rising = true;
	ask_models(e);
	report_ask(e->report);
	rise_if_ready(e);
}

static void probe_succeeded(struct entry *e, int status)
{
	unsigned want = e->state == WORKER_UNHEALTHY ? opts(e)->health_successes : 1;
	char text[sizeof(e->rise_reason)];

	snprintf(text, sizeof(text), "%d in %llu ms", status,
		(unsigned long long)(clock_now_ms() - e->started_ms));
	if (end_doubt(e))
		e->h->on_change(e->h->arg);
	e->failures = 0;
	e->successes++;
	if (is_down(e)) {
		memcpy(e->rise_reason, text, sizeof(text));
		if (e->successes >= want && !e->is_rising)
			start_rising(e);
		return;
	}
	set_reason(e, "%s", text);
	set_state(e, WORKER_HEALTHY);
	report_ask(e->report);
	if (clock_now_ms() - e->models_ms >= MODELS_EVERY_MS ||
		pool_models_doubted_ms(e->host.pool) > e->models_ms)
		ask_models(e);
}

/* ---- turns ---- */

/* The next turn: jitter keeps many workers, and many routers, from asking all at once. */
static void schedule(struct entry *e)
{
	uint64_t every_ms = opts(e)->health_interval_ms, due_ms;

	if (e->state == WORKER_STARTING || e->state == WORKER_LOADING)
		every_ms = MIN(every_ms, (uint64_t)STARTING_EVERY_MS);
	else if (is_doubted(e))
		every_ms = MIN(every_ms, (uint64_t)DOUBTED_EVERY_MS);
	due_ms = e->started_ms +
		 (uint64_t)((double)every_ms * (0.9 + 0.2 * rng_unit(&e->h->rng)));
	wheel_set(loop_wheel(e->h->loop), &e->timer, MAX(due_ms, clock_now_ms() + 1));
}

/* ---- engines that rest ---- */

/* It answers, and says itself that it is no use now: no failure. */
static void rest(struct entry *e, enum worker_state how, const char *why)
{
	e->is_rising = false;
	e->failures = 0;
	set_reason(e, "%s", why);
	set_state(e, how);
}

/* What it computed is gone: an engine that sleeps lets its cache go. */
static void forget(const struct entry *e)
{
	struct host_seat *seat;

	HOST_FOREACH(seat, &e->host)
	pool_clear_worker(e->host.pool, seat->worker);
}

static void on_said(void *arg, const struct questions_outcome *o)
{
	struct entry *e = arg;

	/* One that does not answer that now is as it was. */
	if (o->is_resting || (o->is_silent && e->state == WORKER_SLEEPING)) {
		if (o->loses_cache && e->state != WORKER_SLEEPING)
			forget(e);
		rest(e, WORKER_SLEEPING, o->why);
	} else {
		probe_succeeded(e, e->probe_status);
	}
	schedule(e);
}

/* Nothing listened, or it listened elsewhere, and what does now does not say since when:
 * it is another process. */
static void forget_if_another(struct entry *e)
{
	if ((e->was_refused || e->has_moved) && e->state != WORKER_STARTING &&
		!report_knows_process(e->report)) {
		forget(e);
		log_notice("worker %s %s: its cache counts as empty", name_of(e),
			e->was_refused ? "refused connections" : "has another address");
	}
	e->was_refused = e->has_moved = false;
}

static void probe_was_good(struct entry *e, int status)
{
	e->probe_status = status;
	forget_if_another(e);
	if (questions_ask(&e->questions, report_is_sglang(e->report),
		    opts(e)->health_timeout_ms))
		return;
	probe_succeeded(e, status);
	schedule(e);
}

static void judge_probe(struct entry *e, const struct fetch_answer *a)
{
	enum worker_state how;
	const char *said;
	char why[64];

	e->was_refused |= a->result == FETCH_REFUSED;
	if (says_why_not(a, &how, &said)) {
		rest(e, how, said);
	} else if (a->result == FETCH_OK) {
		snprintf(why, sizeof(why), "status %d", a->status);
		probe_failed(e, why);
	} else {
		probe_failed(e, fetch_result_text(a->result));
	}
	schedule(e);
}

/* What a 503 says. Should it be well by now, the next probe shows that. */
static void on_refusal(void *arg, const struct fetch_answer *a)
{
	struct entry *e = arg;
	struct fetch_answer refusal = {.result = FETCH_OK, .status = 503};
	enum worker_state how;
	const char *why;

	e->probe = NULL;
	judge_probe(e, says_why_not(a, &how, &why) ? a : &refusal);
}

/* The body of a probe's answer is not read, since it may be anything: a 503 is asked for
 * once more, with its text. */
static bool ask_refusal(struct entry *e)
{
	e->probe = ask(e, opts(e)->health_path, SAYS_MAX_BYTES, on_refusal);
	return e->probe != NULL;
}

static void on_probe(void *arg, const struct fetch_answer *a)
{
	struct entry *e = arg;

	e->probe = NULL;
	if (e->h->is_list_stale)
		publish_models(e->h);
	if (host_said_yes(a)) {
		probe_was_good(e, a->status);
	} else if (a->result != FETCH_OK || a->status != 503 || !ask_refusal(e)) {
		judge_probe(e, a);
	}
}

static void give_addrs(const struct entry *e, struct addr_list *list)
{
	struct host_seat *seat;

	HOST_FOREACH(seat, &e->host)
	worker_set_addrs(seat->worker, list != NULL ? addr_list_ref(list) : NULL);
}

/* False: it has no address that it may have. */
static bool take_addrs(struct entry *e)
{
	struct addr_list *allowed = address_filter(e->known, &opts(e)->worker_cidrs),
			 *now;
	unsigned start;

	if (allowed == NULL) {
		give_addrs(e, NULL);
		return false;
	}
	now = worker_addrs(host_worker(&e->host), &start);
	e->has_moved |= now != NULL && !addr_list_meets(now, allowed);
	if (now == NULL || !addr_list_equal(now, allowed))
		give_addrs(e, allowed);
	addr_list_unref(allowed);
	addr_list_unref(now);
	return true;
}

static void probe(struct entry *e)
{
	if (!take_addrs(e)) {
		e->is_rising = false;
		set_reason(e, "its address is outside worker_cidrs, or one that no "
			      "worker may have");
		set_state(e, WORKER_UNHEALTHY);
		schedule(e);
		return;
	}
	e->probe = ask(e, opts(e)->health_path, 0, on_probe);
	if (e->probe == NULL) {
		probe_failed(e, "the probe could not be started");
		schedule(e);
	}
}

static void cancel(struct fetch **f)
{
	if (*f != NULL)
		fetch_cancel(*f);
	*f = NULL;
}

/* Whatever the turn that is under way is waiting for. */
static void probe_anew(struct entry *e)
{
	cancel(&e->probe);
	questions_cancel(&e->questions);
	wheel_stop(loop_wheel(e->h->loop), &e->timer);
	e->started_ms = clock_now_ms();
	probe(e);
}

static void on_addresses(void *arg, int err, struct addr_list *list)
{
	struct entry *e = arg;
	bool is_first = e->known == NULL, is_new;

	e->is_asking = false;
	is_new = err == 0 && !addr_list_equal(e->known, list);
	if (err == 0) {
		addr_list_unref(e->known);
		e->known = list;
	}
	/* With addresses at hand the turn did not wait for this; others are asked now. */
	if (!is_first && is_new)
		probe_anew(e);
	if (!is_first)
		return;
	if (err == 0) {
		e->started_ms = clock_now_ms();
		probe(e);
	} else {
		probe_failed(e, "its name cannot be resolved");
		schedule(e);
	}
}

/* A look-up that is due; false when none is under way. */
static bool look_up(struct entry *e)
{
	const struct conf_url *url = &host_worker(&e->host)->url;

	if (e->is_literal || e->is_asking ||
		(e->known != NULL && e->asked_ms != 0 &&
			clock_now_ms() - e->asked_ms < RESOLVE_EVERY_MS))
		return e->is_asking;
	e->asked_ms = clock_now_ms();
	e->is_asking =
		resolver_ask(e->h->resolver, url->host, url->port, on_addresses, e) == 0;
	return e->is_asking;
}

static void on_timer(void *arg)
{
	struct entry *e = arg;
	bool is_asking;

	e->started_ms = clock_now_ms();
	is_asking = look_up(e);
	if (e->known != NULL) {
		probe(e);
	} else if (!is_asking) {
		probe_failed(e, "its name cannot be looked up");
		schedule(e);
	}
}

/* A connect failed: the name may stand for another address by now, and the worker is
 * probed at once. What is known of one rank holds for the process. */
static void suspect(struct entry *e)
{
	struct host_seat *seat;

	e->is_doubt_known = true;
	HOST_FOREACH(seat, &e->host)
	reach_doubt(&seat->worker->reach);
	if (!is_down(e)) {
		set_reason(e, "a request could not connect");
		set_state(e, WORKER_SUSPECT);
	}
	e->asked_ms = 0;
	look_up(e);
	if (e->known != NULL)
		probe_anew(e);
}

void health_check_doubts(struct health *h)
{
	struct entry *e;

	TAILQ_FOREACH (e, &h->entries, link) {
		if (!e->is_doubt_known && is_doubted(e))
			suspect(e);
	}
}

void health_reconfigured(struct health *h)
{
	struct entry *e;

	TAILQ_FOREACH (e, &h->entries, link) {
		if (wheel_is_set(&e->timer))
			schedule(e);
	}
	watch_reconfigured(h->watch);
}

/* ---- workers come and go ---- */

static struct entry *find_entry(
	struct health *h, const struct pool *p, const struct worker *w)
{
	struct entry *e;

	TAILQ_FOREACH (e, &h->entries, link) {
		if (e->host.pool == p && e->host.id == w->host_id)
			return e;
	}
	return NULL;
}

/* One more rank of a host that is known: what is known of it holds for this one too. */
static void add_rank(struct entry *e, struct host_seat *seat, struct worker *w)
{
	unsigned start;

	worker_set_addrs(w, worker_addrs(host_worker(&e->host), &start));
	memcpy(w->probe.reason, e->reason, sizeof(w->probe.reason));
	w->probe.state_since_ms = clock_now_ms();
	host_add(&e->host, seat, w);
	tell_workers(e);
	atomic_store(&w->health, e->state);
}

/* A worker has an address from the start where its URL names one. */
static void add_host(
	struct entry *e, struct host_seat *seat, struct pool *p, struct worker *w)
{
	struct health *h = e->h;
	unsigned start;

	host_init(&e->host, p, w->host_id);
	host_add(&e->host, seat, w);
	e->state = WORKER_STARTING;
	memcpy(e->reason, w->probe.reason, sizeof(e->reason));
	e->known = worker_addrs(w, &start);
	e->is_literal = e->known != NULL;
	w->probe.state_since_ms = clock_now_ms();
	TAILQ_INSERT_TAIL(&h->entries, e, link);
	h->n++;
	wheel_set(loop_wheel(h->loop), &e->timer, clock_now_ms());
}

/* ---- room for workers to come ---- */

/* An entry without a host: it may become a new one, or give its seat to a rank. */
static void spare_free(struct entry *e)
{
	report_free(e->report);
	numbering_free(e->numbering);
	free(e->seat);
	free(e);
}

static struct entry *spare_new(struct health *h)
{
	struct entry *e = calloc(1, sizeof(*e));

	if (e == NULL)
		return NULL;
	e->h = h;
	e->seat = calloc(1, sizeof(*e->seat));
	e->report = report_new(&e->host, h->fetcher, on_report, e);
	e->numbering = numbering_new(&e->host, h->fetcher, on_numbered, e);
	if (e->seat == NULL || e->report == NULL || e->numbering == NULL) {
		spare_free(e);
		return NULL;
	}
	questions_init(&e->questions, &e->host, h->fetcher, on_said, e);
	wheel_timer_init(&e->timer, on_timer, e);
	return e;
}

static struct entry *take_spare(struct health *h)
{
	struct entry *e = TAILQ_FIRST(&h->spares);

	assert(e != NULL); /* make_room() came before */
	TAILQ_REMOVE(&h->spares, e, link);
	h->n_spare--;
	return e;
}

static int make_room(void *arg, size_t more)
{
	struct health *h = arg;
	struct entry *e;

	while (h->n_spare < more) {
		e = spare_new(h);
		if (e == NULL)
			return ERR_NOMEM;
		TAILQ_INSERT_TAIL(&h->spares, e, link);
		h->n_spare++;
	}
	return watch_make_room(h->watch, more);
}

static void on_worker_add(void *arg, struct pool *p, struct worker *w)
{
	struct health *h = arg;
	struct entry *e = find_entry(h, p, w), *spare = take_spare(h);
	struct host_seat *seat = take_ptr(spare->seat);

	if (e == NULL) {
		add_host(spare, seat, p, w);
	} else {
		add_rank(e, seat, w);
		spare_free(spare);
	}
	watch_add(h->watch, p, w);
	h->on_change(h->arg);
}

/* All that is known of the host is forgotten, its models first. */
static void entry_free(struct entry *e)
{
	struct health *h = e->h;

	TAILQ_REMOVE(&h->entries, e, link);
	h->n--;
	if (e->is_listed)
		publish_models(h);
	tell_pool(h, e->host.pool);
	wheel_stop(loop_wheel(h->loop), &e->timer);
	cancel(&e->probe);
	questions_cancel(&e->questions);
	cancel(&e->models_fetch);
	report_free(e->report);
	numbering_free(e->numbering);
	if (e->is_asking)
		resolver_cancel(h->resolver, e);
	js_free(e->models);
	addr_list_unref(e->known);
	host_clear(&e->host);
	free(e);
}

static void on_worker_remove(void *arg, struct pool *p, struct worker *w)
{
	struct health *h = arg;
	struct entry *e = find_entry(h, p, w);

	watch_drop(h->watch, w);
	if (e != NULL) {
		free(host_drop(&e->host, w));
		if (e->host.n == 0)
			entry_free(e);
	}
	h->on_change(h->arg);
}

/* A verdict is one failure for the breaker. */
static void count_as_failure(struct worker *w)
{
	enum breaker_change change =
		breaker_report(&w->breaker, OUTCOME_FAILURE, NULL, clock_now_ms());
	char text[160];

	if (change == BREAKER_SAME)
		return;
	breaker_change_text(&w->breaker, change, false, worker_state_name(shown(w)), text,
		sizeof(text));
	log_warn("worker %s: %s", w->name, text);
}

static void on_verdict(void *arg, struct pool *p, struct worker *w)
{
	struct entry *e = find_entry(arg, p, w);

	assert(e != NULL);
	if (!is_down(e))
		memcpy(w->probe.reason, w->watch.verdict_reason, sizeof(w->probe.reason));
	show_states(e);
	if (w->watch.progress.verdict != PROGRESS_FINE && !is_resting(e))
		count_as_failure(w);
}

const struct pool_ops health_pool_ops = {make_room, on_worker_add, on_worker_remove};

struct health *health_new(struct loop *l, void (*on_change)(void *arg), void *arg)
{
	struct health *h = calloc(1, sizeof(*h));
	uint64_t seed;

	if (h == NULL)
		return NULL;
	TAILQ_INIT(&h->entries);
	TAILQ_INIT(&h->spares);
	h->loop = l;
	h->fetcher = fetcher_new(l);
	h->resolver = resolver_new(l);
	h->models = models_new();
	h->watch = watch_new(l, on_verdict, h);
	if (h->fetcher == NULL || h->resolver == NULL || h->models == NULL ||
		h->watch == NULL) {
		health_free(h);
		return NULL;
	}
	rng_secret(&seed, sizeof(seed));
	rng_seed(&h->rng, seed);
	h->on_change = on_change;
	h->arg = arg;
	return h;
}

void health_free(struct health *h)
{
	if (h == NULL)
		return;
	assert(h->n == 0);
	while (h->n_spare > 0)
		spare_free(take_spare(h));
	fetcher_free(h->fetcher);
	resolver_free(h->resolver);
	models_free(h->models);
	watch_free(h->watch);
	free(h);
}
