/*
 * Once a second: which workers of the pool stand out among their peers (outlier.h), told
 * in the log as it changes. To a pick one that does seems no less busy than its peers' mean
 * (pool_pick.c), so it draws no load by being fast; whatever else a policy goes by stays.
 */
#include "pool/pool.h"

#include "base/log.h"
#include "pool/pool_state.h"
#include "worker/outlier.h"

#include <string.h>

static bool is_judged(const struct worker *w)
{
	enum worker_state s = worker_state(w);

	return s == WORKER_HEALTHY || s == WORKER_SUSPECT;
}

static void observe(struct worker *w)
{
	outlier_observe(&w->pool.stats, atomic_load(&w->guard.completions),
		atomic_load(&w->guard.refusals), worker_load(w));
}

static void log_change(
	const struct worker *w, const struct outlier_stats *peers, enum outlier now)
{
	const struct outlier_stats *s = &w->pool.stats;

	if (now == OUTLIER_REFUSES)
		log_warn("worker %s: %.0f %% of its responses are 4xx, of its peers' "
			 "%.0f %%; being fast brings it no load",
			w->name, 100 * outlier_share(s), 100 * outlier_share(peers));
	else if (now == OUTLIER_INSTANT)
		log_warn(
			"worker %s: its requests take %.0f ms, its peers' %.0f ms; being "
			"fast brings it no load",
			w->name, 1000 * outlier_time(s), 1000 * outlier_time(peers));
	else
		log_notice("worker %s: does not stand out any more", w->name);
}

/* Sums over those of a role that are judged. */
struct peers {
	struct outlier_stats sum;
	unsigned n;
};

static void judge(struct worker *w, const struct peers *all)
{
	enum outlier was = (enum outlier)atomic_load(&w->pool.outlier), now;
	struct outlier_stats peers = all->sum;
	unsigned n = all->n - 1;

	outlier_subtract(&peers, &w->pool.stats);
	now = outlier_judge(&w->pool.stats, &peers, n, was);
	if (now == was)
		return;
	atomic_store(&w->pool.outlier, now);
	log_change(w, &peers, now);
}

void pool_judge_outliers(struct pool *p)
{
	struct peers roles[ROLE_MAX];
	size_t i;

	memset(roles, 0, sizeof(roles));
	for (i = 0; i < p->registry.n; i++) {
		struct worker *w = p->registry.items[i];
		struct peers *r = &roles[w->role];

		observe(w);
		if (!is_judged(w))
			continue;
		outlier_add(&r->sum, &w->pool.stats);
		r->n++;
	}
	for (i = 0; i < p->registry.n; i++)
		if (is_judged(p->registry.items[i]))
			judge(p->registry.items[i], &roles[p->registry.items[i]->role]);
}
