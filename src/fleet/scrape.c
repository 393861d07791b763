/*
 * What a worker's /metrics says of its cache, its requests and its process. See
 * scrape.h.
 */
#include "fleet/scrape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX (UINT64_C(1) << 48) /* more is nonsense */

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

/* The number in label="123"; false when it is not there or no number. */
static bool label_number(struct span labels, const char *label, uint64_t *out)
{
	size_t n = strlen(label), i;

	for (i = 0; i + n + 2 < labels.n; i++) {
		struct span rest, number;

		if ((i > 0 && labels.p[i - 1] != ',' && labels.p[i - 1] != ' ') ||
			memcmp(labels.p + i, label, n) != 0 || labels.p[i + n] != '=' ||
			labels.p[i + n + 1] != '"')
			continue;
		rest = span_make(labels.p + i + n + 2, labels.n - i - n - 2);
		return span_next(&rest, '"', &number) && span_to_u64(number, out) == 0;
	}
	return false;
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

/* The rank that the labels name; NULL: none of the worker's. */
static struct scrape_engine *labelled_rank(const struct scrape *s, struct span labels)
{
	uint64_t rank;

	if (!label_number(labels, "engine", &rank) &&
		!label_number(labels, "dp_rank", &rank))
		return NULL;
	return rank < s->n_ranks ? &s->ranks[rank] : NULL;
}

static void add_capacity(struct scrape *s, struct scrape_engine *rank, uint64_t tokens)
{
	s->all.capacity_tokens = MIN(s->all.capacity_tokens + tokens, TOKENS_MAX);
	if (rank != NULL)
		rank->capacity_tokens = MIN(rank->capacity_tokens + tokens, TOKENS_MAX);
}

static void add_config(struct scrape *s, struct scrape_engine *rank, struct span labels,
	const char *size_label, const char *count_label)
{
	uint64_t size, blocks;

	if (!label_number(labels, size_label, &size) ||
		!label_number(labels, count_label, &blocks))
		return;
	if (size == 0 || blocks == 0 || size > TOKENS_MAX / blocks)
		return;
	add_capacity(s, rank, size * blocks);
}

/* A number of requests, as a gauge has it. */
static uint64_t whole(double number)
{
	return number < 0 ? 0 : number > 1e9 ? (uint64_t)1e9 : (uint64_t)(number + 0.5);
}

enum meaning {
	MEANS_VLLM_CONFIG,
	MEANS_SGLANG_CONFIG,
	MEANS_RUNNING,
	MEANS_WAITING,
	MEANS_TOKENS,
	MEANS_START
};

/* The names that engines use (prometheus_client appends _total to counters). */
static const struct {
	const char *name;
	enum meaning meaning;
} samples[] = {
	{"vllm:cache_config_info", MEANS_VLLM_CONFIG},
	{"sglang:cache_config_info", MEANS_SGLANG_CONFIG},
	{"vllm:num_requests_running", MEANS_RUNNING},
	{"sglang:num_running_reqs", MEANS_RUNNING},
	{"vllm:num_requests_waiting", MEANS_WAITING},
	{"sglang:num_queue_reqs", MEANS_WAITING},
	{"vllm:prompt_tokens_total", MEANS_TOKENS},
	{"vllm:generation_tokens_total", MEANS_TOKENS},
	{"sglang:prompt_tokens_total", MEANS_TOKENS},
	{"sglang:generation_tokens_total", MEANS_TOKENS},
	{"process_start_time_seconds", MEANS_START},
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

static void add_tokens(struct scrape *s, struct scrape_engine *rank, double n)
{
	s->all.has_tokens = true;
	s->all.tokens += n;
	if (rank == NULL)
		return;
	rank->has_tokens = true;
	rank->tokens += n;
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
		add_tokens(s, rank, number);
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

static void take_sample(
	struct scrape *s, enum meaning meaning, struct span labels, struct span value)
{
	struct scrape_engine *rank = labelled_rank(s, labels);
	double number;

	if (is_echo(labels))
		return;
	if (meaning == MEANS_VLLM_CONFIG)
		add_config(s, rank, labels, "block_size", "num_gpu_blocks");
	else if (meaning == MEANS_SGLANG_CONFIG)
		add_config(s, rank, labels, "page_size", "num_pages");
	else if (read_real(value, &number))
		take_number(s, meaning, rank, number);
}

void scrape_begin(struct scrape *s)
{
	if (s->n_ranks > 0)
		memset(s->ranks, 0, s->n_ranks * sizeof(*s->ranks));
	*s = (struct scrape){.ranks = s->ranks, .n_ranks = s->n_ranks};
}

void scrape_read(struct span text, struct scrape *s)
{
	struct span line, name, labels, value;
	size_t i;

	while (span_next(&text, '\n', &line)) {
		line = span_trim_all(line);
		if (line.n == 0 || line.p[0] == '#' ||
			!split_sample(line, &name, &labels, &value))
			continue;
		for (i = 0; i < ARRAY_LEN(samples); i++) {
			if (span_is(name, samples[i].name))
				take_sample(s, samples[i].meaning, labels, value);
		}
	}
}
