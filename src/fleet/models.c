/*
 * The merged model list. See models.h.
 */
#include "fleet/models.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "io/js.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct models {
	pthread_mutex_t lock;
	char *text; /* under the lock; replaced whole */
	size_t n;
};

static const char empty_list[] = "{\"object\":\"list\",\"data\":[]}";

struct models *models_new(void)
{
	struct models *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return NULL;
	m->text = strdup(empty_list);
	if (m->text == NULL) {
		free(m);
		return NULL;
	}
	pthread_mutex_init(&m->lock, NULL);
	m->n = strlen(m->text);
	return m;
}

void models_free(struct models *m)
{
	if (m == NULL)
		return;
	pthread_mutex_destroy(&m->lock);
	free(m->text);
	free(m);
}

static bool entry_id(const struct js *entry, struct span *id)
{
	return js_is_object(entry) && js_as_str(js_get(entry, "id"), id) && id->n > 0;
}

/* A tree has one owner, so an entry moves between trees as a copy of its members. */
static struct js *copy_value(const struct js *v)
{
	scoped_free char *text = js_print(v, false);
	const char *why;

	return text != NULL ? js_parse(span_str(text), &why) : NULL;
}

static struct js *entries_of(const struct js *root)
{
	struct js *data = js_is_object(root) ? js_get(root, "data") : NULL;
	struct js *out = data != NULL && js_is_array(data) ? js_array() : NULL;
	struct span id;
	size_t i;

	for (i = 0; out != NULL && i < js_len(data) && js_len(out) < MODELS_MAX; i++) {
		if (entry_id(js_at(data, i), &id))
			js_push(out, copy_value(js_at(data, i)));
	}
	return out;
}

int models_parse(struct span body, struct js **list)
{
	const char *why;
	struct js *root, *out = NULL;

	(void)js_ran_out();
	root = js_parse(body, &why);
	if (root != NULL)
		out = entries_of(root);
	js_free(root);
	if (js_ran_out()) {
		js_free(out);
		return ERR_NOMEM;
	}
	*list = out;
	return 0;
}

/* seen: an object with a member for each id, which is a hash table. */
static void add_new(struct js *list, struct js *seen, const struct js *part)
{
	struct span id;
	size_t i;

	for (i = 0; part != NULL && i < js_len(part); i++) {
		if (!entry_id(js_at(part, i), &id) || js_get(seen, id.p) != NULL)
			continue;
		js_set_bool(seen, id.p, true);
		js_push(list, copy_value(js_at(part, i)));
	}
}

void models_only_add(struct models_only *only, const struct js *part)
{
	struct span id;
	size_t i;

	for (i = 0; part != NULL && i < js_len(part); i++) {
		if (only->has_several || !entry_id(js_at(part, i), &id))
			continue;
		only->has_several = only->id.n > 0 && !span_eq(only->id, id);
		only->id = only->has_several ? span_make(NULL, 0) : id;
	}
}

static void replace_text(struct models *m, char *text)
{
	char *old;

	pthread_mutex_lock(&m->lock);
	old = m->text;
	m->text = text;
	m->n = strlen(text);
	pthread_mutex_unlock(&m->lock);
	free(old);
}

int models_publish(struct models *m, const struct js *const *parts, size_t n)
{
	struct js *root, *list, *seen;
	char *text;
	size_t i;

	(void)js_ran_out();
	root = js_object();
	list = js_array();
	seen = js_object();
	for (i = 0; i < n; i++)
		add_new(list, seen, parts[i]);
	js_free(seen);
	js_set_str(root, "object", "list");
	js_set(root, "data", list);
	text = js_print(root, false);
	js_free(root);
	if (js_ran_out()) {
		free(text);
		return ERR_NOMEM;
	}
	replace_text(m, text);
	return 0;
}

char *models_copy(struct models *m, size_t *n)
{
	char *copy;

	pthread_mutex_lock(&m->lock);
	copy = malloc(m->n + 1);
	if (copy != NULL) {
		memcpy(copy, m->text, m->n + 1);
		*n = m->n;
	}
	pthread_mutex_unlock(&m->lock);
	return copy;
}
