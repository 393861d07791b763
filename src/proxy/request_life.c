/*
 * How requests are made, made anew and freed: each thread keeps some for their memory.
 * And what conn asks of one, whatever its step. See request.h; what a request does is in
 * request.c.
 */
#include "base/clock.h"
#include "base/metric.h"
#include "base/poison.h"
#include "http/http_scan.h"
#include "proxy/prefill_decode.h"
#include "proxy/request.h"
#include "proxy/request_state.h"
#include "proxy/resume.h"

#include <stdlib.h>

#define FREE_REQUESTS_MAX 256

static struct request *request_get(struct io_thread *t)
{
	struct request *r = t->free_requests;

	if (r != NULL) {
		unpoison(r, sizeof(*r));
		t->free_requests = r->next_free;
		t->n_free_requests--;
		return r;
	}
	r = calloc(1, sizeof(*r));
	if (r != NULL)
		route_key_init(&r->key);
	return r;
}

static void request_reset(struct request *r)
{
	memset(r, 0, offsetof(struct request, json));
	http_head_begin(&r->head);
	r->worker_name[0] = '\0';
}

struct request *request_new(struct io_thread *t, struct client *c)
{
	struct request *r = request_get(t);

	if (r == NULL)
		return NULL;
	request_reset(r);
	r->magic = REQUEST_MAGIC;
	r->t = t;
	r->c = c;
	r->who = &c->peer;
	r->site = io_site_take(t);
	r->budget.total = &t->process->body_memory;
	r->budget.limit = opts(r)->body_memory;
	r->began_ms = r->progress_ms = clock_now_ms();
	r->began_us = clock_turn_us();
	http_scan_start(&r->scan, HTTP_SCAN_REQUEST);
	metric_inc(METRIC_REQUESTS);
	return r;
}

static void request_destroy(struct request *r)
{
	route_key_free(&r->key);
	route_scan_free(r->json);
	free(r);
}

void request_free(struct request *r)
{
	struct io_thread *t = r->t;

	assert(r->magic == REQUEST_MAGIC && r->place.guard.worker == NULL &&
		r->place.ex == NULL && r->ticket == NULL);
	r->magic = 0;
	attempt_free(&r->attempts);
	pd_free(r->pd);
	resume_free(r->resume);
	body_free(&r->body, t, &r->budget);
	assert(r->budget.held == 0);
	route_key_reset(&r->key);
	io_site_give(t, r->site);
	metric_add(METRIC_REQUESTS, -1);
	if (t->n_free_requests >= FREE_REQUESTS_MAX) {
		request_destroy(r);
		return;
	}
	r->next_free = t->free_requests;
	t->free_requests = r;
	t->n_free_requests++;
	poison(r, sizeof(*r));
}

void request_free_all(struct io_thread *t)
{
	while (t->free_requests != NULL) {
		struct request *r = t->free_requests;

		unpoison(r, sizeof(*r));
		t->free_requests = r->next_free;
		request_destroy(r);
	}
	t->n_free_requests = 0;
}

/* ---- what conn asks ---- */

bool request_keeps_alive(const struct request *r)
{
	return r->keep;
}

bool request_was_cut(const struct request *r)
{
	return r->was_cut && r->relay.framing == HTTP_BODY_UNTIL_CLOSE;
}

bool request_is_unread(const struct request *r)
{
	return r->has_head && !r->body.is_complete && r->why != FAIL_BAD_CHUNK &&
	       r->why != FAIL_CLIENT_TIMEOUT;
}

size_t request_used(const struct request *r)
{
	return r->has_head ? body_used(&r->body) : 0;
}

bool request_survives_eof(const struct request *r)
{
	if (request_is_reading(r))
		return false;
	switch (opts(r)->half_close) {
	case HALF_CLOSE_ABORT:
		return false;
	case HALF_CLOSE_ALLOW:
		return true;
	default:
		return r->head.wants_close;
	}
}
