/*
 * The plan of a step.
 */
#ifndef ENGINE_CORE_SCHED_PLAN_H
#define ENGINE_CORE_SCHED_PLAN_H

#include "base/base.h"

struct sched;

/* Fills rows and planned with what is due at now_us; may admit and preempt sequences. */
void sched_plan(struct sched *s, uint64_t now_us);

#endif
