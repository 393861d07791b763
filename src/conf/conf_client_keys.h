/*
 * The file that api_keys names, as it was read: keys and tenants, sorted. Part of a
 * configuration (conf.h) and immutable like it; tenant.h builds
 * the table that requests are checked against.
 */
#ifndef CONF_CONF_CLIENT_KEYS_H
#define CONF_CONF_CLIENT_KEYS_H

#include "base/base.h"
#include "base/digest.h"
#include "base/span.h"

struct conf_errors;

/* The place in the queue that a key gives its requests; names as in priority.h. */
enum key_priority {
	KEY_PRIORITY_NONE,
	KEY_PRIORITY_HIGH,
	KEY_PRIORITY_NORMAL,
	KEY_PRIORITY_LOW
};

struct conf_client_key {
	unsigned char digest[DIGEST_BYTES]; /* SHA-256 of the key */
	uint32_t tenant;                    /* its index */
	enum key_priority priority;
};

struct conf_tenant {
	char *name;
	char *cache_group;     /* NULL: none */
	unsigned max_requests; /* 0: no cap */
	unsigned rate;         /* requests in rate_period_ms; 0: no limit */
	unsigned rate_period_ms;
	unsigned n_keys;
};

struct conf_client_keys {
	struct conf_client_key *keys; /* by digest, each once */
	size_t n_keys;
	struct conf_tenant *tenants; /* by name, each once */
	size_t n_tenants;
};

/*
 * Reads the file; every fault goes to *errors, with file and line, but never a word that
 * may be a key. NULL: there was one, or memory ran out, which *errors tells too.
 */
struct conf_client_keys *conf_client_keys_read(
	const char *path, struct conf_errors *errors);
/* The same of a text that `file` is the name of. */
struct conf_client_keys *conf_client_keys_parse(
	struct span text, const char *file, struct conf_errors *errors);
void conf_client_keys_free(struct conf_client_keys *k); /* NULL is fine */
/* NULL is equal to NULL. */
bool conf_client_keys_equal(
	const struct conf_client_keys *a, const struct conf_client_keys *b);

#endif
