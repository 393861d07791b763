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

/* *body is replaced, or NULL when memory is short. */
static void shape_models(enum path_shape shape, char **body, size_t *n)
{
	const char *why;
	struct js *doc = *body != NULL ? js_parse(span_make(*body, *n), &why) : NULL;
	struct js *root = NULL;

	(void)js_ran_out();
	free(take_ptr(*body));
	if (doc == NULL)
		return;
	root = models_as(shape, js_get(doc, "data"));
	*body = js_print(root, false);
	js_free(root);
	js_free(doc);
	if (js_ran_out())
		free(take_ptr(*body));
	*n = *body != NULL ? strlen(*body) : 0;
}

/* ---- one of them ---- */

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
	scoped_free char *list = NULL;
	const struct js *model = NULL;
	struct js *doc;
	const char *why;

	if (!models_has(models, a->model))
		return fail_with(FAIL_MODEL_NOT_FOUND, body, n);
	list = models_copy(models, n);
	(void)js_ran_out();
	doc = list != NULL ? js_parse(span_make(list, *n), &why) : NULL;
	if (doc != NULL)
		model = find_model(js_get(doc, "data"), a->model);
	if (model != NULL)
		*body = model_text(a->shape, model);
	js_free(doc);
	if (js_ran_out())
		free(take_ptr(*body));
	*n = *body != NULL ? strlen(*body) : 0;
	return fail_status(*body != NULL ? FAIL_NONE : FAIL_OVERLOADED);
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
	case LOCAL_MODEL:
		return answer_model(models, asked, body, n);
	default:
		break;
	}
	*body = models_copy(models, n);
	if (asked->shape == SHAPE_ANTHROPIC || asked->shape == SHAPE_OLLAMA)
		shape_models(asked->shape, body, n);
	return fail_status(*body != NULL ? FAIL_NONE : FAIL_OVERLOADED);
}

void local_answers_start(struct models *models)
{
	own_answer_set_local(answer, models);
}
