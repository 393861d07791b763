/*
 * Text of an exact number of words, fixed for each seed and id: a blank and three letters
 * each, which is one token for kvsteer-engine and, since they are common words, mostly
 * for real models. The first n words of an id are always the same, however many are asked
 * for. Pure.
 */
#ifndef BENCH_WORDS_H
#define BENCH_WORDS_H

#include "base/text.h"

#define WORDS_BYTES 4 /* of each word */

/* Appends the first n words of (seed, id); nothing in them needs escaping in JSON. */
void words_add(struct text *out, uint64_t seed, uint64_t id, size_t n);
/* How many words make that many tokens, at least one. */
size_t words_for(uint64_t tokens, double tokens_per_word);

#endif
