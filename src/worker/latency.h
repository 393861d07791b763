/*
 * How long a worker takes: the time to the first content of its event streams, and the
 * time of its whole responses, each as a histogram with ten buckets for each power of
 * ten. Written once a response, by any thread (relaxed atomics); never reset, so that
 * metrics may show it as it is. The control thread keeps copies from the beginning of
 * this minute and of the one before, and the present is what came since the older copy:
 * the last one to two minutes. Pure: the time is an argument. Zeroed is empty.
 */
#ifndef WORKER_LATENCY_H
#define WORKER_LATENCY_H

#include "base/base.h"

#include <stdatomic.h>

/* 100 us to 1000 s; what takes longer is in a last bucket of its own. */
#define LATENCY_BOUNDS 71
#define LATENCY_BUCKETS (LATENCY_BOUNDS + 1)
/* A bucket holds what took at most this long, in us, and longer than the one before. */
uint64_t latency_bound_us(unsigned bucket);

enum latency_kind {
	LATENCY_TTFT,  /* from the choice of the worker to the first content */
	LATENCY_WHOLE, /* to the end of the response */
	LATENCY_KINDS
};

struct latency_counts {
	uint64_t buckets[LATENCY_KINDS][LATENCY_BUCKETS];
};

struct latency {
	_Atomic uint64_t buckets[LATENCY_KINDS][LATENCY_BUCKETS];
	_Atomic uint64_t sum_us[LATENCY_KINDS];
};

/* The control thread's. */
struct latency_window {
	struct latency_counts older, newer;
	uint64_t newer_ms; /* when it was copied; 0: never */
};

/* The bucket that holds a time. */
unsigned latency_bucket(uint64_t us);
void latency_add(struct latency *l, enum latency_kind kind, uint64_t us);
/* At least once a minute. */
void latency_roll(struct latency_window *w, const struct latency *l, uint64_t now_ms);

/* Of the last minutes: how many there were, and how long half of them, and 99 of 100 of
 * them, took at most, in us. All 0 where there were none. */
struct latency_figures {
	uint64_t n, p50_us, p99_us;
};
struct latency_figures latency_recent(
	const struct latency *l, const struct latency_window *w, enum latency_kind kind);

#endif
