/*
 * Keys of clients, if the router needs them (api_keys), and the limits of their tenants
 * (pool/tenant.h), for one request. Part of the request (by value); all zero is a
 * request of no tenant.
 *
 * A request counts for its tenant from caller_enter() until caller_leave(), just before
 * its last byte is sent.
 */
#ifndef PROXY_CALLER_H
#define PROXY_CALLER_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "pool/queue.h"

struct conf_client_key;
struct digester;
struct tenant;
struct tenants;

struct caller {
	const struct tenant *tenant;       /* the site's; NULL: no key is needed */
	const struct conf_client_key *key; /* the site's */
	bool is_entered;                   /* among the tenant's requests */
	unsigned retry_after_secs;         /* of a limit that was reached; 0: none */
};

/* Finds the tenant of the key that the header presents. authorization, x_api_key: fields
 * of it, empty: absent. */
enum fail caller_check(struct caller *k, const struct tenants *tenants,
	struct digester *digester, struct span authorization,
	struct span x_api_key) MUST_CHECK;
/* FAIL_RATE_LIMITED: not now, and retry_after_secs is set. FAIL_NONE where there is no
 * tenant. */
enum fail caller_enter(struct caller *k) MUST_CHECK;
/* Harmless where it has not entered, or has left. */
void caller_leave(struct caller *k);
/* The salt of the tenant's prompts; empty: there is no tenant. */
struct span caller_salt(const struct caller *k);
/* Its number among the tenants; BREAKER_NO_TENANT: there is no tenant. */
uint32_t caller_id(const struct caller *k);
/* False: its key has no priority. */
bool caller_priority(const struct caller *k, enum priority *out);

#endif
