/*
 * The command line of kvsteer-bench: one table of flags drives parsing, ranges, defaults
 * and -h; a second one says which flags do not go together. See flags.h. Called by
 * bench.c, once.
 */
#include "bench/flags.h"

#include "base/dump.h"
#include "base/err.h"
#include "base/span.h"

#include <stdio.h>

#define FIELD(f) offsetof(struct bench_flags, f)
#define TOKENS_MAX 16777216

/* The words of a choice, in the order of the enum or bool that they set. */
#define ENDPOINTS "chat|completions"
#define CORPORA "hot|cold|shared-prefix|conversations"
#define ARRIVALS "poisson|constant"

static flag_read_fn read_range, read_endpoint;

/* clang-format off */
enum flag_id {
	F_URL, F_MODEL, F_API_KEY, F_ENDPOINT, F_NO_STREAM, F_NO_IGNORE_EOS, F_NEW_CONNECTIONS, F_TIMEOUT,
	F_CONNECTIONS, F_REQUESTS, F_DURATION, F_RATE, F_ARRIVAL, F_TRACE, F_SPEED,
	F_CORPUS, F_PROMPT, F_OUTPUT, F_PROMPTS, F_SHARED, F_GROUPS, F_TURNS, F_CONVERSATIONS,
	F_PER_WORD, F_OVERHEAD, F_SEND_HASHES, F_HASH_BLOCK, F_SEED, F_JSON, F_SIMULATE, F_MAX
};

static const struct flag flags[F_MAX] = {
	[F_URL] = { "url", "URL", flag_text, FIELD(url), 0, 0, "http://127.0.0.1:8000", "the server, or a router" },
	[F_MODEL] = { "model", "NAME", flag_text, FIELD(model), 0, 0, "(the first of /v1/models)", "the model" },
	[F_API_KEY] = { "api-key", "file:PATH|env:NAME", flag_text, FIELD(api_key), 0, 0, NULL, "where to read the API key from" },
	[F_ENDPOINT] = { "endpoint", ENDPOINTS, read_endpoint, FIELD(is_completions), 0, 0, "chat", "the endpoint to call" },
	[F_NO_STREAM] = { "no-stream", NULL, flag_on, FIELD(no_stream), 0, 0, NULL, "ask for whole responses instead of streams" },
	[F_NO_IGNORE_EOS] = { "no-ignore-eos", NULL, flag_on, FIELD(no_ignore_eos), 0, 0, NULL, "do not send ignore_eos" },
	[F_NEW_CONNECTIONS] = { "new-connections", NULL, flag_on, FIELD(new_connections), 0, 0, NULL, "make a new connection for each request" },
	[F_TIMEOUT] = { "timeout", "TIME", flag_time, FIELD(timeout_ms), 0, 0, "600s", "longest time for a request; 0: no limit" },
	[F_CONNECTIONS] = { "connections", "N", flag_u64, FIELD(connections), 1, 1000000, "(8; open loop: no limit)", "requests in flight at a time" },
	[F_REQUESTS] = { "requests", "N", flag_u64, FIELD(requests), 1, 1e15, "(no limit)", "end after this many requests" },
	[F_DURATION] = { "duration", "TIME", flag_time, FIELD(duration_ms), 1, 0, "(10s, without --requests or --trace)", "begin no requests after this time" },
	[F_RATE] = { "rate", "R", flag_real, FIELD(rate), 1e-6, 1e6, NULL, "open loop: send this many requests a second" },
	[F_ARRIVAL] = { "arrival", ARRIVALS, flag_choice, FIELD(arrival), 0, 0, "poisson", "how --rate spreads requests over time" },
	[F_TRACE] = { "trace", "FILE", flag_text, FIELD(trace), 0, 0, NULL, "open loop: a trace in Mooncake's format" },
	[F_SPEED] = { "speed", "F", flag_real, FIELD(speed), 1e-6, 1e6, "1", "play the trace this many times as fast" },
	[F_CORPUS] = { "corpus", CORPORA, flag_choice, FIELD(corpus.kind), 0, 0, "cold", "kind of prompts: repeated, never repeated, with a shared beginning, or growing" },
	[F_PROMPT] = { "prompt-tokens", "N|MIN-MAX", read_range, FIELD(corpus.prompt), 1, TOKENS_MAX, "512", "tokens of a prompt, or of a turn" },
	[F_OUTPUT] = { "output-tokens", "N|MIN-MAX", read_range, FIELD(corpus.output), 1, TOKENS_MAX, "64", "tokens of a response (max_tokens)" },
	[F_PROMPTS] = { "prompts", "N", flag_u64, FIELD(corpus.prompts), 1, 1e12, "16", "hot: number of different prompts" },
	[F_SHARED] = { "shared-tokens", "N", flag_u64, FIELD(corpus.shared_tokens), 1, TOKENS_MAX, "(half the prompt; conversations: none)", "shared-prefix, conversations: the common beginning" },
	[F_GROUPS] = { "groups", "N", flag_u64, FIELD(corpus.groups), 1, 1e12, "1", "shared-prefix: number of different beginnings" },
	[F_TURNS] = { "turns", "N", flag_u64, FIELD(corpus.turns), 1, 1e6, "5", "conversations: requests in each of them" },
	[F_CONVERSATIONS] = { "conversations", "N", flag_u64, FIELD(corpus.conversations), 1, 1e6, "(--connections, else 64)", "conversations: number open at a time" },
	[F_PER_WORD] = { "tokens-per-word", "R", flag_real, FIELD(corpus.tokens_per_word), 0.05, 20, "1", "tokens that the model makes of a short word" },
	[F_OVERHEAD] = { "chat-overhead", "N", flag_u64, FIELD(corpus.overhead), 0, 100000, "8", "tokens that the chat template adds to one message" },
	[F_SEND_HASHES] = { "send-hashes", NULL, flag_on, FIELD(send_hashes), 0, 0, NULL, "send X-Kvsteer-Prefix, so that the router need not read prompts" },
	[F_HASH_BLOCK] = { "hash-block", "BYTES", flag_u64, FIELD(hash_block), 1, 1e9, "128", "size of the blocks that are hashed" },
	[F_SEED] = { "seed", "N", flag_u64, FIELD(seed), 0, 1e15, "(random; trace: 1)", "make the same prompts again" },
	[F_JSON] = { "json", "FILE", flag_text, FIELD(json), 0, 0, NULL, "write the report as JSON; -: stdout, instead of the table" },
	[F_SIMULATE] = { "simulate", NULL, flag_on, FIELD(simulate), 0, 0, NULL, "compare policies over a trace in virtual time; see --simulate --help" },
};

/* The flags that a flag needs, or excludes. */
static const struct {
	enum flag_id flag, other;
	bool needs;
	const char *hint;
} pairs[] = {
	{ F_TRACE, F_RATE, false, "a trace has its own times; use --speed to change them" },
	{ F_TRACE, F_CORPUS, false, "a trace has its own prompts" },
	{ F_TRACE, F_PROMPT, false, "a trace has its own sizes" },
	{ F_TRACE, F_OUTPUT, false, "a trace has its own sizes" },
	{ F_SPEED, F_TRACE, true, "it is the speed of a trace" },
	{ F_HASH_BLOCK, F_SEND_HASHES, true, "it is the block size of the hashes" },
	{ F_ARRIVAL, F_RATE, true, "it spreads the requests of a rate" },
};

/* Flags of one kind of corpus. */
static const struct {
	enum flag_id flag;
	unsigned kinds;
	const char *hint;
} uses[] = {
	{ F_PROMPTS, 1u << CORPUS_HOT, "--corpus hot" },
	{ F_GROUPS, 1u << CORPUS_SHARED_PREFIX, "--corpus shared-prefix" },
	{ F_SHARED, 1u << CORPUS_SHARED_PREFIX | 1u << CORPUS_CONVERSATIONS, "--corpus shared-prefix or conversations" },
	{ F_TURNS, 1u << CORPUS_CONVERSATIONS, "--corpus conversations" },
	{ F_CONVERSATIONS, 1u << CORPUS_CONVERSATIONS, "--corpus conversations" },
};
/* clang-format on */

const char *bench_corpus_name(enum corpus_kind kind)
{
	static const char *const names[] = {
		"hot", "cold", "shared-prefix", "conversations", "trace"};

	return names[kind];
}

static const struct flag_type types[] = {{read_range, "range"}, {read_endpoint, "word"}};

static const struct flag_set set = {
	.program = "kvsteer-bench",
	.about = "Measures an OpenAI-compatible server; see kvsteer-bench(1).",
	.flags = flags,
	.n = F_MAX,
	.types = types,
	.n_types = ARRAY_LEN(types),
};

static bool is_count(const struct flag *f, struct span s, uint64_t *out)
{
	return span_to_u64(s, out) == 0 && (double)*out >= f->min &&
	       (double)*out <= f->max;
}

static int read_range(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	struct span rest = span_str(value), min, max;
	struct size_range range = {0, 0};
	bool ok;

	ok = span_next(&rest, '-', &min) && is_count(f, min, &range.min);
	max = strchr(value, '-') != NULL ? rest : min;
	ok = ok && is_count(f, max, &range.max) && range.min <= range.max;
	if (ok) {
		*(struct size_range *)field = range;
		return 0;
	}
	(void)snprintf(
		want, n, "tokens are expected, such as 512, or a range such as 100-2000");
	return ERR_PARSE;
}

static int read_endpoint(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	unsigned place = 0;
	int rc = flag_choice(f, value, &place, want, n);

	if (rc == 0)
		*(bool *)field = place == 1;
	return rc;
}

/* ---- what only several flags together can get wrong ---- */

static bool check_pairs(const char *const *given)
{
	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		if (given[pairs[i].flag] == NULL ||
			(given[pairs[i].other] != NULL) == pairs[i].needs)
			continue;
		(void)fprintf(stderr, "kvsteer-bench: --%s %s --%s: %s\n",
			flags[pairs[i].flag].name,
			pairs[i].needs ? "needs" : "does not go with",
			flags[pairs[i].other].name, pairs[i].hint);
		return false;
	}
	return true;
}

static bool check_uses(const char *const *given, enum corpus_kind kind)
{
	for (size_t i = 0; i < ARRAY_LEN(uses); i++) {
		if (given[uses[i].flag] == NULL || (uses[i].kinds & 1u << kind) != 0)
			continue;
		(void)fprintf(stderr, "kvsteer-bench: --%s needs %s\n",
			flags[uses[i].flag].name, uses[i].hint);
		return false;
	}
	return true;
}

static bool check_key(const struct bench_flags *b)
{
	if (b->api_key == NULL || strncmp(b->api_key, "file:", 5) == 0 ||
		strncmp(b->api_key, "env:", 4) == 0)
		return true;
	/* Not said back: it may be the key. */
	(void)fprintf(stderr, "kvsteer-bench: --api-key: expected file:PATH or "
			      "env:NAME; a key itself would be visible in ps(1)\n");
	return false;
}

static bool check_sizes(const struct bench_flags *b)
{
	uint64_t overhead = b->is_completions ? 0 : b->corpus.overhead;

	if (b->trace != NULL)
		return true;
	if (b->corpus.prompt.min <= overhead) {
		(void)fprintf(stderr,
			"kvsteer-bench: --prompt-tokens must be above %llu, which the "
			"chat "
			"template takes; see --chat-overhead\n",
			(unsigned long long)overhead);
		return false;
	}
	if (b->corpus.kind == CORPUS_SHARED_PREFIX &&
		b->corpus.shared_tokens > b->corpus.prompt.min - overhead) {
		(void)fprintf(stderr,
			"kvsteer-bench: --shared-tokens must be at most %llu, the "
			"smallest "
			"prompt's own\n",
			(unsigned long long)(b->corpus.prompt.min - overhead));
		return false;
	}
	return true;
}

/* The defaults that depend on other flags. */
static void complete(struct bench_flags *b, const char *const *given)
{
	b->is_open = b->trace != NULL || b->rate > 0;
	b->has_seed = given[F_SEED] != NULL;
	if (b->trace != NULL)
		b->corpus.kind = CORPUS_TRACE;
	if (b->connections == 0 && !b->is_open)
		b->connections = 8;
	if (b->requests == 0 && b->duration_ms == 0 && b->trace == NULL)
		b->duration_ms = 10000;
	if (b->corpus.kind == CORPUS_SHARED_PREFIX && b->corpus.shared_tokens == 0)
		b->corpus.shared_tokens = MAX(b->corpus.prompt.min / 2, 1u);
	if (b->corpus.conversations == 0)
		b->corpus.conversations = b->connections > 0 ? b->connections : 64;
	b->corpus.is_chat = !b->is_completions;
	b->corpus.is_stream = !b->no_stream;
	b->corpus.ignore_eos = !b->no_ignore_eos;
}

static bool check(struct bench_flags *b, const char *const *given)
{
	if (!check_pairs(given) || !check_key(b))
		return false;
	complete(b, given);
	return check_uses(given, b->corpus.kind) && check_sizes(b);
}

enum flag_result bench_flags_parse(int argc, char **argv, struct bench_flags *out)
{
	struct flag_values values = {0};
	enum flag_result result;

	memset(out, 0, sizeof(*out));
	result = flag_parse(&set, argc, argv, out, &values);
	if (result == FLAG_RUN && !check(out, values.given)) {
		(void)fprintf(stderr, "kvsteer-bench --help lists the flags\n");
		result = FLAG_USAGE;
	}
	flag_values_free(&set, &values);
	return result;
}

void bench_flags_dump(void)
{
	dump_flags(&set);
}
