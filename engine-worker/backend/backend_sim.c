/*
 * The sim backend: blocks of states instead of keys and values; backend_sim.h says how
 * they follow one another. Its steps take no time: they are done before step() returns.
 * The time that a model would take is its pace. Always true of a block: its first `fill`
 * states are set; the others are whatever was there. Called by sched.c through the table.
 */
#include "backend/backend_sim.h"
#include "backend/token.h"
#include "backend/vocab_sim.h"
#include "base/err.h"
#include "base/hash.h"
#include "core/backend.h"

#include <stdlib.h>
#include <string.h>

enum { SIM_TOKENS_MAX = 256, SIM_MAGIC = 0x4b56424c };

/* The bytes of a block; what a step looks at in every block of a prefix comes first. */
struct sim_block {
	uint64_t before; /* s before its first token */
	uint32_t fill, magic;
	uint64_t states[]; /* s after each token */
};

/* The result of a row of the last step. */
struct sim_result {
	uint32_t token;
	bool is_broken;
};

struct backend {
	struct backend_opts opts;
	struct sim_pace pace;
	uint64_t free_us; /* when the chunk before is done */
	uint32_t tokens;  /* of a block */
	size_t stride;    /* its bytes */
	char *blocks;
	uint32_t words[64];         /* ids */
	struct sim_result *results; /* max_rows */
};

static const char *const words[64] = {SIM_WORDS};

uint64_t sim_state(const uint32_t *ids, size_t n)
{
	uint64_t state = 0;

	for (size_t i = 0; i < n; i++)
		state = hash_mix64(ids[i], state);
	return state;
}

uint32_t sim_next(uint64_t state, uint64_t choice)
{
	char text[TOKEN_BYTES_MAX] = " ";

	memcpy(text + 1, words[(state + choice) % ARRAY_LEN(words)], TOKEN_BYTES_MAX - 1);
	return TOKEN_BASE_4 + ((uint32_t)text[0] << 21 | (uint32_t)text[1] << 14 |
				      (uint32_t)text[2] << 7 | (uint32_t)text[3]);
}

static struct sim_block *block_at(const struct backend *b, uint32_t i)
{
	assert(i < b->opts.n_blocks);
	return (struct sim_block *)(b->blocks + i * b->stride);
}

static void sim_close(struct backend *b)
{
	if (b == NULL)
		return;
	free(b->results);
	free(b->blocks);
	free(b);
}

static int sim_open(const struct backend_opts *opts, struct backend **out)
{
	struct backend *b;

	if (opts->block_tokens > SIM_TOKENS_MAX)
		return ERR_UNSUPPORTED;
	b = calloc(1, sizeof(*b));
	if (b == NULL)
		return ERR_NOMEM;
	b->opts = *opts;
	if (opts->n_blocks == 0)
		b->opts.n_blocks = SIM_BLOCKS;
	b->tokens = opts->block_tokens > 0 ? opts->block_tokens : SIM_BLOCK_TOKENS;
	b->stride = sizeof(struct sim_block) + b->tokens * sizeof(uint64_t);
	if (opts->own != NULL)
		b->pace = *(const struct sim_pace *)opts->own;
	b->blocks = calloc(b->opts.n_blocks, b->stride);
	b->results = calloc(opts->max_rows, sizeof(*b->results));
	if (b->blocks == NULL || b->results == NULL) {
		sim_close(b);
		return ERR_NOMEM;
	}
	for (size_t i = 0; i < ARRAY_LEN(b->words); i++)
		b->words[i] = sim_next(i, 0);
	*out = b;
	return 0;
}

static void sim_shape(const struct backend *b, struct backend_shape *out)
{
	*out = (struct backend_shape){
		.n_blocks = b->opts.n_blocks,
		.block_tokens = b->tokens,
		.block_bytes = b->stride,
		.vocab = TOKEN_VOCAB,
	};
}

static const struct vocab *sim_vocab(const struct backend *b UNUSED)
{
	return &vocab_sim;
}

/* The pace: one device for prompts, and each sequence by itself. */

static uint64_t pace_free_us(const struct backend *b)
{
	return b->free_us;
}

/* It begins now, or goes on where the chunk before of its prompt ended, if no other one
 * came between: being late takes no time. */
static uint64_t pace_chunk(
	struct backend *b, uint32_t tokens, uint64_t last_us, uint64_t now_us)
{
	uint64_t from_us = last_us == 0 || last_us != b->free_us ? now_us : last_us;

	b->free_us = from_us + (uint64_t)(b->pace.step_us + tokens * b->pace.prefill_us);
	return b->free_us;
}

static void pace_drop_chunk(struct backend *b)
{
	b->free_us = 0;
}

static uint64_t pace_token(const struct backend *b, uint64_t last_us)
{
	return last_us + (uint64_t)(b->pace.step_us + b->pace.decode_us);
}

static const struct backend_pace sim_pace = {
	pace_free_us, pace_chunk, pace_drop_chunk, pace_token};

/* Steps */

/* s after the row's first n_past tokens, from its blocks. False: they are not one prefix.
 */
static bool read_past(
	const struct backend *b, const struct backend_row *row, uint64_t *out)
{
	uint64_t state = 0;
	uint32_t left = row->n_past;

	for (const uint32_t *at = row->blocks; left > 0; at++) {
		uint32_t used = MIN(left, b->tokens);
		const struct sim_block *block = block_at(b, *at);

		if (block->magic != SIM_MAGIC || block->fill < used ||
			block->before != state)
			return false;
		state = block->states[used - 1];
		left -= used;
	}
	*out = state;
	return true;
}

static struct sim_result compute_row(struct backend *b, const struct backend_row *row)
{
	struct sim_result result = {0, true};
	uint64_t state;

	assert(row->n_new > 0 &&
		row->n_blocks == (row->n_past + row->n_new + b->tokens - 1) / b->tokens);
	if (!read_past(b, row, &state))
		return result;
	for (uint32_t i = 0; i < row->n_new; i++) {
		uint32_t at = row->n_past + i, slot = at % b->tokens;
		struct sim_block *block = block_at(b, row->blocks[at / b->tokens]);

		if (slot == 0) {
			block->before = state;
			block->magic = SIM_MAGIC;
		}
		state = hash_mix64(row->ids[i], state);
		block->states[slot] = state;
		block->fill = slot + 1;
	}
	result.is_broken = false;
	if (row->wants_token)
		result.token =
			b->words[(state + row->sampling->choice) % ARRAY_LEN(b->words)];
	return result;
}

/* Done before it returns. */
static int sim_step(struct backend *b, const struct backend_row *rows, size_t n)
{
	assert(n <= b->opts.max_rows);
	for (size_t i = 0; i < n; i++)
		b->results[i] = compute_row(b, &rows[i]);
	if (b->opts.on_done != NULL)
		b->opts.on_done(b->opts.arg);
	return 0;
}

static int sim_collect(struct backend *b, struct backend_row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		rows[i].is_broken = b->results[i].is_broken;
		if (rows[i].wants_token && !rows[i].is_broken)
			*rows[i].out = (struct sample_out){.token = b->results[i].token};
	}
	return 0;
}

static void sim_copy(struct backend *b, const uint32_t (*pairs)[2], size_t n)
{
	for (size_t i = 0; i < n; i++)
		memcpy(block_at(b, pairs[i][1]), block_at(b, pairs[i][0]), b->stride);
}

static void sim_drop(struct backend *b, const uint32_t *blocks, size_t n)
{
	for (size_t i = 0; i < n; i++)
		block_at(b, blocks[i])->fill = 0;
}

static int sim_read(const struct backend *b, const uint32_t *blocks, size_t n, void *dst)
{
	for (size_t i = 0; i < n; i++)
		memcpy((char *)dst + i * b->stride, block_at(b, blocks[i]), b->stride);
	return 0;
}

static int sim_write(struct backend *b, const uint32_t *blocks, size_t n, const void *src)
{
	for (size_t i = 0; i < n; i++) {
		const char *from = (const char *)src + i * b->stride;
		struct sim_block head;

		memcpy(&head, from, sizeof(head));
		if (head.magic != SIM_MAGIC || head.fill > b->tokens)
			return ERR_PARSE;
		memcpy(block_at(b, blocks[i]), from, b->stride);
	}
	return 0;
}

static bool sim_holds(
	const struct backend *b, const uint32_t *blocks, const uint32_t *ids, uint32_t n)
{
	uint64_t state = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct sim_block *block = block_at(b, blocks[i / b->tokens]);
		uint32_t slot = i % b->tokens;

		if (slot == 0 && (block->magic != SIM_MAGIC || block->before != state ||
					 block->fill < MIN(n - i, b->tokens)))
			return false;
		state = hash_mix64(ids[i], state);
		if (block->states[slot] != state)
			return false;
	}
	return true;
}

const struct backend_ops backend_sim = {
	.name = "sim",
	.pace = &sim_pace,
	.open = sim_open,
	.close = sim_close,
	.shape = sim_shape,
	.vocab = sim_vocab,
	.step = sim_step,
	.collect = sim_collect,
	.copy = sim_copy,
	.drop = sim_drop,
	.read = sim_read,
	.write = sim_write,
	.holds = sim_holds,
};

static const struct backend_ops *const backends[] = {&backend_sim};

const struct backend_ops *backend_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(backends); i++) {
		if (strcmp(backends[i]->name, name) == 0)
			return backends[i];
	}
	return NULL;
}
