/*
 * A chat to the text that the model would see: tools, then every message in order, then the beginning of the answer. A conversation's next
 * turn extends this one's text, so that its prefix stays cached.
 *	<|tools|>\n{json}\n		when there are tools
 *	<|role|>\n{content}\n		each message; an assistant's tool calls follow its content as JSON
 *	<|assistant|>\n			where the answer begins
 */
#ifndef ENGINE_CHAT_H
#define ENGINE_CHAT_H

#include "base/base.h"
#include "base/metric.h"

struct js;

/* ERR_PARSE and *why (what is wrong with body's messages or tools); ERR_NOMEM. */
int chat_render(const struct js *body, struct metric_text *out, const char **why) MUST_CHECK;

#endif
