/*
 * Words for prompts. See words.h. Called by corpus.c.
 */
#include "bench/words.h"

#include "base/hash.h"
#include "base/rng.h"

#include <math.h>

#define BITS 6 /* of a random number choose a word */

static const char vocabulary[(1 << BITS) * WORDS_BYTES + 1] =
	" the and for you was not are all but had her she one our out day"
	" get has him his how man new now old see two way who boy did its"
	" let put say too use big end far few got own run set sun try why"
	" air any arm art bad bed box car cup dog ear eat eye fly sky sea";

void words_add(struct text *out, uint64_t seed, uint64_t id, size_t n)
{
	char *to = text_room(out, n * WORDS_BYTES);
	uint64_t bits = 0;
	struct rng rng;

	if (to == NULL)
		return;
	rng_seed(&rng, hash_mix64(id, hash_mix64(seed, 0)));
	for (size_t i = 0; i < n; i++, bits >>= BITS) {
		if (i % (64 / BITS) == 0)
			bits = rng_next(&rng);
		memcpy(to + i * WORDS_BYTES,
			vocabulary + (bits % (1 << BITS)) * WORDS_BYTES, WORDS_BYTES);
	}
	out->n += n * WORDS_BYTES;
}

size_t words_for(uint64_t tokens, double tokens_per_word)
{
	return (size_t)MAX(llround((double)tokens / tokens_per_word), 1LL);
}
