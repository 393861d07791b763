/*
 * The settings of kvsteer-engine: its command line, and its configuration file.
 */
#ifndef ENGINE_FLAGS_H
#define ENGINE_FLAGS_H

#include "backend/backend_sim.h"
#include "base/flag.h"
#include "base/log.h"
#include "core/engine.h"
#include "kvx/kv_handoff.h"

struct engine_flags {
	const char *host; /* IP literal */
	uint16_t port;    /* 0: the kernel chooses */
	const char *model,
		*served_name;   /* served_name: what clients call it; NULL: model */
	uint64_t max_model_len; /* 0: as much as the KV cache holds */
	uint64_t drain_timeout_ms;
	const char *fault_socket;           /* a path; NULL: none */
	const char *kvx_listen, *kvx_peers; /* as given; in handoff as they are meant */
	struct handoff_opts handoff;
	enum log_level log_level;
	struct engine_opts engine;
	/* The sim backend: tokens a second, the latency of each step, and a factor on all
	 * times. sim has them in the form that the backend takes. */
	double prefill_rate, decode_rate, speed;
	uint64_t step_ms;
	struct sim_pace sim;
	struct flag_values values; /* as given */
	bool is_tested;            /* -t: FLAG_USAGE is its answer */
};

/*
 * Fills *out from the files that -c names and the flags over them. FLAG_DONE: -h, -V, -t
 * or -T was answered. FLAG_USAGE: stderr says what is wrong. Strings point into argv or
 * out->values, out->engine into *out, which must stay where it is; engine_flags_free()
 * ends all three.
 */
enum flag_result engine_flags_parse(
	int argc, char **argv, struct engine_flags *out) MUST_CHECK;
void engine_flags_free(struct engine_flags *out);
/* The rows of --dump-tables. */
void engine_flags_dump(void);

#endif
