/*
 * The engine: a backend, its scheduler, and the timer of the loop that makes their steps.
 * One step a turn, so that sockets get theirs in between.
 *
 * One thread, the loop's, for HTTP and steps alike: sim's steps take microseconds, and so
 * nothing here is locked and an abort is a function call. A backend that computes brings
 * threads of its own (backend.h).
 */
#ifndef ENGINE_CORE_ENGINE_H
#define ENGINE_CORE_ENGINE_H

#include "base/list.h"
#include "core/sched.h"

enum { ENGINE_STALL_MS = 5000 };

struct loop;
struct engine;

struct engine_opts {
	const struct backend_ops *backend;
	const char *model;
	double prefill_rate, decode_rate; /* of the sim backend: tokens a second */
	uint64_t step_ms;                 /* of the sim backend: latency of each step */
	double speed;                     /* factor on all times; 0: none */
	struct sched_opts sched;          /* without times, audits and callback */
};

/* ERR_NOMEM, ERR_IO (no descriptors), or what the backend's open says. */
int engine_new(
	struct loop *l, const struct engine_opts *opts, struct engine **out) MUST_CHECK;
void engine_free(struct engine *e); /* drops all without calling anybody; NULL is fine */

/* Asks for one more step, though nothing is due: a sign of life. Zero it before its first
 * use. */
struct engine_poke {
	TAILQ_ENTRY(engine_poke) link;
	void (*fn)(void *arg, int err); /* the step was made; not 0: the backend failed */
	void *arg;
	bool is_set;
};
void engine_poke(struct engine *e,
	struct engine_poke *poke); /* once; the caller's memory until fn or cancel */
void engine_poke_cancel(struct engine *e, struct engine_poke *poke); /* idempotent */

/* Faults of the sim backend */

/* From now on all takes `slow` (> 0) times its time; wedged: no step is made any more.
 * What was late or stopped does not catch up. */
void engine_set_pace(struct engine *e, double slow, bool is_wedged);
/* An empty cache and counters at zero, as after a start; there must be no sequences.
 * ERR_NOMEM, or what the backend's open says: all stays. */
int engine_restart(struct engine *e) MUST_CHECK;

/* Another one after engine_restart(). */
struct sched *engine_sched(struct engine *e);
const char *engine_backend(const struct engine *e); /* its name */
/* Whether steps are made when they are due, at the latest ENGINE_STALL_MS later. True
 * while wedged: that is a fault that nobody admits. */
bool engine_is_live(const struct engine *e, uint64_t now_us);

#endif
