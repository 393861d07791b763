/*
 * Leases by id. See lease.h.
 * Always true: counts.blocks is the sum of all leases' blocks; with those reserved it is
 * at most max_blocks. Called by kv_handoff.c and kvx_server.c.
 */
#include "kvx/lease.h"
#include "base/digest.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024, HMAC_BLOCK = 64, HMAC_TEXT_MAX = 256 };

struct lease_node {
	LIST_ENTRY(lease_node) link; /* of its bucket */
	struct lease lease;
};

struct leases {
	struct leases_opts opts;
	struct digester *digester;
	unsigned char key[LEASE_KEY_BYTES];
	struct lease_counts counts;
	uint32_t reserved; /* blocks */
	LIST_HEAD(, lease_node) buckets[BUCKETS];
};

/* Tokens */

static bool hash_padded(struct digester *d, const unsigned char *key, unsigned char pad,
	struct span text, unsigned char *out)
{
	unsigned char bytes[HMAC_BLOCK + HMAC_TEXT_MAX];
	bool ok;

	memset(bytes, pad, HMAC_BLOCK);
	for (size_t i = 0; i < LEASE_KEY_BYTES; i++)
		bytes[i] ^= key[i];
	memcpy(bytes + HMAC_BLOCK, text.p, text.n);
	ok = digest_sha256(d, span_make((const char *)bytes, HMAC_BLOCK + text.n), out);
	mem_wipe(bytes, sizeof(bytes));
	return ok;
}

bool lease_hmac(struct digester *d, const unsigned char key[LEASE_KEY_BYTES],
	struct span text, unsigned char out[LEASE_TOKEN_BYTES])
{
	unsigned char inner[DIGEST_BYTES];

	return text.n <= HMAC_TEXT_MAX && hash_padded(d, key, 0x36, text, inner) &&
	       hash_padded(
		       d, key, 0x5c, span_make((const char *)inner, sizeof(inner)), out);
}

bool lease_token_is_ours(
	struct leases *l, struct span id, const unsigned char token[LEASE_TOKEN_BYTES])
{
	unsigned char want[LEASE_TOKEN_BYTES];

	return lease_hmac(l->digester, l->key, id, want) && digest_equal(want, token);
}

/* Leases */

static size_t bucket_of(struct span id)
{
	return hash64(id.p, id.n, 0) % BUCKETS;
}

static struct lease_node *find_node(const struct leases *l, struct span id)
{
	struct lease_node *node;

	LIST_FOREACH (node, &l->buckets[bucket_of(id)], link) {
		if (span_is(id, node->lease.id))
			return node;
	}
	return NULL;
}

static void drop_node(struct leases *l, struct lease_node *node)
{
	LIST_REMOVE(node, link);
	l->counts.n--;
	l->counts.blocks -= node->lease.n_blocks;
	l->opts.drop(l->opts.arg, node->lease.held);
	free(node);
}

static void drop_all(struct leases *l)
{
	struct lease_node *node;

	for (size_t i = 0; i < BUCKETS; i++) {
		while ((node = LIST_FIRST(&l->buckets[i])) != NULL)
			drop_node(l, node);
	}
}

struct leases *leases_new(const struct leases_opts *opts)
{
	struct leases *l = calloc(1, sizeof(*l));

	if (l == NULL)
		return NULL;
	l->opts = *opts;
	l->digester = digester_new();
	if (l->digester == NULL) {
		free(l);
		return NULL;
	}
	leases_reset(l);
	return l;
}

void leases_free(struct leases *l)
{
	if (l == NULL)
		return;
	drop_all(l);
	digester_free(l->digester);
	mem_wipe(l->key, sizeof(l->key));
	free(l);
}

void leases_reset(struct leases *l)
{
	assert(l->reserved == 0);
	drop_all(l);
	l->counts.expired = 0;
	rng_secret(l->key, sizeof(l->key));
}

static bool has_room(const struct leases *l, uint32_t n_blocks)
{
	return n_blocks <= l->opts.max_blocks - l->counts.blocks - l->reserved;
}

bool leases_reserve(struct leases *l, uint32_t n_blocks)
{
	if (!has_room(l, n_blocks))
		return false;
	l->reserved += n_blocks;
	return true;
}

void leases_unreserve(struct leases *l, uint32_t n_blocks)
{
	assert(n_blocks <= l->reserved);
	l->reserved -= n_blocks;
}

const struct lease *lease_new(struct leases *l, const char *id, void *held,
	uint32_t n_blocks, uint32_t n_tokens, uint64_t now_ms)
{
	size_t n = strlen(id);
	struct lease_node *node;

	assert(n_blocks > 0 && n < LEASE_ID_MAX && find_node(l, span_str(id)) == NULL);
	if (!has_room(l, n_blocks))
		return NULL;
	node = calloc(1, sizeof(*node));
	if (node == NULL)
		return NULL;
	memcpy(node->lease.id, id, n + 1);
	if (!lease_hmac(l->digester, l->key, span_str(id), node->lease.token)) {
		free(node);
		return NULL;
	}
	node->lease.held = held;
	node->lease.n_blocks = n_blocks;
	node->lease.n_tokens = n_tokens;
	node->lease.ends_ms = now_ms + l->opts.ttl_ms;
	LIST_INSERT_HEAD(&l->buckets[bucket_of(span_str(id))], node, link);
	l->counts.n++;
	l->counts.blocks += n_blocks;
	return &node->lease;
}

const struct lease *lease_find(const struct leases *l, struct span id)
{
	const struct lease_node *node = find_node(l, id);

	return node != NULL ? &node->lease : NULL;
}

uint64_t lease_renew(struct leases *l, const struct lease *lease, uint64_t now_ms)
{
	struct lease_node *node = find_node(l, span_str(lease->id));
	uint64_t ends_ms = now_ms + l->opts.ttl_ms * 2 / 3;

	assert(node != NULL && &node->lease == lease);
	node->lease.ends_ms = MAX(node->lease.ends_ms, ends_ms);
	return node->lease.ends_ms - MIN(now_ms, node->lease.ends_ms);
}

void lease_end(struct leases *l, const struct lease *lease)
{
	struct lease_node *node = find_node(l, span_str(lease->id));

	assert(node != NULL && &node->lease == lease);
	drop_node(l, node);
}

size_t leases_expire(struct leases *l, uint64_t now_ms)
{
	struct lease_node *node, *next;
	size_t n = 0;

	for (size_t i = 0; l->counts.n > 0 && i < BUCKETS; i++) {
		LIST_FOREACH_SAFE(node, &l->buckets[i], link, next)
		{
			if (node->lease.ends_ms > now_ms)
				continue;
			drop_node(l, node);
			n++;
		}
	}
	l->counts.expired += n;
	return n;
}

uint64_t leases_wake_ms(const struct leases *l)
{
	const struct lease_node *node;
	uint64_t wake_ms = UINT64_MAX;

	for (size_t i = 0; l->counts.n > 0 && i < BUCKETS; i++) {
		LIST_FOREACH (node, &l->buckets[i], link)
			wake_ms = MIN(wake_ms, node->lease.ends_ms);
	}
	return wake_ms;
}

const struct lease_counts *leases_counts(const struct leases *l)
{
	return &l->counts;
}
