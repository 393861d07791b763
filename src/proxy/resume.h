/*
 * Streams that go on elsewhere when their worker breaks (resume_streams): which do, what
 * the client gets of each worker's bytes, and what the next worker is asked. Called by
 * the steps of request.c; part of its request, and at no cost where the key is off.
 */
#ifndef PROXY_RESUME_H
#define PROXY_RESUME_H

#include "base/base.h"
#include "base/fail.h"
#include "http/http_head.h"

struct pool_ask;
struct request;
struct resume;

/* FORWARD, with the head of an answer that the client gets: r->resume is set if this one
 * may go on elsewhere. */
void resume_begin(struct request *r, const struct http_head *a, const char *base);
/* RELAY: what the client gets of *data. ERR_NOMEM. */
int resume_see(struct request *r, struct span *data, bool last) MUST_CHECK;

enum resume_way {
	RESUME_NOT,       /* the client must see it break */
	RESUME_ENDS,      /* only the end was missing: it is in *data */
	RESUME_ELSEWHERE, /* pick again; the request's body is the one that goes on */
};
/*
 * The worker broke off, or the one that was to go on failed. ask: with that worker among
 * the tried. Counts what comes of it.
 */
enum resume_way resume_after(
	struct request *r, const struct pool_ask *ask, enum fail why, struct span *data);
/* No worker was there to go on. */
void resume_found_nobody(const struct request *r);
/* An answer goes on with the stream: another worker's took over, or may. */
bool resume_is_on(const struct request *r);
/* FORWARD: the worker that is to go on answered; whether it does. */
bool resume_goes_on(struct request *r, const struct http_head *a, const char *base);
/* The body to send; the client's own where nothing was said yet. */
struct span resume_request_body(const struct request *r);
void resume_free(struct request *r);

#endif
