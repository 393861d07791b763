/*
 * The reader of traces. See trace.h. Called by bench.c, once.
 */
#include "bench/trace.h"

#include "base/err.h"
#include "base/mem.h"
#include "io/js.h"

#include <stdlib.h>

struct reader {
	struct trace *t;
	const char *why;
	double first_ms, last_ms;
};

static int refuse(struct reader *r, const char *why)
{
	r->why = why;
	return ERR_PARSE;
}

static int read_time(struct reader *r, const struct js *line, struct trace_request *req)
{
	double ms;

	if (!js_as_real(js_get(line, "timestamp"), &ms) || !(ms >= 0 && ms < 1e15))
		return refuse(r, "'timestamp' must be a number of milliseconds");
	if (r->t->n == 0)
		r->first_ms = r->last_ms = ms;
	if (ms < r->last_ms)
		return refuse(r, "'timestamp' is earlier than the line before");
	r->last_ms = ms;
	req->at_us = (uint64_t)((ms - r->first_ms) * 1000);
	return 0;
}

static int read_length(
	struct reader *r, const struct js *line, const char *key, uint32_t *out)
{
	int64_t n;

	if (!js_as_int(js_get(line, key), &n) || n < 0 || n > TRACE_TOKENS_MAX)
		return refuse(r,
			"'input_length' and 'output_length' must be tokens, 0 to "
			"16777216");
	*out = (uint32_t)n;
	return 0;
}

static size_t blocks_of(uint32_t tokens, uint32_t block)
{
	return (tokens + block - 1) / block;
}

/* The blocks that a prompt of n ids may have: the trace's, once that is known. */
static bool settle_block(struct trace *t, uint32_t tokens, size_t n)
{
	bool large = n == blocks_of(tokens, TRACE_BLOCK_TOKENS);
	bool small = n == blocks_of(tokens, TRACE_SMALL_TOKENS);

	if (t->block_tokens != 0)
		return n == blocks_of(tokens, t->block_tokens);
	if (large != small)
		t->block_tokens = large ? TRACE_BLOCK_TOKENS : TRACE_SMALL_TOKENS;
	return large || small;
}

static int read_ids(struct reader *r, const struct js *line, struct trace_request *req)
{
	const struct js *ids = js_get(line, "hash_ids");
	struct trace *t = r->t;

	if (!js_is_array(ids))
		return refuse(r, "'hash_ids' must be a list of numbers");
	req->n_ids = js_len(ids);
	req->first_id = t->n_ids;
	if (!settle_block(t, req->input_tokens, req->n_ids))
		return refuse(r, "'hash_ids' must have one id for each 512 tokens of "
				 "'input_length' (or each 16, in all of the trace)");
	if (mem_grow(&t->ids, &t->cap_ids, t->n_ids + req->n_ids, sizeof(*t->ids)) != 0)
		return ERR_NOMEM;
	for (size_t i = 0; i < req->n_ids; i++) {
		int64_t id;

		if (!js_as_int(js_at(ids, i), &id))
			return refuse(r, "'hash_ids' must be a list of numbers");
		t->ids[t->n_ids++] = (uint64_t)id;
	}
	return 0;
}

static int read_request(struct reader *r, const struct js *line)
{
	struct trace_request req = {0};
	struct trace *t = r->t;
	int err;

	if (!js_is_object(line))
		return refuse(r, "expected a JSON object");
	err = read_time(r, line, &req);
	if (err == 0)
		err = read_length(r, line, "input_length", &req.input_tokens);
	if (err == 0)
		err = read_length(r, line, "output_length", &req.output_tokens);
	if (err == 0)
		err = read_ids(r, line, &req);
	if (err == 0)
		err = mem_grow(&t->requests, &t->cap, t->n + 1, sizeof(*t->requests));
	if (err != 0)
		return err;
	t->requests[t->n++] = req;
	t->prompt_tokens += req.input_tokens;
	t->output_tokens += req.output_tokens;
	return 0;
}

static int read_line(struct reader *r, struct span text)
{
	struct js *line;
	int err;

	if (span_trim_all(text).n == 0)
		return 0;
	line = js_parse(text, &r->why);
	if (line == NULL)
		return ERR_PARSE;
	err = read_request(r, line);
	js_free(line);
	return err;
}

int trace_read(struct span text, struct trace *out, struct trace_fault *fault)
{
	struct trace t = {0};
	struct reader r = {.t = &t};
	struct span line;
	size_t n = 0;
	int err = 0;

	while (err == 0 && span_next(&text, '\n', &line)) {
		n++;
		err = read_line(&r, line);
	}
	if (err == 0 && t.n == 0)
		err = refuse(&r, "the file has no requests");
	if (t.block_tokens == 0) /* prompts so short that nobody can tell */
		t.block_tokens = TRACE_BLOCK_TOKENS;
	if (err == 0) {
		*out = t;
		return 0;
	}
	*fault = (struct trace_fault){MAX(n, 1u), r.why};
	trace_free(&t);
	return err;
}

void trace_free(struct trace *t)
{
	free(t->requests);
	free(t->ids);
	*t = (struct trace){0};
}
