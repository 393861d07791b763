/*
 * A worker in virtual time. See sim_worker.h. Called by sim.c.
 *
 * Always true: a job is in one list, by its state; it holds blocks exactly while it runs.
 */
#include "sim/sim_worker.h"

#define CHUNK_TOKENS 512 /* of a prompt, known to the cache when it is computed */

void sim_worker_open(struct sim_worker *w, unsigned number,
	const struct sim_worker_opts *opts, uint32_t n_ids, struct sim_events *events)
{
	*w = (struct sim_worker){.number = number, .opts = *opts, .events = events};
	w->kv = sim_kv_new(n_ids, opts->kv_blocks);
	TAILQ_INIT(&w->waiting);
	TAILQ_INIT(&w->running);
}

void sim_worker_close(struct sim_worker *w)
{
	sim_kv_free(w->kv);
	w->kv = NULL;
}

static void push(const struct sim_job *job, uint64_t at_us, enum sim_event_kind kind)
{
	sim_events_push(job->worker->events, (struct sim_event){.at_us = at_us,
						     .kind = kind,
						     .epoch = job->epoch,
						     .job = (struct sim_job *)job});
}

/* Prompt and generated. */
static uint64_t tokens_of(const struct sim_job *job)
{
	return (uint64_t)job->prompt.tokens + job->made;
}

bool sim_worker_fits(const struct sim_worker *w, const struct sim_job *job)
{
	uint64_t all = (uint64_t)job->prompt.tokens + job->output;

	return w->opts.kv_blocks == 0 || all <= w->opts.kv_blocks * SIM_KV_TOKENS;
}

/* ---- who runs ---- */

/* Begins the prompt at `job`: its blocks are taken. */
static void begin_prompt(struct sim_worker *w, struct sim_job *job,
	const struct sim_found *found, uint64_t now_us)
{
	uint64_t left = tokens_of(job) - found->tokens;

	TAILQ_REMOVE(&w->waiting, job, link);
	TAILQ_INSERT_TAIL(&w->running, job, link);
	w->n_waiting--;
	w->n_running++;
	if (job->epoch == 0)
		job->found = *found;
	job->state = SIM_PROMPT;
	job->began_us = now_us;
	job->base = found->tokens;
	w->prompt = job;
	push(job, now_us + (uint64_t)((double)left * w->opts.prefill_us),
		SIM_EVENT_PROMPT);
}

/* The first one waiting, if its turn has come. */
static void admit(struct sim_worker *w, uint64_t now_us)
{
	struct sim_job *job = TAILQ_FIRST(&w->waiting);
	uint64_t spare = w->n_running > 0 ? w->opts.kv_blocks / 100 : 0;
	struct sim_found found;

	if (job == NULL || w->prompt != NULL || w->n_running == w->opts.max_seqs)
		return;
	if (sim_kv_take(w->kv, &job->prompt, tokens_of(job), spare, &job->hold, &found))
		begin_prompt(w, job, &found, now_us);
	else
		assert(w->n_running > 0); /* who ends will free something */
}

static void wait_by_number(struct sim_worker *w, struct sim_job *job)
{
	struct sim_job *at = TAILQ_LAST(&w->waiting, sim_jobs);

	while (at != NULL && at->number > job->number)
		at = TAILQ_PREV(at, sim_jobs, link);
	if (at != NULL)
		TAILQ_INSERT_AFTER(&w->waiting, at, job, link);
	else
		TAILQ_INSERT_HEAD(&w->waiting, job, link);
	job->state = SIM_WAITING;
	w->n_waiting++;
}

/* It runs no more; n_computed of its tokens are in its blocks. */
static void stop(struct sim_job *job, uint64_t n_computed, bool keeps)
{
	struct sim_worker *w = job->worker;

	TAILQ_REMOVE(&w->running, job, link);
	w->n_running--;
	sim_kv_release(w->kv, &job->prompt, n_computed, keeps, &job->hold);
}

void sim_worker_submit(struct sim_worker *w, struct sim_job *job, uint64_t now_us)
{
	job->worker = w;
	w->requests++;
	wait_by_number(w, job);
	admit(w, now_us);
}

/* ---- preemption ---- */

/* Brings `made` up to now; the last token comes with its own event. */
static void count_tokens(struct sim_job *job, uint64_t now_us)
{
	uint64_t each = (uint64_t)job->worker->opts.decode_us, n;

	n = each > 0 ? (now_us - job->made_us) / each : 0;
	job->made += (uint32_t)MIN(n, (uint64_t)(job->output - job->made - 1));
	job->made_us = now_us;
}

/* How much of a prompt is done, in whole chunks. */
static uint64_t computed_at(const struct sim_job *job, uint64_t now_us)
{
	double each = job->worker->opts.prefill_us;
	uint64_t most = tokens_of(job) - job->base, n;

	n = each > 0 ? (uint64_t)((double)(now_us - job->began_us) / each) : most;
	return MIN(n / CHUNK_TOKENS * CHUNK_TOKENS, most);
}

static void preempt(struct sim_job *job, uint64_t now_us)
{
	struct sim_worker *w = job->worker;
	uint64_t n;

	w->preemptions++;
	if (job->state == SIM_PROMPT) {
		n = computed_at(job, now_us);
		job->computed += n;
		w->computed += n;
		n += job->base;
		w->prompt = NULL;
	} else {
		count_tokens(job, now_us);
		n = tokens_of(job) - 1;
	}
	stop(job, n, true);
	job->epoch++;
	wait_by_number(w, job);
}

static struct sim_job *last_by_number(const struct sim_worker *w)
{
	struct sim_job *job, *last = TAILQ_FIRST(&w->running);

	TAILQ_FOREACH (job, &w->running, link) {
		if (job->number > last->number)
			last = job;
	}
	return last;
}

/* ---- tokens ---- */

static uint64_t token_us(const struct sim_worker *w, uint64_t n)
{
	return n * (uint64_t)w->opts.decode_us;
}

/* The next token that needs a block, as an event; `at_us` is when the last one came. */
static void plan_growth(struct sim_job *job, uint64_t at_us)
{
	uint64_t in_blocks = tokens_of(job) - 1; /* computed so far */
	uint64_t room = (SIM_KV_TOKENS - in_blocks % SIM_KV_TOKENS) % SIM_KV_TOKENS;

	/* The token after `room` more ones is the first without a place. */
	if (job->worker->opts.kv_blocks == 0 || job->made + room >= job->output)
		return;
	push(job, at_us + token_us(job->worker, room + 1), SIM_EVENT_GROW);
}

static void decode_from(struct sim_job *job, uint64_t now_us)
{
	job->state = SIM_DECODE;
	job->made_us = now_us;
	plan_growth(job, now_us);
	push(job, now_us + token_us(job->worker, job->output - job->made), SIM_EVENT_END);
}

static void end_prompt(struct sim_job *job, uint64_t now_us)
{
	struct sim_worker *w = job->worker;
	uint64_t n = tokens_of(job) - job->base;

	job->computed += n;
	w->computed += n;
	w->prompt = NULL;
	job->made++;
	if (!job->has_first)
		job->first_us = now_us;
	job->has_first = true;
	decode_from(job, now_us);
	admit(w, now_us);
}

static void end_job(struct sim_job *job, uint64_t now_us)
{
	struct sim_worker *w = job->worker;

	job->made = job->output;
	stop(job, tokens_of(job) - 1, false);
	job->state = SIM_DONE;
	admit(w, now_us);
}

/* All tokens but the one that comes now have their places. */
static void grow(struct sim_job *job, uint64_t now_us)
{
	struct sim_worker *w = job->worker;
	uint64_t in_blocks = tokens_of(job) - 1;
	uint64_t room = (SIM_KV_TOKENS - in_blocks % SIM_KV_TOKENS) % SIM_KV_TOKENS;

	job->made += (uint32_t)room;
	job->made_us = now_us;
	while (job->state == SIM_DECODE && !sim_kv_grow(w->kv, &job->hold))
		preempt(last_by_number(w), now_us);
	if (job->state == SIM_DECODE) {
		job->made++;
		plan_growth(job, now_us);
	}
	admit(w, now_us);
}

void sim_worker_event(const struct sim_event *event)
{
	struct sim_job *job = event->job;

	if (event->epoch != job->epoch || job->state == SIM_DONE)
		return;
	switch (event->kind) {
	case SIM_EVENT_END:
		end_job(job, event->at_us);
		break;
	case SIM_EVENT_GROW:
		grow(job, event->at_us);
		break;
	case SIM_EVENT_PROMPT:
		end_prompt(job, event->at_us);
		break;
	case SIM_EVENT_ARRIVAL:
		assert(false); /* the router's */
	}
}
