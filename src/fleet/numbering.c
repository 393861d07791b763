/*
 * How an engine wants its ranks to be numbered. See numbering.h.
 */
#include "fleet/numbering.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "fleet/host.h"
#include "io/js.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>

#define ANSWER_WITHIN_MS 10000 /* a token of an engine that may be busy */

struct numbering {
	struct host *host;
	struct fetcher *fetcher;
	void (*on_done)(void *arg);
	void *arg;
	struct fetch *fetch; /* NULL: none under way */
	unsigned asking;     /* what the engine calls its first rank */
	/* What came of it, for that process. */
	bool is_known, is_across_nodes;
	unsigned first, restarts;
};

static const struct worker_conf *conf_of(const struct numbering *n)
{
	return host_worker(n->host)->conf;
}

bool numbering_is_open(const struct numbering *n)
{
	return conf_of(n)->dp_size > 1 && conf_of(n)->dp_start_rank == 0;
}

/* Ranks may have come since. */
static void apply(struct numbering *n, unsigned first)
{
	struct host_seat *seat;

	HOST_FOREACH(seat, n->host)
	worker_number_rank(seat->worker,
		seat->worker->rank + (n->is_known && n->is_across_nodes ? first : 0));
}

static void tell(const struct numbering *n)
{
	const struct worker *w = host_worker(n->host);

	if (n->is_across_nodes)
		log_notice("worker %s: its engine numbers its ranks from %u, and so do "
			   "requests now; dp_start_rank = %u makes the names of its "
			   "workers agree",
			w->group, n->first, n->first);
}

static void on_answer(void *arg, const struct fetch_answer *a)
{
	struct numbering *n = arg;

	n->fetch = NULL;
	if (a->result == FETCH_OK) {
		n->is_known = true;
		n->is_across_nodes = host_said_yes(a);
		n->first = n->asking;
		n->restarts = n->host->restarts;
		apply(n, n->first);
		tell(n);
	}
	n->on_done(n->arg);
}

/* NULL: out of memory. */
static char *make_body(const struct js *models)
{
	struct js *body = js_object();
	struct span model;
	char *text;

	if (models != NULL && js_as_str(js_get(js_at(models, 0), "id"), &model))
		js_set(body, "model", js_string(model));
	js_set_str(body, "prompt", "a");
	js_set_int(body, "max_tokens", 1);
	text = js_print(body, false);
	js_free(body);
	return text;
}

static bool is_answered(const struct numbering *n, unsigned first)
{
	return n->is_known && n->first == first && n->restarts == n->host->restarts;
}

bool numbering_ask(struct numbering *n, unsigned first, const struct js *models)
{
	scoped_free char *body = NULL;
	char field[48];
	struct host_ask ask = {.method = "POST",
		.path = "/v1/completions",
		.fields = {field},
		.timeout_ms = ANSWER_WITHIN_MS};

	if (n->fetch != NULL)
		return true;
	if (!numbering_is_open(n) || first == 0 || is_answered(n, first)) {
		apply(n, numbering_is_open(n) ? first : 0);
		return false;
	}
	/* A number that no engine has which counts from 0. */
	snprintf(field, sizeof(field), "X-data-parallel-rank: %u",
		first + conf_of(n)->dp_size - 1);
	body = make_body(models);
	if (body == NULL)
		return false;
	ask.body = span_str(body);
	n->asking = first;
	n->fetch = host_fetch(n->host, n->fetcher, &ask, on_answer, n);
	return n->fetch != NULL;
}

struct numbering *numbering_new(
	struct host *host, struct fetcher *f, void (*on_done)(void *arg), void *arg)
{
	struct numbering *n = calloc(1, sizeof(*n));

	if (n == NULL)
		return NULL;
	*n = (struct numbering){
		.host = host, .fetcher = f, .on_done = on_done, .arg = arg};
	return n;
}

void numbering_free(struct numbering *n)
{
	if (n == NULL)
		return;
	if (n->fetch != NULL)
		fetch_cancel(n->fetch);
	free(n);
}
