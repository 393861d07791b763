/*
 * Optimal string alignment over three rows. Holds nothing between calls.
 */
#include "base/word.h"

enum { WORD_MAX = 64 };

/* Words longer than the row are far from anything. Given up once it is above most:
 * WORD_MAX. */
static unsigned distance_within(struct span a, struct span b, unsigned most)
{
	unsigned rows[3][WORD_MAX + 1];
	unsigned *old = rows[0], *last = rows[1], *now = rows[2];
	unsigned least = 0, before; /* of this row, and of the one before */

	if (a.n > WORD_MAX || b.n > WORD_MAX)
		return WORD_MAX;
	for (size_t j = 0; j <= b.n; j++)
		last[j] = (unsigned)j;
	for (size_t i = 1; i <= a.n; i++) {
		unsigned *spare = old;

		before = least;
		now[0] = least = (unsigned)i;
		for (size_t j = 1; j <= b.n; j++) {
			unsigned cost = a.p[i - 1] != b.p[j - 1];

			now[j] = last[j - 1] + cost;
			now[j] = MIN(now[j], last[j] + 1);
			now[j] = MIN(now[j], now[j - 1] + 1);
			if (i > 1 && j > 1 && a.p[i - 1] == b.p[j - 2] &&
				a.p[i - 2] == b.p[j - 1])
				now[j] = MIN(now[j], old[j - 2] + 1);
			least = MIN(least, now[j]);
		}
		if (least > most && before > most)
			return WORD_MAX;
		old = last;
		last = now;
		now = spare;
	}
	return last[b.n];
}

unsigned word_distance(struct span a, struct span b)
{
	return distance_within(a, b, WORD_MAX);
}

#define NEAR_MAX 3

bool word_is_near(struct span a, struct span b, unsigned distance)
{
	size_t longer = MAX(a.n, b.n);

	return distance <= NEAR_MAX && distance * 3 <= longer;
}

bool word_is_nearest(struct word_search *s, struct span candidate)
{
	size_t longer = MAX(s->wanted.n, candidate.n);
	size_t shorter = MIN(s->wanted.n, candidate.n);
	unsigned distance;

	if (longer - shorter > NEAR_MAX) /* as many edits, at least */
		return false;
	distance = distance_within(s->wanted, candidate, NEAR_MAX);
	if (!word_is_near(s->wanted, candidate, distance) ||
		(s->has_one && distance >= s->least))
		return false;
	s->has_one = true;
	s->least = distance;
	return true;
}
