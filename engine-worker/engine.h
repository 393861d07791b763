/*
 * The engine: a backend, its scheduler, and the timer of the loop that makes their steps. One step a turn, so that sockets get theirs in between.
 *
 * One thread, the loop's, for HTTP and steps alike: sim's steps take microseconds, and so nothing here is locked and an abort is a function
 * call. A backend that computes brings threads of its own (backend.h).
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "sched.h"

enum { ENGINE_STALL_MS = 5000 };

struct loop;
struct engine;

struct engine_opts {
	const struct backend_ops *backend;
	const char *model;
	double prefill_rate, decode_rate; /* of the sim backend: tokens a second */
	uint64_t step_ms;		  /* of the sim backend: latency of each step */
	double speed;			  /* factor on all times; 0: none */
	struct sched_opts sched;	  /* without times, audits and callback */
};

/* ERR_NOMEM, ERR_IO (no descriptors), or what the backend's open says. */
int engine_new(struct loop *l, const struct engine_opts *opts, struct engine **out) MUST_CHECK;
void engine_free(struct engine *e); /* drops all without calling anybody; NULL is fine */

struct sched *engine_sched(struct engine *e);
const char *engine_backend(const struct engine *e); /* its name */
/* Whether steps are made when they are due, at the latest ENGINE_STALL_MS later. */
bool engine_is_live(const struct engine *e, uint64_t now_us);

#endif
