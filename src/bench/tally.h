/*
 * The results of a run: counts, times, errors by kind, and workers. Times are in
 * microseconds. Pure.
 */
#ifndef BENCH_TALLY_H
#define BENCH_TALLY_H

#include "base/span.h"
#include "bench/histogram.h"
#include "bench/reply.h"

#define TALLY_KINDS_MAX 64     /* kinds of errors; more count as the last one */
#define TALLY_WORKERS_MAX 1024 /* more are counted together, as "(others)" */

struct tally_error {
	char kind[32];
	char sample[REPLY_MESSAGE_MAX]; /* what the first of them said; may be "" */
	uint64_t n;
};

struct tally_worker {
	char name[REPLY_WORKER_MAX];
	uint64_t requests, prompt_tokens, cached_tokens, new_tokens;
};

struct tally {
	uint64_t sent, ok, failed,
		unfinished; /* sent = the sum of the others, at the end */
	uint64_t connects,
		resent; /* connections made; requests sent again on a new one */
	uint64_t with_usage, with_cached, prompt_tokens, cached_tokens, new_tokens;
	uint64_t asked_tokens, counted_tokens; /* of prompts whose size was chosen */
	uint64_t bytes_in, bytes_out;
	struct histogram latency;   /* due, or begun, to the answer's end */
	struct histogram ttft;      /* ... to the first text of a stream */
	struct histogram gap;       /* between two events with text */
	struct histogram per_token; /* of a stream after its first, mean by request */
	struct histogram delay;     /* open loop: due to begun */
	struct tally_error errors[TALLY_KINDS_MAX];
	size_t n_errors;
	struct tally_worker *workers; /* in order of appearance */
	size_t n_workers, cap_workers;
};

struct tally *tally_new(void); /* dies without memory */
void tally_free(struct tally *t);

/* One request failed. */
void tally_error(struct tally *t, const char *kind, const char *sample);
/* One request was answered well; asked: prompt tokens it was to have, 0: not known. */
void tally_ok(struct tally *t, const struct reply *r, uint64_t asked);
/* By number of errors, and by name of workers: for reports. */
void tally_sort(struct tally *t);

#endif
