/*
 * The sim backend: blocks of states instead of keys and values; backend_sim.h says how
 * they follow one another. Pure; takes no time. Always true of a block: its first `fill`
 * states are set; the others are whatever was there. Called by sched.c through the table.
 */
#include "backend/backend_sim.h"
#include "backend/token.h"
#include "base/err.h"
#include "base/hash.h"
#include "core/backend.h"

#include <stdlib.h>
#include <string.h>

enum { SIM_TOKENS = 16, SIM_MAGIC = 0x4b56424c };

/* The bytes of a block; what a step looks at in every block of a prefix comes first. */
struct sim_block {
	uint64_t before; /* s before its first token */
	uint32_t fill, magic;
	uint64_t states[SIM_TOKENS]; /* s after each token */
};

/* What a row of the last step gave. */
struct sim_result {
	uint32_t token;
	bool is_broken;
};

struct backend {
	struct backend_opts opts;
	uint32_t n_blocks;
	uint32_t words[64];         /* ids */
	struct sim_result *results; /* max_rows */
	struct sim_block blocks[];
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

static int sim_open(const struct backend_opts *opts, struct backend **out)
{
	struct backend *b;

	if (opts->block_tokens != SIM_TOKENS)
		return ERR_UNSUPPORTED;
	b = calloc(1, sizeof(*b) + (size_t)opts->n_blocks * sizeof(b->blocks[0]));
	if (b == NULL)
		return ERR_NOMEM;
	b->results = calloc(opts->max_rows, sizeof(*b->results));
	if (b->results == NULL) {
		free(b);
		return ERR_NOMEM;
	}
	b->opts = *opts;
	b->n_blocks = opts->n_blocks;
	for (size_t i = 0; i < ARRAY_LEN(b->words); i++)
		b->words[i] = sim_next(i, 0);
	*out = b;
	return 0;
}

static void sim_close(struct backend *b)
{
	if (b == NULL)
		return;
	free(b->results);
	free(b);
}

static void sim_shape(const struct backend *b UNUSED, struct backend_shape *out)
{
	*out = (struct backend_shape){sizeof(struct sim_block), TOKEN_VOCAB, 0};
}

/* s after the row's first n_past tokens, from its blocks. False: they are not one prefix.
 */
static bool read_past(
	const struct backend *b, const struct backend_row *row, uint64_t *out)
{
	uint64_t state = 0;
	uint32_t left = row->n_past;

	for (const uint32_t *at = row->blocks; left > 0; at++) {
		uint32_t used = MIN(left, (uint32_t)SIM_TOKENS);
		const struct sim_block *block = &b->blocks[*at];

		assert(*at < b->n_blocks);
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
		row->n_blocks ==
			(row->n_past + row->n_new + SIM_TOKENS - 1) / SIM_TOKENS);
	if (!read_past(b, row, &state))
		return result;
	for (uint32_t i = 0; i < row->n_new; i++) {
		uint32_t at = row->n_past + i, slot = at % SIM_TOKENS;
		struct sim_block *block = &b->blocks[row->blocks[at / SIM_TOKENS]];

		assert(row->blocks[at / SIM_TOKENS] < b->n_blocks);
		if (slot == 0) {
			block->before = state;
			block->magic = SIM_MAGIC;
		}
		state = hash_mix64(row->ids[i], state);
		block->states[slot] = state;
		block->fill = slot + 1;
	}
	result.is_broken = false;
	result.token = b->words[(state + row->sampling.choice) % ARRAY_LEN(b->words)];
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
			rows[i].token = b->results[i].token;
	}
	return 0;
}

static void sim_copy(struct backend *b, const uint32_t (*pairs)[2], size_t n)
{
	for (size_t i = 0; i < n; i++) {
		assert(pairs[i][0] < b->n_blocks && pairs[i][1] < b->n_blocks);
		b->blocks[pairs[i][1]] = b->blocks[pairs[i][0]];
	}
}

static void sim_drop(struct backend *b, const uint32_t *blocks, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		assert(blocks[i] < b->n_blocks);
		b->blocks[blocks[i]].fill = 0;
	}
}

static int sim_read(const struct backend *b, const uint32_t *blocks, size_t n, void *dst)
{
	for (size_t i = 0; i < n; i++) {
		assert(blocks[i] < b->n_blocks);
		memcpy((char *)dst + i * sizeof(b->blocks[0]), &b->blocks[blocks[i]],
			sizeof(b->blocks[0]));
	}
	return 0;
}

static int sim_write(struct backend *b, const uint32_t *blocks, size_t n, const void *src)
{
	struct sim_block block;

	for (size_t i = 0; i < n; i++) {
		assert(blocks[i] < b->n_blocks);
		memcpy(&block, (const char *)src + i * sizeof(block), sizeof(block));
		if (block.magic != SIM_MAGIC || block.fill > SIM_TOKENS)
			return ERR_PARSE;
		b->blocks[blocks[i]] = block;
	}
	return 0;
}

static bool sim_holds(
	const struct backend *b, const uint32_t *blocks, const uint32_t *ids, uint32_t n)
{
	uint64_t state = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct sim_block *block = &b->blocks[blocks[i / SIM_TOKENS]];
		uint32_t slot = i % SIM_TOKENS;

		if (slot == 0 && (block->magic != SIM_MAGIC || block->before != state ||
					 block->fill < MIN(n - i, (uint32_t)SIM_TOKENS)))
			return false;
		state = hash_mix64(ids[i], state);
		if (block->states[slot] != state)
			return false;
	}
	return true;
}

const struct backend_ops backend_sim = {
	.name = "sim",
	.open = sim_open,
	.close = sim_close,
	.shape = sim_shape,
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
