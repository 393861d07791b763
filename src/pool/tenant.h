/*
 * The clients that may send requests, by the SHA-256 of the key they show, with the
 * limits and counts of each tenant. Made with each configuration (site.h) from its client
 * keys. A key is found in O(1) and compared in constant time. Counters of limits and
 * requests are shared by name with the tables before and after, so that a reload resets
 * no limit.
 *
 * The table is immutable and read by all threads; counters are atomic. It points into
 * the conf_client_keys that it was made from, which must outlive it.
 */
#ifndef POOL_TENANT_H
#define POOL_TENANT_H

#include "base/base.h"
#include "base/limit.h"
#include "base/span.h"
#include "conf/conf_client_keys.h"

#include <stdatomic.h>

enum tenant_result { TENANT_MAY, TENANT_AT_CAP, TENANT_TOO_FAST, TENANT_RESULT_MAX };

/* Outlives its tables for as long as one has it. */
struct tenant_account {
	_Atomic unsigned refs;
	struct limit limit;
	_Atomic uint64_t asked[TENANT_RESULT_MAX];
};

struct tenant {
	const struct conf_tenant *conf;
	struct tenant_account *account; /* a reference */
	/* The salt of its prompts in the index: shared by all tenants of one cache group,
	 * otherwise the tenant's own. */
	char *salt;
};

struct tenants {
	const struct conf_client_keys *keys;
	struct tenant *items; /* as keys->tenants */
	uint32_t *slots;      /* keys by digest: index + 1; 0: free */
	size_t mask;
};

/* keys NULL: NULL and 0. old may be NULL. ERR_NOMEM. */
int tenants_new(const struct conf_client_keys *keys, const struct tenants *old,
	struct tenants **out) MUST_CHECK;
void tenants_free(struct tenants *t); /* NULL is fine */

/* NULL: an unknown key. */
const struct conf_client_key *tenants_find(
	const struct tenants *t, const unsigned char digest[DIGEST_BYTES]);
const struct tenant *tenants_of(
	const struct tenants *t, const struct conf_client_key *key);
const struct tenant *tenants_named(
	const struct tenants *t, struct span name); /* or NULL */

/*
 * Admits one more request of the tenant; tenant_leave() ends it. If it is refused,
 * *wait_us is the time until one more may come, as far as that is known (else 0).
 */
enum tenant_result tenant_enter(
	const struct tenant *t, uint64_t now_us, uint64_t *wait_us) MUST_CHECK;
void tenant_leave(const struct tenant *t);

/*
 * The key that a client presents: the token of `Authorization: Bearer`, or `X-Api-Key`
 * (both headers' values; empty: absent). 0; ERR_NOENT: none, or one that no key can be;
 * ERR_PARSE: two that differ.
 */
int tenant_presented(
	struct span authorization, struct span x_api_key, struct span *key) MUST_CHECK;
#define TENANT_KEY_MAX 512

#endif
