/*
 * One process behind one URL, and how it is asked. See host.h. Called by health.c,
 * report.c and flush.c.
 */
#include "fleet/host.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "io/resolve.h"
#include "pool/pool.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void host_init(struct host *h, struct pool *p, uint64_t id)
{
	*h = (struct host){.pool = pool_ref(p), .id = id};
	STAILQ_INIT(&h->seats);
}

void host_add(struct host *h, struct host_seat *seat, struct worker *w)
{
	assert(w->host_id == h->id);
	seat->worker = worker_ref(w);
	STAILQ_INSERT_TAIL(&h->seats, seat, link);
	h->n++;
}

static void leave(struct host *h, struct host_seat *seat)
{
	STAILQ_REMOVE(&h->seats, seat, host_seat, link);
	h->n--;
	worker_unref(take_ptr(seat->worker));
}

struct host_seat *host_drop(struct host *h, struct worker *w)
{
	struct host_seat *seat;

	HOST_FOREACH(seat, h)
	{
		if (seat->worker != w)
			continue;
		leave(h, seat);
		return seat;
	}
	return NULL;
}

void host_clear(struct host *h)
{
	while (!STAILQ_EMPTY(&h->seats))
		leave(h, STAILQ_FIRST(&h->seats));
	pool_unref(take_ptr(h->pool));
}

void host_restarted(struct host *h)
{
	struct host_seat *seat;

	h->restarts++;
	HOST_FOREACH(seat, h)
	{
		struct worker *w = seat->worker;

		pool_clear_worker(h->pool, w);
		pool_set_engine(h->pool, w, span_make(NULL, 0));
		progress_reset(&w->watch.progress);
		breaker_reset(&w->breaker);
		snprintf(w->watch.verdict_reason, sizeof(w->watch.verdict_reason),
			"it was restarted");
	}
}

bool host_said_yes(const struct fetch_answer *a)
{
	return a->result == FETCH_OK && a->status >= 200 && a->status < 300;
}

/* "http://10.0.0.1:8000/base/path"; NULL: no address is known, or memory is short. */
static char *address_url(const struct host *h, const char *path, uint16_t port)
{
	struct worker *w = host_worker(h);
	char address[SOCK_ADDR_TEXT_MAX];
	struct addr_list *list;
	unsigned start;

	if (conf_url_is_unix(&w->url))
		return port != 0 ? mem_format("http://127.0.0.1:%u%s", port, path)
				 : mem_format("http://localhost%s", path);
	list = worker_addrs(w, &start);
	if (list == NULL)
		return NULL;
	sock_addr_text(&list->addrs[h->addr_turn % list->n], port == 0, address,
		sizeof(address));
	addr_list_unref(list);
	if (port != 0)
		return mem_format(strchr(address, ':') != NULL ? "http://[%s]:%u%s"
							       : "http://%s:%u%s",
			address, port, path);
	return mem_format(
		"%s://%s%s%s", w->url.tls ? "https" : "http", address, w->url.base, path);
}

struct fetch *host_fetch(const struct host *h, struct fetcher *f,
	const struct host_ask *ask, fetch_done_fn *fn, void *arg)
{
	struct worker *w = host_worker(h);
	const char *auth =
		ask->port == 0 && !ask->hides_key ? atomic_load(&w->authorization) : NULL;
	const char *fields[HOST_FIELDS_MAX + 3] = {NULL};
	size_t n = 0, i;
	char *url = address_url(h, ask->path, ask->port), *host_field = NULL,
	     *auth_field = NULL;
	struct fetch_request req = {.url = url,
		.unix_socket =
			ask->port == 0 && conf_url_is_unix(&w->url) ? w->url.host : NULL,
		.method = ask->method,
		.headers = fields,
		.body = ask->body,
		.body_stays = ask->body_stays,
		.timeout_ms = ask->timeout_ms,
		.connect_timeout_ms = ask->connect_timeout_ms,
		.max_body = ask->max_body,
		.cuts_body = ask->cuts_body};
	struct fetch *started = NULL;

	if (ask->port == 0)
		fields[n++] = host_field = mem_format("Host: %s", w->url.host_header);
	if (auth != NULL)
		fields[n++] = auth_field = mem_format("Authorization: %s", auth);
	for (i = 0; i < HOST_FIELDS_MAX; i++) {
		if (ask->fields[i] != NULL)
			fields[n++] = ask->fields[i];
	}
	if (url != NULL && (ask->port != 0 || host_field != NULL) &&
		(auth == NULL || auth_field != NULL))
		started = fetch_start(f, &req, fn, arg);
	free(url);
	free(host_field);
	if (auth_field != NULL)
		mem_wipe(auth_field, strlen(auth_field));
	free(auth_field);
	return started;
}
