/*
 * Request bodies: types, ranges and limits of every key that counts, and the messages
 * that say what is wrong. Pure. Called by serve.c.
 */
#include "api/params.h"
#include "base/err.h"
#include "base/metric.h"
#include "core/kv_cache.h"
#include "io/js.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME_SHOWN_MAX = 200 };

/* The room for a message, so that every check is one line. */
struct complaint {
	char *text;
	size_t n;
};

static enum fail PRINTF_LIKE(3, 4)
	refuse(struct complaint *c, enum fail why, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(c->text, c->n, fmt, args);
	va_end(args);
	return why;
}

static enum fail no_memory(struct complaint *c)
{
	return refuse(c, FAIL_OVERLOADED, "The engine is out of memory.");
}

/* A key that is absent or null leaves *out as it is. */
static bool is_absent(const struct js *v)
{
	return v == NULL || js_is_null(v);
}

static enum fail read_bool(
	const struct js *body, const char *key, bool *out, struct complaint *c)
{
	const struct js *v = js_get(body, key);

	if (is_absent(v) || js_as_bool(v, out))
		return FAIL_NONE;
	return refuse(c, FAIL_MALFORMED_REQUEST, "'%s' must be true or false.", key);
}

static enum fail read_int(const struct js *body, const char *key, int64_t min,
	int64_t max, int64_t *out, struct complaint *c)
{
	const struct js *v = js_get(body, key);
	int64_t n;

	if (is_absent(v))
		return FAIL_NONE;
	if (!js_as_int(v, &n) || n < min || n > max)
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"'%s' must be an integer from %" PRId64 " to %" PRId64 ".", key,
			min, max);
	*out = n;
	return FAIL_NONE;
}

static enum fail read_number(const struct js *body, const char *key, double min,
	double max, double *out, struct complaint *c)
{
	const struct js *v = js_get(body, key);
	double d;

	if (is_absent(v))
		return FAIL_NONE;
	if (!js_as_real(v, &d) || !(d >= min && d <= max))
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"'%s' must be a number from %g to %g.", key, min, max);
	*out = d;
	return FAIL_NONE;
}

static enum fail check_model(
	const struct js *body, const struct params_limits *limits, struct complaint *c)
{
	const struct js *v = js_get(body, "model");
	struct span name;

	if (is_absent(v))
		return FAIL_NONE;
	if (!js_as_str(v, &name))
		return refuse(c, FAIL_MALFORMED_REQUEST, "'model' must be a string.");
	if (span_is(name, limits->model))
		return FAIL_NONE;
	if (name.n > NAME_SHOWN_MAX) {
		name.n = NAME_SHOWN_MAX; /* cut between characters */
		while (name.n > 0 && ((unsigned char)name.p[name.n] & 0xc0) == 0x80)
			name.n--;
	}
	return refuse(c, FAIL_MODEL_NOT_FOUND, "The model `" SPAN_FMT "` does not exist.",
		SPAN_ARG(name));
}

static enum fail add_stop(struct params *p, const struct js *v, struct complaint *c)
{
	struct span s;

	if (!js_as_str(v, &s) || s.n == 0)
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"'stop' must be a string or a list of strings, none empty.");
	if (p->n_stops == PARAMS_STOPS_MAX)
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"'stop' may hold at most %d strings.", PARAMS_STOPS_MAX);
	p->stops[p->n_stops] = span_dup(s);
	if (p->stops[p->n_stops] == NULL)
		return no_memory(c);
	p->n_stops++;
	p->stop_bytes_max = MAX(p->stop_bytes_max, s.n);
	return FAIL_NONE;
}

static enum fail read_stop(struct params *p, const struct js *body, struct complaint *c)
{
	const struct js *v = js_get(body, "stop");
	enum fail why = FAIL_NONE;

	if (is_absent(v))
		return FAIL_NONE;
	if (!js_is_array(v))
		return add_stop(p, v, c);
	for (size_t i = 0; i < js_len(v) && why == FAIL_NONE; i++)
		why = add_stop(p, js_at(v, i), c);
	return why;
}

static enum fail read_salt(struct params *p, const struct js *body,
	const struct params_limits *limits, struct complaint *c)
{
	const struct js *v = js_get(body, "cache_salt");
	struct span salt = span_make(NULL, 0);

	if (!is_absent(v) && (!js_as_str(v, &salt) || salt.n == 0))
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"'cache_salt' must be a string that is not empty.");
	p->seed =
		kv_seed(span_str(limits->model), span_make(NULL, 0), salt, limits->rank);
	return FAIL_NONE;
}

static enum fail check_min(const struct params *p, struct complaint *c)
{
	uint32_t max_new = p->max_new;

	if (max_new == 0 && !p->is_chat)
		max_new = PARAMS_N_DEFAULT_TOKENS;
	if (max_new == 0 || p->min_new <= max_new)
		return FAIL_NONE;
	return refuse(c, FAIL_MALFORMED_REQUEST,
		"'min_tokens' (%u) must not be above 'max_tokens' (%u).", p->min_new,
		max_new);
}

/* max_completion_tokens is the newer name and wins. */
static enum fail read_lengths(
	struct params *p, const struct js *body, struct complaint *c)
{
	int64_t max_new = 0, min_new = 0, n = 1;
	enum fail why = read_int(body, "max_tokens", 1, INT32_MAX, &max_new, c);

	if (why == FAIL_NONE)
		why = read_int(body, "max_completion_tokens", 1, INT32_MAX, &max_new, c);
	if (why == FAIL_NONE)
		why = read_int(body, "n", 1, PARAMS_CHOICES_MAX, &n, c);
	if (why == FAIL_NONE)
		why = read_int(body, "min_tokens", 0, INT32_MAX, &min_new, c);
	if (why == FAIL_NONE)
		why = read_int(body, "priority", INT32_MIN, INT32_MAX, &p->priority, c);
	p->max_new = (uint32_t)max_new;
	p->min_new = (uint32_t)min_new;
	p->n = (unsigned)n;
	return why == FAIL_NONE ? check_min(p, c) : why;
}

static enum fail read_stream(struct params *p, const struct js *body, struct complaint *c)
{
	const struct js *options = js_get(body, "stream_options");
	enum fail why = read_bool(body, "stream", &p->is_stream, c);

	if (why != FAIL_NONE || is_absent(options))
		return why;
	if (!js_is_object(options))
		return refuse(
			c, FAIL_MALFORMED_REQUEST, "'stream_options' must be an object.");
	if (!p->is_stream)
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"'stream_options' is only allowed when 'stream' is true.");
	why = read_bool(options, "include_usage", &p->include_usage, c);
	if (why == FAIL_NONE)
		why = read_bool(
			options, "continuous_usage_stats", &p->usage_in_events, c);
	return why;
}

static enum fail read_ids(const struct js *list, const struct vocab *vocab,
	struct token_list *out, struct complaint *c)
{
	for (size_t i = 0; i < js_len(list); i++) {
		int64_t id;

		if (!js_as_int(js_at(list, i), &id) || id < 0 || id >= vocab->n)
			return refuse(c, FAIL_MALFORMED_REQUEST,
				"Token ids must be integers from 0 to %u.", vocab->n - 1);
		if (token_push(out, (uint32_t)id) != 0)
			return no_memory(c);
	}
	return FAIL_NONE;
}

/* How a token is chosen */

static enum fail read_numbers(
	struct sample_opts *s, const struct js *body, struct complaint *c)
{
	const struct {
		const char *key;
		double min, max, *out;
	} rows[] = {
		{"temperature", 0, 1e6, &s->temperature},
		{"top_p", 0, 1, &s->top_p},
		{"min_p", 0, 1, &s->min_p},
		{"presence_penalty", -2, 2, &s->presence_penalty},
		{"frequency_penalty", -2, 2, &s->frequency_penalty},
		{"repetition_penalty", 0.01, 100, &s->repetition_penalty},
	};
	enum fail why = FAIL_NONE;

	for (size_t i = 0; i < ARRAY_LEN(rows) && why == FAIL_NONE; i++)
		why = read_number(
			body, rows[i].key, rows[i].min, rows[i].max, rows[i].out, c);
	return why;
}

/* top_k: -1 is all, as 0 is. */
static enum fail read_choice(
	struct sample_opts *s, const struct js *body, struct complaint *c)
{
	int64_t top_k = 0, seed = 0;
	enum fail why = read_int(body, "top_k", -1, INT32_MAX, &top_k, c);

	if (why == FAIL_NONE)
		why = read_int(body, "seed", INT64_MIN, INT64_MAX, &seed, c);
	s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
	s->seed = (uint64_t)seed;
	s->has_seed = !is_absent(js_get(body, "seed"));
	return why;
}

/* A completion says how many; a chat whether, and how many beside the token itself. */
static enum fail read_logprobs(
	struct params *p, const struct js *body, struct complaint *c)
{
	struct sample_opts *s = &p->sampling;
	const char *key = p->is_chat ? "top_logprobs" : "logprobs";
	int64_t n = 0;
	enum fail why = read_int(body, key, 0, SAMPLE_TOP_MAX, &n, c);

	s->n_top = (uint32_t)n;
	s->wants_logprobs = !p->is_chat && !is_absent(js_get(body, key));
	if (why == FAIL_NONE && p->is_chat)
		why = read_bool(body, "logprobs", &s->wants_logprobs, c);
	if (why == FAIL_NONE && n > 0 && !s->wants_logprobs)
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"'top_logprobs' is only allowed when 'logprobs' is true.");
	return why;
}

static enum fail read_stop_ids(struct params *p, const struct js *body,
	const struct vocab *vocab, struct complaint *c)
{
	const struct js *v = js_get(body, "stop_token_ids");
	enum fail why = FAIL_NONE;

	if (!is_absent(v) && !js_is_array(v))
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"'stop_token_ids' must be a list of token ids.");
	if (!is_absent(v))
		why = read_ids(v, vocab, &p->stop_ids, c);
	p->sampling.stop_ids = p->stop_ids.ids;
	p->sampling.n_stop_ids = (uint32_t)p->stop_ids.n;
	return why;
}

static enum fail read_sampling(struct params *p, const struct js *body,
	const struct vocab *vocab, struct complaint *c)
{
	struct sample_opts *s = &p->sampling;
	enum fail why;

	*s = (struct sample_opts){
		.temperature = 1,
		.top_p = 1,
		.repetition_penalty = 1,
		.min_new = p->min_new,
		.ignores_ends = p->ignores_eos,
	};
	why = read_numbers(s, body, c);
	if (why == FAIL_NONE)
		why = read_choice(s, body, c);
	if (why == FAIL_NONE)
		why = read_logprobs(p, body, c);
	if (why == FAIL_NONE)
		why = read_stop_ids(p, body, vocab, c);
	return why;
}

static enum fail read_scalars(struct params *p, const struct js *body,
	const struct params_limits *limits, struct complaint *c)
{
	enum fail why = read_lengths(p, body, c);

	if (why == FAIL_NONE)
		why = read_stream(p, body, c);
	if (why == FAIL_NONE)
		why = read_stop(p, body, c);
	if (why == FAIL_NONE)
		why = read_bool(body, "ignore_eos", &p->ignores_eos, c);
	if (why == FAIL_NONE)
		why = read_salt(p, body, limits, c);
	if (why == FAIL_NONE && !kv_params_read(body, &p->kv))
		why = refuse(c, FAIL_MALFORMED_REQUEST,
			"'kv_transfer_params' must be an object.");
	if (why == FAIL_NONE)
		why = read_sampling(p, body, limits->vocab, c);
	return why;
}

/* Prompts */

/* before (may be NULL): gets the ids of what comes before the answer, if some of the
 * answer is there already. */
static enum fail read_chat(const struct js *body, const struct vocab *vocab,
	struct token_list *out, struct token_list *before, struct complaint *c)
{
	struct text text = {NULL, 0, 0, false};
	const char *why_not = NULL;
	enum fail why = FAIL_NONE;
	size_t answer_from = 0;
	int err = vocab->render(vocab, body, &text, &answer_from, &why_not);

	if (err == ERR_PARSE)
		why = refuse(c, FAIL_MALFORMED_REQUEST, "%s.", why_not);
	else if (err != 0 || vocab->encode(vocab, span_make(text.p, text.n), out) != 0)
		why = no_memory(c);
	else if (before != NULL && answer_from < text.n &&
		 vocab->encode(vocab, span_make(text.p, answer_from), before) != 0)
		why = no_memory(c);
	text_free(&text);
	return why;
}

/* One prompt: a string, or a list of ids. */
static enum fail read_prompt(const struct js *v, const struct vocab *vocab,
	struct token_list *out, struct complaint *c)
{
	struct span text;

	if (js_as_str(v, &text))
		return vocab->encode(vocab, text, out) == 0 ? FAIL_NONE : no_memory(c);
	if (js_is_array(v))
		return read_ids(v, vocab, out, c);
	return refuse(c, FAIL_MALFORMED_REQUEST,
		"'prompt' must be a string, a list of strings, a list of token ids, or a "
		"list of lists of token ids.");
}

/* A list of strings or of lists is several prompts; a list of numbers is one. */
static bool is_many(const struct js *v)
{
	const struct js *first = js_is_array(v) ? js_at(v, 0) : NULL;

	return first != NULL && (js_is_string(first) || js_is_array(first));
}

static enum fail read_prompts(struct params *p, const struct js *body,
	const struct vocab *vocab, struct complaint *c)
{
	const struct js *v = js_get(body, "prompt");
	size_t n = !p->is_chat && is_many(v) ? js_len(v) : 1;
	enum fail why = FAIL_NONE;

	if (!p->is_chat && v == NULL)
		return refuse(c, FAIL_MALFORMED_REQUEST, "'prompt' is missing.");
	if (n > PARAMS_PROMPTS_MAX || n * p->n > PARAMS_CHOICES_MAX)
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"At most %d choices can be asked for at once.",
			PARAMS_CHOICES_MAX);
	p->prompts = calloc(n, sizeof(*p->prompts));
	if (p->prompts == NULL)
		return no_memory(c);
	p->n_prompts = n;
	if (p->is_chat)
		return read_chat(body, vocab, &p->prompts[0], &p->before, c);
	for (size_t i = 0; i < n && why == FAIL_NONE; i++)
		why = read_prompt(is_many(v) ? js_at(v, i) : v, vocab, &p->prompts[i], c);
	return why;
}

static enum fail check_length(const struct params *p, size_t tokens,
	const struct params_limits *limits, struct complaint *c)
{
	uint32_t said = MAX(p->max_new, p->min_new), new_tokens = MAX(said, 1u);

	if (tokens == 0)
		return refuse(c, FAIL_MALFORMED_REQUEST, "The prompt is empty.");
	if (tokens + new_tokens > limits->max_model_len)
		return refuse(c, FAIL_MALFORMED_REQUEST,
			"This model's maximum context length is %zu tokens. However, you "
			"requested "
			"%zu tokens (%zu in the prompt, %u in the completion).",
			limits->max_model_len, tokens + new_tokens, tokens, new_tokens);
	return FAIL_NONE;
}

static struct js *parse_body(struct span body, struct complaint *c)
{
	const char *why = "";
	struct js *root = js_parse(body, &why);

	if (root == NULL) {
		(void)refuse(c, FAIL_NONE, "The body is not valid JSON: %s", why);
	} else if (!js_is_object(root)) {
		(void)refuse(c, FAIL_NONE, "The body must be a JSON object.");
		js_free(root);
		root = NULL;
	}
	return root;
}

enum fail params_read(struct span body, bool is_chat, const struct params_limits *limits,
	struct params *out, char *message, size_t n)
{
	struct complaint c = {message, n};
	struct js *root;
	enum fail why;

	memset(out, 0, sizeof(*out));
	out->is_chat = is_chat;
	root = parse_body(body, &c);
	if (root == NULL)
		return FAIL_MALFORMED_REQUEST;
	why = check_model(root, limits, &c);
	if (why == FAIL_NONE)
		why = read_scalars(out, root, limits, &c);
	if (why == FAIL_NONE)
		why = read_prompts(out, root, limits->vocab, &c);
	for (size_t i = 0; i < out->n_prompts && why == FAIL_NONE; i++)
		why = check_length(out, out->prompts[i].n, limits, &c);
	js_free(root);
	return why;
}

void params_free(struct params *p)
{
	for (size_t i = 0; i < p->n_prompts; i++)
		token_list_free(&p->prompts[i]);
	token_list_free(&p->before);
	token_list_free(&p->stop_ids);
	free(p->prompts);
	p->prompts = NULL;
	p->n_prompts = 0;
	while (p->n_stops > 0)
		free(p->stops[--p->n_stops]);
}

enum fail params_tokenize(struct span body, const struct vocab *vocab,
	struct token_list *out, char *message, size_t n)
{
	struct complaint c = {message, n};
	struct js *root = parse_body(body, &c);
	const struct js *prompt;
	struct span text;
	enum fail why;

	if (root == NULL)
		return FAIL_MALFORMED_REQUEST;
	prompt = js_get(root, "prompt");
	if (prompt == NULL)
		why = read_chat(root, vocab, out, NULL, &c);
	else if (!js_as_str(prompt, &text))
		why = refuse(&c, FAIL_MALFORMED_REQUEST, "'prompt' must be a string.");
	else
		why = vocab->encode(vocab, text, out) == 0 ? FAIL_NONE : no_memory(&c);
	js_free(root);
	return why;
}

static enum fail join_tokens(const struct token_list *list, const struct vocab *vocab,
	char **text, size_t *text_len, struct complaint *c)
{
	char *out = malloc(list->n * vocab->text_max + 1);
	size_t n = 0;

	if (out == NULL)
		return no_memory(c);
	for (size_t i = 0; i < list->n; i++)
		n += vocab->decode(vocab, list->ids[i], out + n);
	*text = out;
	*text_len = n;
	return FAIL_NONE;
}

enum fail params_detokenize(struct span body, const struct vocab *vocab, char **text,
	size_t *text_len, char *message, size_t n)
{
	struct complaint c = {message, n};
	struct js *root = parse_body(body, &c);
	struct token_list list = {NULL, 0, 0};
	const struct js *tokens;
	enum fail why;

	if (root == NULL)
		return FAIL_MALFORMED_REQUEST;
	tokens = js_get(root, "tokens");
	if (!js_is_array(tokens))
		why = refuse(&c, FAIL_MALFORMED_REQUEST,
			"'tokens' must be a list of token ids.");
	else
		why = read_ids(tokens, vocab, &list, &c);
	if (why == FAIL_NONE)
		why = join_tokens(&list, vocab, text, text_len, &c);
	token_list_free(&list);
	js_free(root);
	return why;
}
