/*
 * One process behind one URL, and how it is asked. See host.h. Called by health.c,
 * report.c and flush.c.
 */
#include "fleet/host.h"

#include "base/err.h"
#include "base/mem.h"
#include "io/resolve.h"
#include "pool/pool.h"
#include "worker/worker.h"

#include <stdlib.h>
#include <string.h>

void host_init(struct host *h, struct pool *p, struct worker *w)
{
	*h = (struct host){.pool = pool_ref(p), .id = w->host_id};
	host_add(h, w);
}

void host_add(struct host *h, struct worker *w)
{
	if (h->n == h->cap) {
		h->cap = MAX(h->cap * 2, (size_t)1);
		h->workers = xrealloc(h->workers, h->cap * sizeof(struct worker *));
	}
	h->workers[h->n++] = worker_ref(w);
}

bool host_drop(struct host *h, struct worker *w)
{
	size_t i;

	for (i = 0; i < h->n && h->workers[i] != w; i++)
		;
	if (i == h->n)
		return h->n > 0;
	memmove(&h->workers[i], &h->workers[i + 1],
		(h->n - i - 1) * sizeof(struct worker *));
	h->n--;
	worker_unref(w);
	return h->n > 0;
}

void host_free(struct host *h)
{
	while (h->n > 0)
		worker_unref(h->workers[--h->n]);
	free(h->workers);
	pool_unref(h->pool);
	*h = (struct host){0};
}

void host_restarted(struct host *h)
{
	size_t i;

	for (i = 0; i < h->n; i++) {
		struct worker *w = h->workers[i];

		pool_clear_worker(h->pool, w);
		pool_set_engine(h->pool, w, span_make(NULL, 0));
		progress_reset(&w->progress);
		breaker_reset(&w->breaker);
		strcpy(w->verdict_reason, "it was restarted");
	}
}

bool host_said_yes(const struct fetch_answer *a)
{
	return a->result == FETCH_OK && a->status >= 200 && a->status < 300;
}

/* "http://10.0.0.1:8000/base/path"; NULL: no address is known. */
static char *address_url(const struct host *h, const char *path, uint16_t port)
{
	struct worker *w = host_worker(h);
	char address[SOCK_ADDR_TEXT_MAX];
	struct addr_list *list;
	unsigned start;

	list = worker_addrs(w, &start);
	if (list == NULL)
		return NULL;
	sock_addr_text(&list->addrs[h->addr_turn % list->n], port == 0, address,
		sizeof(address));
	addr_list_unref(list);
	if (port != 0)
		return xasprintf(strchr(address, ':') != NULL ? "http://[%s]:%u%s"
							      : "http://%s:%u%s",
			address, port, path);
	return xasprintf(
		"%s://%s%s%s", w->url.tls ? "https" : "http", address, w->url.base, path);
}

struct fetch *host_fetch(const struct host *h, struct fetcher *f,
	const struct host_ask *ask, fetch_done_fn *fn, void *arg)
{
	struct worker *w = host_worker(h);
	const char *auth = ask->port == 0 ? atomic_load(&w->authorization) : NULL;
	const char *fields[3] = {NULL, NULL, NULL};
	char *url = address_url(h, ask->path, ask->port), *host_field = NULL,
	     *auth_field = NULL;
	struct fetch_request req = {.url = url,
		.method = ask->method,
		.headers = fields,
		.timeout_ms = ask->timeout_ms,
		.max_body = ask->max_body};
	struct fetch *started;

	if (url == NULL)
		return NULL;
	if (ask->port == 0)
		fields[0] = host_field = xasprintf("Host: %s", w->url.host_header);
	if (auth != NULL) /* behind the Host */
		fields[1] = auth_field = xasprintf("Authorization: %s", auth);
	started = fetch_start(f, &req, fn, arg);
	free(url);
	free(host_field);
	if (auth_field != NULL)
		mem_wipe(auth_field, strlen(auth_field));
	free(auth_field);
	return started;
}
