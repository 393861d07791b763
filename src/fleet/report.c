/*
 * The report of a worker's process on itself. See report.h.
 *
 * A round goes through the table of sources from top to bottom: each is asked only for
 * values that the ones before it lacked. At the end of a round all values are applied at
 * once. Always true: at most one fetch is under way.
 */
#include "fleet/report.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "fleet/host.h"
#include "fleet/scrape.h"
#include "pool/pool.h"
#include "rewrite/kv_transfer.h"
#include "worker/worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX_BYTES (8u << 20)
#define RESTART_SECONDS 0.01  /* start times further apart are two processes */
#define ABSENT_FOR_MS 300000u /* a path that says nothing is asked again then */
#define FRESH_INTERVALS 3     /* of probes: how long a report of load counts */

enum { WANT_CAPACITY = 1, WANT_LOAD = 2, WANT_IDENTITY = 4, WANT_ENGINE = 8 };

static const struct source {
	const char *path;
	void (*read)(struct span text, struct scrape *s);
	unsigned gives;
	uint64_t every_ms; /* 0: in each round */
} sources[] = {
	{"/metrics", scrape_read, WANT_CAPACITY | WANT_LOAD | WANT_IDENTITY, 0},
	{"/server_info", scrape_json, WANT_CAPACITY | WANT_IDENTITY, 30000},
	{"/get_server_info", scrape_json, WANT_CAPACITY | WANT_IDENTITY, 30000},
	{"/props", scrape_json, WANT_CAPACITY, 30000},
	{"/v1/loads?include=core", scrape_json, WANT_LOAD, 0},
	{"/get_load", scrape_json, WANT_LOAD, 0},
	{"/load", scrape_json, WANT_LOAD, 0},
	/* The bootstrap server beside it; last, since it may be away. */
	{"/query", NULL, WANT_ENGINE, 0},
};

struct report {
	struct host *host;
	struct fetcher *fetcher;
	void (*on_done)(void *arg);
	void *arg;

	/* The round in hand. */
	struct fetch *fetch; /* NULL: none under way */
	size_t at;           /* its source */
	struct scrape said;
	size_t cap_ranks;
	bool has_engine;

	/* From round to round. */
	uint64_t not_before_ms[ARRAY_LEN(sources)];
	unsigned start_rank;  /* as configured when said.first_rank was set by it */
	double start_seconds; /* 0: not known */
	double tokens;        /* < 0: not known */
	char id[SCRAPE_ID_MAX];
};

static void ask_next(struct report *r);

/* ---- what is wanted ---- */

static bool has_capacity(const struct report *r)
{
	return host_worker(r->host)->conf->capacity != 0 ||
	       r->said.all.capacity_tokens != 0;
}

/* True if the load of each rank is known: a sum over ranks says nothing about one. */
static bool has_load(const struct report *r)
{
	size_t i;

	for (i = 0; i < r->said.n_ranks; i++) {
		if (!r->said.ranks[i].has_load)
			return false;
	}
	return r->said.n_ranks > 0 || r->said.all.has_load;
}

static bool has_identity(const struct report *r)
{
	return r->said.start_seconds != 0 || r->said.id[0] != '\0' ||
	       r->said.all.has_tokens;
}

/* Load is shown where it comes unasked, with the rest; it is looked for where it counts.
 */
static unsigned wanted(const struct report *r)
{
	const struct worker *w = host_worker(r->host);
	bool is_read = pool_load_source(r->host->pool, w->role) == LOAD_SOURCE_REPORTED;
	bool is_engine_named = w->role == ROLE_PREFILL &&
			       kv_form(pool_connector(r->host->pool))->needs_engine;

	return (has_capacity(r) ? 0 : WANT_CAPACITY) |
	       (is_read && !has_load(r) ? WANT_LOAD : 0) |
	       (has_identity(r) ? 0 : WANT_IDENTITY) |
	       (is_engine_named && !r->has_engine ? WANT_ENGINE : 0);
}

/* ---- what was said ---- */

static bool is_another_process(const struct report *r)
{
	const struct scrape *s = &r->said;

	if (r->start_seconds != 0 && s->start_seconds != 0)
		return fabs(r->start_seconds - s->start_seconds) > RESTART_SECONDS;
	if (r->id[0] != '\0' && s->id[0] != '\0')
		return strcmp(r->id, s->id) != 0;
	/* Counters only grow while a process lives. */
	return r->tokens >= 0 && s->all.has_tokens && s->all.tokens < r->tokens;
}

static void apply_identity(struct report *r)
{
	if (is_another_process(r)) {
		host_restarted(r->host);
		log_notice("worker %s was restarted: its cache counts as empty",
			host_worker(r->host)->group);
	}
	if (r->said.start_seconds != 0)
		r->start_seconds = r->said.start_seconds;
	if (r->said.all.has_tokens)
		r->tokens = r->said.all.tokens;
	if (r->said.id[0] != '\0')
		memcpy(r->id, r->said.id, sizeof(r->id));
}

/* The values of that worker alone. */
static const struct scrape_engine *engine_of(
	const struct report *r, const struct worker *w)
{
	unsigned at = w->rank - w->conf->dp_start_rank;

	if (!w->has_rank)
		return &r->said.all;
	return at < r->said.n_ranks ? &r->said.ranks[at] : NULL;
}

static void apply_capacity(const struct report *r, struct worker *w)
{
	const struct scrape_engine *e = engine_of(r, w);
	uint64_t tokens = e != NULL ? e->capacity_tokens : 0;

	if (tokens == 0 && r->said.n_ranks > 0)
		tokens = r->said.all.capacity_tokens / r->said.n_ranks;
	if (tokens != 0)
		pool_worker_capacity(r->host->pool, w, tokens);
}

static void apply_load(const struct report *r, struct worker *w)
{
	const struct scrape_engine *e = engine_of(r, w);
	uint64_t now_ms = clock_now_ms();

	if (e == NULL || !e->has_load)
		return;
	worker_report(w, (unsigned)e->running, (unsigned)e->waiting,
		MAX(w->report.load_when_asked, worker_load(w)), now_ms,
		now_ms + FRESH_INTERVALS * w->conf->opts.health_interval_ms);
}

/* Silence on the wire counts from the engine's last growth, too; a growth is seen when it
 * is asked for, hence the few intervals at least. */
static void note_growth(struct worker *w)
{
	const struct worker_opts *o = &w->conf->opts;
	uint64_t for_ms =
		MAX(FRESH_INTERVALS * o->health_interval_ms, o->stream_idle_timeout_ms);

	atomic_fetch_add_explicit(&w->report.engine_steps, 1, memory_order_relaxed);
	atomic_store_explicit(&w->report.engine_until_ms, clock_now_ms() + for_ms,
		memory_order_relaxed);
}

/* How much of what it does is for this router, by the requests that it counts. */
static double share_of_ours(const struct worker *w, const struct scrape_engine *e)
{
	unsigned ours = MAX(w->report.load_when_asked, worker_load(w));

	return ours > 0 && e->has_load && e->running > ours
		       ? (double)ours / (double)e->running
		       : 1;
}

/* How fast it generated since it was asked last, for this router's requests. */
static void apply_rate(struct worker *w, const struct scrape_engine *e)
{
	uint64_t now_ms = clock_now_ms();
	double made = (e->generated - w->report.engine_generated) * share_of_ours(w, e);

	if (w->report.engine_generated >= 0 && made >= 0 &&
		now_ms > w->report.engine_generated_ms) {
		w->report.engine_rate =
			made * 1000 / (double)(now_ms - w->report.engine_generated_ms);
		w->report.engine_rate_until_ms =
			now_ms + FRESH_INTERVALS * w->conf->opts.health_interval_ms;
	}
	w->report.engine_generated = e->generated;
	w->report.engine_generated_ms = now_ms;
}

/* A count of all ranks together says nothing of one. */
static void apply_steps(const struct report *r, struct worker *w)
{
	const struct scrape_engine *e = engine_of(r, w);

	if (e == NULL || !e->has_tokens)
		return;
	if (w->report.engine_tokens >= 0 && e->tokens > w->report.engine_tokens)
		note_growth(w);
	w->report.engine_tokens = e->tokens;
	if (e->has_generated)
		apply_rate(w, e);
}

/* vLLM does not say them by rank. */
static void apply_adapters(const struct report *r, struct worker *w)
{
	if (r->said.adapters.said_at > 0)
		pool_adapters_reported(r->host->pool, w, &r->said.adapters.report);
}

static void apply(struct report *r)
{
	struct host_seat *seat;

	apply_identity(r);
	HOST_FOREACH(seat, r->host)
	{
		apply_capacity(r, seat->worker);
		apply_load(r, seat->worker);
		apply_steps(r, seat->worker);
		apply_adapters(r, seat->worker);
	}
}

/* ---- rounds ---- */

static void leave_alone(struct report *r, size_t source, uint64_t for_ms)
{
	r->not_before_ms[source] = for_ms > 0 ? clock_now_ms() + for_ms : 0;
}

/* It said what was wanted: until it is asked again, those that could say no more need not
 * be asked either. */
static void was_useful(struct report *r)
{
	const struct source *s = &sources[r->at];
	size_t i;

	for (i = r->at; i < ARRAY_LEN(sources); i++) {
		if ((sources[i].gives & ~s->gives) == 0 && s->every_ms > 0)
			leave_alone(r, i, s->every_ms);
	}
}

/* The engine of each rank. */
static void take_engines(struct report *r, struct span answer)
{
	struct host_seat *seat;
	struct span id;

	HOST_FOREACH(seat, r->host)
	{
		struct worker *w = seat->worker;

		if (!kv_engine_id(answer, w->rank, &id))
			continue;
		pool_set_engine(r->host->pool, w, id);
		r->has_engine = true;
	}
}

static void read_answer(struct report *r, struct span answer)
{
	if (sources[r->at].read != NULL)
		sources[r->at].read(answer, &r->said);
	else
		take_engines(r, answer);
}

/* It counts as saying nothing; others may say it. */
static void pass_over_big(struct report *r)
{
	log_warn("worker %s: %s is larger than %u MiB and is not read; asked again in %u "
		 "minutes",
		host_worker(r->host)->group, sources[r->at].path, BODY_MAX_BYTES >> 20,
		ABSENT_FOR_MS / 60000);
	leave_alone(r, r->at, ABSENT_FOR_MS);
	r->at++;
}

static void on_answer(void *arg, const struct fetch_answer *a)
{
	struct report *r = arg;
	unsigned before = wanted(r);

	r->fetch = NULL;
	if (a->result == FETCH_TOO_BIG) {
		pass_over_big(r);
	} else if (a->result != FETCH_OK) {
		/* It is away or slow: no time for the other paths. */
		r->at = ARRAY_LEN(sources);
	} else {
		if (host_said_yes(a))
			read_answer(r, a->body);
		/* The first one is shown to people, useful here or not. */
		if (host_said_yes(a) && (wanted(r) != before || r->at == 0))
			was_useful(r);
		else if (sources[r->at].read != NULL)
			leave_alone(r, r->at, ABSENT_FOR_MS);
		r->at++;
	}
	ask_next(r);
	if (r->fetch == NULL)
		r->on_done(r->arg);
}

static bool is_due(const struct report *r)
{
	return (sources[r->at].gives & wanted(r)) != 0 &&
	       clock_now_ms() >= r->not_before_ms[r->at];
}

static uint16_t bootstrap_port(const struct report *r)
{
	return (uint16_t)kv_bootstrap_port(host_worker(r->host)->conf->bootstrap_port);
}

/* The next source that is due; none: the round is over. */
static void ask_next(struct report *r)
{
	struct host_ask ask = {.max_body = BODY_MAX_BYTES,
		.timeout_ms = host_worker(r->host)->conf->opts.health_timeout_ms};

	for (; r->at < ARRAY_LEN(sources); r->at++) {
		/* The first one also says what nobody needs, but people like to see. */
		if (r->at == 0 ? clock_now_ms() < r->not_before_ms[0] : !is_due(r))
			continue;
		ask.path = sources[r->at].path;
		ask.port = sources[r->at].read != NULL ? 0 : bootstrap_port(r);
		r->fetch = host_fetch(r->host, r->fetcher, &ask, on_answer, r);
		if (r->fetch != NULL)
			return;
		break;
	}
	apply(r);
}

/* Room for what is said of each rank; the number of ranks may have changed. Without
 * memory what is said of single ranks is passed over until the next round. */
static void fit_ranks(struct report *r)
{
	const struct worker *w = host_worker(r->host);
	size_t n = w->has_rank ? w->conf->dp_size : 0;

	if (mem_grow(&r->said.ranks, &r->cap_ranks, n, sizeof(*r->said.ranks)) != 0)
		n = 0;
	r->said.n_ranks = n;
	if (w->conf->dp_start_rank != r->start_rank)
		r->said.first_rank = w->conf->dp_start_rank;
	r->start_rank = w->conf->dp_start_rank;
	scrape_begin(&r->said);
}

void report_ask(struct report *r)
{
	struct host_seat *seat;

	if (r->fetch != NULL)
		return;
	HOST_FOREACH(seat, r->host)
	seat->worker->report.load_when_asked = worker_load(seat->worker);
	fit_ranks(r);
	r->has_engine = false;
	r->at = 0;
	ask_next(r);
}

bool report_is_asking(const struct report *r)
{
	return r->fetch != NULL;
}

bool report_knows_process(const struct report *r)
{
	return r->start_seconds != 0 || r->id[0] != '\0';
}

bool report_is_sglang(const struct report *r)
{
	return r->said.is_sglang;
}

unsigned report_first_rank(const struct report *r)
{
	return r->said.first_rank;
}

void report_start_anew(struct report *r)
{
	memset(r->not_before_ms, 0, sizeof(r->not_before_ms));
}

struct report *report_new(
	struct host *host, struct fetcher *f, void (*on_done)(void *arg), void *arg)
{
	struct report *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return NULL;
	r->host = host;
	r->fetcher = f;
	r->on_done = on_done;
	r->arg = arg;
	r->tokens = -1;
	return r;
}

void report_free(struct report *r)
{
	if (r == NULL)
		return;
	if (r->fetch != NULL)
		fetch_cancel(r->fetch);
	free(r->said.ranks);
	free(r);
}
