/*
 * What a worker's /metrics says of its cache and its process. See scrape.h.
 */
#include "control/scrape.h"

#include "base/err.h"

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

static void read_cache_config(struct span labels, struct scrape *out)
{
	uint64_t size, blocks;

	if (!label_number(labels, "block_size", &size) ||
		!label_number(labels, "num_gpu_blocks", &blocks))
		return;
	if (size == 0 || blocks == 0 || size > TOKENS_MAX / blocks)
		return;
	out->capacity_tokens = MIN(out->capacity_tokens + size * blocks, TOKENS_MAX);
}

void scrape_read(struct span text, struct scrape *out)
{
	struct span line, name, labels, value;
	double number;

	*out = (struct scrape){0};
	while (span_next(&text, '\n', &line)) {
		line = span_trim_all(line);
		if (line.n == 0 || line.p[0] == '#' ||
			!split_sample(line, &name, &labels, &value))
			continue;
		if (span_is(name, "vllm:cache_config_info"))
			read_cache_config(labels, out);
		else if (span_is(name, "process_start_time_seconds") &&
			 read_real(value, &number) && number > 0)
			out->start_seconds = number;
	}
}
