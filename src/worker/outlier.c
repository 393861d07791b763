/*
 * Judges who stands out among its peers. See outlier.h.
 */
#include "worker/outlier.h"

/* 2^(-1/30): a second's part of a half-life of 30 s. */
#define FADE 0.977160

const char *outlier_name(enum outlier o)
{
	static const char *const names[] = {
		[OUTLIER_NONE] = "",
		[OUTLIER_REFUSES] = "4xx",
		[OUTLIER_INSTANT] = "instant",
	};

	return names[o];
}

static void fade(double *sum, double amount)
{
	*sum = *sum * FADE + amount;
}

void outlier_observe(
	struct outlier_stats *s, uint64_t ended, uint64_t refused, unsigned load)
{
	fade(&s->ended, (double)(ended - s->ended_seen));
	fade(&s->refused, (double)(refused - s->refused_seen));
	fade(&s->load, load);
	fade(&s->seconds, 1);
	s->ended_seen = ended;
	s->refused_seen = refused;
}

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

double outlier_rate(const struct outlier_stats *s)
{
	return ratio(s->ended, s->seconds);
}

double outlier_load(const struct outlier_stats *s)
{
	return ratio(s->load, s->seconds);
}

double outlier_share(const struct outlier_stats *s)
{
	return ratio(s->refused, s->ended);
}

double outlier_time(const struct outlier_stats *s)
{
	return ratio(s->load, s->ended);
}

/* slack: 1, or 2 for one that stands out already. */
static bool refuses(
	const struct outlier_stats *s, const struct outlier_stats *peers, double slack)
{
	return outlier_share(s) * slack >= 0.5 &&
	       outlier_share(s) * slack >= 4 * outlier_share(peers);
}

static bool is_instant(const struct outlier_stats *s, const struct outlier_stats *peers,
	unsigned n_peers, double slack)
{
	return outlier_time(peers) * slack >= 0.2 &&
	       outlier_time(s) * 20 <= outlier_time(peers) * slack &&
	       s->ended * slack >= 3 * peers->ended / n_peers;
}

enum outlier outlier_judge(const struct outlier_stats *s,
	const struct outlier_stats *peers, unsigned n_peers, enum outlier was)
{
	if (n_peers == 0 || s->ended < OUTLIER_ENDED_MIN ||
		peers->ended < OUTLIER_ENDED_MIN)
		return OUTLIER_NONE;
	if (refuses(s, peers, was == OUTLIER_REFUSES ? 2 : 1))
		return OUTLIER_REFUSES;
	if (is_instant(s, peers, n_peers, was == OUTLIER_INSTANT ? 2 : 1))
		return OUTLIER_INSTANT;
	return OUTLIER_NONE;
}

void outlier_add(struct outlier_stats *sum, const struct outlier_stats *s)
{
	sum->ended += s->ended;
	sum->refused += s->refused;
	sum->load += s->load;
	sum->seconds += s->seconds;
}

void outlier_subtract(struct outlier_stats *sum, const struct outlier_stats *s)
{
	sum->ended -= s->ended;
	sum->refused -= s->refused;
	sum->load -= s->load;
	sum->seconds -= s->seconds;
}
