/*
 * How alike two words are, for did-you-mean. Pure. Called where a key or a flag is
 * unknown.
 */
#ifndef BASE_WORD_H
#define BASE_WORD_H

#include "base/base.h"
#include "base/span.h"

/* Edits from one to the other, a swap of neighbours being one; 64 for longer words. */
unsigned word_distance(struct span a, struct span b);
/* True if `distance` is at most three edits and at most a third of the longer word. */
bool word_is_near(struct span a, struct span b, unsigned distance);

/* The nearest of many candidates, which are tried one after another. */
struct word_search {
	struct span wanted;
	bool has_one;
	unsigned least; /* how far the nearest so far is */
};
/* It is near, and nearer than all before: the caller keeps it. */
bool word_is_nearest(struct word_search *s, struct span candidate);

#endif
