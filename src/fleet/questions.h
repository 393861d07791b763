/*
 * What an engine that its probe finds well is asked besides: whether it sleeps, or takes
 * no requests for another reason. One question after the other, each only where the
 * engine has its path: one that does not answer it is not asked it again until it may be
 * another process. Control thread; called by health.c.
 */
#ifndef FLEET_QUESTIONS_H
#define FLEET_QUESTIONS_H

#include "base/base.h"
#include "fleet/says.h"

#define N_QUESTIONS 2

struct fetch;
struct fetcher;
struct host;

struct questions_outcome {
	bool is_resting;  /* it wants no requests now */
	bool is_silent;   /* a path did not answer this time */
	bool loses_cache; /* what it computed is gone */
	const char *why;  /* it rests */
};

struct questions {
	const struct host *host;
	struct fetcher *fetcher;
	void (*on_done)(void *arg, const struct questions_outcome *o);
	void *arg;
	struct fetch *fetch; /* NULL: none under way */
	unsigned at;
	bool is_sglang;
	uint64_t timeout_ms;
	bool is_mute[N_QUESTIONS];
	unsigned restarts; /* of the host, as it was asked last */
};

/* host lives longer. */
void questions_init(struct questions *q, const struct host *host, struct fetcher *f,
	void (*on_done)(void *arg, const struct questions_outcome *o), void *arg);
/* True: on_done comes later; false: there is nothing to ask. */
bool questions_ask(struct questions *q, bool is_sglang, uint64_t timeout_ms);
/* on_done does not come. */
void questions_cancel(struct questions *q);
/* The host was away: another process may answer now. */
void questions_start_anew(struct questions *q);

#endif
