/*
 * Traces made ready for the simulator. See sim_input.h. Called by simulate.c.
 */
#include "sim/sim_input.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"

#include <stdlib.h>

/* Numbers for ids, in order of appearance: open addressing, at most half full. */
struct numbers {
	struct {
		uint64_t id;
		uint32_t number; /* from 1; 0: empty */
	} * slots;
	size_t mask;
	uint32_t n;
};

static struct numbers numbers_new(size_t most)
{
	struct numbers t = {NULL, 16, 0};

	while (t.mask < 2 * most)
		t.mask *= 2;
	t.slots = xcalloc(t.mask, sizeof(*t.slots));
	t.mask--;
	return t;
}

static uint32_t number_of(struct numbers *t, uint64_t id)
{
	size_t i = hash_mix64(id, 0) & t->mask;

	while (t->slots[i].number != 0 && t->slots[i].id != id)
		i = (i + 1) & t->mask;
	if (t->slots[i].number == 0) {
		t->slots[i].id = id;
		t->slots[i].number = ++t->n;
	}
	return t->slots[i].number - 1;
}

/* Its blocks follow those that are there already. */
static void copy_request(const struct trace *t, const struct trace_request *r,
	const struct sim_input *in, double speed, struct sim_request *out)
{
	*out = (struct sim_request){
		.at_us = (uint64_t)((double)r->at_us / speed),
		.prompt = {.ids = in->ids + in->n_blocks,
			.n_ids = (uint32_t)r->n_ids,
			.tokens = MAX(r->input_tokens, 1u),
			.id_tokens = t->block_tokens},
		.hashes = in->hashes + in->n_blocks,
		.output = MAX(r->output_tokens, 1u),
	};
}

/* ---- sessions ---- */

#define COMMON_PART 20
#define COMMON_LEAST 50

/* The first block that is not common, as 1 + its number; else the last one. */
static uint64_t session_of(const struct sim_prompt *p, const uint32_t *uses, size_t n)
{
	uint32_t i = 0;

	if (p->n_ids == 0)
		return 0;
	while (i + 1 < p->n_ids && uses[p->ids[i]] >= COMMON_LEAST &&
		uses[p->ids[i]] > n / COMMON_PART)
		i++;
	return (uint64_t)p->ids[i] + 1;
}

static void find_sessions(struct sim_input *in)
{
	uint32_t *uses = xcalloc((size_t)in->n_ids + 1, sizeof(*uses));

	for (size_t i = 0; i < in->n_blocks; i++)
		uses[in->ids[i]]++;
	for (size_t i = 0; i < in->n; i++)
		in->requests[i].session =
			session_of(&in->requests[i].prompt, uses, in->n);
	free(uses);
}

int sim_input_make(
	const struct trace *t, size_t first, double speed, struct sim_input *out)
{
	struct sim_input in = {.n = first > 0 ? MIN(first, t->n) : t->n};
	struct numbers numbers;

	if (t->n_ids >= INT32_MAX)
		return ERR_LIMIT;
	numbers = numbers_new(t->n_ids);
	in.requests = xcalloc(in.n, sizeof(*in.requests));
	in.ids = xcalloc(t->n_ids + 1, sizeof(*in.ids));
	in.hashes = xcalloc(t->n_ids + 1, sizeof(*in.hashes));
	for (size_t i = 0; i < in.n; i++) {
		const struct trace_request *r = &t->requests[i];

		copy_request(t, r, &in, speed, &in.requests[i]);
		in.tokens += in.requests[i].prompt.tokens;
		for (size_t k = 0; k < r->n_ids; k++) {
			uint64_t id = t->ids[r->first_id + k];

			in.ids[in.n_blocks] = number_of(&numbers, id);
			/* Equal ids are equal prefixes: an id is a chained hash. */
			in.hashes[in.n_blocks++] = hash_mix64(id, 1);
		}
	}
	in.n_ids = numbers.n;
	free(numbers.slots);
	find_sessions(&in);
	*out = in;
	return 0;
}

void sim_input_free(struct sim_input *in)
{
	free(in->requests);
	free(in->ids);
	free(in->hashes);
	*in = (struct sim_input){0};
}
