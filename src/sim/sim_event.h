/*
 * The events to come, in order of time; at one time in order of kind, then in the order
 * in which they were pushed. Pure.
 */
#ifndef SIM_SIM_EVENT_H
#define SIM_SIM_EVENT_H

#include "base/base.h"

struct sim_job;
struct sim_worker;

/* At one time ends come before begins. */
enum sim_event_kind {
	SIM_EVENT_END,    /* of a job: its last token */
	SIM_EVENT_GROW,   /* a job's next token needs a block */
	SIM_EVENT_PROMPT, /* a worker has computed a prompt */
	SIM_EVENT_ARRIVAL
};

struct sim_event {
	uint64_t at_us;
	enum sim_event_kind kind;
	uint32_t epoch; /* of the job then: an older one means that it no longer counts */
	uint64_t serial; /* filled by sim_events_push() */
	struct sim_job *job;
};

/* A heap. All zero is an empty one. */
struct sim_events {
	struct sim_event *items; /* owned */
	size_t n, cap;
	uint64_t pushed;
};

/* Dies without memory. */
void sim_events_push(struct sim_events *e, struct sim_event event);
/* The next one stays; NULL: there is none. */
const struct sim_event *sim_events_next(const struct sim_events *e);
struct sim_event sim_events_pop(struct sim_events *e); /* there must be one */
void sim_events_free(struct sim_events *e);

#endif
