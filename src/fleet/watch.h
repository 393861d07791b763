/*
 * Watches the progress of workers: takes samples of the relay's counts at regular times,
 * has each group of peers judged (worker/progress.h), and reports changed verdicts.
 * Offers the trials of those that are stalled or degraded. Runs on the control thread;
 * called by health.c, which turns verdicts into states.
 */
#ifndef FLEET_WATCH_H
#define FLEET_WATCH_H

#include "base/base.h"

struct loop;
struct pool;
struct watch;
struct worker;

/* The verdict of w, now w->progress.verdict, has changed; w->verdict_reason says why,
 * with its figures. Must not change the set of workers. */
typedef void watch_fn(void *arg, struct pool *p, struct worker *w);

struct watch *watch_new(struct loop *l, watch_fn *fn, void *arg); /* NULL: no memory */
void watch_free(struct watch *watch);                             /* NULL is fine */
/* Room for `more` workers, without which none may be added. ERR_NOMEM. */
int watch_make_room(struct watch *watch, size_t more) MUST_CHECK;
/* Borrowed until dropped. */
void watch_add(struct watch *watch, struct pool *p, struct worker *w);
void watch_drop(struct watch *watch, struct worker *w);
/* After a reload: options and groups of peers may have changed. */
void watch_reconfigured(struct watch *watch);

#endif
