/*
 * Optimal string alignment over three rows. Holds nothing between calls.
 */
#include "base/word.h"

/* Words longer than the row are far from anything. */
unsigned word_distance(struct span a, struct span b)
{
	enum { WORD_MAX = 64 };
	unsigned rows[3][WORD_MAX + 1];
	unsigned *old = rows[0], *last = rows[1], *now = rows[2];

	if (a.n > WORD_MAX || b.n > WORD_MAX)
		return WORD_MAX;
	for (size_t j = 0; j <= b.n; j++)
		last[j] = (unsigned)j;
	for (size_t i = 1; i <= a.n; i++) {
		unsigned *spare = old;

		now[0] = (unsigned)i;
		for (size_t j = 1; j <= b.n; j++) {
			unsigned cost = a.p[i - 1] != b.p[j - 1];

			now[j] = last[j - 1] + cost;
			now[j] = MIN(now[j], last[j] + 1);
			now[j] = MIN(now[j], now[j - 1] + 1);
			if (i > 1 && j > 1 && a.p[i - 1] == b.p[j - 2] &&
				a.p[i - 2] == b.p[j - 1])
				now[j] = MIN(now[j], old[j - 2] + 1);
		}
		old = last;
		last = now;
		now = spare;
	}
	return last[b.n];
}

bool word_is_near(struct span a, struct span b, unsigned distance)
{
	size_t longer = MAX(a.n, b.n);

	return distance <= 3 && distance * 3 <= longer;
}

bool word_is_nearest(struct word_search *s, struct span candidate)
{
	unsigned distance = word_distance(s->wanted, candidate);

	if (!word_is_near(s->wanted, candidate, distance) ||
		(s->has_one && distance >= s->least))
		return false;
	s->has_one = true;
	s->least = distance;
	return true;
}
