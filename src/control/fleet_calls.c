/*
 * Clients' calls to all workers. See fleet_calls.h. Called by boot.c.
 */
#include "control/fleet_calls.h"

#include "base/fail.h"
#include "base/list.h"
#include "control/control.h"
#include "control/router_calls.h"
#include "fleet/fleet_call.h"
#include "io/fetch.h"
#include "io/js.h"
#include "pool/pool.h"
#include "proxy/fan_out.h"

#include <stdlib.h>
#include <string.h>

#define JOBS_MAX 32 /* under way; each asks every worker of a pool */

static_assert(FAN_OUT_FIELDS_MAX <= FLEET_CALL_FIELDS_MAX, "all fields go on");

struct job {
	LIST_ENTRY(job) link;
	struct fleet_calls *calls;
	struct fan_out *fan_out;
	struct fleet_call *call;
};

struct fleet_calls {
	struct control *control;
	struct fetcher *fetcher;
	LIST_HEAD(, job) jobs;
	unsigned n_jobs;
	struct router_calls *router;
};

/* NULL once no I/O thread is left: what was posted before is then only freed. */
static struct fleet_calls *running;

static void job_free(struct job *j)
{
	LIST_REMOVE(j, link);
	j->calls->n_jobs--;
	fleet_call_free(j->call);
	free(j);
}

static struct js *error_object(const struct fleet_call *c)
{
	struct js *error = js_object();
	char text[512];

	fleet_call_say(c, text, sizeof(text));
	js_set_str(error, "message", text);
	js_set_str(error, "type", fail_type(FAIL_NOT_BY_ALL));
	js_set(error, "param", js_null());
	js_set_str(error, "code", fail_code(FAIL_NOT_BY_ALL));
	return error;
}

static void on_done(void *arg, struct fleet_call *c)
{
	struct job *j = arg;
	struct fan_out *f = j->fan_out;
	struct js *out = js_object();

	f->is_good = fleet_call_is_good(c);
	if (!f->is_good)
		js_set(out, "error", error_object(c));
	js_set_str(out, "pool", pool_name(f->pool));
	js_set(out, "workers", fleet_call_list(c));
	f->answer = js_print(out, false);
	f->answer_n = f->answer != NULL ? strlen(f->answer) : 0;
	js_free(out);
	job_free(j);
	fan_out_answer(f);
}

static struct fleet_call *start(struct fleet_calls *calls, struct job *j)
{
	const struct fan_out *f = j->fan_out;
	struct fleet_call_ask ask = {
		.method = f->method,
		.paths = {f->target},
		.hides_key = f->hides_key,
		.body = span_make(f->body, f->body_n),
		.body_stays = true,
		.drops_caches = f->drops_caches,
		.stops_requests = f->stops_requests,
	};
	size_t i;

	for (i = 0; i < FAN_OUT_FIELDS_MAX; i++)
		ask.fields[i] = f->fields[i];
	return fleet_call_start(calls->fetcher, f->pool, &ask, on_done, j);
}

static void on_letter(void *arg)
{
	struct fleet_calls *calls = running;
	struct fan_out *f = arg;
	struct job *j;

	if (calls == NULL) {
		fan_out_free(f);
		return;
	}
	if (f->is_router_call) {
		router_calls_take(calls->router, f);
		return;
	}
	f->is_refused = calls->n_jobs >= JOBS_MAX;
	j = f->is_refused ? NULL : calloc(1, sizeof(*j));
	if (j != NULL) {
		j->calls = calls;
		j->fan_out = f;
		j->call = start(calls, j);
	}
	if (j == NULL || j->call == NULL) {
		free(j);
		fan_out_answer(f); /* with no answer */
		return;
	}
	LIST_INSERT_HEAD(&calls->jobs, j, link);
	calls->n_jobs++;
	if (fleet_call_is_over(j->call))
		on_done(j, j->call);
}

/* On an I/O thread. */
static void run(void *arg, struct fan_out *f)
{
	struct fleet_calls *calls = arg;

	mailbox_send(calls->control->mailbox, &f->mail, on_letter, f);
}

struct fleet_calls *fleet_calls_start(struct control *c)
{
	struct fleet_calls *calls = calloc(1, sizeof(*calls));

	if (calls == NULL)
		return NULL;
	calls->control = c;
	LIST_INIT(&calls->jobs);
	calls->fetcher = fetcher_new(c->loop);
	calls->router = router_calls_new(c);
	if (calls->fetcher == NULL || calls->router == NULL) {
		fetcher_free(calls->fetcher);
		router_calls_free(calls->router);
		free(calls);
		return NULL;
	}
	running = calls;
	fan_out_set_runner(run, calls);
	return calls;
}

void fleet_calls_stop(struct fleet_calls *calls)
{
	struct job *j;

	running = NULL;
	if (calls == NULL)
		return;
	while ((j = LIST_FIRST(&calls->jobs)) != NULL) {
		struct fan_out *f = j->fan_out;

		job_free(j);
		fan_out_free(f); /* the call had its body */
	}
	router_calls_free(calls->router);
	fetcher_free(calls->fetcher);
	free(calls);
}
