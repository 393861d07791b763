/*
 * The language of a model: text to token ids and back, a chat to text, and the end of a
 * text. A table that a tokenizer fills, as backend.h is one for a model: `sim` has
 * vocab_sim.c. A tokenizer with data of its own embeds the table. It changes nothing once
 * it is made, so any thread may use it.
 */
#ifndef ENGINE_CORE_VOCAB_H
#define ENGINE_CORE_VOCAB_H

#include "base/base.h"
#include "base/span.h"

struct js;
struct text;

struct token_list {
	uint32_t *ids;
	size_t n, cap;
};

/* ERR_NOMEM: what was there stays. */
int token_push(struct token_list *list, uint32_t id) MUST_CHECK;
void token_list_free(struct token_list *list);

struct vocab {
	uint32_t n;           /* ids are below it */
	size_t text_max;      /* bytes of the text of an id */
	const uint32_t *ends; /* ids that end a text; they have no text of their own */
	size_t n_ends;
	/* Appends the ids of text. ERR_NOMEM: what was there stays. */
	int (*encode)(const struct vocab *v, struct span text,
		struct token_list *out) MUST_CHECK;
	/* The bytes of an id below n, text_max at most; returns how many. They need not
	 * be whole characters. */
	size_t (*decode)(const struct vocab *v, uint32_t id, char *out);
	/*
	 * The text that the model sees of a chat request. *answer_from is where the
	 * answer begins in it: at its end, or, where the body says
	 * continue_final_message, where the content of the last message begins, which is
	 * then left open. ERR_PARSE and *why (what is wrong with body's messages or
	 * tools; static); ERR_NOMEM.
	 */
	int (*render)(const struct vocab *v, const struct js *body, struct text *out,
		size_t *answer_from, const char **why) MUST_CHECK;
	/*
	 * How many tokens a chat's answer has yet, where nothing limits it. prompt holds
	 * the beginning of the answer behind what is in `before`; an empty `before`: none
	 * of it. 0: the answer is whole. NULL, as of a real model: only an end id tells.
	 */
	uint64_t (*answer_left)(const struct vocab *v, const struct token_list *prompt,
		const struct token_list *before);
};

bool vocab_is_end(const struct vocab *v, uint32_t id);

#endif
