/*
 * Calls to all workers, on the request's side. See fan_out.h. Called by request.c.
 */
#include "proxy/fan_out.h"

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
	if (f == NULL)
		return;
	pool_unref(f->pool);
	free(f->target);
	free(f->content_type);
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

bool fan_out_start(struct request *r)
{
	struct span type = field(r, FIELD_CONTENT_TYPE), body = request_body(r);
	struct fan_out *f = calloc(1, sizeof(*f));

	assert(r->fan_out == NULL && body.n <= FAN_OUT_BODY_MAX);
	if (f == NULL)
		return false;
	*f = (struct fan_out){
		.home = r->t->mailbox,
		.wake = r->c->run,
		.arg = r->c,
		.pool = pool_ref(r->pool),
		.method = http_method_name(r->head.method),
		.target = copy(http_head_target(r->c->buf, &r->head)),
		.content_type = type.n > 0 ? copy(type) : NULL,
		.body = copy(body),
		.body_n = body.n,
		.drops_caches = r->verdict.drops_caches,
		.stops_requests = r->verdict.stops_requests,
	};
	if (f->target == NULL || f->body == NULL ||
		(type.n > 0 && f->content_type == NULL)) {
		fan_out_free(f);
		return false;
	}
	r->fan_out = f;
	runner(runner_arg, f);
	return true;
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
