/*
 * The chat template of the sim backend. A chat becomes the text that the model would see:
 * the tools, every message in order, and the beginning of the answer. A conversation's
 * next turn extends the text of this one, so that its prefix stays cached.
 *
 *	<|tools|>\n{json}\n	if there are tools
 *	<|role|>\n{content}\n	each message
 *	<|assistant|>\n		where the answer begins
 *
 * The tool calls of an assistant follow its content as JSON. Where the last message is
 * continued, it has no newline at its end, and no <|assistant|> follows.
 */
#ifndef ENGINE_BACKEND_CHAT_H
#define ENGINE_BACKEND_CHAT_H

#include "base/base.h"
#include "base/metric.h"

struct js;

/* As vocab.h's render(). */
int chat_render(const struct js *body, struct text *out, size_t *answer_from,
	const char **why) MUST_CHECK;

#endif
