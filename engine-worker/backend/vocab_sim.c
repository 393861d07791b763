/*
 * The language of the sim backend: token.h's ids, chat.h's template, and answers that end
 * by themselves. Pure. Called through the table.
 */
#include "backend/vocab_sim.h"
#include "backend/backend_sim.h"
#include "backend/chat.h"
#include "backend/token.h"

/* A chat ends by itself after 16 to 63 tokens. */
enum { NATURAL_MIN = 16, NATURAL_SPREAD = 48 };

static int encode(const struct vocab *v UNUSED, struct span text, struct token_list *out)
{
	return token_encode(out, text);
}

static size_t decode(const struct vocab *v UNUSED, uint32_t id, char *out)
{
	return token_text(id, out);
}

static int render(const struct vocab *v UNUSED, const struct js *body, struct text *out,
	size_t *answer_from, const char **why)
{
	return chat_render(body, out, answer_from, why);
}

/* The length is a function of what comes before the answer. So a text that is continued
 * ends where it would have ended. */
static uint64_t answer_left(const struct vocab *v UNUSED, const struct token_list *prompt,
	const struct token_list *before)
{
	const struct token_list *from = before->n > 0 ? before : prompt;
	uint64_t n = NATURAL_MIN + sim_state(from->ids, from->n) % NATURAL_SPREAD;
	uint64_t there = prompt->n > from->n ? prompt->n - from->n : 0;

	return n > there ? n - there : 0;
}

const struct vocab vocab_sim = {
	.n = TOKEN_VOCAB,
	.text_max = TOKEN_BYTES_MAX,
	.encode = encode,
	.decode = decode,
	.render = render,
	.answer_left = answer_left,
};
