/*
 * What an engine says of its own state in response to a probe or to a question beside it.
 * Pure: answers in, words out. Called by health.c.
 */
#ifndef FLEET_SAYS_H
#define FLEET_SAYS_H

#include "base/base.h"
#include "worker/worker.h"

struct fetch_answer;

/*
 * Why it refuses its probe. False: it does not say. *how: loading, also while it changes
 * its ranks; or draining, once it shuts down. *why: for people.
 */
bool says_why_not(const struct fetch_answer *a, enum worker_state *how, const char **why);

/* A question to an engine that its probe finds well. */
enum says { SAYS_NOTHING, SAYS_NO, SAYS_YES };
/* GET /is_sleeping of vLLM and our engine: {"is_sleeping":true}. */
enum says says_sleeps(const struct fetch_answer *a);
/* GET /ready of SGLang: 503 while its generation is paused. */
enum says says_unready(const struct fetch_answer *a);

#endif
