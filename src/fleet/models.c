/*
 * The merged model list. See models.h.
 */
#include "fleet/models.h"

#include "base/cleanup.h"
#include "base/mem.h"
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
	struct models *m = xcalloc(1, sizeof(*m));

	pthread_mutex_init(&m->lock, NULL);
	m->text = xstrdup(empty_list);
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

struct js *models_parse(struct span body)
{
	const char *why;
	struct js *root = js_parse(body, &why), *data, *out;
	struct span id;
	size_t i;

	if (root == NULL)
		return NULL;
	data = js_is_object(root) ? js_get(root, "data") : NULL;
	out = data != NULL && js_is_array(data) ? js_array() : NULL;
	for (i = 0; out != NULL && i < js_len(data); i++) {
		if (entry_id(js_at(data, i), &id))
			js_push(out, copy_value(js_at(data, i)));
	}
	js_free(root);
	return out;
}

static bool has_id(const struct js *list, struct span id)
{
	struct span other;
	size_t i;

	for (i = 0; i < js_len(list); i++) {
		if (entry_id(js_at(list, i), &other) && span_eq(other, id))
			return true;
	}
	return false;
}

static void add_new(struct js *list, const struct js *part)
{
	struct span id;
	size_t i;

	for (i = 0; part != NULL && i < js_len(part); i++) {
		if (entry_id(js_at(part, i), &id) && !has_id(list, id))
			js_push(list, copy_value(js_at(part, i)));
	}
}

bool models_only(const struct js *const *parts, size_t n, struct span *id)
{
	struct span other;
	bool has_one = false;
	size_t i, j;

	for (i = 0; i < n; i++) {
		for (j = 0; parts[i] != NULL && j < js_len(parts[i]); j++) {
			if (!entry_id(js_at(parts[i], j), &other))
				continue;
			if (has_one && !span_eq(other, *id))
				return false;
			*id = other;
			has_one = true;
		}
	}
	return has_one;
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

void models_publish(struct models *m, const struct js *const *parts, size_t n)
{
	struct js *root = js_object(), *list = js_array();
	char *text;
	size_t i;

	for (i = 0; i < n; i++)
		add_new(list, parts[i]);
	js_set_str(root, "object", "list");
	js_set(root, "data", list);
	text = js_print(root, false);
	js_free(root);
	if (text != NULL)
		replace_text(m, text);
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
