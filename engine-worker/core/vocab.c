/*
 * Lists of token ids, and what every tokenizer does alike. Pure. Called by params.c and
 * completion.c.
 */
#include "core/vocab.h"
#include "base/mem.h"

#include <stdlib.h>

int token_push(struct token_list *list, uint32_t id)
{
	int err = mem_grow(&list->ids, &list->cap, list->n + 1, sizeof(*list->ids));

	if (err == 0)
		list->ids[list->n++] = id;
	return err;
}

void token_list_free(struct token_list *list)
{
	free(list->ids);
	*list = (struct token_list){NULL, 0, 0};
}

bool vocab_is_end(const struct vocab *v, uint32_t id)
{
	for (size_t i = 0; i < v->n_ends; i++) {
		if (v->ends[i] == id)
			return true;
	}
	return false;
}
