/*
 * The scheduler's steps, and its functions for other modules. sched.h says in which order
 * sequences go; sched_seq.c holds sequences, sched_plan.c plans a step. Called by
 * engine.c (steps) and completion.c (sequences).
 */
#include "core/sched.h"
#include "core/kv_cache.h"
#include "core/sched_plan.h"
#include "core/sched_seq.h"

#include <stdlib.h>
#include <string.h>

static void tell_work(struct sched *s)
{
	if (s->opts.on_work != NULL)
		s->opts.on_work(s->opts.arg);
}

/* The results of a step */

/* One more reference of the prompt's blocks. NULL: out of memory. */
static struct sched_pin *pin_prompt(const struct sched_seq *seq)
{
	struct sched *s = seq->sched;
	size_t n = sched_blocks_for(s, seq->n_prompt);
	struct sched_pin *pin = calloc(1, sizeof(*pin) + n * sizeof(pin->blocks[0]));

	assert(seq->n_computed >= seq->n_prompt && seq->n_blocks >= n);
	if (pin == NULL)
		return NULL;
	pin->sched = s;
	pin->n_tokens = (uint32_t)seq->n_prompt;
	pin->n_blocks = (uint32_t)n;
	memcpy(pin->blocks, seq->blocks, n * sizeof(pin->blocks[0]));
	kv_cache_share(s->cache, pin->blocks, n);
	TAILQ_INSERT_TAIL(&s->pins, pin, link);
	return pin;
}

static void end_seq(struct sched_seq *seq, enum sched_end end)
{
	if (seq->keeps_prompt && end != SCHED_END_ERROR)
		seq->pin = pin_prompt(seq);
	seq_detach(seq, end);
	seq->is_calling = true;
	seq->ops->on_end(seq->arg, seq, end);
	if (seq->pin != NULL)
		sched_unpin(seq->pin);
	seq_free(seq);
}

/* A choice goes on from the leader's prompt: all of its blocks but what the last token,
 * which it computes itself, needs. */
static void fork_seq(struct sched_seq *seq, const struct sched_seq *leader)
{
	struct sched *s = seq->sched;

	seq_leave(seq);
	seq->leader = NULL;
	seq->was_admitted = true; /* its prompt is counted with the leader's */
	seq->cached = leader->cached;
	seq_tell_begin(seq);
	if (s->n_running >= s->opts.max_seqs) {
		seq_enter(seq, SEQ_WAITING); /* it will find them in the cache */
		return;
	}
	seq->n_computed = seq->n_prompt - 1;
	seq->n_blocks = sched_blocks_for(s, seq->n_computed);
	memcpy(seq->blocks, leader->blocks, seq->n_blocks * sizeof(*seq->blocks));
	kv_cache_share(s->cache, seq->blocks, seq->n_blocks);
	seq->n_named = sched_full_blocks(s, seq->n_computed);
	seq_name_chain(seq, seq->n_computed);
	seq->due_us = leader->due_us;
	seq_enter(seq, SEQ_DECODE);
}

/* The prompt of this one is in its blocks. */
static void fork_held(struct sched_seq *leader)
{
	struct sched_seq *seq;

	leader->has_prompt = true;
	while ((seq = TAILQ_FIRST(&leader->held)) != NULL)
		fork_seq(seq, leader);
}

/* One more token; the sequence goes to the end of those that decode. */
static void take_token(struct sched_seq *seq, const struct sample_out *out)
{
	struct sched *s = seq->sched;

	if (!seq->has_prompt)
		fork_held(seq);
	seq->ids[seq->n_ids++] = out->token;
	if (s->ops->pace != NULL)
		seq->due_us = s->ops->pace->token(s->backend, seq->due_us);
	seq_leave(seq);
	seq_enter(seq, SEQ_DECODE);
	s->counts.generated_tokens++;
	seq->is_calling = true;
	seq->ops->on_token(seq->arg, seq, out);
	seq->is_calling = false;
	if (seq->is_stopped || seq->n_ids == seq->n_end)
		end_seq(seq, seq->is_stopped ? SCHED_END_STOP : SCHED_END_LENGTH);
}

/* The blocks are forgotten: no other sequence may find their content. */
static void end_broken(struct sched_seq *seq)
{
	seq->sched->counts.broken++;
	kv_cache_forget(seq->sched->cache, seq->blocks, seq->n_blocks);
	end_seq(seq, SCHED_END_ERROR);
}

static void take_row(struct sched_seq *seq, const struct backend_row *row)
{
	seq->row = NO_ROW;
	seq->chunk = 0;
	if (row->is_broken ||
		(row->wants_token && row->out->token >= seq->sched->shape.vocab)) {
		end_broken(seq);
		return;
	}
	seq->sched->counts.computed_tokens += row->n_new;
	seq->n_computed += row->n_new;
	seq_name_blocks(seq);
	if (row->wants_token)
		take_token(seq, row->out);
}

static void count_step(struct sched *s)
{
	uint32_t tokens = 0, bound = 8;
	unsigned i = 1;

	for (size_t k = 0; k < s->n_planned; k++)
		tokens += s->rows[k].n_new;
	for (; i < SCHED_STEP_BUCKETS - 1 && tokens > bound; i++)
		bound *= 2;
	s->counts.step_buckets[tokens <= 1 ? 0 : i]++;
	s->counts.step_tokens += tokens;
	s->counts.steps++;
}

static void audit_now_and_then(struct sched *s)
{
	if (s->opts.audit_every > 0 && s->counts.steps % s->opts.audit_every == 0)
		sched_audit(s);
}

/* has_failed: nothing that its rows computed may be used. */
static void take_rows(struct sched *s, bool has_failed)
{
	for (size_t i = 0; i < s->n_planned; i++) {
		s->rows[i].is_broken |= has_failed;
		if (s->planned[i] != NULL) /* it may have been dropped */
			take_row(s->planned[i], &s->rows[i]);
	}
	s->n_planned = 0;
}

bool sched_begin(struct sched *s, uint64_t now_us)
{
	assert(!s->is_stepping);
	sched_plan(s, now_us);
	if (s->n_planned > 0) {
		count_step(s);
		s->is_stepping = s->ops->step(s->backend, s->rows, s->n_planned) == 0;
		if (!s->is_stepping)
			take_rows(s, true);
	}
	if (!s->is_stepping)
		audit_now_and_then(s);
	return s->is_stepping;
}

void sched_finish(struct sched *s)
{
	int err;

	assert(s->is_stepping);
	err = s->ops->collect(s->backend, s->rows, s->n_planned);
	s->is_stepping = false;
	take_rows(s, err != 0);
	audit_now_and_then(s);
}

uint64_t sched_wake_us(const struct sched *s)
{
	const struct sched_seq *seq = TAILQ_FIRST(&s->prefills);
	uint64_t wake_us = UINT64_MAX;

	if (s->is_stepping)
		return UINT64_MAX;
	while (seq != NULL && seq->is_parked)
		seq = TAILQ_NEXT(seq, link);
	if (seq != NULL)
		wake_us = seq->chunk > 0 ? seq->due_us : sched_free_us(s);
	else if (!TAILQ_EMPTY(&s->waiting) && !s->is_blocked &&
		 s->n_running < s->opts.max_seqs)
		wake_us = sched_free_us(s);
	seq = TAILQ_FIRST(&s->waiting);
	if (seq != NULL && seq->wants_load && !s->is_blocked &&
		s->n_running < s->opts.max_seqs)
		wake_us = 0;
	TAILQ_FOREACH (seq, &s->decodes, link) {
		if (!seq->is_parked)
			wake_us = MIN(wake_us, seq->was_parked ? 0 : seq->due_us);
	}
	return wake_us;
}

/* The outside */

struct sched *sched_new(const struct sched_opts *opts, const struct backend_ops *ops,
	struct backend *backend)
{
	struct sched *s = calloc(1, sizeof(*s));

	assert(opts->max_seqs > 0 && opts->step_tokens >= SCHED_STEP_MIN);
	if (s == NULL)
		return NULL;
	s->opts = *opts;
	s->ops = ops;
	s->backend = backend;
	ops->shape(backend, &s->shape);
	assert(s->shape.n_blocks == opts->n_blocks &&
		s->shape.block_tokens == opts->block_tokens);
	TAILQ_INIT(&s->waiting);
	TAILQ_INIT(&s->loads);
	TAILQ_INIT(&s->pins);
	TAILQ_INIT(&s->prefills);
	TAILQ_INIT(&s->decodes);
	TAILQ_INIT(&s->by_age);
	s->cache = kv_cache_new(opts->n_blocks, opts->block_tokens);
	s->rows = calloc(opts->max_seqs, sizeof(*s->rows));
	s->outs = calloc(opts->max_seqs, sizeof(*s->outs));
	s->planned = calloc(opts->max_seqs, sizeof(*s->planned));
	s->refs = calloc(opts->n_blocks, sizeof(*s->refs));
	if (s->cache == NULL || s->rows == NULL || s->outs == NULL ||
		s->planned == NULL || s->refs == NULL) {
		sched_free(s);
		return NULL;
	}
	return s;
}

static void free_list(struct seq_list *list)
{
	struct sched_seq *seq;

	while ((seq = TAILQ_FIRST(list)) != NULL) {
		free_list(&seq->held);
		TAILQ_REMOVE(list, seq, link);
		seq_free(seq);
	}
}

/* Waits for the step that runs. Nobody is left to hear what came of it. */
static void abandon_step(struct sched *s)
{
	int err = 0;

	if (s->is_stepping)
		err = s->ops->collect(s->backend, s->rows, s->n_planned);
	(void)err;
}

void sched_free(struct sched *s)
{
	if (s == NULL)
		return;
	assert(TAILQ_EMPTY(&s->pins)); /* their owners know them */
	abandon_step(s);
	free_list(&s->waiting);
	free_list(&s->loads);
	free_list(&s->prefills);
	free_list(&s->decodes);
	kv_cache_free(s->cache);
	free(s->rows);
	free(s->outs);
	free(s->planned);
	free(s->refs);
	free(s);
}

static bool seq_alloc(struct sched_seq *seq, const struct sched_request *r)
{
	size_t blocks = sched_blocks_for(seq->sched, seq->n_end);

	seq->ids = malloc(seq->n_end * sizeof(*seq->ids));
	seq->names = malloc(blocks * sizeof(*seq->names));
	seq->blocks = malloc(blocks * sizeof(*seq->blocks));
	if (seq->ids == NULL || seq->names == NULL || seq->blocks == NULL)
		return false;
	memcpy(seq->ids, r->prompt, r->n_prompt * sizeof(*r->prompt));
	seq->n_ids = r->n_prompt;
	return true;
}

bool sched_refuse(struct sched *s, size_t n)
{
	size_t room = (size_t)s->opts.max_waiting + s->opts.max_seqs - s->n_running;

	if (s->n_waiting + s->n_running == 0 || s->n_waiting + n <= room)
		return false;
	s->counts.refused++;
	return true;
}

static struct sched_seq *seq_new(struct sched *s, const struct sched_request *r)
{
	struct sched_seq *seq = calloc(1, sizeof(*seq));

	if (seq == NULL)
		return NULL;
	seq->sched = s;
	seq->n_prompt = r->n_prompt;
	seq->n_end = r->n_prompt + r->max_new;
	if (!seq_alloc(seq, r)) {
		seq_free(seq);
		return NULL;
	}
	TAILQ_INIT(&seq->held);
	seq->ops = r->ops;
	seq->arg = r->arg;
	seq->seed = r->seed;
	seq->priority = r->priority;
	seq->sampling = r->sampling;
	seq->wants_load = r->wants_load;
	seq->keeps_prompt = r->keeps_prompt;
	seq->row = NO_ROW;
	seq->arrival = s->arrivals++;
	seq->pass_limit = s->admissions + s->n_waiting + SCHED_PASS_MAX;
	return seq;
}

struct sched_seq *sched_submit(struct sched *s, const struct sched_request *r)
{
	struct sched_seq *seq;

	assert(r->n_prompt > 0 && r->max_new > 0 &&
		r->n_prompt + r->max_new <= sched_max_tokens(s));
	assert(r->fork_of == NULL ||
		(r->fork_of->state == SEQ_WAITING && !r->fork_of->was_admitted &&
			r->fork_of->n_prompt == r->n_prompt &&
			r->fork_of->seed == r->seed));
	seq = seq_new(s, r);
	if (seq == NULL)
		return NULL;
	seq->leader = r->fork_of;
	seq_enter(seq, seq->leader != NULL ? SEQ_HELD : SEQ_WAITING);
	if (TAILQ_FIRST(&s->waiting) == seq)
		s->is_blocked = false; /* it may need less */
	tell_work(s);
	return seq;
}

void sched_drop(struct sched_seq *seq)
{
	struct sched *s = seq->sched;

	assert(!seq->is_calling);
	seq_detach(seq, SCHED_END_ABORT);
	seq_free(seq);
	tell_work(s);
}

void sched_park(struct sched_seq *seq, bool on)
{
	if (seq->is_parked == on)
		return;
	seq->is_parked = on;
	seq->was_parked = true;
	if (on && seq->row == NO_ROW)
		seq_stop_chunk(seq);
	tell_work(seq->sched);
}

void sched_stop(struct sched_seq *seq)
{
	assert(seq->is_calling);
	seq->is_stopped = true;
}

size_t sched_cached(const struct sched_seq *seq)
{
	return seq->cached;
}

/* Loading */

int sched_load_block(struct sched_seq *seq, size_t i, const void *bytes)
{
	struct sched *s = seq->sched;

	assert(seq->state == SEQ_LOAD && i >= seq->n_named && i < seq->n_blocks);
	return s->ops->write(s->backend, &seq->blocks[i], 1, bytes);
}

bool sched_load_done(struct sched_seq *seq)
{
	struct sched *s = seq->sched;
	size_t loaded = seq->n_prompt - 1 - seq->n_computed;

	assert(seq->state == SEQ_LOAD);
	if (!s->ops->holds(s->backend, seq->blocks, seq->ids, (uint32_t)seq->n_prompt))
		return false;
	s->counts.loaded_tokens += loaded;
	seq->cached += loaded;
	seq->n_computed +=
		loaded; /* the last token is computed here: it gives the next one */
	seq_name_blocks(seq);
	seq_leave(seq);
	seq->was_parked = true; /* due from the next step on */
	seq_enter(seq, SEQ_DECODE);
	tell_work(s);
	return true;
}

void sched_load_fail(struct sched_seq *seq)
{
	struct sched *s = seq->sched;
	size_t found = sched_full_blocks(s, seq->n_computed);

	assert(seq->state == SEQ_LOAD);
	s->ops->drop(s->backend, seq->blocks + found, seq->n_blocks - found);
	seq_leave(seq);
	seq_enter(seq, SEQ_PREFILL);
	tell_work(s);
}

/* Pins */

struct sched_pin *sched_take_pin(struct sched_seq *seq)
{
	struct sched_pin *pin = seq->pin;

	seq->pin = NULL;
	return pin;
}

void sched_unpin(struct sched_pin *pin)
{
	struct sched *s = pin->sched;

	TAILQ_REMOVE(&s->pins, pin, link);
	kv_cache_drop(s->cache, pin->blocks, pin->n_blocks);
	s->is_blocked = false;
	free(pin);
	tell_work(s);
}

int sched_read_pin(const struct sched_pin *pin, size_t i, void *bytes)
{
	assert(i < pin->n_blocks);
	return pin->sched->ops->read(pin->sched->backend, &pin->blocks[i], 1, bytes);
}

void sched_flush(struct sched *s)
{
	kv_cache_flush(s->cache);
}

/* Audits */

static void audit_seq(struct sched *s, const struct sched_seq *seq, enum seq_state state)
{
	const struct sched_seq *held;

	assert(seq->sched == s && seq->state == state);
	assert(seq->row == NO_ROW || (s->is_stepping && s->planned[seq->row] == seq));
	assert(seq->n_prompt <= seq->n_ids && seq->n_ids < seq->n_end);
	assert(seq_is_running(seq) ? seq->n_computed < seq->n_ids : seq->n_blocks == 0);
	assert(seq->n_blocks == 0 ||
		sched_blocks_for(s, seq->n_computed) <= seq->n_blocks);
	assert(state != SEQ_DECODE ||
		(seq->n_computed == seq->n_ids - 1 && seq->chunk == 0));
	assert(TAILQ_EMPTY(&seq->held) || !seq->has_prompt);
	for (size_t i = 0; i < seq->n_blocks; i++)
		s->refs[seq->blocks[i]]++;
	TAILQ_FOREACH (held, &seq->held, link) {
		assert(held->leader == seq);
		audit_seq(s, held, SEQ_HELD);
	}
}

static unsigned count_held(const struct sched_seq *seq)
{
	const struct sched_seq *held;
	unsigned n = 0;

	TAILQ_FOREACH (held, &seq->held, link)
		n++;
	return n;
}

/* Returns how many are in the list; *held: how many wait for them. */
static unsigned audit_list(struct sched *s, const struct seq_list *list,
	enum seq_state state, unsigned *held)
{
	const struct sched_seq *seq, *before = NULL;
	unsigned n = 0;

	TAILQ_FOREACH (seq, list, link) {
		audit_seq(s, seq, state);
		assert(state == SEQ_DECODE || state == SEQ_LOAD || before == NULL ||
			seq_goes_before(before, seq));
		before = seq;
		*held += count_held(seq);
		n++;
	}
	return n;
}

void sched_audit(struct sched *s)
{
	const struct sched_seq *seq, *before = NULL;
	const struct sched_pin *pin;
	unsigned waiting, loading, running, held = 0, aged = 0;

	memset(s->refs, 0, s->opts.n_blocks * sizeof(*s->refs));
	waiting = audit_list(s, &s->waiting, SEQ_WAITING, &held);
	loading = audit_list(s, &s->loads, SEQ_LOAD, &held);
	running = loading + audit_list(s, &s->prefills, SEQ_PREFILL, &held);
	running += audit_list(s, &s->decodes, SEQ_DECODE, &held);
	TAILQ_FOREACH (seq, &s->by_age, age_link) {
		assert(seq->state == SEQ_WAITING);
		assert(before == NULL || before->arrival < seq->arrival);
		before = seq;
		aged++;
	}
	assert(aged == waiting && s->n_waiting == waiting + held &&
		s->n_running == running);
	assert(running <= s->opts.max_seqs && s->n_loading == loading);
	TAILQ_FOREACH (pin, &s->pins, link) {
		for (size_t i = 0; i < pin->n_blocks; i++)
			s->refs[pin->blocks[i]]++;
	}
	kv_cache_audit(s->cache, s->refs);
}

const struct backend_shape *sched_shape(const struct sched *s)
{
	return &s->shape;
}

size_t sched_max_tokens(const struct sched *s)
{
	size_t held = (size_t)s->shape.n_blocks * s->shape.block_tokens;

	return s->shape.max_positions > 0 ? MIN(held, (size_t)s->shape.max_positions)
					  : held;
}

unsigned sched_waiting(const struct sched *s)
{
	return s->n_waiting + s->n_loading;
}

unsigned sched_running(const struct sched *s)
{
	return s->n_running - s->n_loading;
}

unsigned sched_loading(const struct sched *s)
{
	return s->n_loading;
}

double sched_usage(const struct sched *s)
{
	return (double)kv_cache_used(s->cache) / kv_cache_blocks(s->cache);
}

uint32_t sched_used_blocks(const struct sched *s)
{
	return kv_cache_used(s->cache);
}

const struct sched_counts *sched_counts(const struct sched *s)
{
	return &s->counts;
}

const struct sched_opts *sched_opts(const struct sched *s)
{
	return &s->opts;
}
