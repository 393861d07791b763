/*
 * What the client's head and body say of its request: whether it may be served, what of
 * its body must be read, its pool and its route key. Called by the first three steps of
 * request.c; part of its request.
 */
#ifndef PROXY_INTAKE_H
#define PROXY_INTAKE_H

#include "base/base.h"
#include "base/fail.h"

struct request;

/* What the head alone says against the request; the body is then skipped, not read. */
enum fail intake_judge(struct request *r) MUST_CHECK;
/* Sets whether the body must be awaited to route the request, and what of it is scanned.
 */
void intake_start_scan(struct request *r);
/* Scans what came of the body since the last call. */
void intake_scan_body(struct request *r);
/* Sets r->pool and r->key, sealed. FAIL_OVERLOADED: memory; FAIL_MODEL_NOT_FOUND. */
enum fail intake_route_key(struct request *r) MUST_CHECK;

#endif
