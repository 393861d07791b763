/*
 * Client keys, looked up; tenants, counted. See tenant.h.
 */
#include "pool/tenant.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

static struct tenant_account *account_new(void)
{
	struct tenant_account *a = calloc(1, sizeof(*a));

	if (a != NULL)
		atomic_store(&a->refs, 1);
	return a;
}

static void account_unref(struct tenant_account *a)
{
	if (a != NULL &&
		atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) == 1)
		free(a);
}

static struct tenant_account *account_for(
	const struct tenants *old, const struct conf_tenant *conf)
{
	const struct tenant *was =
		old != NULL ? tenants_named(old, span_str(conf->name)) : NULL;

	if (was == NULL)
		return account_new();
	atomic_fetch_add_explicit(&was->account->refs, 1, memory_order_relaxed);
	return was->account;
}

/* Groups and tenants of one name are still apart. */
static char *salt_of(const struct conf_tenant *conf)
{
	const char *kind = conf->cache_group != NULL ? "group " : "tenant ";
	const char *name = conf->cache_group != NULL ? conf->cache_group : conf->name;
	size_t n_kind = strlen(kind), n = strlen(name);
	char *salt = malloc(n_kind + n + 1);

	if (salt == NULL)
		return NULL;
	memcpy(salt, kind, n_kind);
	memcpy(salt + n_kind, name, n + 1);
	return salt;
}

static int add_tenants(struct tenants *t, const struct tenants *old)
{
	size_t i;

	for (i = 0; i < t->keys->n_tenants; i++) {
		struct tenant *item = &t->items[i];

		item->conf = &t->keys->tenants[i];
		item->account = account_for(old, item->conf);
		item->salt = salt_of(item->conf);
		if (item->account == NULL || item->salt == NULL)
			return ERR_NOMEM;
	}
	return 0;
}

static size_t first_slot(const struct tenants *t, const unsigned char *digest)
{
	uint64_t bits;

	memcpy(&bits, digest, sizeof(bits)); /* a digest is its own hash */
	return (size_t)bits & t->mask;
}

static void add_keys(struct tenants *t)
{
	size_t i, at;

	for (i = 0; i < t->keys->n_keys; i++) {
		at = first_slot(t, t->keys->keys[i].digest);
		while (t->slots[at] != 0)
			at = (at + 1) & t->mask;
		t->slots[at] = (uint32_t)(i + 1);
	}
}

int tenants_new(const struct conf_client_keys *keys, const struct tenants *old,
	struct tenants **out)
{
	struct tenants *t;
	size_t n = 16;

	*out = NULL;
	if (keys == NULL)
		return 0;
	while (n < keys->n_keys * 2)
		n *= 2;
	t = calloc(1, sizeof(*t));
	if (t == NULL)
		return ERR_NOMEM;
	t->keys = keys;
	t->mask = n - 1;
	t->slots = calloc(n, sizeof(*t->slots));
	t->items = calloc(keys->n_tenants + 1, sizeof(*t->items));
	if (t->slots == NULL || t->items == NULL || add_tenants(t, old) != 0) {
		tenants_free(t);
		return ERR_NOMEM;
	}
	add_keys(t);
	*out = t;
	return 0;
}

void tenants_free(struct tenants *t)
{
	size_t i;

	if (t == NULL)
		return;
	for (i = 0; t->items != NULL && i < t->keys->n_tenants; i++) {
		account_unref(t->items[i].account);
		free(t->items[i].salt);
	}
	free(t->items);
	free(t->slots);
	free(t);
}

const struct conf_client_key *tenants_find(
	const struct tenants *t, const unsigned char digest[DIGEST_BYTES])
{
	const struct conf_client_key *found = NULL;
	size_t at;

	/* Half of the slots are free: it ends. */
	for (at = first_slot(t, digest); t->slots[at] != 0; at = (at + 1) & t->mask) {
		const struct conf_client_key *key = &t->keys->keys[t->slots[at] - 1];

		if (digest_equal(key->digest, digest))
			found = key;
	}
	return found;
}

const struct tenant *tenants_of(
	const struct tenants *t, const struct conf_client_key *key)
{
	return &t->items[key->tenant];
}

static int order_by_name(const void *name, const void *tenant)
{
	const struct tenant *t = tenant;

	return span_order(*(const struct span *)name, span_str(t->conf->name));
}

const struct tenant *tenants_named(const struct tenants *t, struct span name)
{
	return bsearch(
		&name, t->items, t->keys->n_tenants, sizeof(*t->items), order_by_name);
}

/* ---- requests ---- */

static enum tenant_result enter(
	const struct tenant *t, uint64_t now_us, uint64_t *wait_us)
{
	struct limit_rate rate = {t->conf->rate, t->conf->rate_period_ms};
	struct limit *limit = &t->account->limit;

	*wait_us = 0;
	if (limit_enter(limit, t->conf->max_requests) != 0)
		return TENANT_AT_CAP;
	if (limit_spend(limit, &rate, now_us, wait_us) == 0)
		return TENANT_MAY;
	limit_leave(limit);
	return TENANT_TOO_FAST;
}

enum tenant_result tenant_enter(
	const struct tenant *t, uint64_t now_us, uint64_t *wait_us)
{
	enum tenant_result result = enter(t, now_us, wait_us);

	atomic_fetch_add_explicit(&t->account->asked[result], 1, memory_order_relaxed);
	return result;
}

void tenant_leave(const struct tenant *t)
{
	limit_leave(&t->account->limit);
}

/* ---- what a client says ---- */

static bool may_be_key(struct span s)
{
	size_t i;

	for (i = 0; i < s.n; i++) {
		if (s.p[i] <= ' ' || s.p[i] >= 0x7f)
			return false;
	}
	return s.n > 0 && s.n <= TENANT_KEY_MAX;
}

/* Empty: another scheme. */
static struct span bearer(struct span authorization)
{
	struct span scheme = SPAN_LIT("Bearer "), none = {NULL, 0};

	if (authorization.n <= scheme.n ||
		!span_case_eq(span_make(authorization.p, scheme.n), scheme))
		return none;
	return span_trim(
		span_make(authorization.p + scheme.n, authorization.n - scheme.n));
}

int tenant_presented(struct span authorization, struct span x_api_key, struct span *key)
{
	struct span token = bearer(authorization);

	if (token.n > 0 && x_api_key.n > 0 && !span_eq(token, x_api_key))
		return ERR_PARSE;
	if (token.n == 0)
		token = x_api_key;
	if (!may_be_key(token))
		return ERR_NOENT;
	*key = token;
	return 0;
}
