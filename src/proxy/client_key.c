/*
 * Keys of clients on the request path. See client_key.h.
 */
#include "proxy/client_key.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "proxy/request_state.h"

#define US_PER_SEC UINT64_C(1000000)

/* Health is asked by who has no key; who ends sessions shows the admin key. */
static bool needs_key(const struct request *r)
{
	return r->site->tenants != NULL &&
	       (r->verdict.action == PATH_FORWARD || r->verdict.action == PATH_MODELS);
}

enum fail client_key_check(struct request *r)
{
	unsigned char digest[DIGEST_BYTES];
	struct span key;
	int err;

	if (!needs_key(r))
		return FAIL_NONE;
	err = tenant_presented(
		field(r, FIELD_AUTHORIZATION), field(r, FIELD_X_API_KEY), &key);
	if (err == ERR_PARSE)
		return FAIL_BAD_HEADER;
	if (err != 0)
		return FAIL_UNAUTHORIZED;
	if (!digest_sha256(r->t->digester, key, digest))
		return FAIL_OVERLOADED;
	r->client_key = tenants_find(r->site->tenants, digest);
	if (r->client_key == NULL)
		return FAIL_UNAUTHORIZED;
	r->tenant = tenants_of(r->site->tenants, r->client_key);
	return FAIL_NONE;
}

enum fail client_key_enter(struct request *r)
{
	uint64_t wait_us;

	if (r->tenant == NULL || r->verdict.action != PATH_FORWARD)
		return FAIL_NONE;
	if (tenant_enter(r->tenant, clock_us(), &wait_us) == TENANT_MAY) {
		r->is_entered = true;
		return FAIL_NONE;
	}
	r->retry_after_secs =
		(unsigned)MAX((wait_us + US_PER_SEC - 1) / US_PER_SEC, UINT64_C(1));
	return FAIL_RATE_LIMITED;
}

void client_key_leave(struct request *r)
{
	if (!r->is_entered)
		return;
	r->is_entered = false;
	tenant_leave(r->tenant);
}

struct span client_key_salt(const struct request *r)
{
	return r->tenant != NULL ? span_str(r->tenant->salt) : span_make(NULL, 0);
}

bool client_key_priority(const struct request *r, enum priority *out)
{
	static const enum priority said[] = {
		[KEY_PRIORITY_HIGH] = PRIORITY_HIGH,
		[KEY_PRIORITY_NORMAL] = PRIORITY_NORMAL,
		[KEY_PRIORITY_LOW] = PRIORITY_LOW,
	};

	if (r->client_key == NULL || r->client_key->priority == KEY_PRIORITY_NONE)
		return false;
	*out = said[r->client_key->priority];
	return true;
}
