/*
 * The settings of kvsteer-engine: one table of flags drives parsing, ranges, defaults, -h, and the keys of its file.
 * Called by engine_daemon.c, once at start.
 */
#include "engine_flags.h"
#include "base/err.h"
#include "base/span.h"
#include "io/sock.h"
#include "kv_cache.h"

#include <stdio.h>

#define FIELD(f) offsetof(struct engine_flags, f)

static flag_read_fn read_host, read_level, read_backend;

/* clang-format off */
static const struct flag flags[] = {
	{ "host", "ADDRESS", read_host, FIELD(host), 0, 0, "127.0.0.1", "address to listen on (IPv4 or IPv6)" },
	{ "port", "N", flag_u16, FIELD(port), 0, 65535, "8000", "port to listen on; 0: the kernel chooses" },
	{ "backend", "NAME", read_backend, FIELD(engine.backend), 0, 0, "sim", "what computes; sim is the only one there is" },
	{ "model", "NAME", flag_text, FIELD(model), 0, 0, "sim", "the model" },
	{ "served-model-name", "NAME", flag_text, FIELD(served_name), 0, 0, "(the model)", "what clients call it" },
	{ "max-model-len", "N", flag_u64, FIELD(max_model_len), 0, 1e9, "0", "tokens of prompt and answer; 0: what the KV cache holds" },
	{ "max-num-seqs", "N", flag_u32, FIELD(engine.sched.max_seqs), 1, 100000, "256", "sequences that run at once" },
	{ "max-num-batched-tokens", "N", flag_u32, FIELD(engine.sched.step_tokens), SCHED_STEP_MIN, 1e6, "512", "tokens computed in one step" },
	{ "long-prefill-token-threshold", "N", flag_u32, FIELD(engine.sched.long_prefill_tokens), 0, 1e6, "0", "tokens of one prompt in a round of max-num-batched-tokens, so that short prompts need not wait for its end; 0: no bound" },
	{ "max-waiting", "N", flag_u32, FIELD(engine.sched.max_waiting), 0, 1e6, "4096", "sequences that may wait; requests beyond are refused" },
	{ "sim-prefill-rate", "N", flag_real, FIELD(engine.prefill_rate), 0.001, 1e12, "8000", "prompt tokens a second, one prompt after another" },
	{ "sim-decode-rate", "N", flag_real, FIELD(engine.decode_rate), 0.001, 1e12, "50", "new tokens a second, of each sequence" },
	{ "sim-step-latency", "TIME", flag_time, FIELD(engine.step_ms), 0, 0, "0", "what each chunk of a prompt and each new token take besides" },
	{ "sim-blocks", "N", flag_u32, FIELD(engine.sched.n_blocks), 2, 1e8, "4096", "KV cache in blocks of 16 tokens" },
	{ "sim-speed", "F", flag_real, FIELD(engine.speed), 0, 1e6, "1", "factor on all times; 0: nothing takes time" },
	{ "fault-socket", "PATH", flag_text, FIELD(fault_socket), 0, 0, NULL, "a unix socket on which to tell it what to do wrong, for tests" },
	{ "drain-timeout", "TIME", flag_time, FIELD(drain_timeout_ms), 0, 0, "30s", "how long SIGTERM waits for what runs" },
	{ "log-level", "LEVEL", read_level, FIELD(log_level), 0, 0, "info", "error, warn, notice, info or debug" },
};
/* clang-format on */

static const struct flag_set set = {
	.program = "kvsteer-engine",
	.about = "An OpenAI-compatible inference server; see kvsteer-engine(8).",
	.flags = flags,
	.n = ARRAY_LEN(flags),
	.section = "engine",
};

static int read_host(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	union sock_addr a;

	(void)f;
	*(const char **)field = value;
	if (sock_addr_parse(value, 0, &a) == 0)
		return 0;
	(void)snprintf(want, n, "an IPv4 or IPv6 address is expected, such as 127.0.0.1 or ::1");
	return ERR_PARSE;
}

static int read_level(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	(void)f;
	if (log_level_parse(span_str(value), field) == 0)
		return 0;
	(void)snprintf(want, n, "error, warn, notice, info or debug is expected");
	return ERR_PARSE;
}

static int read_backend(const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	const struct backend_ops *backend = backend_find(value);

	(void)f;
	if (backend != NULL) {
		*(const struct backend_ops **)field = backend;
		return 0;
	}
	(void)snprintf(want, n, "there is no such backend; sim is expected");
	return ERR_PARSE;
}

/* What only several settings together can get wrong, and the defaults that depend on others. */
static bool complete(struct engine_flags *out)
{
	uint64_t held = (uint64_t)out->engine.sched.n_blocks * KV_BLOCK;

	if (out->fault_socket != NULL && out->engine.backend != &backend_sim) {
		(void)fprintf(stderr, "kvsteer-engine: --fault-socket is for the sim backend\n");
		return false;
	}
	if (out->served_name == NULL)
		out->served_name = out->model;
	if (out->max_model_len == 0)
		out->max_model_len = held;
	out->engine.model = out->model;
	if (out->max_model_len >= 2 && out->max_model_len <= held)
		return true;
	(void)fprintf(stderr,
		"kvsteer-engine: --max-model-len %llu: from 2 to %llu is expected, what "
		"--sim-blocks %u hold\n",
		(unsigned long long)out->max_model_len, (unsigned long long)held,
		out->engine.sched.n_blocks);
	return false;
}

/* -t and -T: what the settings are worth. */
static enum flag_result show(const struct engine_flags *out)
{
	if (out->values.print)
		flag_print(&set, &out->values, stdout);
	if (out->values.test)
		(void)fprintf(stderr, "kvsteer-engine: the configuration is good\n");
	return FLAG_DONE;
}

enum flag_result engine_flags_parse(int argc, char **argv, struct engine_flags *out)
{
	enum flag_result result;

	memset(out, 0, sizeof(*out));
	result = flag_parse(&set, argc, argv, out, &out->values);
	if (result != FLAG_RUN)
		return result;
	out->is_tested = out->values.test;
	if (flag_read_files(&set, out, &out->values) != 0 || !complete(out))
		return FLAG_USAGE;
	return out->values.test || out->values.print ? show(out) : FLAG_RUN;
}

void engine_flags_free(struct engine_flags *out)
{
	flag_values_free(&set, &out->values);
}
