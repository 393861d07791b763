/*
 * Completion progress: finds the workers of one role that are stalled or degraded. It
 * uses counts that the relay has anyway (requests in flight, bytes of responses, events
 * of streams, completions), and not /health. Pure: the control thread takes samples at
 * regular times and asks for a verdict on each; nothing here is on the data path.
 *
 * Why (vLLM router pull request 238): an engine held 129 requests without a byte for 61
 * minutes behind a green /health; another slowed from 49.6 to 1.0 tokens/s per sequence,
 * and shortest-queue routing began to prefer it, since its clients sent less.
 *
 * Progress is a byte of an answer or a completed answer. A worker is
 *   stalled   with requests in flight and no progress for stall_timeout while a peer made
 *             some in that time; for twice that if no peer did or it has none;
 *   degraded  while its rate, events per second and active stream, has stayed below
 *             degraded_ratio of its peers' median for degraded_window. A rate is taken
 *             over a slice, a tenth of the window; it counts when its slice saw at least
 *             one stream all the time (or PROGRESS_MIN_STREAM_MS of streams). A slice
 * that says nothing (too few streams here or at every peer) neither adds to the time nor
 * ends it, but PROGRESS_STALE_SLICES of them in a row do end it, since old evidence does
 * not count. Peers are the other workers of the group given: same pool, role and models.
 * Rates are per active stream, so that neither many short nor few long requests look
 * slow; and of events, a token each, so that it does not matter how many bytes one takes
 * (log probabilities) or that a response comes in one piece (embeddings). Stalled goes
 * before degraded.
 *
 * A request that waits for its client, because the client reads slowly or still sends, is
 * no work of the worker: the caller leaves it out of in_flight and streams.
 *
 * Back to normal: a stalled worker by progress after the verdict; a degraded one by a
 * slice whose rate is not below the ratio. One that has become idle can show neither: it
 * is tried (progress_trial_due) with one small request after a back-off that doubles from
 * PROGRESS_TRIAL_MS to PROGRESS_TRIAL_MAX_MS with each trial without a result, and
 * counts from the end of the last one. A trial that completes before it streamed long
 * enough for a rate shows a degraded one well.
 */
#ifndef WORKER_PROGRESS_H
#define WORKER_PROGRESS_H

#include "base/base.h"

#define PROGRESS_MIN_STREAM_MS 1000
#define PROGRESS_SLICES 10
#define PROGRESS_STALE_SLICES 20
#define PROGRESS_TRIAL_MS 5000
#define PROGRESS_TRIAL_MAX_MS 300000

/* The state of one worker now. Counters never go back, except for a new worker. */
struct progress_sample {
	unsigned in_flight; /* its load */
	unsigned streams;   /* of these, past the first byte of a streamed answer */
	uint64_t bytes;     /* of answers, so far */
	uint64_t events;    /* of event streams, so far */
	bool has_tokens;    /* its engine says how many tokens a second it generates: */
	double token_rate;
	uint64_t completions;
};

struct progress_opts {
	uint64_t stall_timeout_ms;   /* 0: never stalled */
	double degraded_ratio;       /* 0: never degraded */
	uint64_t degraded_window_ms; /* > 0 */
};

enum progress_verdict { PROGRESS_FINE, PROGRESS_STALLED, PROGRESS_DEGRADED };

struct progress {
	enum progress_verdict verdict;
	uint64_t since_ms; /* of the verdict */

	/* silence */
	bool is_seen; /* a sample was taken */
	uint64_t bytes, events, completions;
	uint64_t moved_ms; /* progress, or work after idleness, was seen last; 0: idle */
	uint64_t proof_ms; /* progress alone; 0: never */

	/* the slice that is being gathered, and the last whole one */
	uint64_t sampled_ms, slice_ms, slice_events, stream_ms;
	double tokens;     /* that the engine generated in the slice, by what it says */
	bool has_tokens;   /* it said so for the whole slice */
	double rate;       /* events/s and stream; < 0: the slice says nothing */
	double whole_rate; /* the same of events or tokens, whichever were more */
	bool is_counted;   /* the engine's tokens are in it */
	bool has_slice;    /* one became whole with the last sample */

	/* slowness */
	uint64_t slow_ms; /* time of slices below the ratio, in a row */
	unsigned stale;   /* slices in a row that say nothing */
	double median;    /* of the peers, at the last judgement */

	/* trials */
	uint64_t trial_ms; /* the next is due then; 0: none wanted */
	unsigned trials;   /* that brought nothing */
	uint64_t trial_completions, trial_stream_ms; /* since the last one began */
};

/* All zero is a worker that was never seen; so is one after this. */
void progress_reset(struct progress *p);

/* Takes one sample of each worker of a group, and judges all. opts[i] are worker i's.
 * Returns how many verdicts changed. */
unsigned progress_judge(struct progress *const *group, const struct progress_sample *now,
	const struct progress_opts *opts, unsigned n, uint64_t now_ms);

/* How long work has waited here without progress; 0: it has not, or there is none. */
uint64_t progress_age_ms(const struct progress *p, uint64_t now_ms);

/* True if one small request may try a worker that is stalled or degraded and idle. */
bool progress_trial_due(const struct progress *p, unsigned in_flight, uint64_t now_ms);
/* A trial begins; the next one comes later. */
void progress_trial_begun(struct progress *p, uint64_t now_ms);

#endif
