/*
 * Calls to all workers, on the request's side. See fan_out.h. Called by request.c.
 */
#include "proxy/fan_out.h"

#include "base/mem.h"
#include "pool/pool.h"
#include "proxy/pin.h"
#include "proxy/request_state.h"

#include <stdlib.h>
#include <string.h>

static fan_out_runner *runner;
static void *runner_arg;

void fan_out_set_runner(fan_out_runner *run, void *arg)
{
	runner = run;
	runner_arg = arg;
}

void fan_out_free(struct fan_out *f)
{
	size_t i;

	if (f == NULL)
		return;
	pool_unref(f->pool);
	free(f->target);
	for (i = 0; i < FAN_OUT_FIELDS_MAX; i++) {
		/* It may be somebody's key. */
		if (f->fields[i] != NULL)
			mem_wipe(f->fields[i], strlen(f->fields[i]));
		free(f->fields[i]);
	}
	budget_let_go(&f->budget, f->body_n);
	free(f->body);
	free(f->answer);
	free(f);
}

static void on_letter(void *arg)
{
	struct fan_out *f = arg;

	f->has_come = true;
	if (f->is_left)
		fan_out_free(f);
	else
		f->wake(f->arg);
}

void fan_out_answer(struct fan_out *f)
{
	mailbox_send(f->home, &f->mail, on_letter, f);
}

bool fan_out_is_meant(const struct request *r)
{
	struct pool_ask pins = {0};

	if (!r->verdict.is_for_all || !pool_has_hosts(r->pool))
		return false;
	if (opts(r)->allow_pin)
		pin_read_head(r->c->buf, &r->head, &pins);
	return !pool_ask_is_pinned(&pins);
}

static char *copy(struct span s)
{
	char *to = malloc(s.n + 1);

	if (to == NULL)
		return NULL;
	if (s.n > 0)
		memcpy(to, s.p, s.n);
	to[s.n] = '\0';
	return to;
}

/* False: out of memory. */
static bool add_field(struct fan_out *f, const char *name, struct span value)
{
	size_t i = 0;

	if (value.n == 0)
		return true;
	while (f->fields[i] != NULL)
		i++;
	assert(i < FAN_OUT_FIELDS_MAX);
	f->fields[i] = mem_format("%s: " SPAN_FMT, name, SPAN_ARG(value));
	return f->fields[i] != NULL;
}

/* Credentials go on where the router has no keys of its own, as in other requests. */
static bool add_fields(const struct request *r, struct fan_out *f)
{
	struct span authorization = field(r, FIELD_AUTHORIZATION);
	struct span x_api_key = field(r, FIELD_X_API_KEY);

	if (!add_field(f, "Content-Type", field(r, FIELD_CONTENT_TYPE)) ||
		!add_field(f, "X-Request-Id", request_id(r)))
		return false;
	if (r->caller.tenant != NULL)
		return true;
	f->hides_key = authorization.n > 0 || x_api_key.n > 0;
	return add_field(f, "Authorization", authorization) &&
	       add_field(f, "X-Api-Key", x_api_key);
}

static enum fail fill(const struct request *r, struct fan_out *f)
{
	struct span body = request_body(r);

	f->budget = (struct budget){.total = r->budget.total, .limit = r->budget.limit};
	f->body_n = body.n;
	if (!budget_hold(&f->budget, body.n))
		return FAIL_BODY_MEMORY;
	f->target = copy(http_head_target(r->c->buf, &r->head));
	f->body = copy(body);
	return f->target != NULL && f->body != NULL && add_fields(r, f) ? FAIL_NONE
									: FAIL_OVERLOADED;
}

enum fail fan_out_start(struct request *r)
{
	struct fan_out *f;
	enum fail why;

	assert(r->fan_out == NULL);
	if (request_body(r).n > FAN_OUT_BODY_MAX)
		return FAIL_BODY_TOO_LARGE;
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return FAIL_OVERLOADED;
	*f = (struct fan_out){
		.home = r->t->mailbox,
		.wake = r->c->run,
		.arg = r->c,
		.pool = r->pool != NULL ? pool_ref(r->pool) : NULL,
		.method = http_method_name(r->head.method),
		.drops_caches = r->verdict.drops_caches,
		.stops_requests = r->verdict.stops_requests,
		.is_router_call = r->verdict.action == PATH_ROUTER,
	};
	why = fill(r, f);
	if (why != FAIL_NONE) {
		fan_out_free(f);
		return why;
	}
	r->fan_out = f;
	runner(runner_arg, f);
	return FAIL_NONE;
}

void fan_out_leave(struct fan_out **fan_out)
{
	struct fan_out *f = *fan_out;

	*fan_out = NULL;
	if (f == NULL)
		return;
	f->is_left = true;
	if (f->has_come)
		fan_out_free(f);
}
