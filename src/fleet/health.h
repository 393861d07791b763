/*
 * The health of workers: probes, their addresses, their states, and the models, KV
 * capacity and restarts that the router learns on the way. Runs on the control thread.
 * Never touches a load. A worker's state changes in one function, which logs the change
 * once with its reason.
 */
#ifndef FLEET_HEALTH_H
#define FLEET_HEALTH_H

#include "base/base.h"
#include "pool/pool.h"

struct health;
struct loop;
struct models;

/*
 * NULL: memory, descriptors or threads are short. on_change(arg) comes after each change
 * of a worker's state, and when workers come and go; it must not change the set of
 * workers.
 */
struct health *health_new(struct loop *l, void (*on_change)(void *arg), void *arg);
/* After every pool was closed. NULL is fine. */
void health_free(struct health *h);

/* Connects to workers failed (reach.h): these are suspect, looked up and probed now. */
void health_check_doubts(struct health *h);
/* After a reload: new intervals count from the last probe, not from the next one. */
void health_reconfigured(struct health *h);

/* Given to pools, with the health as their arg: workers that come are probed at once. */
extern const struct pool_ops health_pool_ops;

/* The answer to GET /v1/models; any thread may copy from it. */
struct models *health_models(struct health *h);

#endif
