/*
 * The command line of kvsteer-engine.
 */
#ifndef ENGINE_ENGINE_FLAGS_H
#define ENGINE_ENGINE_FLAGS_H

#include "base/log.h"
#include "engine.h"

struct engine_flags {
	const char *host; /* IP literal */
	uint16_t port;	  /* 0: the kernel chooses */
	const char *model, *served_name; /* served_name: what clients call it; NULL: model */
	uint64_t max_model_len;		 /* 0: as much as the KV cache holds */
	uint64_t drain_timeout_ms;
	const char *fault_socket; /* a path; NULL: none */
	enum log_level log_level;
	struct engine_opts engine;
};

enum flags_result { FLAGS_RUN, FLAGS_DONE, FLAGS_USAGE };

/*
 * Fills *out. FLAGS_DONE: -h or -V was answered on stdout. FLAGS_USAGE: stderr says what is wrong. Strings point into argv. out->engine's
 * sched has no times and no callback.
 */
enum flags_result engine_flags_parse(int argc, char **argv, struct engine_flags *out);

#endif
