/*
 * What a request asks its pool, and what is noted of the worker it gets. Called by the
 * PICK step of request.c, and where FORWARD and RELAY look for another worker; part of
 * its request.
 */
#ifndef PROXY_PICK_H
#define PROXY_PICK_H

#include "pool/pool.h"

struct request;
struct routing;

/* routing lives as long as what is returned. */
struct pool_ask pick_ask(struct request *r, struct routing *routing);
/* Asks, or asks whether the queue has one by now; where a stored response may be of
 * another pool, that one, too. 0: r->guard and r->pick are set; errors as of
 * admission_ask(), ERR_AGAIN: it waits. */
int pick_worker(struct request *r) MUST_CHECK;
/* After that, once: name, time and match. */
void pick_note(struct request *r);

#endif
