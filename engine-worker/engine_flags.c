/*
 * The settings of kvsteer-engine: one table of flags drives parsing, ranges, defaults,
 * -h, and the keys of its file. Called by engine_daemon.c, once at start.
 */
#include "engine_flags.h"
#include "base/dump.h"
#include "base/err.h"
#include "base/span.h"
#include "io/sock.h"

#include <stdio.h>

#define FIELD(f) offsetof(struct engine_flags, f)

static flag_read_fn read_host, read_level, read_backend, read_policy, read_listen,
	read_peers;

/* clang-format off */
static const struct flag flags[] = {
	{ "host", "ADDRESS", read_host, FIELD(host), 0, 0, "127.0.0.1", "address to listen on (IPv4 or IPv6)" },
	{ "port", "N", flag_u16, FIELD(port), 0, 65535, "8000", "port to listen on; 0: the kernel chooses" },
	{ "backend", "NAME", read_backend, FIELD(engine.backend), 0, 0, "sim", "the backend that computes; sim is the only one" },
	{ "model", "NAME", flag_text, FIELD(model), 0, 0, "sim", "the model" },
	{ "served-model-name", "NAME", flag_text, FIELD(served_name), 0, 0, "(the model)", "the model's name in requests and answers" },
	{ "max-model-len", "N", flag_u64, FIELD(max_model_len), 0, 1e9, "0", "largest sum of prompt and answer tokens; 0: the size of the KV cache" },
	{ "max-num-seqs", "N", flag_u32, FIELD(engine.sched.max_seqs), 1, 100000, "256", "sequences that run at the same time" },
	{ "max-num-batched-tokens", "N", flag_u32, FIELD(engine.sched.step_tokens), SCHED_STEP_MIN, 1e6, "512", "largest number of tokens in one step" },
	{ "long-prefill-token-threshold", "N", flag_u32, FIELD(engine.sched.long_prefill_tokens), 0, 1e6, "0", "largest number of tokens of one prompt in a round of max-num-batched-tokens; 0: no limit" },
	{ "max-waiting", "N", flag_u32, FIELD(engine.sched.max_waiting), 0, 1e6, "4096", "sequences that may wait; the engine refuses further requests" },
	{ "sim-prefill-rate", "N", flag_real, FIELD(prefill_rate), 0.001, 1e12, "8000", "prompt tokens per second, one prompt after another" },
	{ "sim-decode-rate", "N", flag_real, FIELD(decode_rate), 0.001, 1e12, "50", "new tokens per second of each sequence" },
	{ "sim-step-latency", "TIME", flag_time, FIELD(step_ms), 0, 0, "0", "additional time of each prompt chunk and each new token" },
	{ "sim-blocks", "N", flag_u32, FIELD(engine.open.n_blocks), 2, 1e8, "4096", "size of the KV cache in blocks of 16 tokens" },
	{ "sim-speed", "F", flag_real, FIELD(speed), 0, 1e6, "1", "factor on all times; 0: nothing takes time" },
	{ "role", "unified|prefill|decode", flag_choice, FIELD(handoff.role), 0, 0, "unified", "role of the worker; prefill and decode turn hand-offs on" },
	{ "kvx-listen", "ADDRESS:PORT", read_listen, FIELD(kvx_listen), 0, 0, "(off, or 127.0.0.1:0 with a role)", "address where other workers pull computed prompts" },
	{ "kvx-advertise", "ADDRESS", read_host, FIELD(handoff.advertise), 0, 0, "(that of kvx-listen)", "address under which other workers reach kvx-listen" },
	{ "kvx-peers", "LIST", read_peers, FIELD(kvx_peers), 0, 0, "127.0.0.0/8,::1", "networks of workers that may connect, or be connected to" },
	{ "kvx-connect-timeout", "TIME", flag_time, FIELD(handoff.connect_ms), 1, 0, "1s", "time for a connection to a prefill worker, for each of two tries" },
	{ "kvx-stall-timeout", "TIME", flag_time, FIELD(handoff.stall_ms), 1, 0, "3s", "time to wait for the next block of a prefill worker" },
	{ "kv-lease", "TIME", flag_time, FIELD(handoff.lease_ms), 10, 0, "30s", "time that a prompt is kept for a worker that sends no heartbeat" },
	{ "max-leased-fraction", "F", flag_real, FIELD(handoff.max_leased), 0, 1, "0.5", "part of the KV cache that may be kept for other workers" },
	{ "kv-load-failure-policy", "fail|recompute", read_policy, FIELD(handoff.recomputes), 0, 0, "fail", "what happens when a prompt cannot be pulled" },
	{ "fault-socket", "PATH", flag_text, FIELD(fault_socket), 0, 0, NULL, "unix socket on which a test tells the engine to misbehave" },
	{ "drain-timeout", "TIME", flag_time, FIELD(drain_timeout_ms), 0, 0, "30s", "time that a drain may take" },
	{ "log-level", "LEVEL", read_level, FIELD(log_level), 0, 0, "info", "error, warn, notice, info or debug" },
};
/* clang-format on */

static const struct flag_type types[] = {{read_host, "address"}, {read_level, "level"},
	{read_backend, "name"}, {read_policy, "word"}, {read_listen, "address"},
	{read_peers, "list"}};

static const struct flag_set set = {
	.program = "kvsteer-engine",
	.about = "An OpenAI-compatible inference server; see kvsteer-engine(8).",
	.flags = flags,
	.n = ARRAY_LEN(flags),
	.section = "engine",
	.types = types,
	.n_types = ARRAY_LEN(types),
};

static int read_host(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	union sock_addr a;

	(void)f;
	*(const char **)field = value;
	if (sock_addr_parse(value, 0, &a) == 0)
		return 0;
	(void)snprintf(
		want, n, "an IPv4 or IPv6 address is expected, such as 127.0.0.1 or ::1");
	return ERR_PARSE;
}

static int read_level(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	(void)f;
	if (log_level_parse(span_str(value), field) == 0)
		return 0;
	(void)snprintf(want, n, "error, warn, notice, info or debug is expected");
	return ERR_PARSE;
}

static int read_backend(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
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

static int read_policy(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	(void)f;
	if (strcmp(value, "fail") == 0 || strcmp(value, "recompute") == 0) {
		*(bool *)field = value[0] == 'r';
		return 0;
	}
	(void)snprintf(want, n, "fail or recompute is expected");
	return ERR_PARSE;
}

/* "127.0.0.1:0", "[::1]:0". */
static int parse_listen(const char *text, union sock_addr *out)
{
	struct span host = span_str(text), port;
	const char *colon = strrchr(text, ':');
	char name[SOCK_ADDR_TEXT_MAX];
	uint64_t number;

	if (colon == NULL)
		return ERR_PARSE;
	port = span_str(colon + 1);
	host.n = (size_t)(colon - text);
	if (span_starts(host, SPAN_LIT("[")) && span_ends(host, SPAN_LIT("]")))
		host = span_make(host.p + 1, host.n - 2);
	if (host.n >= sizeof(name) || span_to_u64(port, &number) != 0 ||
		number > UINT16_MAX)
		return ERR_PARSE;
	memcpy(name, host.p, host.n);
	name[host.n] = '\0';
	return sock_addr_parse(name, (uint16_t)number, out);
}

static int read_listen(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	union sock_addr a;

	(void)f;
	*(const char **)field = value;
	if (strcmp(value, "off") == 0 || parse_listen(value, &a) == 0)
		return 0;
	(void)snprintf(want, n,
		"an address and a port are expected, such as 127.0.0.1:0 or "
		"[::1]:5600, or off");
	return ERR_PARSE;
}

/* Returns how many; 0: one of them is none, or they are too many. */
static size_t parse_peers(const char *text, struct ip_net out[HANDOFF_PEERS_MAX])
{
	struct span rest = span_str(text), piece, word;
	size_t n = 0;

	while (span_next(&rest, ',', &piece)) {
		while (span_next_word(&piece, &word)) {
			if (n == HANDOFF_PEERS_MAX || ip_net_parse(word, &out[n++]) != 0)
				return 0;
		}
	}
	return n;
}

static int read_peers(
	const struct flag *f, const char *value, void *field, char *want, size_t n)
{
	struct ip_net peers[HANDOFF_PEERS_MAX];

	(void)f;
	*(const char **)field = value;
	if (parse_peers(value, peers) > 0)
		return 0;
	(void)snprintf(want, n,
		"networks with commas between are expected, such as "
		"10.0.0.0/8,::1, at most %d",
		HANDOFF_PEERS_MAX);
	return ERR_PARSE;
}

static bool is_wildcard(const union sock_addr *a)
{
	char text[SOCK_ADDR_TEXT_MAX];

	(void)sock_addr_text(a, false, text, sizeof(text));
	return strcmp(text, "0.0.0.0") == 0 || strcmp(text, "::") == 0;
}

static bool complete_handoff(struct engine_flags *out)
{
	struct handoff_opts *h = &out->handoff;
	const char *listen = out->kvx_listen;

	if (listen == NULL)
		listen = h->role == ROLE_UNIFIED ? "off" : "127.0.0.1:0";
	if (strcmp(listen, "off") != 0 && parse_listen(listen, &h->listen) != 0)
		return false;
	h->n_peers = parse_peers(out->kvx_peers, h->peers);
	h->model = out->model;
	if (sock_addr_is_inet(&h->listen) && is_wildcard(&h->listen) &&
		h->advertise == NULL) {
		(void)fprintf(stderr,
			"kvsteer-engine: --kvx-listen %s: --kvx-advertise is needed, the "
			"address "
			"by which others reach it\n",
			listen);
		return false;
	}
	return true;
}

/* Checks settings against each other, and fills in defaults that depend on others. */
static bool complete(struct engine_flags *out)
{
	uint64_t held = (uint64_t)out->engine.open.n_blocks * SIM_BLOCK_TOKENS;

	if (out->fault_socket != NULL && out->engine.backend != &backend_sim) {
		(void)fprintf(stderr,
			"kvsteer-engine: --fault-socket is for the sim backend\n");
		return false;
	}
	if (out->served_name == NULL)
		out->served_name = out->model;
	out->engine.open.model = out->model;
	out->sim.prefill_us = out->speed * 1e6 / out->prefill_rate;
	out->sim.decode_us = out->speed * 1e6 / out->decode_rate;
	out->sim.step_us = out->speed * 1e3 * (double)out->step_ms;
	out->engine.open.own = &out->sim;
	if (!complete_handoff(out))
		return false;
	if (out->max_model_len == 0 ||
		(out->max_model_len >= 2 && out->max_model_len <= held))
		return true;
	(void)fprintf(stderr,
		"kvsteer-engine: --max-model-len %llu: from 2 to %llu is expected, what "
		"--sim-blocks %u hold\n",
		(unsigned long long)out->max_model_len, (unsigned long long)held,
		out->engine.open.n_blocks);
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

void engine_flags_dump(void)
{
	dump_flags(&set);
}

void engine_flags_free(struct engine_flags *out)
{
	flag_values_free(&set, &out->values);
}
