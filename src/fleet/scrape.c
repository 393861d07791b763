/*
 * Reads a worker's cache, requests and process from its /metrics. See scrape.h.
 */
#include "fleet/scrape.h"

#include "worker/model_set.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX (UINT64_C(1) << 48) /* more is nonsense */
#define RANKS_MAX UINT64_C(1023)
#define RANK_MAX UINT64_C(65535)

/* name{labels} value [time]: false when line is no sample. */
static bool split_sample(
	struct span line, struct span *name, struct span *labels, struct span *value)
{
	size_t i = 0, end;
	bool in_quotes = false;

	while (i < line.n && line.p[i] != '{' && line.p[i] != ' ')
		i++;
	*name = span_make(line.p, i);
	*labels = span_make(NULL, 0);
	if (i < line.n && line.p[i] == '{') {
		for (end = ++i; end < line.n && (in_quotes || line.p[end] != '}');
			end++) {
			if (in_quotes && line.p[end] == '\\')
				end++;
			else if (line.p[end] == '"')
				in_quotes = !in_quotes;
		}
		if (end >= line.n)
			return false;
		*labels = span_make(line.p + i, end - i);
		i = end + 1;
	}
	line = span_make(line.p + i, line.n - i);
	return span_next_word(&line, value);
}

/* What stands in label="..."; false when it is not there. */
static bool label_text(struct span labels, const char *label, struct span *out)
{
	size_t n = strlen(label), i;

	for (i = 0; i + n + 2 < labels.n; i++) {
		struct span rest;

		if ((i > 0 && labels.p[i - 1] != ',' && labels.p[i - 1] != ' ') ||
			memcmp(labels.p + i, label, n) != 0 || labels.p[i + n] != '=' ||
			labels.p[i + n + 1] != '"')
			continue;
		rest = span_make(labels.p + i + n + 2, labels.n - i - n - 2);
		return span_next(&rest, '"', out);
	}
	return false;
}

static bool has_label(struct span labels, const char *label, const char *text)
{
	struct span value;

	return label_text(labels, label, &value) && span_is(value, text);
}

/* The number in label="123"; false when it is not there or no number. */
static bool label_number(struct span labels, const char *label, uint64_t *out)
{
	struct span value;

	return label_text(labels, label, &value) && span_to_u64(value, out) == 0;
}

static bool read_real(struct span text, double *out)
{
	char copy[64], *end;

	if (text.n == 0 || text.n >= sizeof(copy))
		return false;
	memcpy(copy, text.p, text.n);
	copy[text.n] = '\0';
	*out = strtod(copy, &end);
	return *end == '\0' && isfinite(*out);
}

static bool label_rank(struct span labels, uint64_t *rank)
{
	return label_number(labels, "engine", rank) ||
	       label_number(labels, "dp_rank", rank);
}

/* The rank that the labels name; NULL: none of the worker's. */
static struct scrape_engine *labelled_rank(const struct scrape *s, struct span labels)
{
	uint64_t rank;

	if (!label_rank(labels, &rank) || rank < s->first_rank)
		return NULL;
	rank -= s->first_rank;
	return rank < s->n_ranks ? &s->ranks[rank] : NULL;
}

static void add_capacity(struct scrape *s, struct scrape_engine *rank, uint64_t tokens)
{
	s->all.capacity_tokens = MIN(s->all.capacity_tokens + tokens, TOKENS_MAX);
	if (rank != NULL)
		rank->capacity_tokens = MIN(rank->capacity_tokens + tokens, TOKENS_MAX);
}

static uint64_t config_tokens(
	struct span labels, const char *size_label, const char *count_label)
{
	uint64_t size, blocks;

	if (!label_number(labels, size_label, &size) ||
		!label_number(labels, count_label, &blocks))
		return 0;
	if (size == 0 || blocks == 0 || size > TOKENS_MAX / blocks)
		return 0;
	return size * blocks;
}

/* The tokens are an engine's own, and right where a block is not the same for all layers.
 * Blocks are its own too, or those of all engines: divide_blocks(). */
static void add_vllm_config(
	struct scrape *s, struct scrape_engine *rank, struct span labels)
{
	uint64_t tokens;

	if (label_number(labels, "kv_cache_size_tokens", &tokens) && tokens > 0) {
		add_capacity(s, rank, MIN(tokens, TOKENS_MAX));
		return;
	}
	tokens = config_tokens(labels, "block_size", "num_gpu_blocks");
	if (tokens == 0)
		return;
	s->blocks.differ |= s->blocks.lines > 0 && s->blocks.tokens != tokens;
	s->blocks.tokens = tokens;
	s->blocks.lines++;
	add_capacity(s, rank, tokens);
}

/* vLLM says of each data-parallel engine the sum over all of them. */
static void divide_blocks(struct scrape *s)
{
	size_t i;

	if (s->blocks.lines < 2 || s->blocks.differ)
		return;
	s->all.capacity_tokens /= s->blocks.lines;
	for (i = 0; i < s->n_ranks; i++)
		s->ranks[i].capacity_tokens /= s->blocks.lines;
}

/* sglang:max_total_num_tokens: each process of a rank says it. */
static void see_pool(struct scrape *s, struct span labels, double tokens)
{
	uint64_t rank = 0;

	if (tokens < 1 || tokens > (double)TOKENS_MAX)
		return;
	if (!label_number(labels, "dp_rank", &rank) || rank > RANKS_MAX)
		rank = 0;
	s->pool.tokens = MAX(s->pool.tokens, (uint64_t)tokens);
	s->pool.ranks = MAX(s->pool.ranks, (unsigned)rank + 1);
}

static void apply_pool(struct scrape *s)
{
	size_t i;

	if (s->pool.tokens == 0 || s->all.capacity_tokens != 0)
		return;
	s->all.capacity_tokens = MIN(s->pool.tokens * s->pool.ranks, TOKENS_MAX);
	for (i = 0; i < s->n_ranks; i++)
		s->ranks[i].capacity_tokens = s->pool.tokens;
}

/* A number of requests, as a gauge has it. */
static uint64_t whole(double number)
{
	return number < 0 ? 0 : number > 1e9 ? (uint64_t)1e9 : (uint64_t)(number + 0.5);
}

enum meaning {
	MEANS_VLLM_CONFIG,
	MEANS_SGLANG_CONFIG,
	MEANS_SGLANG_POOL,
	MEANS_RUNNING,
	MEANS_WAITING,
	MEANS_TOKENS,
	MEANS_GENERATED,
	MEANS_STEPS,
	MEANS_START,
	MEANS_ADAPTERS
};

/* The names that engines use (prometheus_client appends _total to counters). */
static const struct {
	const char *name;
	enum meaning meaning;
} samples[] = {
	{"vllm:cache_config_info", MEANS_VLLM_CONFIG},
	{"sglang:cache_config_info", MEANS_SGLANG_CONFIG},
	{"sglang:max_total_num_tokens", MEANS_SGLANG_POOL},
	{"vllm:num_requests_running", MEANS_RUNNING},
	{"sglang:num_running_reqs", MEANS_RUNNING},
	{"vllm:num_requests_waiting", MEANS_WAITING},
	{"sglang:num_queue_reqs", MEANS_WAITING},
	{"vllm:prompt_tokens_total", MEANS_TOKENS},
	{"vllm:generation_tokens_total", MEANS_GENERATED},
	{"sglang:prompt_tokens_total", MEANS_TOKENS},
	{"sglang:generation_tokens_total", MEANS_TOKENS},
	/* The two before grow when a request ends, this one while it runs. */
	{"sglang:realtime_tokens_total", MEANS_STEPS},
	{"llamacpp:requests_processing", MEANS_RUNNING},
	{"llamacpp:requests_deferred", MEANS_WAITING},
	{"llamacpp:prompt_tokens_total", MEANS_TOKENS},
	{"llamacpp:tokens_predicted_total", MEANS_TOKENS},
	{"process_start_time_seconds", MEANS_START},
	{"vllm:lora_requests_info", MEANS_ADAPTERS},
};

static void add_load(
	struct scrape *s, struct scrape_engine *rank, uint64_t n, bool is_waiting)
{
	struct scrape_engine *both[] = {&s->all, rank};
	size_t i;

	for (i = 0; i < ARRAY_LEN(both); i++) {
		if (both[i] == NULL)
			continue;
		both[i]->has_load = true;
		if (is_waiting)
			both[i]->waiting += n;
		else
			both[i]->running += n;
	}
}

static void add_tokens(
	struct scrape *s, struct scrape_engine *rank, double n, bool is_generated)
{
	struct scrape_engine *both[] = {&s->all, rank};
	size_t i;

	for (i = 0; i < ARRAY_LEN(both); i++) {
		if (both[i] == NULL)
			continue;
		both[i]->has_tokens = true;
		both[i]->tokens += n;
		both[i]->has_generated |= is_generated;
		both[i]->generated += is_generated ? n : 0;
	}
}

static void take_number(
	struct scrape *s, enum meaning meaning, struct scrape_engine *rank, double number)
{
	switch (meaning) {
	case MEANS_RUNNING:
	case MEANS_WAITING:
		add_load(s, rank, whole(number), meaning == MEANS_WAITING);
		break;
	case MEANS_TOKENS:
	case MEANS_GENERATED:
		add_tokens(s, rank, number, meaning == MEANS_GENERATED);
		break;
	case MEANS_START:
		if (number > 0)
			s->start_seconds = number;
		break;
	default:
		break;
	}
}

/* SGLang may have each tensor-parallel rank count the same requests. */
static bool is_echo(struct span labels)
{
	uint64_t n;

	return (label_number(labels, "tp_rank", &n) && n > 0) ||
	       (label_number(labels, "pp_rank", &n) && n > 0);
}

static void add_adapter(struct adapters_report *r, uint64_t name)
{
	unsigned i;

	for (i = 0; i < r->n; i++) {
		if (r->names[i] == name)
			return;
	}
	if (i < ADAPTERS_MAX)
		r->names[r->n++] = name;
}

static void add_adapters(struct adapters_report *r, struct span labels, const char *label)
{
	struct span names, name;

	if (!label_text(labels, label, &names))
		return;
	while (span_next(&names, ',', &name)) {
		name = span_trim(name);
		if (name.n > 0)
			add_adapter(r, model_hash(name));
	}
}

/* Each state that there ever was has a line, whose value is the time when it was. */
static void see_adapters(struct scrape *s, struct span labels, double at)
{
	struct adapters_report *r = &s->adapters.report;
	uint64_t slots = 0;

	if (at <= s->adapters.said_at)
		return;
	s->adapters.said_at = at;
	*r = (struct adapters_report){.n = 0};
	add_adapters(r, labels, "running_lora_adapters");
	r->n_running = r->n;
	add_adapters(r, labels, "waiting_lora_adapters");
	if (label_number(labels, "max_lora", &slots))
		r->slots = (unsigned)MIN(slots, UINT64_C(1000000));
}

static void take_sample(
	struct scrape *s, enum meaning meaning, struct span labels, struct span value)
{
	struct scrape_engine *rank = labelled_rank(s, labels);
	double number;

	s->is_sglang |= meaning == MEANS_SGLANG_POOL || meaning == MEANS_STEPS;
	if (meaning == MEANS_SGLANG_POOL && read_real(value, &number))
		see_pool(s, labels, number);
	if (meaning == MEANS_SGLANG_POOL || is_echo(labels))
		return;
	if (meaning == MEANS_ADAPTERS && read_real(value, &number))
		see_adapters(s, labels, number);
	else if (meaning == MEANS_VLLM_CONFIG)
		add_vllm_config(s, rank, labels);
	else if (meaning == MEANS_SGLANG_CONFIG)
		add_capacity(s, rank, config_tokens(labels, "page_size", "num_pages"));
	else if (meaning == MEANS_STEPS && read_real(value, &number))
		add_tokens(s, rank, number, has_label(labels, "mode", "decode"));
	else if (read_real(value, &number))
		take_number(s, meaning, rank, number);
}

void scrape_begin(struct scrape *s)
{
	if (s->n_ranks > 0)
		memset(s->ranks, 0, s->n_ranks * sizeof(*s->ranks));
	*s = (struct scrape){
		.ranks = s->ranks, .n_ranks = s->n_ranks, .first_rank = s->first_rank};
}

/* The next sample that means something; false: none is left. */
static bool next_sample(
	struct span *text, enum meaning *meaning, struct span *labels, struct span *value)
{
	struct span line, name;
	size_t i;

	while (span_next(text, '\n', &line)) {
		line = span_trim_all(line);
		if (line.n == 0 || line.p[0] == '#' ||
			!split_sample(line, &name, labels, value))
			continue;
		for (i = 0; i < ARRAY_LEN(samples); i++) {
			if (!span_is(name, samples[i].name))
				continue;
			*meaning = samples[i].meaning;
			return true;
		}
	}
	return false;
}

/* Engines of one deployment are numbered across its nodes: here may be 4 to 7. */
static void find_first_rank(struct span text, struct scrape *s)
{
	uint64_t rank, least = UINT64_MAX, most = 0;
	struct span labels, value;
	enum meaning unused;

	while (next_sample(&text, &unused, &labels, &value)) {
		if (!label_rank(labels, &rank))
			continue;
		least = MIN(least, rank);
		most = MAX(most, rank);
	}
	if (least <= most && most <= RANK_MAX && most - least + 1 == s->n_ranks)
		s->first_rank = (unsigned)least;
}

void scrape_read(struct span text, struct scrape *s)
{
	struct span rest = text, labels, value;
	enum meaning meaning;

	if (s->n_ranks > 0)
		find_first_rank(text, s);
	while (next_sample(&rest, &meaning, &labels, &value))
		take_sample(s, meaning, labels, value);
	divide_blocks(s);
	apply_pool(s);
}
