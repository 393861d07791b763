/*
 * How a pool answers: candidates, pick with guard and insertion in one critical section,
 * and explain by the same code. See pool.h.
 */
#include "pool/pool.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "pool/adapter_cost.h"
#include "pool/pool_state.h"
#include "pool/slow_start.h"
#include "worker/breaker.h"
#include "worker/decay.h"
#include "worker/model_set.h"
#include "worker/worker.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Work that was sent counts half after this time: a sixteenth is left after five
 * minutes. */
#define RECENT_HALF_LIFE_MS 75000

static bool lists(const struct pool *p, enum role role, uint64_t model)
{
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		const struct worker *w = p->registry.items[i];

		if (w->role == role && model_set_has(w->pool.models, model))
			return true;
	}
	return false;
}

/* Before any question whether a worker serves the model. */
static void find_listed(const struct pool *p, struct pool_ask *ask)
{
	ask->listed = 0;
	if (!pool_lists_differ(p) || ask->model.n == 0)
		return;
	ask->listed = model_hash(ask->model);
	if (!lists(p, ask->role, ask->listed))
		ask->listed = 0;
}

static bool is_adapter(const struct pool *p, uint64_t name)
{
	size_t i;

	for (i = 0; i < p->registry.n; i++)
		if (model_set_has(p->registry.items[i]->pool.adapters_listed, name))
			return true;
	return false;
}

/* It stands beside the model (SGLang's lora_path), for the model (vLLM), or behind it
 * (SGLang's base:adapter). */
static uint64_t find_adapter(const struct pool *p, const struct pool_ask *ask)
{
	const char *colon;
	uint64_t name;

	if (ask->lora.n > 0)
		return model_hash(ask->lora);
	if (!pool_has_adapters(p) || ask->model.n == 0)
		return 0;
	name = model_hash(ask->model);
	if (is_adapter(p, name))
		return name;
	colon = memrchr(ask->model.p, ':', ask->model.n);
	if (colon == NULL)
		return 0;
	colon++;
	name = model_hash(
		span_make(colon, (size_t)(ask->model.p + ask->model.n - colon)));
	return is_adapter(p, name) ? name : 0;
}

static bool serves_model(const struct pool_ask *ask, const struct worker *w)
{
	const struct conf_list *globs = &w->conf->models;
	struct span model = ask->model;
	size_t i;

	if (globs->n == 0)
		return ask->listed == 0 || w->pool.models == NULL ||
		       model_set_has(w->pool.models, ask->listed);
	if (model.n == 0)
		return true;
	for (i = 0; i < globs->n; i++) {
		if (conf_glob(globs->items[i], model))
			return true;
	}
	return false;
}

/* A search for a stored response may have asked hundreds of workers. */
static bool is_among(const uint64_t *ids, unsigned n, uint64_t id)
{
	while (n > 8) {
		unsigned half = n / 2;

		if (ids[half] <= id) {
			ids += half;
			n -= half;
		} else {
			n = half;
		}
	}
	while (n > 0 && ids[n - 1] != id)
		n--;
	return n > 0;
}

static bool was_tried(const struct pool_ask *ask, const struct worker *w)
{
	return ask->n_tried > 0 &&
	       (is_among(ask->tried, ask->n_tried, w->id) ||
		       is_among(ask->tried, ask->n_tried, w->host_id));
}

static bool is_fit(enum worker_state s)
{
	return s == WORKER_HEALTHY || s == WORKER_SUSPECT;
}

#define TRIAL_MAX_BYTES 8192 /* of a body: what a worker in doubt is tried with */

/* A stalled or degraded worker that is idle is tried with one small request. */
static bool may_try(const struct pool_ask *ask, const struct worker *w)
{
	return !ask->is_no_trial && ask->body_bytes <= TRIAL_MAX_BYTES &&
	       worker_offers_trial(w);
}

static const char word_paused[] = "paused", word_late[] = "late",
		  word_breaker[] = "breaker";

/* As its connects say. */
static const char *reach_word(const struct worker *w, uint64_t now_ms)
{
	if (reach_is_doubted(&w->reach))
		return "unreachable";
	return reach_is_late(&w->reach, now_ms) ? word_late : NULL;
}

static const char *breaker_word(struct worker *w, uint64_t now_ms)
{
	if (breaker_admits(&w->breaker, now_ms))
		return NULL;
	return breaker_is_paused(&w->breaker, now_ms) ? word_paused : word_breaker;
}

/* True if a request to w would be the trial of its half-open breaker. */
static bool would_be_trial(const struct pool_ask *ask, struct worker *w)
{
	return ask->is_no_trial &&
	       breaker_state(&w->breaker, ask->now_ms) != BREAKER_CLOSED;
}

/* NULL: may be chosen; else the word that explain gives. */
static const char *out_of_play(const struct pool_ask *ask, struct worker *w)
{
	const char *word;

	if (!serves_model(ask, w))
		return "model";
	if (was_tried(ask, w))
		return "tried";
	if (!is_fit(worker_state(w)) && !may_try(ask, w))
		return "state";
	word = reach_word(w, ask->now_ms);
	if (word == NULL)
		word = breaker_word(w, ask->now_ms);
	if (word == NULL && would_be_trial(ask, w))
		word = word_breaker;
	if (word == NULL && worker_is_full(w))
		word = "full";
	return word;
}

/* The blocks to look for: none when the key was sealed for weights that are gone. */
static uint32_t key_blocks(
	const struct pool *p, const struct pool_role *r, const struct route_key *key)
{
	if (r->index == NULL || key == NULL || !key->is_sealed ||
		key->sealed_generation != pool_generation(p))
		return 0;
	return (uint32_t)MIN(key->n_blocks, (size_t)UINT32_MAX);
}

static uint32_t match_depths(
	struct pool *p, struct pool_role *r, const struct pool_ask *ask)
{
	uint32_t blocks = key_blocks(p, r, ask->key);
	uint32_t slots = r->index != NULL ? prefix_index_slots(r->index) : 0;

	if (blocks == 0)
		return 0;
	if (mem_grow(&p->depth, &p->cap_depth, slots, sizeof(*p->depth)) != 0)
		return 0;
	prefix_index_match(
		r->index, ask->key->hashes, blocks, ask->now_ms, p->depth, slots);
	return blocks;
}

/* Bytes or tokens of a prompt as blocks of this role. */
static uint32_t size_in_blocks(const struct pool_role *r, uint64_t units, char unit)
{
	uint64_t block =
		MAX(atomic_load_explicit(&r->prefix_block, memory_order_relaxed), 1u);
	uint64_t bytes = unit == 't' && units <= UINT64_MAX / TOKEN_BYTES
				 ? units * TOKEN_BYTES
				 : units;

	return (uint32_t)MIN(bytes / block, (uint64_t)UINT32_MAX);
}

/* The prompt's length: its whole blocks where it was hashed, whatever their size; else a
 * guess from the body, most of which is prompt. */
static uint32_t prompt_size(const struct pool_role *r, const struct pool_ask *ask)
{
	const struct route_key *key = ask->key;

	if (key != NULL && key->n_blocks > 0)
		return size_in_blocks(r, (uint64_t)key->n_blocks * key->block, key->unit);
	if (key != NULL && key->readable && !key->hashes_sent)
		return size_in_blocks(r, key->prompt_units, key->unit);
	return size_in_blocks(r, ask->body_bytes, 'b');
}

/* The blocks that a worker of that depth must compute for a prompt of this size. */
static uint32_t uncached_blocks(const struct pick_input *in, uint32_t depth)
{
	assert(depth <= in->blocks);
	if (in->blocks == in->size_blocks || in->blocks == 0)
		return in->size_blocks - depth;
	return (uint32_t)((uint64_t)in->size_blocks * (in->blocks - depth) / in->blocks);
}

static bool wants_recent(const struct pool_role *r)
{
	return policy_is_used(&r->policy, POLICY_CACHE_AWARE) &&
	       r->policy.cost == COST_PREFILL;
}

/* What is read of each worker, as the role wants it. */
struct wanted {
	bool reported; /* the whole load, that policies and thresholds read */
	bool recent;
};

static struct wanted wanted_of(const struct pool *p, const struct pool_ask *ask)
{
	return (struct wanted){
		.reported = pool_load_source(p, ask->role) == LOAD_SOURCE_REPORTED,
		.recent = wants_recent(&p->roles[ask->role]),
	};
}

static unsigned effective_load(
	const struct pool_ask *ask, struct wanted wanted, const struct worker *w)
{
	return wanted.reported ? worker_whole_load(w, ask->now_ms) : worker_load(w);
}

/* Without what the worker has computed of it meanwhile, where that matters. */
static void read_recent(struct candidate *c, struct worker *w, uint64_t now_ms)
{
	c->queued -= pace_done(&w->guard.pace, c->queued, now_ms);
	c->recent = decay_read(&w->pool.recent, RECENT_HALF_LIFE_MS, now_ms);
}

static void add_candidate(struct pool *p, const struct pool_ask *ask,
	struct pick_input *in, struct wanted wanted, struct worker *w)
{
	unsigned own = worker_load(w);
	unsigned load = effective_load(ask, wanted, w);
	struct candidate *c = &p->candidates[in->n++];

	*c = (struct candidate){
		.worker = w,
		.id = span_make(w->stable_id, w->stable_len),
		.id_hash = w->stable_hash,
		.load = load,
		/* Nothing is known of what others sent: they count as streams. */
		.streams = worker_streams(w) + (load > own ? load - own : 0),
		.queued = worker_queued_blocks(w),
		.max_requests = w->conf->max_requests,
		.last_picked = w->pool.last_picked,
		.last_cold = w->pool.last_cold,
	};
	if (wanted.recent)
		read_recent(c, w, ask->now_ms);
}

static bool is_rank_wanted(const struct pool_ask *ask, const struct worker *w)
{
	return !ask->is_rank_pinned || (w->has_rank && w->rank == ask->pinned_rank);
}

/* False: pinned to what does not exist. A rank is no pin where nobody has ranks: it is
 * for the engine then. */
static bool pins_exist(const struct pool *p, struct pool_ask *ask)
{
	bool has_ranks = false, is_found = false;
	size_t i;

	for (i = 0; ask->is_rank_pinned && i < p->registry.n; i++) {
		const struct worker *w = p->registry.items[i];

		has_ranks |= w->role == ask->role && w->has_rank;
		is_found |= w->role == ask->role && is_rank_wanted(ask, w);
	}
	ask->is_rank_pinned = has_ranks;
	if (has_ranks && !is_found)
		return false;
	return ask->pinned.n == 0 || registry_has(&p->registry, ask->pinned);
}

static bool is_asked_for(const struct pool_ask *ask, const struct worker *w)
{
	if (w->role != ask->role || !is_rank_wanted(ask, w))
		return false;
	if (ask->home != 0 && w->host_id != ask->home)
		return false;
	if (ask->kv_group != 0 && worker_kv_group(w) != ask->kv_group)
		return false;
	return ask->pinned.n == 0 || worker_has_name(w, ask->pinned);
}

static bool is_alive(enum worker_state s)
{
	return s != WORKER_STARTING && s != WORKER_DRAINING;
}

/*
 * The last resort's order, UINT_MAX: no resort at all. A worker that answers its probes
 * is better than one that is slow, that than one that misses probes (a busy one may), and
 * all are better than one that sits on what it has, and that than one that cannot be
 * reached. Never one that has not started or is
 * to be left alone.
 */
static unsigned badness(const struct pool_ask *ask, struct worker *w)
{
	if (!serves_model(ask, w) || was_tried(ask, w) || worker_is_full(w))
		return UINT_MAX;
	if (reach_is_doubted(&w->reach)) /* one at a time may wait for it */
		return worker_load(w) > 0 || !is_alive(worker_state(w)) ? UINT_MAX : 6;
	switch (worker_state(w)) {
	case WORKER_HEALTHY:
	case WORKER_SUSPECT:
		if (breaker_admits(&w->breaker, ask->now_ms))
			return 0;
		return breaker_is_paused(&w->breaker, ask->now_ms) ? 1 : 2;
	case WORKER_DEGRADED:
		return 3;
	case WORKER_UNHEALTHY:
		return 4;
	case WORKER_STALLED:
		return 5;
	default:
		return UINT_MAX;
	}
}

static unsigned least_badness(const struct pool *p, const struct pool_ask *ask)
{
	unsigned least = UINT_MAX;
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];

		if (is_asked_for(ask, w))
			least = MIN(least, badness(ask, w));
	}
	return least;
}

/*
 * More than half of those that are asked for are kept out by nothing but 5xx: then it is
 * more likely that the requests are at fault, and none of these workers is kept out.
 */
static bool are_too_many_out(const struct pool *p, const struct pool_ask *ask)
{
	unsigned all = 0, out = 0;
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];

		if (!is_asked_for(ask, w) || !serves_model(ask, w))
			continue;
		all++;
		out += breaker_is_by_status(&w->breaker);
	}
	return out * 2 > all;
}

/* Nothing but 5xx keeps it out. */
static bool is_out_by_status(struct worker *w, const char *word)
{
	return word == word_breaker && breaker_is_by_status(&w->breaker) &&
	       !worker_is_full(w);
}

static bool is_least_bad(const struct pool_ask *ask, struct worker *w, unsigned least)
{
	return least != UINT_MAX && badness(ask, w) == least;
}

/*
 * A worker that rests (Retry-After) has answered: it is not out, and what it said may
 * have concerned one request. One with a late connect may have lost a packet. Where
 * nobody else is, all of these may be chosen.
 */
static bool is_resting(const char *word)
{
	return word == word_paused || word == word_late;
}

static void add_paused(struct pool *p, const struct pool_ask *ask, struct pick_input *in)
{
	struct wanted wanted = wanted_of(p, ask);
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];
		const char *word = is_asked_for(ask, w) ? out_of_play(ask, w) : NULL;

		if (word != NULL && is_resting(word) && !worker_is_full(w))
			add_candidate(p, ask, in, wanted, w);
	}
}

/* What was found beside the candidates. */
struct gathering {
	struct wanted wanted;
	unsigned least; /* of a last resort; 0: it is none */
	bool forgives;  /* those that nothing but 5xx keeps out are candidates, too */
	bool has_full, has_out, has_resting, has_status;
};

static void gather_worker(struct pool *p, const struct pool_ask *ask,
	struct pick_input *in, struct gathering *g, struct worker *w)
{
	const char *word = out_of_play(ask, w);
	bool is_status = word != NULL && is_out_by_status(w, word);

	if (word == NULL || (g->forgives && is_status) ||
		(g->least != 0 && is_least_bad(ask, w, g->least)))
		add_candidate(p, ask, in, g->wanted, w);
	else if (strcmp(word, "full") == 0)
		g->has_full = true;
	else if (strcmp(word, "model") != 0 && strcmp(word, "tried") != 0)
		g->has_out = true;
	g->has_resting |= is_resting(word);
	g->has_status |= is_status;
}

static void gather_all(struct pool *p, const struct pool_ask *ask, struct pick_input *in,
	struct gathering *g)
{
	size_t i;

	in->n = 0;
	for (i = 0; i < p->registry.n; i++)
		if (is_asked_for(ask, p->registry.items[i]))
			gather_worker(p, ask, in, g, p->registry.items[i]);
}

/* Gathers the workers that may be chosen. 0, or the error if there are none. */
static int gather_workers(struct pool *p, const struct pool_ask *ask,
	struct pick_input *in, bool *all_rest, bool *forgives)
{
	struct gathering g = {
		.wanted = wanted_of(p, ask),
		.least = ask->is_last_resort ? least_badness(p, ask) : 0,
	};

	gather_all(p, ask, in, &g);
	if (g.has_status && are_too_many_out(p, ask)) {
		g = (struct gathering){
			.wanted = g.wanted, .least = g.least, .forgives = true};
		gather_all(p, ask, in, &g);
		*forgives = true;
	}
	if (in->n == 0 && !g.has_full && g.has_resting && !ask->is_choosy) {
		add_paused(p, ask, in);
		*all_rest = true;
		g.has_full = in->n == 0;
	}
	if (in->n > 0)
		return 0;
	return g.has_full ? ERR_LIMIT : g.has_out ? ERR_STATE : ERR_NOENT;
}

/* ---- those that stand out ---- */

static bool stands_out(const struct candidate *c)
{
	return atomic_load_explicit(&c->worker->pool.outlier, memory_order_relaxed) !=
	       OUTLIER_NONE;
}

/* As busy as the others are on average, at least: it draws no load by being fast. */
static void seem_busy(struct candidate *c, const struct pick_input *in)
{
	uint64_t load = 0, streams = 0, queued = 0, n = 0;
	unsigned i;

	for (i = 0; i < in->n; i++) {
		const struct candidate *o = &in->candidates[i];

		if (stands_out(o))
			continue;
		load += o->load;
		streams += o->streams;
		queued += o->queued;
		n++;
	}
	if (n == 0)
		return;
	c->load = MAX(c->load, (unsigned)((load + n - 1) / n));
	c->streams = MAX(c->streams, (unsigned)((streams + n - 1) / n));
	c->queued = MAX(c->queued, (queued + n - 1) / n);
}

static void seem_as_busy(struct pick_input *in)
{
	unsigned i;

	for (i = 0; i < in->n; i++)
		if (stands_out(&in->candidates[i]))
			seem_busy(&in->candidates[i], in);
}

static void fill_depths(struct pool *p, const struct pick_input *in)
{
	unsigned i;

	for (i = 0; in->blocks > 0 && i < in->n; i++) {
		struct candidate *c = &in->candidates[i];

		if (c->worker->pool.index_slot != PREFIX_NO_SLOT)
			c->depth = p->depth[c->worker->pool.index_slot];
	}
}

/* A choice in the making, under the lock. */
struct choice {
	struct pool_ask ask; /* a copy: pins_exist() corrects it */
	bool all_rest;       /* nobody is fit: the candidates are those that rest */
	bool forgives;       /* 5xx alone keep nobody out */
	bool is_trial;       /* it is where it is for the sake of a half-open breaker */
	struct pick_input in;
	struct pick_decision d;
};

/* Fills in of c for policy_pick(): what every choice begins with. 0, or why there is no
 * candidate, and in.n is 0. */
static int gather(struct pool *p, const struct pool_ask *asked, struct choice *c)
{
	struct pool_ask *ask = &c->ask;
	struct pick_input *in = &c->in;
	struct pool_role *r = &p->roles[asked->role];
	int err;

	*c = (struct choice){.ask = *asked,
		.in = {
			.opts = &r->policy,
			.candidates = p->candidates,
			.size_blocks = prompt_size(r, asked),
			.hashes_sent = asked->key != NULL && asked->key->hashes_sent,
			.routing = asked->routing,
			.states = r->state.of,
			.now_ms = asked->now_ms,
			.rng = &p->rng,
		}};
	find_listed(p, ask);
	ask->adapter = find_adapter(p, ask);
	if (!pins_exist(p, ask))
		return ERR_PARSE;
	if (ask->key != NULL && ask->key->is_sealed) {
		in->has_prefix = ask->key->beginning[ask->role].is_known;
		in->prefix = ask->key->beginning[ask->role].hash;
	}
	err = gather_workers(p, ask, in, &c->all_rest, &c->forgives);
	/* Nothing is looked up for who must wait. */
	in->blocks = err == 0 ? match_depths(p, r, ask) : 0;
	fill_depths(p, in);
	seem_as_busy(in);
	slow_start(in);
	if (ask->adapter != 0)
		adapter_cost(in, ask->adapter, atomic_load(&r->prefix_block));
	return err;
}

/* The request may go anywhere, and loses little if it goes there. */
static bool is_due_trial(const struct pool_ask *ask, struct worker *w)
{
	bool is_overdue = false;

	return breaker_wants_trial(&w->breaker, ask->now_ms, &is_overdue) &&
	       (ask->body_bytes <= TRIAL_MAX_BYTES || is_overdue);
}

/* A half-open breaker would wait for ever where all prompts are cached elsewhere. */
static void try_half_open(struct choice *c)
{
	const struct pool_ask *ask = &c->ask;
	unsigned i;

	if (ask->is_no_trial || ask->is_last_resort || ask->home != 0 ||
		pool_ask_is_pinned(ask))
		return;
	for (i = 0; i < c->in.n; i++) {
		if (i == c->d.index || !is_due_trial(ask, c->in.candidates[i].worker))
			continue;
		c->d.index = i;
		c->d.reason = PICK_TRIAL;
		c->is_trial = true;
		return;
	}
}

static void decide(struct choice *c)
{
	const struct pool_ask *ask = &c->ask;
	struct pick_decision *d = &c->d;

	policy_pick(&c->in, d);
	try_half_open(c);
	if (ask->home != 0)
		d->reason = PICK_RESPONSE_HOME;
	if (pool_ask_is_pinned(ask))
		d->reason = PICK_PINNED;
	else if (c->all_rest ||
		 ((ask->is_last_resort || c->forgives) &&
			 out_of_play(ask, c->in.candidates[d->index].worker) != NULL))
		d->reason = PICK_LEAST_BAD;
}

static const struct candidate *chosen(const struct choice *c)
{
	return c->in.n > 0 ? &c->in.candidates[c->d.index] : NULL;
}

/* The choice that a pick would make now, which the next pick must not notice. */
static int rehearse(struct pool *p, const struct pool_ask *ask, struct choice *c)
{
	struct rng saved = p->rng;
	int err = gather(p, ask, c);

	if (err == 0)
		decide(c);
	p->rng = saved;
	return err;
}

static void insert_prefix(struct pool_role *r, const struct pool_ask *ask,
	struct worker *w, struct pool_pick *out)
{
	struct pool_insertion *ins = &out->insertion;

	if (out->blocks == 0 || w->pool.index_slot == PREFIX_NO_SLOT)
		return;
	ins->slot = w->pool.index_slot;
	ins->worker_id = w->id;
	ins->epoch = r->index_epoch;
	ins->blocks = out->blocks;
	prefix_index_insert(r->index, w->pool.index_slot, ask->key->hashes, out->blocks,
		ask->now_ms, &ins->from, &ins->stamp);
}

static void copy_timeouts(const struct worker_opts *o, struct pool_pick *out)
{
	out->connect_timeout_ms = o->connect_timeout_ms;
	out->first_byte_timeout_ms = o->first_byte_timeout_ms;
	out->stream_idle_timeout_ms = o->stream_idle_timeout_ms;
	out->total_timeout_ms = o->total_timeout_ms;
	out->upstream_idle_ms = o->upstream_idle_ms;
	out->max_retries = o->retry_max_retries;
	out->retry_on = o->retry_on;
	out->retries_same = o->retry_same;
	out->holds_headers = o->hold_headers;
	out->resumes_streams = o->resume_streams;
}

static uint64_t shorter(uint64_t a_ms, uint64_t b_ms)
{
	return a_ms == 0 || b_ms == 0 ? MAX(a_ms, b_ms) : MIN(a_ms, b_ms);
}

/* A worker that was wedged may still be: whoever tries it does not wait as others may. */
static void note_trial(const struct worker_opts *o, struct pool_pick *out)
{
	out->is_trial = true;
	out->trial_timeout_ms = shorter(o->stall_timeout_ms, o->first_byte_timeout_ms);
}

/* The worker has it from now on. True: it is tried with it. */
static bool charge(struct pool *p, const struct choice *c, struct guard *g)
{
	const struct pool_ask *ask = &c->ask;
	const struct pool_role *r = &p->roles[ask->role];
	struct worker *w = chosen(c)->worker;
	uint32_t uncached = uncached_blocks(&c->in, chosen(c)->depth);
	bool is_trial;

	w->pool.last_picked = ++p->sequence;
	if (c->d.is_cold)
		w->pool.last_cold = p->sequence;
	if (wants_recent(r))
		decay_add(&w->pool.recent, uncached, RECENT_HALF_LIFE_MS, ask->now_ms);
	if (ask->adapter != 0)
		adapters_sent(&w->pool.adapters, ask->adapter);
	if (worker_queued_blocks(w) == 0)
		pace_begin(&w->guard.pace, ask->now_ms);
	is_trial = worker_take_trial(w);
	guard_take(g, w);
	guard_try(g, ask->tenant, ask->now_ms);
	if (ask->slots != NULL)
		guard_hold(g, ask->slots);
	guard_queue(g, uncached);
	atomic_fetch_add_explicit(&w->guard.requests, 1, memory_order_relaxed);
	return is_trial || g->ticket.is_trial;
}

/* Bytes and tokens alike: a prompt that nobody hashed is as long as its body. */
static uint64_t uncached_tokens(const struct pool *p, const struct choice *c)
{
	uint64_t block = MAX(atomic_load(&p->roles[c->ask.role].prefix_block), 1u);

	if (c->in.size_blocks == 0)
		return c->ask.body_bytes / TOKEN_BYTES;
	return uncached_blocks(&c->in, chosen(c)->depth) * block / TOKEN_BYTES;
}

static void tell_pair(const struct pool *p, const struct choice *c, struct pool_pick *out)
{
	const struct worker *w = chosen(c)->worker;

	out->kv_group = worker_kv_group(w);
	out->uncached_tokens = uncached_tokens(p, c);
	out->bootstrap_port = w->conf->bootstrap_port;
	out->dp_size = w->conf->dp_size;
}

int pool_pick_locked(struct pool *p, const struct pool_ask *ask, struct guard *g,
	struct pool_pick *out)
{
	struct pool_role *r = &p->roles[ask->role];
	struct choice c;
	struct worker *w;
	int err = gather(p, ask, &c);

	if (err != 0)
		return err;
	if (ask->slots != NULL && !slots_take(ask->slots, ask->max_slots))
		return ERR_LIMIT;
	decide(&c);
	w = chosen(&c)->worker;
	*out = (struct pool_pick){.reason = c.d.reason,
		.matched = chosen(&c)->depth,
		.blocks = c.in.blocks,
		.reach_seen = reach_look(&w->reach)};
	r->decisions[c.d.reason]++;
	if (!pool_ask_is_pinned(&c.ask) && !c.is_trial)
		policy_on_pick(&c.in, &c.d);
	if (charge(p, &c, g))
		note_trial(&w->conf->opts, out);
	hit_count_add(&w->pool.hits, out->matched, out->blocks, ask->now_ms);
	insert_prefix(r, ask, w, out);
	copy_timeouts(&w->conf->opts, out);
	tell_pair(p, &c, out);
	if (ask->n_tried == 0 && !ask->is_further_leg)
		retry_count_request(&p->retries, ask->now_ms);
	return 0;
}

int pool_pick(struct pool *p, const struct pool_ask *ask, struct guard *g,
	struct pool_pick *out)
{
	int err;

	pool_lock(p);
	err = pool_pick_locked(p, ask, g, out);
	pool_unlock(p);
	return err;
}

enum retry_leave pool_may_retry(
	struct pool *p, const struct pool_ask *ask, bool may_queue)
{
	enum retry_leave leave = RETRY_NOBODY;
	struct pool_ask other = *ask;
	struct choice c;
	int err;

	other.is_choosy = !may_queue;
	pool_lock(p);
	err = gather(p, &other, &c);
	if (err == 0 || (err == ERR_LIMIT && may_queue))
		leave = ask->is_free || retry_take(&p->retries,
						p->roles[ask->role].retry_percent,
						ask->now_ms)
				? RETRY_YES
				: RETRY_SPENT;
	pool_unlock(p);
	return leave;
}

int pool_look(struct pool *p, const struct pool_ask *ask, struct pool_look *out)
{
	struct choice c;
	int err;

	pool_lock(p);
	err = rehearse(p, ask, &c);
	if (err == 0)
		*out = (struct pool_look){
			.kv_group = worker_kv_group(chosen(&c)->worker),
			.uncached_tokens = uncached_tokens(p, &c),
		};
	pool_unlock(p);
	return err;
}

bool pool_has_lister(struct pool *p, const struct pool_ask *ask, const struct worker *w)
{
	uint64_t hash = model_hash(ask->model);
	bool found = false;
	size_t i;

	pool_lock(p);
	for (i = 0; i < p->registry.n && !found; i++) {
		const struct worker *other = p->registry.items[i];

		found = other->host_id != w->host_id && is_asked_for(ask, other) &&
			!was_tried(ask, other) && model_set_has(other->pool.models, hash);
	}
	pool_unlock(p);
	return found;
}

bool pool_has_candidate(struct pool *p, const struct pool_ask *ask)
{
	struct choice c;
	int err;

	pool_lock(p);
	err = gather(p, ask, &c);
	pool_unlock(p);
	return err == 0;
}

void pool_withdraw(
	struct pool *p, const struct route_key *key, const struct pool_insertion *ins)
{
	size_t i;

	if (ins->stamp == 0)
		return;
	pool_lock(p);
	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];

		const struct pool_role *r = &p->roles[w->role];

		/* The slot may belong to another worker by now, or to another index. */
		if (w->id == ins->worker_id && w->pool.index_slot == ins->slot &&
			r->index_epoch == ins->epoch)
			prefix_index_withdraw(r->index, ins->slot, key->hashes,
				ins->blocks, ins->from, ins->stamp);
	}
	pool_unlock(p);
}

/* How long its breaker keeps it out at least; 0: anything may bring it back sooner. */
static uint64_t out_for_ms(struct worker *w, uint64_t now_ms)
{
	if (!is_fit(worker_state(w)) || reach_word(w, now_ms) != NULL)
		return 0;
	return breaker_wait_ms(&w->breaker, now_ms);
}

bool pool_wait_is_vain(struct pool *p, const struct pool_ask *asked)
{
	struct pool_ask ask = *asked;
	uint64_t soonest_ms = UINT64_MAX;
	size_t i;

	find_listed(p, &ask);
	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];

		if (!is_asked_for(&ask, w) || !serves_model(&ask, w) ||
			worker_state(w) == WORKER_DRAINING)
			continue;
		soonest_ms = MIN(soonest_ms, out_for_ms(w, ask.now_ms));
	}
	return soonest_ms != UINT64_MAX &&
	       soonest_ms > pool_no_worker_wait_ms(p, ask.role);
}

/* ---- outages ---- */

static const struct {
	const char *word, *text;
} outage_texts[] = {
	{"model", "without the model"},
	{"tried", "tried in vain"},
	{"unreachable", "unreachable"},
	{"late", "late to connect"},
	{"breaker", "kept out by its breaker"},
	{"paused", "resting (Retry-After)"},
	{"full", "full"},
};

/* The states come first, and then these. */
#define OUTAGE_KINDS (WORKER_STATE_MAX + ARRAY_LEN(outage_texts))

/* Of the worker; OUTAGE_KINDS: it is free by now. */
static size_t outage_kind(const struct pool_ask *ask, struct worker *w)
{
	const char *word = out_of_play(ask, w);
	size_t i;

	if (word == NULL)
		return OUTAGE_KINDS;
	for (i = 0; i < ARRAY_LEN(outage_texts); i++)
		if (strcmp(word, outage_texts[i].word) == 0)
			return WORKER_STATE_MAX + i;
	return worker_state(w);
}

static const char *outage_text(size_t kind)
{
	return kind < WORKER_STATE_MAX ? worker_state_name((enum worker_state)kind)
				       : outage_texts[kind - WORKER_STATE_MAX].text;
}

struct outage {
	size_t n;
	unsigned of[OUTAGE_KINDS + 1];
	uint64_t back_ms;
};

static struct outage count_outage(struct pool *p, struct pool_ask *ask)
{
	struct outage o = {.back_ms = UINT64_MAX};
	size_t i;

	pool_lock(p);
	find_listed(p, ask);
	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];
		uint64_t out_ms;

		if (!is_asked_for(ask, w))
			continue;
		o.n++;
		o.of[outage_kind(ask, w)]++;
		out_ms = out_for_ms(w, ask->now_ms);
		if (out_ms > 0)
			o.back_ms = MIN(o.back_ms, ask->now_ms + out_ms);
	}
	pool_unlock(p);
	return o;
}

void pool_tell_outage(
	struct pool *p, const struct pool_ask *ask, struct text *out, uint64_t *back_ms)
{
	struct pool_ask copy = *ask;
	struct outage o = count_outage(p, &copy);
	const char *before = ": ";
	size_t kind;

	*back_ms = o.back_ms != UINT64_MAX ? o.back_ms : 0;
	text_printf(out, "Pool ");
	text_add_json(out, span_str(pool_name(p)));
	text_printf(out, " has %zu ", o.n);
	if (ask->role != ROLE_UNIFIED)
		text_printf(out, "%s ", role_name(ask->role));
	text_printf(out, o.n == 1 ? "worker" : "workers");
	for (kind = 0; kind < OUTAGE_KINDS; kind++) {
		if (o.of[kind] == 0)
			continue;
		text_printf(out, "%s%u %s", before, o.of[kind], outage_text(kind));
		before = ", ";
	}
	text_printf(out, ".");
}

/* ---- explain ---- */

static void describe_worker(const struct pool *p, const struct pool_ask *ask,
	struct worker *w, struct explain_candidate *e)
{
	*e = (struct explain_candidate){
		.out_of_play = out_of_play(ask, w),
		.state = worker_state_name(worker_state(w)),
		.load = effective_load(ask, wanted_of(p, ask), w),
	};
	snprintf(e->worker, sizeof(e->worker), "%s", w->name);
}

static void describe_candidate(const struct candidate *c, struct explain_candidate *e)
{
	e->load = c->load;
	e->depth = c->depth;
	e->fraction = c->fraction;
	e->score = c->score;
	e->is_overloaded = c->is_overloaded;
	e->has_terms = c->has_terms;
	memcpy(e->terms, c->terms, sizeof(e->terms));
}

/* All workers of the role; the candidates among them were gathered in this very order. */
static void describe(
	const struct pool *p, const struct choice *choice, struct explain *out)
{
	const struct candidate *c = choice->in.candidates, *end = c + choice->in.n;
	size_t i;

	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];
		struct explain_candidate *e = &out->candidates[out->n];

		if (w->role != choice->ask.role)
			continue;
		describe_worker(p, &choice->ask, w, e);
		if (c != end && c->worker == w) {
			describe_candidate(c, e);
			if (choice->forgives)
				e->out_of_play = NULL;
			if (c == chosen(choice))
				out->chosen = (int)out->n;
			c++;
		}
		out->n++;
	}
}

static int explain_locked(struct pool *p, const struct pool_ask *ask, struct explain *out)
{
	struct choice c;

	int err = rehearse(p, ask, &c);

	if (err == ERR_PARSE)
		return ERR_PARSE;
	/* A pick goes by load alone where memory is short; explain does not say so. */
	if (err == 0 && c.in.blocks != key_blocks(p, &p->roles[ask->role], ask->key))
		return ERR_NOMEM;
	*out = (struct explain){
		.chosen = -1,
		.reason = c.d.reason,
		.policy = policy_name(c.in.opts->policy),
		.blocks = c.in.blocks,
		.candidates = calloc(p->registry.n + 1, sizeof(*out->candidates)),
	};
	if (out->candidates == NULL)
		return ERR_NOMEM;
	describe(p, &c, out);
	return 0;
}

int pool_explain(struct pool *p, const struct pool_ask *ask, struct explain *out)
{
	int err;

	pool_lock(p);
	err = explain_locked(p, ask, out);
	pool_unlock(p);
	return err;
}
