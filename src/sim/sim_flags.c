/*
 * The command line of the simulator. See sim_flags.h. Called by simulate.c, once.
 */
#include "sim/sim_flags.h"

#include "base/dump.h"
#include "base/err.h"

#include <stdio.h>
#include <string.h>

#define FIELD(f) offsetof(struct sim_flags, f)
#define KV_TOKENS_MIN 1024

static flag_read_fn read_policy;

/* clang-format off */
static const struct flag flags[] = {
	{ "simulate", NULL, flag_on, FIELD(simulate), 0, 0, NULL, "compare policies over a trace in virtual time" },
	{ "trace", "FILE", flag_text, FIELD(trace), 0, 0, NULL, "a trace in Mooncake's format" },
	{ "policy", "SPEC|all", read_policy, FIELD(policies), 0, 0, "(all)", "POLICY[:SIGNAL[:COST]][,KEY=VALUE...]; repeat for more" },
	{ "workers", "N", flag_u64, FIELD(workers), 1, 1024, "8", "number of workers" },
	{ "kv-tokens", "N", flag_u64, FIELD(kv_tokens), 0, 1e12, "0", "KV cache of each worker; 0: unlimited" },
	{ "prefill-rate", "R", flag_real, FIELD(prefill_rate), 0.001, 1e12, "8000", "prompt tokens a second, one prompt after another" },
	{ "decode-rate", "R", flag_real, FIELD(decode_rate), 0.001, 1e6, "50", "new tokens a second for each sequence" },
	{ "max-seqs", "N", flag_u64, FIELD(max_seqs), 1, 1e6, "256", "sequences that run at once on a worker" },
	{ "max-requests", "N", flag_u64, FIELD(max_requests), 0, 1e6, "0", "requests that the router sends to a worker at a time; 0: no limit" },
	{ "requests", "N", flag_u64, FIELD(requests), 1, 1e15, "(all)", "use only this many, from the start of the trace" },
	{ "speed", "F", flag_real, FIELD(speed), 1e-6, 1e6, "1", "play the trace this many times as fast" },
	{ "speed-free", NULL, flag_on, FIELD(speed_free), 0, 0, NULL, "let nothing take time: each request ends before the next begins" },
	{ "seed", "N", flag_u64, FIELD(seed), 0, 1e15, "1", "seed of all random choices" },
	{ "json", "FILE", flag_text, FIELD(json), 0, 0, NULL, "write the report as JSON; -: stdout, instead of the table" },
	{ "plot", "FILE.svg", flag_text, FIELD(plot), 0, 0, NULL, "draw the comparison" },
};
/* clang-format on */

static const struct flag_type types[] = {{read_policy, "policy"}};

static const struct flag_set set = {
	.program = "kvsteer-bench",
	.about = "With --simulate: compares routing policies over a trace; see "
		 "kvsteer-bench(1).",
	.flags = flags,
	.n = ARRAY_LEN(flags),
	.types = types,
	.n_types = ARRAY_LEN(types),
};

static int read_policy(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	struct sim_policies *p = field;

	(void)f;
	if (*value != '\0' && p->n < SIM_POLICIES_MAX) {
		p->specs[p->n++] = value;
		return 0;
	}
	(void)snprintf(want, n, "up to %d policies are expected", SIM_POLICIES_MAX);
	return ERR_PARSE;
}

static const char *check(const struct sim_flags *f)
{
	if (f->trace == NULL)
		return "--simulate needs --trace";
	if (f->kv_tokens > 0 && f->kv_tokens < KV_TOKENS_MIN)
		return "--kv-tokens must be 0, or at least 1024";
	return NULL;
}

enum flag_result sim_flags_parse(int argc, char **argv, struct sim_flags *out)
{
	struct flag_values values = {0};
	enum flag_result result;
	const char *why;

	memset(out, 0, sizeof(*out));
	result = flag_parse(&set, argc, argv, out, &values);
	if (result == FLAG_RUN && (why = check(out)) != NULL) {
		(void)fprintf(stderr,
			"kvsteer-bench: %s\nkvsteer-bench --simulate --help lists the "
			"flags\n",
			why);
		result = FLAG_USAGE;
	}
	flag_values_free(&set, &values);
	if (out->policies.n == 0)
		out->policies.specs[out->policies.n++] = "all";
	return result;
}

void sim_flags_dump(void)
{
	dump_flags(&set);
}
