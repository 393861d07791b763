/*
 * The engine's HTTP API: OpenAI's completions and chats, streamed or whole, the
 * tokenizer, and what operators and routers read. Runs on the loop's thread; owns the
 * server, not the engine behind it.
 */
#ifndef ENGINE_API_SERVE_H
#define ENGINE_API_SERVE_H

#include "base/base.h"

struct loop;
struct engine;
struct fault_target;
struct handoff_opts;
struct serve;

struct serve_opts {
	const char *model;    /* the name clients use; must outlive the server */
	size_t max_model_len; /* tokens of prompt and answer; 0: as many as it holds */
	const struct handoff_opts *handoff;
};

/* Takes the listening descriptor, unless it fails: ERR_NOMEM; ERR_IO: the hand-off's
 * address, errno tells. Until serve_ready() all that needs the model is answered with
 * 503. */
int serve_new(struct loop *l, int listen_fd, struct engine *engine,
	const struct serve_opts *opts, struct serve **out) MUST_CHECK;
/* The engine is ready. ERR_NOMEM; ERR_LIMIT: it does not hold max_model_len tokens. */
int serve_ready(struct serve *s) MUST_CHECK;
size_t serve_max_model_len(const struct serve *s); /* once it is ready */
/* Its side of hand-offs. */
const struct handoff *serve_handoff(const struct serve *s);
/*
 * Where its faults are set. Its restart is as if the process had ended and begun anew:
 * all connections break, nothing is cached, counters are at zero, there is another
 * engine_id and another start time; faults stay. Not from inside a handler of this
 * server. ERR_NOMEM: the connections broke, what was kept for others is gone, all else
 * stays. ERR_CLOSED: it is not ready yet, and all stays.
 */
const struct fault_target *serve_fault_target(const struct serve *s);
/* What runs goes on. While something does, whoever connects is told that the engine
 * drains; then nobody can connect. */
void serve_drain(struct serve *s);
/* Goes on with the drain. Whether nothing runs, nobody is connected, and nothing is kept
 * for another worker. */
bool serve_is_drained(struct serve *s);
void serve_free(struct serve *s); /* cuts what runs; NULL is fine */

#endif
