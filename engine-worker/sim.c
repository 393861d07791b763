/*
 * The simulated engine: which sequence runs, in which blocks, and when its next token is due.
 * Always true: the waiting queue is in order of age; at most one sequence is in prefill; a sequence holds blocks exactly while it is in
 * prefill or runs. One timer descriptor wakes it for what is due next; due times are absolute, so lateness does not add up.
 * Called by serve.c, on the loop's thread only.
 */
#include "sim.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/list.h"
#include "io/loop.h"
#include "kv_cache.h"
#include "token.h"

#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum seq_state { SEQ_WAITING, SEQ_PREFILL, SEQ_RUNNING };

struct sim_seq {
	struct sim *sim;
	enum seq_state state;
	TAILQ_ENTRY(sim_seq) link; /* waiting, or running (oldest first) */
	const struct sim_ops *ops;
	void *arg;
	struct token_list tokens; /* prompt and generated */
	size_t n_prompt, n_end;	  /* tokens.n at which it ends */
	uint64_t state_hash;	  /* s over all tokens */
	uint64_t salt, choice;
	uint64_t *names, *checks; /* of the full blocks named so far */
	uint32_t *blocks;
	size_t n_blocks, n_names; /* held; hashed (names are a chain) */
	size_t n_named;		  /* leading blocks that have been offered their names */
	size_t cached;
	bool was_computed, is_parked, is_stopped, is_calling;
	uint64_t due_us;
};

TAILQ_HEAD(seq_list, sim_seq);

struct sim {
	struct loop *loop;
	struct sim_opts opts;
	struct kv_cache *cache;
	struct seq_list waiting, running;
	struct sim_seq *prefill; /* has the engine; in no list */
	unsigned n_waiting, n_running;
	uint32_t words[64]; /* ids */
	struct sim_counts counts;
	int timer_fd;
	struct loop_watch *watch;
	struct sim_seq *cursor; /* which running sequence decodes next in this step */
};

static const char *const words[64] = { SIM_WORDS };

/* What is generated */

static uint64_t next_state(uint64_t state, uint32_t id)
{
	return hash_mix64(id, state);
}

uint64_t sim_state(const uint32_t *ids, size_t n)
{
	uint64_t state = 0;

	for (size_t i = 0; i < n; i++)
		state = next_state(state, ids[i]);
	return state;
}

static bool make_words(struct sim *s)
{
	struct token_list list = { NULL, 0, 0 };
	bool ok = true;

	for (size_t i = 0; ok && i < ARRAY_LEN(words); i++) {
		char text[TOKEN_BYTES_MAX + 1] = " ";

		memcpy(text + 1, words[i], TOKEN_BYTES_MAX - 1);
		ok = token_encode(&list, span_make(text, TOKEN_BYTES_MAX)) == 0;
	}
	assert(!ok || list.n == ARRAY_LEN(words));
	if (ok)
		memcpy(s->words, list.ids, sizeof(s->words));
	token_list_free(&list);
	return ok;
}

/* Time */

static void wake_at(struct sim *s, uint64_t due_us)
{
	struct itimerspec at = { .it_value = { .tv_sec = (time_t)(due_us / 1000000),
					 .tv_nsec = (long)(due_us % 1000000 * 1000) } };

	if (due_us == 0)
		at.it_value.tv_nsec = 1;
	(void)timerfd_settime(s->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static uint64_t took_us(const struct sim *s, size_t tokens, double rate)
{
	return (uint64_t)((double)tokens * 1e6 * s->opts.speed / rate);
}

/* Blocks */

static size_t blocks_for(size_t tokens)
{
	return (tokens + SIM_BLOCK - 1) / SIM_BLOCK;
}

/* Extends the chain of names over the full blocks of the first n tokens. */
static void hash_blocks(struct sim_seq *seq, size_t n)
{
	for (size_t i = seq->n_names; i < n / SIM_BLOCK; i++) {
		const uint32_t *ids = seq->tokens.ids + i * SIM_BLOCK;

		seq->names[i] =
			hash64(ids, SIM_BLOCK * sizeof(*ids), i > 0 ? seq->names[i - 1] : seq->salt);
		seq->checks[i] = i > 0 ? seq->checks[i - 1] : 0;
		for (size_t k = 0; k < SIM_BLOCK; k++)
			seq->checks[i] = next_state(seq->checks[i], ids[k]);
		seq->n_names = i + 1;
	}
}

/* Offers the blocks that are full and computed (all tokens but the last one are) to the cache. */
static void name_blocks(struct sim_seq *seq)
{
	size_t computed = seq->tokens.n - 1;

	hash_blocks(seq, computed);
	for (; seq->n_named < computed / SIM_BLOCK; seq->n_named++) {
		size_t i = seq->n_named;

		kv_cache_name(seq->sim->cache, seq->blocks[i], seq->names[i], seq->checks[i]);
	}
}

static void drop_blocks(struct sim_seq *seq)
{
	kv_cache_drop(seq->sim->cache, seq->blocks, seq->n_blocks);
	seq->n_blocks = 0;
	seq->n_named = 0;
}

/* How many of the found blocks hold what their name says; a wrong one is never used. */
static size_t check_blocks(struct sim_seq *seq, size_t found)
{
	for (size_t i = 0; i < found; i++) {
		if (kv_cache_check(seq->sim->cache, seq->blocks[i]) == seq->checks[i])
			continue;
		seq->sim->counts.corrupted++;
		kv_cache_drop(seq->sim->cache, seq->blocks + i, found - i);
		return i;
	}
	return found;
}

/* Finds and takes the blocks for all tokens there are. ERR_LIMIT: too few are free; nothing is taken. */
static int take_blocks(struct sim_seq *seq, size_t *cached_tokens)
{
	struct sim *s = seq->sim;
	size_t need = blocks_for(seq->tokens.n), found;

	/* The last token is always computed: it gives the next one. */
	hash_blocks(seq, seq->tokens.n - 1);
	found = kv_cache_find(s->cache, seq->names, (seq->tokens.n - 1) / SIM_BLOCK, seq->blocks);
	found = check_blocks(seq, found);
	if (kv_cache_alloc(s->cache, need - found, seq->blocks + found) != 0) {
		kv_cache_drop(s->cache, seq->blocks, found);
		return ERR_LIMIT;
	}
	seq->n_blocks = need;
	seq->n_named = found;
	*cached_tokens = found * SIM_BLOCK;
	return 0;
}

/* Sequences */

static void seq_free(struct sim_seq *seq)
{
	token_list_free(&seq->tokens);
	free(seq->names);
	free(seq->checks);
	free(seq->blocks);
	free(seq);
}

static void seq_unlink(struct sim_seq *seq)
{
	struct sim *s = seq->sim;

	switch (seq->state) {
	case SEQ_WAITING:
		TAILQ_REMOVE(&s->waiting, seq, link);
		s->n_waiting--;
		break;
	case SEQ_PREFILL:
		s->prefill = NULL;
		break;
	case SEQ_RUNNING:
		if (s->cursor == seq)
			s->cursor = TAILQ_NEXT(seq, link);
		TAILQ_REMOVE(&s->running, seq, link);
		s->n_running--;
		break;
	}
	drop_blocks(seq);
}

static void seq_end(struct sim_seq *seq, enum sim_end end)
{
	seq->sim->counts.ended[end]++;
	seq_unlink(seq);
	seq->ops->on_end(seq->arg, seq, end);
	seq_free(seq);
}

/* Back to the head of the queue, its blocks free; its names stay valid. */
static void preempt(struct sim_seq *seq)
{
	struct sim *s = seq->sim;

	s->counts.preemptions++;
	seq_unlink(seq);
	seq->state = SEQ_WAITING;
	TAILQ_INSERT_HEAD(&s->waiting, seq, link);
	s->n_waiting++;
}

/* A block for the next token. False: seq itself had to give way. */
static bool grow_blocks(struct sim_seq *seq)
{
	struct sim *s = seq->sim;

	while (seq->n_blocks < blocks_for(seq->tokens.n + 1)) {
		struct sim_seq *youngest = TAILQ_LAST(&s->running, seq_list);

		if (kv_cache_alloc(s->cache, 1, seq->blocks + seq->n_blocks) == 0) {
			seq->n_blocks++;
		} else if (s->prefill != NULL) {
			preempt(s->prefill);
		} else {
			preempt(youngest);
			if (youngest == seq)
				return false;
		}
	}
	return true;
}

/* Generates one token. False: seq ended or gave way. */
static bool generate(struct sim_seq *seq)
{
	struct sim *s = seq->sim;
	uint32_t id = s->words[(seq->state_hash + seq->choice) % ARRAY_LEN(words)];

	if (!grow_blocks(seq))
		return false;
	seq->tokens.ids[seq->tokens.n++] = id;
	seq->state_hash = next_state(seq->state_hash, id);
	s->counts.generated_tokens++;
	name_blocks(seq);
	seq->is_calling = true;
	seq->ops->on_token(seq->arg, seq, id);
	seq->is_calling = false;
	if (!seq->is_stopped && seq->tokens.n < seq->n_end)
		return true;
	seq_end(seq, seq->is_stopped ? SIM_END_STOP : SIM_END_LENGTH);
	return false;
}

/* Gives the engine to the head of the queue; the queue keeps its order even where a later one would fit. */
static bool start_prefill(struct sim *s, uint64_t now_us)
{
	struct sim_seq *seq = TAILQ_FIRST(&s->waiting);
	size_t cached = 0;

	if (s->prefill != NULL || seq == NULL || s->n_running >= s->opts.max_seqs)
		return false;
	if (take_blocks(seq, &cached) != 0)
		return false;
	TAILQ_REMOVE(&s->waiting, seq, link);
	s->n_waiting--;
	s->counts.queries += seq->tokens.n;
	s->counts.hits += cached;
	if (!seq->was_computed) {
		seq->cached = cached;
		s->counts.prompt_tokens += seq->n_prompt;
		s->counts.cached_tokens += cached;
	}
	seq->was_computed = true;
	seq->state = SEQ_PREFILL;
	seq->due_us = now_us + took_us(s, seq->tokens.n - cached, s->opts.prefill_rate);
	s->prefill = seq;
	return true;
}

static void end_prefill(struct sim *s, uint64_t now_us)
{
	struct sim_seq *seq = s->prefill;

	if (seq == NULL || seq->due_us > now_us)
		return;
	s->prefill = NULL;
	seq->state = SEQ_RUNNING;
	TAILQ_INSERT_TAIL(&s->running, seq, link);
	s->n_running++;
}

/* What is due by now_us of one sequence; without time one token a step, so that others and sockets get their turn. */
static void decode(struct sim_seq *seq, uint64_t now_us)
{
	uint64_t step_us = took_us(seq->sim, 1, seq->sim->opts.decode_rate);

	while (!seq->is_parked && seq->due_us <= now_us) {
		seq->due_us += step_us;
		if (!generate(seq) || step_us == 0)
			return;
	}
}

static void plan_wake(struct sim *s)
{
	uint64_t due_us = s->prefill != NULL ? s->prefill->due_us : UINT64_MAX;
	struct sim_seq *seq;

	TAILQ_FOREACH(seq, &s->running, link) {
		if (!seq->is_parked)
			due_us = MIN(due_us, seq->due_us);
	}
	if (due_us != UINT64_MAX)
		wake_at(s, due_us);
}

/* One sequence's turn may end or preempt others: the cursor follows (seq_unlink). */
static void decode_all(struct sim *s, uint64_t now_us)
{
	struct sim_seq *seq;

	s->cursor = TAILQ_FIRST(&s->running);
	while ((seq = s->cursor) != NULL) {
		s->cursor = TAILQ_NEXT(seq, link);
		decode(seq, now_us);
	}
}

static void run_prefills(struct sim *s, uint64_t now_us)
{
	do {
		end_prefill(s, now_us);
	} while (start_prefill(s, now_us) && s->prefill->due_us <= now_us);
	end_prefill(s, now_us);
}

static void on_wake(void *arg, int fd, unsigned events UNUSED)
{
	struct sim *s = arg;
	uint64_t times, now_us = clock_us();

	if (read(fd, &times, sizeof(times)) != (ssize_t)sizeof(times))
		return; /* set anew in the meantime */
	run_prefills(s, now_us);
	decode_all(s, now_us);
	run_prefills(s, now_us);
	plan_wake(s);
}

/* The outside */

struct sim *sim_new(struct loop *l, const struct sim_opts *opts)
{
	struct sim *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return NULL;
	s->loop = l;
	s->opts = *opts;
	TAILQ_INIT(&s->waiting);
	TAILQ_INIT(&s->running);
	s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	s->cache = kv_cache_new(opts->n_blocks);
	if (s->timer_fd >= 0)
		s->watch = loop_watch_new(l, s->timer_fd, LOOP_READ, on_wake, s);
	if (s->cache == NULL || s->watch == NULL || !make_words(s)) {
		sim_free(s);
		return NULL;
	}
	return s;
}

static void free_list(struct seq_list *list)
{
	struct sim_seq *seq;

	while ((seq = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, seq, link);
		seq_free(seq);
	}
}

void sim_free(struct sim *s)
{
	if (s == NULL)
		return;
	if (s->prefill != NULL)
		seq_free(s->prefill);
	free_list(&s->waiting);
	free_list(&s->running);
	if (s->watch != NULL)
		loop_watch_free(s->watch);
	if (s->timer_fd >= 0)
		close(s->timer_fd);
	kv_cache_free(s->cache);
	free(s);
}

static bool seq_alloc(struct sim_seq *seq, const struct sim_request *r)
{
	size_t blocks = blocks_for(seq->n_end);

	seq->tokens.ids = malloc(seq->n_end * sizeof(*seq->tokens.ids));
	seq->names = malloc(blocks * sizeof(*seq->names));
	seq->checks = malloc(blocks * sizeof(*seq->checks));
	seq->blocks = malloc(blocks * sizeof(*seq->blocks));
	if (seq->tokens.ids == NULL || seq->names == NULL || seq->checks == NULL ||
		seq->blocks == NULL)
		return false;
	seq->tokens.cap = seq->n_end;
	seq->tokens.n = r->n_prompt;
	memcpy(seq->tokens.ids, r->prompt, r->n_prompt * sizeof(*r->prompt));
	return true;
}

struct sim_seq *sim_submit(struct sim *s, const struct sim_request *r)
{
	struct sim_seq *seq = calloc(1, sizeof(*seq));

	assert(r->n_prompt > 0 && r->max_new > 0 &&
		r->n_prompt + r->max_new <= sim_max_tokens(s));
	if (seq == NULL)
		return NULL;
	seq->sim = s;
	seq->n_prompt = r->n_prompt;
	seq->n_end = r->n_prompt + r->max_new;
	if (!seq_alloc(seq, r)) {
		seq_free(seq);
		return NULL;
	}
	seq->ops = r->ops;
	seq->arg = r->arg;
	seq->salt = r->salt;
	seq->choice = r->choice;
	seq->state_hash = sim_state(r->prompt, r->n_prompt);
	TAILQ_INSERT_TAIL(&s->waiting, seq, link);
	s->n_waiting++;
	wake_at(s, 0);
	return seq;
}

void sim_drop(struct sim_seq *seq)
{
	struct sim *s = seq->sim;

	assert(!seq->is_calling);
	s->counts.ended[SIM_END_ABORT]++;
	seq_unlink(seq);
	seq_free(seq);
	wake_at(s, 0);
}

void sim_park(struct sim_seq *seq, bool on)
{
	if (seq->is_parked == on)
		return;
	seq->is_parked = on;
	if (on)
		return;
	seq->due_us = MAX(seq->due_us, clock_us());
	wake_at(seq->sim, 0);
}

void sim_stop(struct sim_seq *seq)
{
	assert(seq->is_calling);
	seq->is_stopped = true;
}

size_t sim_cached(const struct sim_seq *seq)
{
	return seq->cached;
}

void sim_flush(struct sim *s)
{
	kv_cache_flush(s->cache);
}

size_t sim_max_tokens(const struct sim *s)
{
	return (size_t)s->opts.n_blocks * SIM_BLOCK;
}

unsigned sim_waiting(const struct sim *s)
{
	return s->n_waiting;
}

unsigned sim_running(const struct sim *s)
{
	return s->n_running + (s->prefill != NULL);
}

double sim_usage(const struct sim *s)
{
	return (double)kv_cache_used(s->cache) / kv_cache_blocks(s->cache);
}

const struct sim_counts *sim_counts(const struct sim *s)
{
	return &s->counts;
}
