/*
 * The file and line of each value of [router], for errors that show only when the value
 * is used: an address in use, a change that needs a restart. Kept beside the values for
 * as long as the configuration; a value that a flag gave has no place. Filled by conf.c,
 * asked through conf_place() by the code that reports errors.
 */
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_source.h"

#include <stdlib.h>
#include <string.h>

struct conf_place {
	const struct conf_key *key;
	char *file;
	char *value; /* NULL: a secret */
	unsigned line;
};

static void clear(struct conf_place *p)
{
	free(p->file);
	free(p->value);
}

int conf_place_add(struct conf *c, const struct conf_line *line)
{
	struct conf_place p = {.key = line->key, .line = line->line};
	bool is_shown = !line->key->is_secret;

	p.file = strdup(line->file);
	p.value = is_shown ? strdup(line->value) : NULL;
	if (p.file == NULL || (is_shown && p.value == NULL) ||
		mem_grow(&c->places, &c->cap_places, c->n_places + 1, sizeof(p)) != 0) {
		clear(&p);
		return ERR_NOMEM;
	}
	c->places[c->n_places++] = p;
	return 0;
}

void conf_place_forget(struct conf *c, const struct conf_key *key)
{
	size_t kept = 0;

	for (size_t i = 0; i < c->n_places; i++) {
		if (c->places[i].key == key)
			clear(&c->places[i]);
		else
			c->places[kept++] = c->places[i];
	}
	c->n_places = kept;
}

void conf_place_free(struct conf *c)
{
	for (size_t i = 0; i < c->n_places; i++)
		clear(&c->places[i]);
	free(c->places);
}

static bool has_item(const struct conf_place *p, const char *item)
{
	struct span rest, word;

	if (item == NULL || p->value == NULL || !conf_key_is_list(p->key))
		return true;
	rest = span_str(p->value);
	while (span_next_word(&rest, &word))
		if (span_is(word, item))
			return true;
	return false;
}

const char *conf_place(
	const struct conf *c, const char *key, const char *item, unsigned *line)
{
	*line = 0;
	for (size_t i = 0; i < c->n_places; i++) {
		const struct conf_place *p = &c->places[i];

		if (strcmp(p->key->name, key) == 0 && has_item(p, item)) {
			*line = p->line;
			return p->file;
		}
	}
	return NULL;
}
