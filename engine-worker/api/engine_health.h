/*
 * GET /health: whether the engine takes work and makes its steps. While the model is
 * loaded the answer is 503 with the status "loading". With deep=1 in the query the
 * backend answers, by a step of nothing. Faults may make the answer wrong, late or
 * missing. Runs on the loop's thread.
 */
#ifndef ENGINE_API_ENGINE_HEALTH_H
#define ENGINE_API_ENGINE_HEALTH_H

#include "base/base.h"

struct engine;
struct faults;
struct engine_health;
struct http_call;
struct loop;

/* engine_id and faults must outlive it. NULL: out of memory. */
struct engine_health *engine_health_new(struct loop *l, struct engine *engine,
	const struct faults *faults, const char *role, const char *engine_id);
/* Answers the call, now or later. */
void engine_health_handle(struct engine_health *h, struct http_call *call);
/* The faults were changed: who waited for that is answered. */
void engine_health_refresh(struct engine_health *h);
/* From now on 503, also for those who wait. */
void engine_health_drain(struct engine_health *h);
void engine_health_free(struct engine_health *h); /* after its calls; NULL is fine */

#endif
