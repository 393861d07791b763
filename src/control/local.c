/*
 * The router's own answers on the client side. See local.h.
 */
#include "control/local.h"

#include "base/base.h"
#include "base/fail.h"
#include "control/admin_gate.h"
#include "fleet/models.h"
#include "http/http_query.h"
#include "io/js.h"
#include "pool/pool.h"
#include "pool/site.h"
#include "proxy/io_thread.h"
#include "proxy/own_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSION_NAME_MAX 16384

/* Has workers, and a usable one for each role that it has workers for; prefill workers
 * alone answer nobody. */
static bool is_pool_ready(struct pool *p)
{
	bool has_workers = false;
	enum role r;

	for (r = 0; r < ROLE_MAX; r++) {
		if (pool_workers(p, r) == 0)
			continue;
		has_workers = true;
		if (pool_usable(p, r) == 0)
			return false;
	}
	return has_workers && pool_workers(p, pool_whole_role(p)) > 0;
}

bool local_is_ready(const struct site *site)
{
	size_t i;

	for (i = 0; i < site->n_pools; i++) {
		if (!is_pool_ready(site->pools[i]))
			return false;
	}
	return true;
}

static int answer_readiness(const struct io_thread *t, char **body, size_t *n)
{
	enum fail why = FAIL_NONE;

	if (atomic_load(&t->process->is_draining))
		why = FAIL_DRAINING;
	else if (!local_is_ready(t->site))
		why = FAIL_NO_WORKER;
	*body = malloc(1024);
	if (*body == NULL)
		return fail_status(FAIL_OVERLOADED);
	if (why == FAIL_NONE)
		*n = (size_t)snprintf(*body, 1024, "{\"status\":\"ready\"}");
	else
		*n = fail_body(why, *body, 1024);
	return fail_status(why);
}

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

static int answer(void *arg, struct io_thread *t, const struct local_asked *asked,
	char **body, size_t *n)
{
	struct models *models = arg;

	*body = NULL;
	*n = 0;
	switch (asked->what) {
	case LOCAL_READINESS:
		return answer_readiness(t, body, n);
	case LOCAL_FINISH_SESSION:
		return answer_finish_session(asked, body, n);
	default:
		break;
	}
	*body = models_copy(models, n);
	return fail_status(*body != NULL ? FAIL_NONE : FAIL_OVERLOADED);
}

void local_answers_start(struct models *models)
{
	own_answer_set_local(answer, models);
}
