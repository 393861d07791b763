/*
 * The router's own answers on the client side. See local.h.
 */
#include "control/local.h"

#include "base/base.h"
#include "base/cleanup.h"
#include "base/fail.h"
#include "control/admin_gate.h"
#include "control/readiness.h"
#include "fleet/models.h"
#include "http/http_query.h"
#include "io/js.h"
#include "pool/site.h"
#include "proxy/io_thread.h"
#include "proxy/own_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SESSION_NAME_MAX 16384

static char *finish_session_text(struct span session)
{
	struct js *doc = js_object();
	char *text;

	js_set_str(doc, "status", "ok");
	js_set(doc, "session_id", js_string(session));
	text = js_print(doc, false);
	js_free(doc);
	return text;
}

static int fail_with(enum fail why, char **body, size_t *n)
{
	*body = malloc(1024);
	if (*body != NULL)
		*n = fail_body(why, *body, 1024);
	return fail_status(*body != NULL ? why : FAIL_OVERLOADED);
}

/* As the vLLM router answers: well done, whether it knew the session or not. */
static int answer_finish_session(const struct local_asked *a, char **body, size_t *n)
{
	enum fail why = admin_gate(a->site->conf, a->base, a->head, a->client_ip);
	char session[SESSION_NAME_MAX];

	if (why == FAIL_NONE && !http_query_value(http_head_query(a->base, a->head),
					"session_id", session, sizeof(session)))
		why = FAIL_BAD_TARGET;
	if (why != FAIL_NONE)
		return fail_with(why, body, n);
	(void)site_finish_session(a->site, span_str(session));
	*body = finish_session_text(span_str(session));
	*n = *body != NULL ? strlen(*body) : 0;
	return fail_status(*body != NULL ? FAIL_NONE : FAIL_OVERLOADED);
}

/* ---- the models, as other APIs list them ---- */

/* RFC 3339, as both APIs write times. */
static const char *time_text(const struct js *model, char out[32])
{
	int64_t secs = 0;
	time_t t;
	struct tm tm;

	(void)js_as_int(js_get(model, "created"), &secs);
	t = (time_t)secs;
	if (gmtime_r(&t, &tm) == NULL ||
		strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
		snprintf(out, 32, "1970-01-01T00:00:00Z");
	return out;
}

static struct js *anthropic_model(const struct js *model, struct span id)
{
	struct js *out = js_object();
	char text[32];

	js_set_str(out, "type", "model");
	js_set(out, "id", js_string(id));
	js_set(out, "display_name", js_string(id));
	js_set_str(out, "created_at", time_text(model, text));
	return out;
}

static struct js *ollama_model(const struct js *model, struct span id)
{
	struct js *out = js_object();
	char text[32];

	js_set(out, "name", js_string(id));
	js_set(out, "model", js_string(id));
	js_set_str(out, "modified_at", time_text(model, text));
	js_set_int(out, "size", 0);
	js_set_str(out, "digest", "");
	js_set(out, "details", js_object());
	return out;
}

static void set_ends(struct js *root, struct span first, struct span last)
{
	js_set_bool(root, "has_more", false);
	js_set(root, "first_id", first.p != NULL ? js_string(first) : js_null());
	js_set(root, "last_id", last.p != NULL ? js_string(last) : js_null());
}

static struct js *models_as(enum path_shape shape, const struct js *data)
{
	struct js *root = js_object(), *list = js_array();
	struct span id, first = {NULL, 0}, last = {NULL, 0};
	size_t i;

	for (i = 0; i < js_len(data); i++) {
		const struct js *model = js_at(data, i);

		if (!js_as_str(js_get(model, "id"), &id))
			continue;
		first = first.p != NULL ? first : id;
		last = id;
		js_push(list, shape == SHAPE_OLLAMA ? ollama_model(model, id)
						    : anthropic_model(model, id));
	}
	js_set(root, shape == SHAPE_OLLAMA ? "models" : "data", list);
	if (shape == SHAPE_ANTHROPIC)
		set_ends(root, first, last);
	return root;
}

/* As an entry of the list, which is freed with its document. */
static const struct js *find_model(const struct js *data, struct span name)
{
	struct span id;
	size_t i;

	for (i = 0; i < js_len(data); i++) {
		const struct js *model = js_at(data, i);

		if (js_as_str(js_get(model, "id"), &id) && span_eq(id, name))
			return model;
	}
	return NULL;
}

/* ---- aliases ---- */

/* Where the pool has its model, which is listed: as that model. */
static void push_alias(struct js *data, struct pool *p, struct conf_alias a)
{
	const struct js *model = find_model(data, a.target);
	struct js *entry;

	if (model == NULL || find_model(data, a.name) != NULL ||
		!pool_lists_model(p, a.target))
		return;
	entry = js_copy(model);
	js_set(entry, "id", js_string(a.name));
	js_push(data, entry);
}

static void push_aliases(const struct site *s, struct js *data)
{
	size_t i, j;

	for (i = 0; i < s->n_pools; i++) {
		const struct conf_list *list = &s->conf->pools[i].aliases;

		for (j = 0; j < list->n; j++)
			push_alias(data, s->pools[i], conf_alias(list->items[j]));
	}
}

/* The list, with the aliases. NULL: out of memory. */
static struct js *read_list(struct models *models, const struct site *s)
{
	size_t n = 0;
	scoped_free char *text = models_copy(models, &n);
	struct js *doc;
	const char *why;

	(void)js_ran_out();
	doc = text != NULL ? js_parse(span_make(text, n), &why) : NULL;
	if (doc != NULL)
		push_aliases(s, js_get(doc, "data"));
	return doc;
}

/* Takes the text, unless memory was short since read_list(). */
static int give(char *text, char **body, size_t *n)
{
	if (js_ran_out())
		free(take_ptr(text));
	*body = text;
	*n = text != NULL ? strlen(text) : 0;
	return fail_status(text != NULL ? FAIL_NONE : FAIL_OVERLOADED);
}

static int answer_models(
	struct models *models, const struct local_asked *a, char **body, size_t *n)
{
	bool is_other = a->shape == SHAPE_ANTHROPIC || a->shape == SHAPE_OLLAMA;
	struct js *doc, *root;
	char *text;

	if (!is_other && a->site->n_aliases == 0) {
		*body = models_copy(models, n);
		return fail_status(*body != NULL ? FAIL_NONE : FAIL_OVERLOADED);
	}
	doc = read_list(models, a->site);
	root = is_other ? models_as(a->shape, js_get(doc, "data")) : NULL;
	text = doc != NULL ? js_print(is_other ? root : doc, false) : NULL;
	js_free(root);
	js_free(doc);
	return give(text, body, n);
}

/* ---- one of them ---- */

static char *model_text(enum path_shape shape, const struct js *model)
{
	struct js *out;
	struct span id;
	char *text;

	if (shape != SHAPE_ANTHROPIC || !js_as_str(js_get(model, "id"), &id))
		return js_print(model, false);
	out = anthropic_model(model, id);
	text = js_print(out, false);
	js_free(out);
	return text;
}

static int answer_model(
	struct models *models, const struct local_asked *a, char **body, size_t *n)
{
	const struct site_alias *alias = site_alias(a->site, a->model);
	const struct js *model;
	struct js *doc;
	char *text = NULL;

	if (!models_has(models, alias != NULL ? alias->target : a->model))
		return fail_with(FAIL_MODEL_NOT_FOUND, body, n);
	doc = read_list(models, a->site);
	model = find_model(js_get(doc, "data"), a->model);
	if (model == NULL && doc != NULL) {
		js_free(doc);
		return fail_with(FAIL_MODEL_NOT_FOUND, body, n);
	}
	if (model != NULL)
		text = model_text(a->shape, model);
	js_free(doc);
	return give(text, body, n);
}

static int answer(void *arg, struct io_thread *t, const struct local_asked *asked,
	char **body, size_t *n)
{
	struct models *models = arg;

	*body = NULL;
	*n = 0;
	switch (asked->what) {
	case LOCAL_READINESS:
		return readiness_answer(
			asked, atomic_load(&t->process->is_draining), body, n);
	case LOCAL_FINISH_SESSION:
		return answer_finish_session(asked, body, n);
	case LOCAL_GATE:
		return fail_status(admin_gate(
			asked->site->conf, asked->base, asked->head, asked->client_ip));
	case LOCAL_MODEL:
		return answer_model(models, asked, body, n);
	default:
		break;
	}
	return answer_models(models, asked, body, n);
}

void local_answers_start(struct models *models)
{
	own_answer_set_local(answer, models);
}
