/*
 * The sim backend's model: which text follows a prefix.
 *
 * The next token is a function of the whole prefix, so that a mixed-up stream is noticed.
 * A state s begins at 0. For each token t of the prompt and of the generated text it
 * becomes mix(t ^ s), where, modulo 2^64,
 *
 *	z = x + 0x9e3779b97f4a7c15
 *	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
 *	z = (z ^ z >> 27) * 0x94d049bb133111eb
 *	mix(x) = z ^ z >> 31
 *
 * The next token is the text SIM_WORDS[(s + choice) mod 64] behind a blank, which always
 * is one token (token.h).
 *
 * A block stores s after each of its tokens, and the s that it began with. A step never
 * sees the tokens before its own. It goes on from what the blocks hold, and checks that
 * every block begins where the one before it ended. So a wrong table, a block used twice,
 * or a block of another prefix gives a broken row or another text.
 */
#ifndef ENGINE_BACKEND_BACKEND_SIM_H
#define ENGINE_BACKEND_BACKEND_SIM_H

#include "base/base.h"

#define SIM_WORDS                                                                     \
	"the", "and", "for", "you", "was", "not", "are", "all", "but", "had", "her",  \
		"she", "one", "our", "out", "day", "get", "has", "him", "his", "how", \
		"man", "new", "now", "old", "see", "two", "way", "who", "boy", "did", \
		"its", "let", "put", "say", "too", "use", "big", "end", "far", "few", \
		"got", "own", "run", "set", "sun", "try", "why", "air", "any", "arm", \
		"art", "bad", "bed", "box", "car", "cup", "dog", "ear", "eat", "eye", \
		"fly", "sky", "sea"

enum { SIM_BLOCKS = 4096, SIM_BLOCK_TOKENS = 16 }; /* where nobody says otherwise */

/*
 * Its own options (backend_opts.own): the times that a model would take, in us. A
 * chunk of a prompt takes step_us + tokens * prefill_us, one chunk after another. Each
 * sequence decodes beside them, a token every step_us + decode_us. All 0: nothing takes
 * time.
 */
struct sim_pace {
	double prefill_us, decode_us, step_us;
};

/* s after n tokens. */
uint64_t sim_state(const uint32_t *ids, size_t n);
/* The id that follows where s is the state. */
uint32_t sim_next(uint64_t state, uint64_t choice);

#endif
