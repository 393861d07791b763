/*
 * A chat to the text that the model would see: tools, then every message in order, then
 * the beginning of the answer. A conversation's next turn extends this one's text, so
 * that its prefix stays cached.
 *	<|tools|>\n{json}\n		when there are tools
 *	<|role|>\n{content}\n		each message; an assistant's tool calls follow its content as JSON
 *	<|assistant|>\n			where the answer begins; not where the last message is continued: that one then has no newline
 */
#ifndef ENGINE_API_CHAT_H
#define ENGINE_API_CHAT_H

#include "base/base.h"
#include "base/metric.h"

struct js;

/*
 * *answer_from is where the answer begins in the text: at its end, or, where the body
 * says continue_final_message, where the content of the last message begins, which is
 * then left open. ERR_PARSE and *why (what is wrong with body's messages or tools);
 * ERR_NOMEM.
 */
int chat_render(const struct js *body, struct metric_text *out, size_t *answer_from,
	const char **why) MUST_CHECK;

#endif
