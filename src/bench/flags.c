/*
 * The command line of kvsteer-bench: one table of flags drives parsing, ranges, defaults
 * and -h; a second one says which flags do not go together. See flags.h. Called by
 * bench.c, once.
 */
#include "bench/flags.h"

#include "base/conf_lex.h"
#include "base/err.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

enum flag_type {
	FLAG_TEXT,
	FLAG_COUNT,
	FLAG_REAL,
	FLAG_TIME,
	FLAG_RANGE,
	FLAG_CHOICE,
	FLAG_ON
};

struct flag {
	const char *name, *arg;
	enum flag_type type;
	size_t offset;
	double min, max;
	const char *deflt; /* in -h; set where it is not "(...)" */
	const char *help;
};

#define FIELD(f) offsetof(struct bench_flags, f)
#define TOKENS_MAX 16777216

/* FLAG_CHOICE: the words, in the order of the enum or bool that they set. */
#define ENDPOINTS "chat|completions"
#define CORPORA "hot|cold|shared-prefix|conversations"
#define ARRIVALS "poisson|constant"

/* clang-format off */
enum flag_id {
	F_URL, F_MODEL, F_API_KEY, F_ENDPOINT, F_NO_STREAM, F_NO_IGNORE_EOS, F_NEW_CONNECTIONS, F_TIMEOUT,
	F_CONNECTIONS, F_REQUESTS, F_DURATION, F_RATE, F_ARRIVAL, F_TRACE, F_SPEED,
	F_CORPUS, F_PROMPT, F_OUTPUT, F_PROMPTS, F_SHARED, F_GROUPS, F_TURNS, F_CONVERSATIONS,
	F_PER_WORD, F_OVERHEAD, F_SEED, F_JSON, F_MAX
};

static const struct flag flags[F_MAX] = {
	[F_URL] = { "url", "URL", FLAG_TEXT, FIELD(url), 0, 0, "http://127.0.0.1:8000", "the server, or a router" },
	[F_MODEL] = { "model", "NAME", FLAG_TEXT, FIELD(model), 0, 0, "(the first of /v1/models)", "the model" },
	[F_API_KEY] = { "api-key", "file:PATH|env:NAME", FLAG_TEXT, FIELD(api_key), 0, 0, NULL, "where the API key is read from" },
	[F_ENDPOINT] = { "endpoint", ENDPOINTS, FLAG_CHOICE, FIELD(is_completions), 0, 0, "chat", "what is called" },
	[F_NO_STREAM] = { "no-stream", NULL, FLAG_ON, FIELD(no_stream), 0, 0, NULL, "whole answers instead of streams" },
	[F_NO_IGNORE_EOS] = { "no-ignore-eos", NULL, FLAG_ON, FIELD(no_ignore_eos), 0, 0, NULL, "do not send ignore_eos" },
	[F_NEW_CONNECTIONS] = { "new-connections", NULL, FLAG_ON, FIELD(new_connections), 0, 0, NULL, "a new connection for each request" },
	[F_TIMEOUT] = { "timeout", "TIME", FLAG_TIME, FIELD(timeout_ms), 0, 0, "600s", "the longest a request may take; 0: no end" },
	[F_CONNECTIONS] = { "connections", "N", FLAG_COUNT, FIELD(connections), 0, 1000000, "(8; open loop: no cap)", "requests in flight at a time, at most" },
	[F_REQUESTS] = { "requests", "N", FLAG_COUNT, FIELD(requests), 1, 1e15, "(no end)", "ends after as many" },
	[F_DURATION] = { "duration", "TIME", FLAG_TIME, FIELD(duration_ms), 1, 0, "(10s, without --requests or --trace)", "begins no more requests after it" },
	[F_RATE] = { "rate", "R", FLAG_REAL, FIELD(rate), 1e-6, 1e6, NULL, "open loop: requests a second, answered or not" },
	[F_ARRIVAL] = { "arrival", ARRIVALS, FLAG_CHOICE, FIELD(arrival), 0, 0, "poisson", "how --rate spreads them" },
	[F_TRACE] = { "trace", "FILE", FLAG_TEXT, FIELD(trace), 0, 0, NULL, "open loop: a trace in Mooncake's format" },
	[F_SPEED] = { "speed", "F", FLAG_REAL, FIELD(speed), 1e-6, 1e6, "1", "plays the trace that many times as fast" },
	[F_CORPUS] = { "corpus", CORPORA, FLAG_CHOICE, FIELD(corpus.kind), 0, 0, "cold", "prompts that repeat, that never do, that begin alike, or that grow" },
	[F_PROMPT] = { "prompt-tokens", "N|MIN-MAX", FLAG_RANGE, FIELD(corpus.prompt), 1, TOKENS_MAX, "512", "size of a prompt, or of a turn" },
	[F_OUTPUT] = { "output-tokens", "N|MIN-MAX", FLAG_RANGE, FIELD(corpus.output), 1, TOKENS_MAX, "64", "size of an answer (max_tokens)" },
	[F_PROMPTS] = { "prompts", "N", FLAG_COUNT, FIELD(corpus.prompts), 1, 1e12, "16", "hot: how many different ones" },
	[F_SHARED] = { "shared-tokens", "N", FLAG_COUNT, FIELD(corpus.shared_tokens), 1, TOKENS_MAX, "(half the prompt; conversations: none)", "shared-prefix, conversations: the common beginning" },
	[F_GROUPS] = { "groups", "N", FLAG_COUNT, FIELD(corpus.groups), 1, 1e12, "1", "shared-prefix: how many different beginnings" },
	[F_TURNS] = { "turns", "N", FLAG_COUNT, FIELD(corpus.turns), 1, 1e6, "5", "conversations: requests in each" },
	[F_CONVERSATIONS] = { "conversations", "N", FLAG_COUNT, FIELD(corpus.conversations), 1, 1e6, "(--connections, else 64)", "conversations: open at a time" },
	[F_PER_WORD] = { "tokens-per-word", "R", FLAG_REAL, FIELD(corpus.tokens_per_word), 0.05, 20, "1", "how many tokens the model makes of a short word" },
	[F_OVERHEAD] = { "chat-overhead", "N", FLAG_COUNT, FIELD(corpus.overhead), 0, 100000, "8", "tokens that the chat template adds to one message" },
	[F_SEED] = { "seed", "N", FLAG_COUNT, FIELD(seed), 0, 1e15, "(random; trace: 1)", "makes the same prompts again" },
	[F_JSON] = { "json", "FILE", FLAG_TEXT, FIELD(json), 0, 0, NULL, "the report as JSON; -: stdout, instead of the table" },
};

/* What a flag needs, or cannot go with. */
static const struct {
	enum flag_id flag, other;
	bool needs;
	const char *hint;
} pairs[] = {
	{ F_TRACE, F_RATE, false, "a trace brings its own times; --speed changes them" },
	{ F_TRACE, F_CORPUS, false, "a trace brings its own prompts" },
	{ F_TRACE, F_PROMPT, false, "a trace brings its own sizes" },
	{ F_TRACE, F_OUTPUT, false, "a trace brings its own sizes" },
	{ F_SPEED, F_TRACE, true, "it is the speed of a trace" },
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

static bool complain(const struct flag *f, const char *value, const char *want)
{
	(void)fprintf(stderr, "kvsteer-bench: --%s %s: %s\n", f->name, value, want);
	return false;
}

static bool set_real(const struct flag *f, const char *value, double *out)
{
	char *end, want[96];
	double d;

	errno = 0;
	d = strtod(value, &end);
	if (end != value && *end == '\0' && errno == 0 && d >= f->min && d <= f->max) {
		*out = d;
		return true;
	}
	(void)snprintf(want, sizeof(want), "a number from %g to %.0f is expected", f->min,
		f->max);
	return complain(f, value, want);
}

static bool is_count(const struct flag *f, struct span s, uint64_t *out)
{
	return span_to_u64(s, out) == 0 && (double)*out >= f->min &&
	       (double)*out <= f->max;
}

static bool set_count(const struct flag *f, const char *value, uint64_t *out)
{
	char want[96];
	uint64_t n;

	if (is_count(f, span_str(value), &n)) {
		*out = n;
		return true;
	}
	(void)snprintf(want, sizeof(want), "a whole number from %.0f to %.0f is expected",
		f->min, f->max);
	return complain(f, value, want);
}

static bool set_range(const struct flag *f, const char *value, struct size_range *out)
{
	struct span rest = span_str(value), min, max;
	struct size_range range = {0, 0};
	bool ok;

	ok = span_next(&rest, '-', &min) && is_count(f, min, &range.min);
	max = strchr(value, '-') != NULL ? rest : min;
	ok = ok && is_count(f, max, &range.max) && range.min <= range.max;
	if (ok)
		*out = range;
	return ok || complain(f, value,
			     "tokens are expected, such as 512, or a range such as "
			     "100-2000");
}

static bool set_time(const struct flag *f, const char *value, uint64_t *out)
{
	const char *hint = "a time with a unit is expected, such as 30s";
	uint64_t ms;

	if (conf_duration_ms(span_str(value), &ms, &hint) != 0)
		return complain(f, value, hint);
	if ((double)ms < f->min)
		return complain(f, value, "a time above 0 is expected");
	*out = ms;
	return true;
}

static bool set_choice(const struct flag *f, const char *value, void *field)
{
	struct span rest = span_str(f->arg), word;
	char want[96];

	for (int i = 0; span_next(&rest, '|', &word); i++) {
		if (!span_is(word, value))
			continue;
		if (f->offset == FIELD(is_completions))
			*(bool *)field = i == 1;
		else if (f->offset == FIELD(arrival))
			*(enum arrival_kind *)field = (enum arrival_kind)i;
		else
			*(enum corpus_kind *)field = (enum corpus_kind)i;
		return true;
	}
	(void)snprintf(want, sizeof(want), "%s is expected", f->arg);
	return complain(f, value, want);
}

static bool set_flag(const struct flag *f, struct bench_flags *out, const char *value)
{
	void *field = (char *)out + f->offset;

	switch (f->type) {
	case FLAG_TEXT:
		*(const char **)field = value;
		return *value != '\0' || complain(f, "''", "it must not be empty");
	case FLAG_COUNT:
		return set_count(f, value, field);
	case FLAG_REAL:
		return set_real(f, value, field);
	case FLAG_TIME:
		return set_time(f, value, field);
	case FLAG_RANGE:
		return set_range(f, value, field);
	case FLAG_CHOICE:
		return set_choice(f, value, field);
	case FLAG_ON:
		*(bool *)field = true;
		return true;
	}
	return false;
}

static void print_help(void)
{
	printf("usage: kvsteer-bench [flags]\n"
	       "Measures an OpenAI-compatible server; see kvsteer-bench(1).\n\n");
	for (size_t i = 0; i < F_MAX; i++) {
		const struct flag *f = &flags[i];
		char left[64];

		(void)snprintf(left, sizeof(left), "--%s%s%s", f->name,
			f->arg != NULL ? " " : "", f->arg != NULL ? f->arg : "");
		printf("  %-30s%s%s", left, strlen(left) < 30 ? "" : "  ", f->help);
		if (f->deflt != NULL)
			printf(f->deflt[0] == '(' ? " %s" : " (%s)", f->deflt);
		printf("\n");
	}
	printf("  %-30s%s\n  %-30s%s\n", "-V, --version", "print the version",
		"-h, --help", "print this");
}

static void set_defaults(struct bench_flags *out)
{
	memset(out, 0, sizeof(*out));
	for (size_t i = 0; i < F_MAX; i++) {
		const char *deflt = flags[i].deflt;
		bool ok = deflt == NULL || deflt[0] == '(' ||
			  set_flag(&flags[i], out, deflt);

		assert(ok);
	}
}

/* ---- what only several flags together can get wrong ---- */

static bool check_pairs(const bool *given)
{
	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		if (!given[pairs[i].flag] || given[pairs[i].other] == pairs[i].needs)
			continue;
		(void)fprintf(stderr, "kvsteer-bench: --%s %s --%s: %s\n",
			flags[pairs[i].flag].name,
			pairs[i].needs ? "needs" : "does not go with",
			flags[pairs[i].other].name, pairs[i].hint);
		return false;
	}
	return true;
}

static bool check_uses(const bool *given, enum corpus_kind kind)
{
	for (size_t i = 0; i < ARRAY_LEN(uses); i++) {
		if (!given[uses[i].flag] || (uses[i].kinds & 1u << kind) != 0)
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
	(void)fprintf(stderr, "kvsteer-bench: --api-key: file:PATH or env:NAME is "
			      "expected; a key itself would show in ps(1)\n");
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
static void complete(struct bench_flags *b, const bool *given)
{
	b->is_open = b->trace != NULL || b->rate > 0;
	b->has_seed = given[F_SEED];
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

static bool check(struct bench_flags *b, const bool *given)
{
	if (!check_pairs(given) || !check_key(b))
		return false;
	complete(b, given);
	return check_uses(given, b->corpus.kind) && check_sizes(b);
}

enum bench_flags_result bench_flags_parse(int argc, char **argv, struct bench_flags *out)
{
	struct option options[F_MAX + 3] = {{0}};
	bool given[F_MAX] = {false};
	int c, i = 0;

	for (size_t k = 0; k < F_MAX; k++)
		options[k] = (struct option){flags[k].name,
			flags[k].arg != NULL ? required_argument : no_argument, NULL,
			256};
	options[F_MAX] = (struct option){"version", no_argument, NULL, 'V'};
	options[F_MAX + 1] = (struct option){"help", no_argument, NULL, 'h'};
	set_defaults(out);
	while ((c = getopt_long(argc, argv, "Vh", options, &i)) != -1) {
		if (c == 'V') {
			printf("kvsteer-bench " KVSTEER_VERSION "\n");
			return BENCH_FLAGS_DONE;
		}
		if (c == 'h') {
			print_help();
			return BENCH_FLAGS_DONE;
		}
		if (c != 256 || !set_flag(&flags[i], out, optarg))
			break;
		given[i] = true;
	}
	if (c == -1 && optind < argc)
		(void)fprintf(
			stderr, "kvsteer-bench: %s: no such argument\n", argv[optind]);
	else if (c == -1 && check(out, given))
		return BENCH_FLAGS_RUN;
	(void)fprintf(stderr, "kvsteer-bench --help lists the flags\n");
	return BENCH_FLAGS_USAGE;
}
