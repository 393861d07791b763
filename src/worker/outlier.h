/*
 * Workers that stand out: nearly all that they answer is 4xx, or they are done at once,
 * and their peers' answers are not like that. A worker that serves another model, or whose
 * engine is out of order, looks idle, and would draw the load of all others. Pure: judged
 * once a second from counters, by the control thread; nothing is counted for it on the
 * request path but 4xx. Called by pool_outliers.c; pool_pick.c reads what it says.
 */
#ifndef WORKER_OUTLIER_H
#define WORKER_OUTLIER_H

#include "base/base.h"

enum outlier {
	OUTLIER_NONE,
	OUTLIER_REFUSES, /* with 4xx */
	OUTLIER_INSTANT  /* its requests take no time */
};
/* "4xx", "instant"; "" for NONE. */
const char *outlier_name(enum outlier o);

/* How much of it: so many answers, faded, say something. */
#define OUTLIER_ENDED_MIN 20.0

struct outlier_stats {
	/* Faded sums, of a half-life of half a minute. */
	double ended, refused, load, seconds;
	uint64_t ended_seen, refused_seen; /* of the counters */
};

/* What its counters and its load say now, a second after they said so last. */
void outlier_observe(
	struct outlier_stats *s, uint64_t ended, uint64_t refused, unsigned load);

/* Answers a second; the mean of requests in flight. 0 where nothing was seen. */
double outlier_rate(const struct outlier_stats *s);
double outlier_load(const struct outlier_stats *s);
/* Share of 4xx; seconds that a request takes (Little's law: load / rate). */
double outlier_share(const struct outlier_stats *s);
double outlier_time(const struct outlier_stats *s);

/*
 * peers: the sum of all others of its kind (see outlier_sum). was: what it was. It stands
 * out with at least half of its answers 4xx, four times the share of its peers; or with
 * three times the answers of each peer in a twentieth of their time, if that is 200 ms or
 * more. It does so no longer at half of these bounds.
 */
enum outlier outlier_judge(const struct outlier_stats *s,
	const struct outlier_stats *peers, unsigned n_peers, enum outlier was);

void outlier_add(struct outlier_stats *sum, const struct outlier_stats *s);
void outlier_subtract(struct outlier_stats *sum, const struct outlier_stats *s);

#endif
