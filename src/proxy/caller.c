/*
 * Keys of clients on the request path. See caller.h.
 */
#include "proxy/caller.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "pool/tenant.h"
#include "worker/breaker.h"

#define US_PER_SEC UINT64_C(1000000)

enum fail caller_check(struct caller *k, const struct tenants *tenants,
	struct digester *digester, struct span authorization, struct span x_api_key)
{
	unsigned char digest[DIGEST_BYTES];
	struct span key;
	int err = tenant_presented(authorization, x_api_key, &key);

	if (err == ERR_PARSE)
		return FAIL_BAD_HEADER;
	if (err != 0)
		return FAIL_UNAUTHORIZED;
	if (!digest_sha256(digester, key, digest))
		return FAIL_OVERLOADED;
	k->key = tenants_find(tenants, digest);
	if (k->key == NULL)
		return FAIL_UNAUTHORIZED;
	k->tenant = tenants_of(tenants, k->key);
	return FAIL_NONE;
}

enum fail caller_enter(struct caller *k)
{
	uint64_t wait_us;

	if (k->tenant == NULL)
		return FAIL_NONE;
	if (tenant_enter(k->tenant, clock_us(), &wait_us) == TENANT_MAY) {
		k->is_entered = true;
		return FAIL_NONE;
	}
	k->retry_after_secs =
		(unsigned)MAX((wait_us + US_PER_SEC - 1) / US_PER_SEC, UINT64_C(1));
	return FAIL_RATE_LIMITED;
}

void caller_leave(struct caller *k)
{
	if (!k->is_entered)
		return;
	k->is_entered = false;
	tenant_leave(k->tenant);
}

struct span caller_salt(const struct caller *k)
{
	return k->tenant != NULL ? span_str(k->tenant->salt) : span_make(NULL, 0);
}

uint32_t caller_id(const struct caller *k)
{
	return k->key != NULL ? k->key->tenant + 1 : BREAKER_NO_TENANT;
}

bool caller_priority(const struct caller *k, enum priority *out)
{
	static const enum priority said[] = {
		[KEY_PRIORITY_HIGH] = PRIORITY_HIGH,
		[KEY_PRIORITY_NORMAL] = PRIORITY_NORMAL,
		[KEY_PRIORITY_LOW] = PRIORITY_LOW,
	};

	if (k->key == NULL || k->key->priority == KEY_PRIORITY_NONE)
		return false;
	*out = said[k->key->priority];
	return true;
}
