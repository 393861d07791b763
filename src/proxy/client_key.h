/*
 * Who asks, where the router asks for keys (api_keys): what a request's head says of it,
 * and its tenant's limits. Part of the spine (request.c); what is known of keys and
 * tenants is the site's (model/tenant.h).
 *
 * A request is one of its tenant's from client_key_enter() until client_key_leave(), just
 * before its last byte is sent. What is served here without a worker needs a key, where
 * it needs one, but is not counted.
 */
#ifndef PROXY_CLIENT_KEY_H
#define PROXY_CLIENT_KEY_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "pool/queue.h"

struct request;

/* Once the head and its path are known: sets the request's tenant. FAIL_NONE, too, where
 * no key is asked for. */
enum fail client_key_check(struct request *r);
/* FAIL_RATE_LIMITED: not now, and retry_after_secs is set. */
enum fail client_key_enter(struct request *r);
/* Nothing where it has not entered, or has left. */
void client_key_leave(struct request *r);
/* What the tenant's prompts are salted with; empty: nobody was asked. */
struct span client_key_salt(const struct request *r);
/* False: its key does not say. */
bool client_key_priority(const struct request *r, enum priority *out);

#endif
