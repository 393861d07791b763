/*
 * A simulation: events in order of time. See sim.h. Called by simulate.c.
 */
#include "sim/sim.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "sim/sim_worker.h"

#include <math.h>
#include <stdlib.h>

#define START_MS 1000 /* of the router's clock, whose times are never 0 */
#define US_PER_S 1e6

/* One request: its way through a worker, and its slot at the router. */
struct request {
	struct sim_job job; /* first: events point to it */
	struct guard guard;
	TAILQ_ENTRY(request) link; /* while it waits for a worker that is not full */
	unsigned worker;
	bool was_seen; /* its first token */
};

struct sim {
	const struct sim_opts *o;
	const struct sim_watch *watch; /* NULL: nobody watches */
	struct sim_router *router;
	struct sim_worker *workers;
	struct request *requests;
	TAILQ_HEAD(, request) waiting; /* all workers are full */
	struct sim_events events;
	struct sim_result *result;
	uint64_t *ttft_us;
	size_t n_ttft;
	uint64_t now_us, last_arrival_us;
	/* Requests in flight: of each worker in its guards, here their sums. */
	unsigned *loads;
	uint64_t load_sum, load_squares;
	uint64_t loads_since_us;
	double cv_us[2], time_us[2]; /* busy, tail */
};

static uint64_t to_ms(uint64_t us)
{
	return START_MS + us / 1000;
}

/* ---- figures over time ---- */

static double variation(const struct sim *s)
{
	double n = s->o->workers, mean = (double)s->load_sum / n;
	double var = (double)s->load_squares / n - mean * mean;

	return var > 0 ? sqrt(var) / mean : 0;
}

/* The time since the last change counts with the loads there were. */
static void settle_loads(struct sim *s)
{
	uint64_t from = s->loads_since_us, to = s->now_us, edge = s->last_arrival_us;
	double cv = s->load_sum > 0 ? variation(s) : 0;

	s->loads_since_us = to;
	if (s->load_sum == 0)
		return;
	if (from < edge) {
		double us = (double)(MIN(to, edge) - from);

		s->cv_us[0] += cv * us;
		s->time_us[0] += us;
	}
	if (to > edge) {
		double us = (double)(to - MAX(from, edge));

		s->cv_us[1] += cv * us;
		s->time_us[1] += us;
	}
}

static void add_load(struct sim *s, unsigned worker, int n)
{
	unsigned *load = &s->loads[worker];

	settle_loads(s);
	s->load_squares -= (uint64_t)*load * *load;
	*load = (unsigned)((int)*load + n);
	s->load_squares += (uint64_t)*load * *load;
	s->load_sum = (uint64_t)((int64_t)s->load_sum + n);
}

static int compare_us(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* The smallest that at least `part` of them do not exceed. */
static double at_part(const uint64_t *us, size_t n, double part)
{
	size_t i = (size_t)ceil(part * (double)n);

	return n > 0 ? (double)us[i > 0 ? i - 1 : 0] / US_PER_S : 0;
}

/* Sorts them. */
static struct sim_times times_of(uint64_t *us, size_t n)
{
	double sum = 0;

	qsort(us, n, sizeof(*us), compare_us);
	for (size_t i = 0; i < n; i++)
		sum += (double)us[i];
	return (struct sim_times){
		.mean_s = n > 0 ? sum / (double)n / US_PER_S : 0,
		.p50_s = at_part(us, n, .5),
		.p99_s = at_part(us, n, .99),
		.max_s = at_part(us, n, 1),
	};
}

/* ---- requests ---- */

static struct request *request_of(struct sim_job *job)
{
	return container_of(job, struct request, job);
}

static void note_first(struct sim *s, struct request *q)
{
	uint64_t ttft_us = q->job.first_us - q->job.arrival_us;

	q->was_seen = true;
	s->ttft_us[s->n_ttft++] = ttft_us;
	s->result->hit_blocks += q->job.found.ids;
	s->result->cached_tokens += q->job.found.tokens;
	sim_router_first_token(&q->guard, to_ms(s->now_us));
	if (s->watch != NULL)
		s->watch->on_first(s->watch->arg, (size_t)(q - s->requests), q->worker,
			ttft_us, &q->job.found);
}

/* False: all workers are full. */
static bool route(struct sim *s, struct request *q)
{
	const struct sim_request *r = &s->o->input->requests[q - s->requests];
	struct sim_choice choice;

	if (sim_router_pick(s->router, r, to_ms(s->now_us), &q->guard, &choice) != 0)
		return false;
	q->worker = choice.worker;
	s->result->reasons[choice.reason]++;
	s->result->believed_tokens += choice.matched_tokens;
	add_load(s, q->worker, 1);
	sim_worker_submit(&s->workers[q->worker], &q->job, s->now_us);
	return true;
}

static void route_waiting(struct sim *s)
{
	struct request *q;

	while ((q = TAILQ_FIRST(&s->waiting)) != NULL && route(s, q))
		TAILQ_REMOVE(&s->waiting, q, link);
}

static void arrive(struct sim *s, size_t i)
{
	const struct sim_request *r = &s->o->input->requests[i];
	struct request *q = &s->requests[i];

	q->job = (struct sim_job){.number = i,
		.arrival_us = s->now_us,
		.prompt = r->prompt,
		.output = r->output};
	if (!sim_worker_fits(&s->workers[0], &q->job)) {
		s->result->refused++;
		return;
	}
	s->result->requests++;
	s->result->blocks += r->prompt.n_ids;
	s->result->tokens += r->prompt.tokens;
	if (TAILQ_EMPTY(&s->waiting) && route(s, q))
		return;
	s->result->waited++;
	TAILQ_INSERT_TAIL(&s->waiting, q, link);
}

static void happen(struct sim *s, const struct sim_event *event)
{
	struct request *q = request_of(event->job);

	sim_worker_event(event);
	if (!q->was_seen && q->job.has_first)
		note_first(s, q);
	if (q->job.state != SIM_DONE || q->guard.worker == NULL)
		return;
	s->result->computed_tokens += q->job.computed;
	sim_router_end(&q->guard);
	add_load(s, q->worker, -1);
	route_waiting(s);
}

static void play(struct sim *s)
{
	const struct sim_input *in = s->o->input;
	size_t i = 0;

	while (i < in->n || s->events.n > 0) {
		const struct sim_event *next = sim_events_next(&s->events);

		if (next == NULL || (i < in->n && in->requests[i].at_us < next->at_us)) {
			s->now_us = in->requests[i].at_us;
			arrive(s, i++);
		} else {
			struct sim_event event = sim_events_pop(&s->events);

			s->now_us = event.at_us;
			happen(s, &event);
		}
	}
	settle_loads(s);
	assert(s->load_sum == 0 && TAILQ_EMPTY(&s->waiting));
}

/* ---- a run ---- */

static struct sim_worker_opts worker_opts(const struct sim_opts *o)
{
	return (struct sim_worker_opts){
		.kv_blocks = o->kv_tokens / SIM_KV_TOKENS,
		.prefill_us = o->prefill_rate > 0 ? US_PER_S / o->prefill_rate : 0,
		.decode_us = o->decode_rate > 0 ? US_PER_S / o->decode_rate : 0,
		.max_seqs = o->max_seqs,
	};
}

static void open_sim(struct sim *s)
{
	struct sim_worker_opts opts = worker_opts(s->o);
	const struct sim_input *in = s->o->input;

	s->workers = xcalloc(s->o->workers, sizeof(*s->workers));
	s->loads = xcalloc(s->o->workers, sizeof(*s->loads));
	s->requests = xcalloc(in->n, sizeof(*s->requests));
	s->ttft_us = xcalloc(in->n, sizeof(*s->ttft_us));
	s->last_arrival_us = in->requests[in->n - 1].at_us;
	TAILQ_INIT(&s->waiting);
	for (unsigned i = 0; i < s->o->workers; i++)
		sim_worker_open(&s->workers[i], i, &opts, in->n_ids, &s->events);
}

static void close_sim(struct sim *s)
{
	for (unsigned i = 0; i < s->o->workers; i++)
		sim_worker_close(&s->workers[i]);
	sim_events_free(&s->events);
	sim_router_free(s->router);
	free(s->workers);
	free(s->loads);
	free(s->requests);
	free(s->ttft_us);
}

static void sum_workers(const struct sim *s, struct sim_result *r)
{
	uint64_t most_requests = 0, most_work = 0, requests = 0, work = 0;

	for (unsigned i = 0; i < s->o->workers; i++) {
		const struct sim_worker *w = &s->workers[i];

		most_requests = MAX(most_requests, w->requests);
		most_work = MAX(most_work, w->computed);
		requests += w->requests;
		work += w->computed;
		r->preemptions += w->preemptions;
	}
	if (requests > 0)
		r->requests_spread =
			(double)most_requests * s->o->workers / (double)requests;
	if (work > 0)
		r->work_spread = (double)most_work * s->o->workers / (double)work;
}

static void sum_up(struct sim *s)
{
	struct sim_result *r = s->result;
	uint64_t shed = r->reasons[PICK_OVERLOAD_SHED] + r->reasons[PICK_PREFIX_NEXT] +
			r->reasons[PICK_AFFINITY_SKEW];

	assert(s->n_ttft == r->requests);
	r->ttft = times_of(s->ttft_us, s->n_ttft);
	r->cv_busy = s->time_us[0] > 0 ? s->cv_us[0] / s->time_us[0] : 0;
	r->cv_tail = s->time_us[1] > 0 ? s->cv_us[1] / s->time_us[1] : 0;
	r->shed_share = r->requests > 0 ? (double)shed / (double)r->requests : 0;
	r->virtual_s = (double)s->now_us / US_PER_S;
	sum_workers(s, r);
}

int sim_run_watched(const struct sim_opts *o, const char *spec,
	const struct sim_watch *watch, struct sim_result *out, char **why)
{
	struct sim_router_opts router = {
		.workers = o->workers,
		.kv_tokens = o->kv_tokens,
		.max_requests = o->max_requests,
		.id_tokens = o->input->requests[0].prompt.id_tokens,
		.seed = o->seed,
	};
	struct sim_result result = {.spec = NULL};
	struct sim s = {.o = o, .watch = watch, .result = &result};
	uint64_t began_us = clock_us();

	if (sim_router_new(spec, &router, &s.router, why) != 0)
		return ERR_PARSE;
	result.spec = xstrdup(spec);
	open_sim(&s);
	play(&s);
	sum_up(&s);
	close_sim(&s);
	result.real_s = (double)(clock_us() - began_us) / US_PER_S;
	*out = result;
	return 0;
}

int sim_run(
	const struct sim_opts *o, const char *spec, struct sim_result *out, char **why)
{
	return sim_run_watched(o, spec, NULL, out, why);
}

/* ---- the ceiling ---- */

void sim_ceiling(const struct sim_opts *o, struct sim_result *out)
{
	const struct sim_input *in = o->input;
	struct sim_result r = {.spec = xstrdup("ceiling"), .requests = in->n};
	struct sim_kv *kv = sim_kv_new(in->n_ids, 0);
	uint64_t *ttft_us = xcalloc(in->n, sizeof(*ttft_us));
	double prefill_us = worker_opts(o).prefill_us;

	for (size_t i = 0; i < in->n; i++) {
		const struct sim_prompt *p = &in->requests[i].prompt;
		struct sim_hold hold = {0, 0};
		struct sim_found found;
		bool ok = sim_kv_take(kv, p, p->tokens, 0, &hold, &found);

		assert(ok);
		sim_kv_release(kv, p, p->tokens, false, &hold);
		r.blocks += p->n_ids;
		r.hit_blocks += found.ids;
		r.tokens += p->tokens;
		r.cached_tokens += found.tokens;
		ttft_us[i] = (uint64_t)((double)(p->tokens - found.tokens) * prefill_us);
	}
	r.computed_tokens = r.tokens - r.cached_tokens;
	r.ttft = times_of(ttft_us, in->n);
	sim_kv_free(kv);
	free(ttft_us);
	*out = r;
}

void sim_result_free(struct sim_result *r)
{
	free(r->spec);
	r->spec = NULL;
}
