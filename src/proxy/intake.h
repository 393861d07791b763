/*
 * The client's side of a request: its header and body, read as they arrive; whether it may
 * be served, how much of its body routing needs, its pool and its route key.
 * Called by request.c.
 */
#ifndef PROXY_INTAKE_H
#define PROXY_INTAKE_H

#include "base/base.h"
#include "base/fail.h"
#include "proxy/decision.h"

struct request;

/* READ_HEAD: reads and parses the header, judges it, and begins the body. */
struct decision intake_read_header(struct request *r);
/* READ_BODY: reads and scans the body, or leaves it for intake_hand_on(), where routing
 * does not need it. */
struct decision intake_read_body(struct request *r);
/* FORWARD and RELAY, where the upload is on: its body goes to the worker as it comes.
 * NEXT_STEP: the bytes that are here have gone. */
struct decision intake_hand_on(struct request *r);
/* ROUTE_KEY: sets r->pool and r->key, sealed. FAIL_OVERLOADED: memory;
 * FAIL_MODEL_NOT_FOUND. */
enum fail intake_route_key(struct request *r) MUST_CHECK;

#endif
