/*
 * What the router answers itself on the client side. See local.h.
 */
#include "control/local.h"

#include "base/base.h"
#include "base/fail.h"
#include "control/models.h"
#include "model/pool.h"
#include "proxy/io_thread.h"
#include "proxy/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Has workers, and a usable one for each role that it has workers for. */
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
	return has_workers;
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

static int answer(
	void *arg, struct io_thread *t, enum request_local what, char **body, size_t *n)
{
	struct models *models = arg;

	*body = NULL;
	*n = 0;
	if (what == LOCAL_READINESS)
		return answer_readiness(t, body, n);
	*body = models_copy(models, n);
	return fail_status(*body != NULL ? FAIL_NONE : FAIL_OVERLOADED);
}

void local_answers_start(struct models *models)
{
	request_set_local(answer, models);
}
