/*
 * The parameters of a completion request: its JSON body, checked and turned into native
 * types. Keys that are not named here are ignored, as engines do.
 */
#ifndef ENGINE_API_PARAMS_H
#define ENGINE_API_PARAMS_H

#include "base/fail.h"
#include "core/backend.h"
#include "core/vocab.h"
#include "kvx/kv_params.h"

struct js;

enum {
	PARAMS_STOPS_MAX = 16,
	PARAMS_PROMPTS_MAX = 128,
	PARAMS_CHOICES_MAX = 128, /* prompts times n */
	PARAMS_N_DEFAULT_TOKENS = 16,
};

struct params {
	bool is_chat, is_stream, include_usage, usage_in_events;
	bool ignores_eos;
	unsigned n; /* choices of each prompt */
	struct token_list *prompts;
	size_t n_prompts;
	/* For a chat that continues its last message: the prompt before that message's
	 * text; else empty. */
	struct token_list before;
	uint32_t max_new; /* 0: not said */
	uint32_t min_new; /* tokens before which nothing ends the text */
	struct sample_opts sampling;
	struct token_list stop_ids; /* its stop_ids are these */
	int64_t priority;           /* lower goes first */
	char *stops[PARAMS_STOPS_MAX];
	size_t n_stops, stop_bytes_max;
	struct kv_params kv;
	uint64_t seed; /* of the cached blocks' names: kv_seed() */
};

struct params_limits {
	const char *model; /* the one model served here */
	const struct vocab *vocab;
	size_t max_model_len; /* tokens of prompt and answer together */
	uint64_t rank;        /* data-parallel, parts caches */
};

/* FAIL_NONE, or why not, with a message for the client in message[0..n). *out is to be
 * freed in both cases. */
enum fail params_read(struct span body, bool is_chat, const struct params_limits *limits,
	struct params *out, char *message, size_t n);
void params_free(struct params *p);

/* The prompt of a /tokenize body: text ("prompt") or a chat ("messages"). As above. */
enum fail params_tokenize(struct span body, const struct vocab *vocab,
	struct token_list *out, char *message, size_t n);
/* The text of a /detokenize body's "tokens", malloc'd. As above. */
enum fail params_detokenize(struct span body, const struct vocab *vocab, char **text,
	size_t *text_len, char *message, size_t n);

#endif
