/*
 * The engine: a backend, its scheduler, and the loop's events that begin and finish their
 * steps. The loop begins one step a turn, so that sockets get theirs in between. It never
 * waits for a step: the backend computes on threads of its own (backend.h) and wakes the
 * loop when the step is done.
 *
 * Scheduler and sequences belong to the loop's thread. So nothing here is locked, and an
 * abort is a function call.
 */
#ifndef ENGINE_CORE_ENGINE_H
#define ENGINE_CORE_ENGINE_H

#include "base/list.h"
#include "core/sched.h"

/* A step may take this long, or ENGINE_STALL_STEPS times as long as the longest one. */
enum { ENGINE_STALL_MS = 5000, ENGINE_STALL_STEPS = 3 };

struct loop;
struct engine;
struct vocab;

struct engine_opts {
	const struct backend_ops *backend;
	struct backend_opts open; /* model, n_blocks, block_tokens and own */
	struct sched_opts sched;  /* without sizes of blocks, audits and callback */
	/* The backend is open, or err says why not: ERR_NOMEM, or what its open says.
	 * From the loop, once. May be NULL. */
	void (*on_ready)(void *arg, int err);
	void *arg;
};

/* Begins to open the backend, on a thread of its own. ERR_NOMEM, ERR_IO (no
 * descriptors). */
int engine_new(
	struct loop *l, const struct engine_opts *opts, struct engine **out) MUST_CHECK;
/* Whether the backend is open. Until then there is no scheduler and no vocabulary. */
bool engine_is_ready(const struct engine *e);
/* Drops all without calling anybody, after the step that runs. NULL is fine. */
void engine_free(struct engine *e);

/* Asks for a step of nothing, as a sign of life. Zero it before its first use. */
struct engine_poke {
	TAILQ_ENTRY(engine_poke) link;
	/* Such a step ended; not 0: the backend failed. */
	void (*fn)(void *arg, int err);
	void *arg;
	bool is_set;
};
void engine_poke(struct engine *e,
	struct engine_poke *poke); /* once; the caller's memory until fn or cancel */
void engine_poke_cancel(struct engine *e, struct engine_poke *poke); /* idempotent */

/* Faults of the sim backend */

/* From now on all takes `slow` (> 0) times its time; wedged: no step is made any more.
 * Steps that were late do not catch up. */
void engine_set_pace(struct engine *e, double slow, bool is_wedged);
/* An empty cache and counters at zero, as after a start; there must be no sequences.
 * Waits for the step that runs, and opens the backend on the loop's thread. ERR_NOMEM, or
 * what open() says: all stays. */
int engine_restart(struct engine *e) MUST_CHECK;

/* NULL before it is ready; another one after engine_restart(). */
struct sched *engine_sched(struct engine *e);
const char *engine_backend(const struct engine *e); /* its name */
const struct vocab *engine_vocab(const struct engine *e);
/* How long a step may take, where the longest one so far took this long. */
static inline uint64_t engine_stall_after_ms(uint64_t longest_us)
{
	return MAX((uint64_t)ENGINE_STALL_MS, ENGINE_STALL_STEPS * longest_us / 1000);
}

/* That of this engine. */
uint64_t engine_stall_ms(const struct engine *e);
/* Whether steps begin and end in time: the step that runs has begun, or else the next one
 * was due, less than engine_stall_ms() ago. True while wedged: that is a fault that
 * nobody admits. */
bool engine_is_live(const struct engine *e, uint64_t now_us);

#endif
