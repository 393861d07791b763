/*
 * A call to every worker of a pool: each host is asked once, all at the same time, drained
 * ones and those that are down included. What it says of the pool's caches holds for the
 * workers that did it: if all did, the pool's generation is bumped, else these are
 * forgotten alone, so that affinity is not lost for one worker's flush. Control thread.
 */
#ifndef FLEET_FLEET_CALL_H
#define FLEET_FLEET_CALL_H

#include "base/base.h"
#include "base/span.h"

struct fetcher;
struct fleet_call;
struct js;
struct pool;

#define FLEET_CALL_PATHS_MAX 2

#define FLEET_CALL_FIELDS_MAX 4

/* Everything is copied, but for a body that stays. */
struct fleet_call_ask {
	const char *method;
	/* With its query; a host that answers 404 or 405 is asked the next one. */
	const char *paths[FLEET_CALL_PATHS_MAX];
	/* Header lines without their end; those that are NULL do not count. No
	 * Content-Type: JSON. */
	const char *fields[FLEET_CALL_FIELDS_MAX];
	bool hides_key; /* they have a client's credentials, and those of workers rest */
	struct span body;
	bool body_stays;     /* until the call is freed */
	uint64_t timeout_ms; /* 0: a worker's first_byte_timeout */
	bool drops_caches;   /* a worker that did it has an empty cache */
	bool stops_requests;
};

struct fleet_call_outcome {
	const char *worker;  /* as configured: all its ranks */
	bool did_it;         /* answered with 2xx */
	int status;          /* 0: no answer */
	const char *why_not; /* "" where it did it */
	struct span answer;  /* the body, up to FLEET_CALL_ANSWER_MAX */
	bool is_cut;         /* there was more of it */
};
#define FLEET_CALL_ANSWER_MAX 65536

/*
 * on_done(arg, call) comes later, once, when every host has answered or not; not for one
 * that was freed before. If no host could be asked it is over at once
 * (fleet_call_is_over), and on_done does not come. NULL: out of memory.
 */
struct fleet_call *fleet_call_start(struct fetcher *f, struct pool *p,
	const struct fleet_call_ask *ask,
	void (*on_done)(void *arg, struct fleet_call *call), void *arg);
/* Empties the prefix caches, by the call that each engine has for it. */
struct fleet_call *fleet_call_flush(struct fetcher *f, struct pool *p,
	void (*on_done)(void *arg, struct fleet_call *call), void *arg);
bool fleet_call_is_over(const struct fleet_call *call);
/* Cancels what is under way. NULL is fine; allowed in on_done. */
void fleet_call_free(struct fleet_call *call);

struct pool *fleet_call_pool(const struct fleet_call *call);
size_t fleet_call_count(const struct fleet_call *call);
struct fleet_call_outcome fleet_call_outcome(const struct fleet_call *call, size_t i);
/* Every worker did it. */
bool fleet_call_is_good(const struct fleet_call *call);
/* "1 of 3 workers did not do it: gpu1 (connection refused)" */
void fleet_call_say(const struct fleet_call *call, char *out, size_t n);
/* "workers": [{"worker", "status", "answer", "is_cut", "message"}], as an array of its own. */
struct js *fleet_call_list(const struct fleet_call *call);

#endif
