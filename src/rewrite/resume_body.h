/*
 * A request for a stream of text, asked anew from where its answer broke off: which
 * bodies can be, and the body that does. Pure; called by proxy/resume.c.
 *
 * Can be: completions of one string, and chats; one choice of plain text, nothing but its
 * text in the answer (no log probabilities, no tools, no grammar that would begin anew).
 * The body is spliced, never written anew: what is not told here stays byte for byte. A
 * name twice or escaped, or a number that is none, and it is left alone.
 */
#ifndef REWRITE_RESUME_BODY_H
#define REWRITE_RESUME_BODY_H

#include "base/base.h"
#include "base/span.h"

/* The default token limit of a completion (vLLM, SGLang, OpenAI). */
#define RESUME_COMPLETION_TOKENS 16

/* The place of a value, in bytes of the body; end 0: it is absent. */
struct resume_place {
	uint32_t start, end;
};

struct resume_body {
	bool is_chat;
	struct resume_place text; /* the prompt, or the messages */
	struct resume_place max_tokens, max_completion_tokens, min_tokens;
	struct resume_place continue_final, add_prompt;
	uint32_t end_at; /* the last brace */
	bool has_limit;
	uint64_t limit; /* tokens */
	uint64_t min_tokens_value;
};

/* False: it cannot be asked anew. body: the whole of it. */
bool resume_body_read(struct span body, bool is_chat, struct resume_body *out);
/* How many tokens may still come after so many; UINT64_MAX: nobody said. */
uint64_t resume_body_left(const struct resume_body *b, uint64_t tokens);
/*
 * The body that goes on after `text` (bytes of a JSON string, as they were spelled, not
 * empty) of so many tokens; some must be left. New memory in *out. ERR_NOMEM.
 */
int resume_body_make(const struct resume_body *b, struct span body, struct span text,
	uint64_t tokens, char **out, size_t *n) MUST_CHECK;

#endif
