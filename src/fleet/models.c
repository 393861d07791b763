/*
 * The merged model list. See models.h.
 */
#include "fleet/models.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "io/js.h"
#include "worker/model_set.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct models {
	pthread_mutex_t lock;
	/* Under the lock; replaced whole. */
	char *text;
	size_t n;
	struct model_set *set; /* of the same list */
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
	model_set_unref(m->set);
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

static void replace(struct models *m, char *text, struct model_set *set)
{
	char *old_text;
	struct model_set *old_set;

	pthread_mutex_lock(&m->lock);
	old_text = m->text;
	old_set = m->set;
	m->text = text;
	m->n = strlen(text);
	m->set = set;
	pthread_mutex_unlock(&m->lock);
	free(old_text);
	model_set_unref(old_set);
}

/* vLLM and SGLang say of an adapter whose it is. */
static bool is_adapter(const struct js *entry)
{
	struct span parent;

	return js_as_str(js_get(entry, "parent"), &parent) && parent.n > 0;
}

static int make_set(const struct js *part, bool adapters_only, struct model_set **out)
{
	uint64_t *hashes = calloc(js_len(part) + 1, sizeof(*hashes));
	struct span id;
	size_t i, n = 0;

	if (hashes == NULL)
		return ERR_NOMEM;
	for (i = 0; i < js_len(part); i++) {
		const struct js *entry = js_at(part, i);

		if (entry_id(entry, &id) && (!adapters_only || is_adapter(entry)))
			hashes[n++] = model_hash(id);
	}
	if (n > 0 || !adapters_only)
		*out = model_set_new(hashes, n);
	free(hashes);
	return *out != NULL || (n == 0 && adapters_only) ? 0 : ERR_NOMEM;
}

int models_set(const struct js *part, struct model_set **out)
{
	*out = NULL;
	return part != NULL ? make_set(part, false, out) : 0;
}

int models_adapters(const struct js *part, struct model_set **out)
{
	*out = NULL;
	return part != NULL ? make_set(part, true, out) : 0;
}

int models_publish(struct models *m, const struct js *const *parts, size_t n)
{
	struct js *root, *list, *seen;
	struct model_set *set;
	char *text;
	size_t i;
	int err;

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
	err = models_set(list, &set);
	js_free(root);
	if (js_ran_out() || err != 0) {
		free(text);
		model_set_unref(set);
		return ERR_NOMEM;
	}
	replace(m, text, set);
	return 0;
}

bool models_has(struct models *m, struct span id)
{
	bool has;

	pthread_mutex_lock(&m->lock);
	has = model_set_has(m->set, model_hash(id));
	pthread_mutex_unlock(&m->lock);
	return has;
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
