/*
 * The file of client keys, and the key that a request presents. The first byte says which.
 * What must hold: a file is good or has errors; a good one becomes a table in which each
 * of its keys is found, and no error quotes what may be a key; two headers that differ
 * never give a key.
 */
#include "base/err.h"
#include "conf/conf_client_keys.h"
#include "pool/tenant.h"
#include "tests/fuzz/fuzz.h"

static void check_table(const struct conf_client_keys *keys)
{
	struct tenants *t = NULL, *again = NULL;
	uint64_t wait_us;

	MUST(tenants_new(keys, NULL, &t) == 0);
	for (size_t i = 0; i < keys->n_keys; i++) {
		const struct conf_client_key *key = tenants_find(t, keys->keys[i].digest);
		const struct tenant *tenant;

		MUST(key == &keys->keys[i] && key->tenant < keys->n_tenants);
		tenant = tenants_of(t, key);
		MUST(tenant->salt != NULL);
		if (tenant_enter(tenant, i * 1000, &wait_us) == TENANT_MAY)
			tenant_leave(tenant);
	}
	MUST(tenants_new(keys, t, &again) == 0);
	tenants_free(t);
	tenants_free(again);
}

static void try_file(const char *p, size_t n)
{
	struct conf_errors errors = {0};
	struct conf_client_keys *keys =
		conf_client_keys_parse(span_make(p, n), "keys", &errors);

	MUST((keys == NULL) == (errors.n_errors > 0));
	for (size_t i = 0; i < errors.n; i++)
		free(conf_error_text(&errors.items[i]));
	if (keys != NULL) {
		MUST(conf_client_keys_equal(keys, keys));
		check_table(keys);
	}
	conf_client_keys_free(keys);
	conf_errors_free(&errors);
}

/* Two headers' values, with a line feed between. */
static void try_presented(const char *p, size_t n)
{
	const char *feed = memchr(p, '\n', n);
	size_t first = feed != NULL ? (size_t)(feed - p) : n;
	char *a = fuzz_copy(p, first), *b;
	size_t second = feed != NULL ? n - first - 1 : 0;
	struct span key = {0};

	b = fuzz_copy(p + n - second, second);
	if (tenant_presented(span_make(a, first), span_make(b, second), &key) == 0) {
		MUST(key.n > 0 && key.n <= TENANT_KEY_MAX);
		MUST((key.p >= a && key.p + key.n <= a + first) ||
			(key.p >= b && key.p + key.n <= b + second));
		MUST(second == 0 || first == 0 ||
			(key.n == second && memcmp(key.p, b, second) == 0));
	}
	free(a);
	free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	size_t n = size - 1;
	char *p;

	if (size == 0)
		return 0;
	p = fuzz_copy((const char *)bytes + 1, n);
	if (bytes[0] % 2 == 0)
		try_file(p, n);
	else
		try_presented(p, n);
	free(p);
	return 0;
}
