/*
 * The command line of kvsteer-engine: one table of flags drives parsing, ranges, defaults and -h.
 * Called by engine_daemon.c, once at start.
 */
#include "engine_flags.h"
#include "base/conf_lex.h"
#include "base/err.h"
#include "base/span.h"
#include "kv_cache.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum flag_type { FLAG_TEXT, FLAG_U64, FLAG_U32, FLAG_U16, FLAG_UINT, FLAG_REAL, FLAG_TIME,
	FLAG_LEVEL, FLAG_BACKEND };

struct flag {
	const char *name, *arg;
	enum flag_type type;
	size_t offset;
	double min, max;
	const char *deflt, *help;
};

#define FIELD(f) offsetof(struct engine_flags, f)

/* clang-format off */
static const struct flag flags[] = {
	{ "host", "ADDRESS", FLAG_TEXT, FIELD(host), 0, 0, "127.0.0.1", "address to listen on (IPv4 or IPv6)" },
	{ "port", "N", FLAG_U16, FIELD(port), 0, 65535, "8000", "port to listen on; 0: the kernel chooses" },
	{ "backend", "NAME", FLAG_BACKEND, FIELD(engine.backend), 0, 0, "sim", "what computes; sim is the only one there is" },
	{ "model", "NAME", FLAG_TEXT, FIELD(model), 0, 0, "sim", "the model" },
	{ "served-model-name", "NAME", FLAG_TEXT, FIELD(served_name), 0, 0, NULL, "what clients call it (default: the model)" },
	{ "max-model-len", "N", FLAG_U64, FIELD(max_model_len), 0, 1e9, "0", "tokens of prompt and answer; 0: what the KV cache holds" },
	{ "max-num-seqs", "N", FLAG_UINT, FIELD(engine.sched.max_seqs), 1, 100000, "256", "sequences that run at once" },
	{ "max-num-batched-tokens", "N", FLAG_U32, FIELD(engine.sched.step_tokens), SCHED_STEP_MIN, 1e6, "512", "tokens computed in one step" },
	{ "long-prefill-token-threshold", "N", FLAG_U32, FIELD(engine.sched.long_prefill_tokens), 0, 1e6, "0", "tokens of one prompt in a round of max-num-batched-tokens, so that short prompts need not wait for its end; 0: no bound" },
	{ "max-waiting", "N", FLAG_UINT, FIELD(engine.sched.max_waiting), 0, 1e6, "4096", "sequences that may wait; requests beyond are refused" },
	{ "sim-prefill-rate", "N", FLAG_REAL, FIELD(engine.prefill_rate), 0.001, 1e12, "8000", "prompt tokens a second, one prompt after another" },
	{ "sim-decode-rate", "N", FLAG_REAL, FIELD(engine.decode_rate), 0.001, 1e12, "50", "new tokens a second, of each sequence" },
	{ "sim-step-latency", "TIME", FLAG_TIME, FIELD(engine.step_ms), 0, 0, "0", "what each chunk of a prompt and each new token take besides" },
	{ "sim-blocks", "N", FLAG_U32, FIELD(engine.sched.n_blocks), 2, 1e8, "4096", "KV cache in blocks of 16 tokens" },
	{ "sim-speed", "F", FLAG_REAL, FIELD(engine.speed), 0, 1e6, "1", "factor on all times; 0: nothing takes time" },
	{ "fault-socket", "PATH", FLAG_TEXT, FIELD(fault_socket), 0, 0, NULL, "a unix socket on which to tell it what to do wrong, for tests" },
	{ "drain-timeout", "TIME", FLAG_TIME, FIELD(drain_timeout_ms), 0, 0, "30s", "how long SIGTERM waits for what runs" },
	{ "log-level", "LEVEL", FLAG_LEVEL, FIELD(log_level), 0, 0, "info", "error, warn, notice, info or debug" },
};
/* clang-format on */

static bool complain(const struct flag *f, const char *value, const char *want)
{
	(void)fprintf(stderr, "kvsteer-engine: --%s %s: %s\n", f->name, value, want);
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
	(void)snprintf(want, sizeof(want), "a number from %g to %g is expected", f->min, f->max);
	return complain(f, value, want);
}

static bool set_integer(const struct flag *f, const char *value, uint64_t *out)
{
	char want[96];
	uint64_t n;

	if (span_to_u64(span_str(value), &n) == 0 && n >= (uint64_t)f->min && n <= (uint64_t)f->max) {
		*out = n;
		return true;
	}
	(void)snprintf(
		want, sizeof(want), "a whole number from %.0f to %.0f is expected", f->min, f->max);
	return complain(f, value, want);
}

/* Puts n where the flag's field is, in its width. */
static void store(const struct flag *f, struct engine_flags *out, uint64_t n)
{
	void *field = (char *)out + f->offset;

	if (f->type == FLAG_U16)
		*(uint16_t *)field = (uint16_t)n;
	else if (f->type == FLAG_U32)
		*(uint32_t *)field = (uint32_t)n;
	else if (f->type == FLAG_UINT)
		*(unsigned *)field = (unsigned)n;
	else
		*(uint64_t *)field = n;
}

static bool set_time(const struct flag *f, const char *value, uint64_t *out)
{
	const char *hint = "a time with a unit is expected, such as 30s";

	return conf_duration_ms(span_str(value), out, &hint) == 0 || complain(f, value, hint);
}

static bool set_flag(const struct flag *f, struct engine_flags *out, const char *value)
{
	void *field = (char *)out + f->offset;
	uint64_t n;

	switch (f->type) {
	case FLAG_TEXT:
		*(const char **)field = value;
		return *value != '\0' || complain(f, "''", "a name is expected");
	case FLAG_REAL:
		return set_real(f, value, field);
	case FLAG_TIME:
		return set_time(f, value, field);
	case FLAG_LEVEL:
		return log_level_parse(span_str(value), field) == 0 ||
		       complain(f, value, "error, warn, notice, info or debug is expected");
	case FLAG_BACKEND:
		*(const struct backend_ops **)field = backend_find(value);
		return backend_find(value) != NULL ||
		       complain(f, value, "there is no such backend; sim is expected");
	default:
		if (!set_integer(f, value, &n))
			return false;
		store(f, out, n);
		return true;
	}
}

static void print_help(void)
{
	printf("usage: kvsteer-engine [flags]\n"
	       "An OpenAI-compatible inference server; see kvsteer-engine(8).\n\n");
	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		const struct flag *f = &flags[i];
		char left[48];

		(void)snprintf(left, sizeof(left), "--%s %s", f->name, f->arg);
		printf("  %-28s %s%s%s%s\n", left, f->help, f->deflt != NULL ? " [" : "",
			f->deflt != NULL ? f->deflt : "", f->deflt != NULL ? "]" : "");
	}
	printf("  %-28s %s\n  %-28s %s\n", "-V, --version", "print the version", "-h, --help",
		"print this");
}

static void set_defaults(struct engine_flags *out)
{
	memset(out, 0, sizeof(*out));
	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		bool ok = flags[i].deflt == NULL || set_flag(&flags[i], out, flags[i].deflt);

		assert(ok);
	}
}

/* What only several flags together can get wrong. */
static enum flags_result check(struct engine_flags *out)
{
	uint64_t held = (uint64_t)out->engine.sched.n_blocks * KV_BLOCK;

	if (out->fault_socket != NULL && out->engine.backend != &backend_sim) {
		(void)fprintf(stderr, "kvsteer-engine: --fault-socket is for the sim backend\n");
		return FLAGS_USAGE;
	}
	if (out->served_name == NULL)
		out->served_name = out->model;
	if (out->max_model_len == 0)
		out->max_model_len = held;
	out->engine.model = out->model;
	if (out->max_model_len >= 2 && out->max_model_len <= held)
		return FLAGS_RUN;
	(void)fprintf(stderr,
		"kvsteer-engine: --max-model-len %llu: from 2 to %llu is expected, what "
		"--sim-blocks %u hold\n",
		(unsigned long long)out->max_model_len, (unsigned long long)held,
		out->engine.sched.n_blocks);
	return FLAGS_USAGE;
}

enum flags_result engine_flags_parse(int argc, char **argv, struct engine_flags *out)
{
	struct option options[ARRAY_LEN(flags) + 3] = { { 0 } };
	int c, i = 0;

	for (size_t k = 0; k < ARRAY_LEN(flags); k++)
		options[k] = (struct option){ flags[k].name, required_argument, NULL, 256 };
	options[ARRAY_LEN(flags)] = (struct option){ "version", no_argument, NULL, 'V' };
	options[ARRAY_LEN(flags) + 1] = (struct option){ "help", no_argument, NULL, 'h' };
	set_defaults(out);
	while ((c = getopt_long(argc, argv, "Vh", options, &i)) != -1) {
		if (c == 'V') {
			printf("kvsteer-engine " KVSTEER_VERSION "\n");
			return FLAGS_DONE;
		}
		if (c == 'h') {
			print_help();
			return FLAGS_DONE;
		}
		if (c != 256 || !set_flag(&flags[i], out, optarg))
			break;
	}
	if (c == -1 && optind == argc)
		return check(out);
	if (c == -1)
		(void)fprintf(stderr, "kvsteer-engine: %s: no such argument\n", argv[optind]);
	(void)fprintf(stderr, "kvsteer-engine --help lists the flags\n");
	return FLAGS_USAGE;
}
