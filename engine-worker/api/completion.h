/*
 * One completion or chat request from its body to the last byte of its answer: its
 * choices, what they have said so far, and the JSON around it. Owned by itself: it ends
 * with its answer, or when its client leaves.
 */
#ifndef ENGINE_API_COMPLETION_H
#define ENGINE_API_COMPLETION_H

#include "api/params.h"
#include "base/list.h"

struct engine_histograms;
struct faults;
struct handoff;
struct http_call;
struct sched;

struct completion;

/* Those that are not finished. All zero is an empty list. */
struct completion_list {
	LIST_HEAD(, completion) open;
	unsigned n;
};

struct completion_opts {
	struct sched *sched;
	struct params_limits limits;
	struct completion_list *all;
	struct engine_histograms *histograms;
	struct faults *faults;
	struct handoff *handoff;
};

/* Starts answering the call; refusals are answered at once. */
void completion_start(
	const struct completion_opts *opts, struct http_call *call, bool is_chat);

/* Ends all of them as the death of the engine does: with 500, and streams with an error
 * event. */
void completions_break(struct completion_list *all);
/* Ends all of them where they are, with the finish_reason abort. */
void completions_abort(struct completion_list *all);

#endif
