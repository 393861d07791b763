/*
 * One completion or chat request from its body to the last byte of its answer: its
 * choices, what they have said so far, and the JSON around it. Owned by itself: it ends
 * with its answer, or when its client leaves.
 */
#ifndef ENGINE_API_COMPLETION_H
#define ENGINE_API_COMPLETION_H

#include "api/params.h"

struct engine_histograms;
struct faults;
struct handoff;
struct http_call;
struct sched;

struct completion_opts {
	struct sched *sched;
	struct params_limits limits;
	unsigned *n_open; /* counts the completions that are not finished */
	struct engine_histograms *histograms;
	struct faults *faults;
	struct handoff *handoff;
};

/* Starts answering the call; refusals are answered at once. */
void completion_start(
	const struct completion_opts *opts, struct http_call *call, bool is_chat);

#endif
