/*
 * Reads a worker's report in JSON: server_info and loads, in the shapes that engines use.
 * See scrape.h.
 *
 * Known shapes: SGLang's server_info {max_total_num_tokens, dp_size, internal_states[]},
 * our engine's {engine_id, block_size, num_blocks}, llama.cpp's props {total_slots,
 * default_generation_settings{n_ctx}}, SGLang's loads {loads[{dp_rank,
 * num_running_reqs, num_waiting_reqs}]} and its older list [{dp_rank, num_reqs,
 * num_waiting_reqs}], and one number as {load} or {server_load}.
 */
#include "fleet/scrape.h"

#include "io/js.h"

#include <string.h>

#define TOKENS_MAX (UINT64_C(1) << 48) /* more is nonsense */
#define REQUESTS_MAX 1000000000

/* False: it is not there, or no number from 0 to max. */
static bool number(const struct js *object, const char *key, uint64_t max, uint64_t *out)
{
	int64_t n;

	if (!js_as_int(js_get(object, key), &n) || n < 0 || (uint64_t)n > max)
		return false;
	*out = (uint64_t)n;
	return true;
}

static struct scrape_engine *rank_at(const struct scrape *s, uint64_t rank)
{
	return rank >= s->first_rank && rank - s->first_rank < s->n_ranks
		       ? &s->ranks[rank - s->first_rank]
		       : NULL;
}

/* ---- loads ---- */

static void add_load(struct scrape_engine *e, uint64_t running, uint64_t waiting)
{
	if (e == NULL)
		return;
	e->has_load = true;
	e->running += running;
	e->waiting += waiting;
}

static void read_load(const struct js *item, uint64_t position, struct scrape *s)
{
	uint64_t running, waiting = 0, all, rank = s->first_rank + position;

	number(item, "num_waiting_reqs", REQUESTS_MAX, &waiting);
	number(item, "dp_rank", UINT32_MAX, &rank);
	if (!number(item, "num_running_reqs", REQUESTS_MAX, &running)) {
		if (!number(item, "num_reqs", REQUESTS_MAX, &all))
			return;
		running = all - MIN(all, waiting);
	}
	add_load(&s->all, running, waiting);
	add_load(rank_at(s, rank), running, waiting);
}

/* As in a page of metrics. */
static void find_first_rank(const struct js *list, struct scrape *s)
{
	uint64_t rank, least = UINT64_MAX, most = 0;
	size_t i;

	for (i = 0; i < js_len(list); i++) {
		if (!js_is_object(js_at(list, i)) ||
			!number(js_at(list, i), "dp_rank", UINT16_MAX, &rank))
			continue;
		least = MIN(least, rank);
		most = MAX(most, rank);
	}
	if (s->n_ranks > 0 && least <= most && most - least + 1 == s->n_ranks)
		s->first_rank = (unsigned)least;
}

static void read_loads(const struct js *list, struct scrape *s)
{
	size_t i;

	find_first_rank(list, s);
	for (i = 0; i < js_len(list); i++) {
		if (js_is_object(js_at(list, i)))
			read_load(js_at(list, i), i, s);
	}
}

/* ---- server_info ---- */

static void read_id(const struct js *root, struct scrape *s)
{
	struct span id;

	if (!js_as_str(js_get(root, "engine_id"), &id) &&
		!js_as_str(js_get(root, "instance_id"), &id))
		return;
	if (id.n == 0 || id.n >= sizeof(s->id))
		return;
	memcpy(s->id, id.p, id.n);
	s->id[id.n] = '\0';
}

/* False: one of the two is not there, or their product says nothing. */
static bool product(const struct js *a, const char *size_key, const struct js *b,
	const char *count_key, uint64_t *out)
{
	uint64_t size, count;

	if (!number(a, size_key, TOKENS_MAX, &size) ||
		!number(b, count_key, TOKENS_MAX, &count) || size == 0 || count == 0 ||
		size > TOKENS_MAX / count)
		return false;
	*out = size * count;
	return true;
}

/* The n_ctx of llama.cpp's settings is that of one slot. */
static bool rank_capacity(const struct js *root, uint64_t *tokens)
{
	const struct js *slot = js_get(root, "default_generation_settings");

	if (number(root, "max_total_num_tokens", TOKENS_MAX, tokens))
		return *tokens > 0;
	return product(root, "block_size", root, "num_blocks", tokens) ||
	       product(slot, "n_ctx", root, "total_slots", tokens);
}

/* The capacity in server_info is that of one rank: each has its own cache of that
 * size. */
static void read_capacity(const struct js *root, struct scrape *s)
{
	uint64_t tokens, ranks = 1;
	size_t i;

	if (!rank_capacity(root, &tokens))
		return;
	if (!number(root, "dp_size", UINT16_MAX, &ranks) || ranks == 0)
		ranks = 1;
	s->all.capacity_tokens = MIN(tokens * ranks, TOKENS_MAX);
	for (i = 0; i < s->n_ranks; i++)
		s->ranks[i].capacity_tokens = tokens;
}

void scrape_json(struct span text, struct scrape *s)
{
	const char *why;
	struct js *root = js_parse(text, &why);
	uint64_t n;

	if (root == NULL)
		return;
	if (js_is_array(root)) {
		read_loads(root, s);
	} else if (js_is_object(root)) {
		if (js_is_array(js_get(root, "loads")))
			read_loads(js_get(root, "loads"), s);
		else if (number(root, "load", REQUESTS_MAX, &n) ||
			 number(root, "server_load", REQUESTS_MAX, &n))
			add_load(&s->all, n, 0);
		read_id(root, s);
		read_capacity(root, s);
	}
	js_free(root);
}
