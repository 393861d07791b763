/*
 * Leases: the KV blocks of finished prompts, kept for the decode worker that is to pull
 * them, until it says that it has them or their time is over. Pure: time is an argument.
 *
 * A peer that may pull a lease knows its token, HMAC-SHA-256 of the request's id by a key
 * of this process: it cannot be guessed, and a token of an earlier process is known as
 * such.
 */
#ifndef ENGINE_KVX_LEASE_H
#define ENGINE_KVX_LEASE_H

#include "base/base.h"
#include "base/span.h"

enum { LEASE_ID_MAX = 64, LEASE_TOKEN_BYTES = 32, LEASE_KEY_BYTES = 32 };

struct leases;

struct lease {
	char id[LEASE_ID_MAX];
	unsigned char token[LEASE_TOKEN_BYTES];
	void *held; /* what keeps the blocks; given to drop() */
	uint32_t n_blocks, n_tokens;
	uint64_t ends_ms;
};

struct leases_opts {
	uint64_t ttl_ms; /* of a new one; a sign of life makes it two thirds of that from
			    now, if that is later */
	uint32_t max_blocks;                 /* of all together */
	void (*drop)(void *arg, void *held); /* the lease is gone; must not call back */
	void *arg;
};

struct lease_counts {
	uint64_t expired;
	uint32_t n, blocks; /* now */
};

/* Without leases, and with a new key. NULL: out of memory, or no SHA-256. */
struct leases *leases_new(const struct leases_opts *opts);
void leases_free(struct leases *l); /* drops all; NULL is fine */
/* Drops all; another key. The count of expired ones is zero again. Nothing may be
 * reserved. */
void leases_reset(struct leases *l);
/* Keeps room for n_blocks more until leases_unreserve(). False: there is none. */
bool leases_reserve(struct leases *l, uint32_t n_blocks) MUST_CHECK;
void leases_unreserve(struct leases *l, uint32_t n_blocks);
/* Takes held, of n_blocks > 0, under an id that no lease has. NULL: no memory or no room;
 * held stays the caller's. */
const struct lease *lease_new(struct leases *l, const char *id, void *held,
	uint32_t n_blocks, uint32_t n_tokens, uint64_t now_ms);
/* By id; NULL: there is none (any more). Valid until it is dropped. */
const struct lease *lease_find(const struct leases *l, struct span id);
/* Whether the token is the one that this process made for the id, whether or not there is
 * such a lease. */
bool lease_token_is_ours(
	struct leases *l, struct span id, const unsigned char token[LEASE_TOKEN_BYTES]);
/* A sign of life from who is to pull it: returns the time left, in ms. */
uint64_t lease_renew(struct leases *l, const struct lease *lease, uint64_t now_ms);
void lease_end(struct leases *l, const struct lease *lease); /* it was released */
/* Drops those whose time is over; returns how many. */
size_t leases_expire(struct leases *l, uint64_t now_ms);
/* When the next one's time is over; UINT64_MAX: there is none. */
uint64_t leases_wake_ms(const struct leases *l);
const struct lease_counts *leases_counts(const struct leases *l);

/* RFC 2104 with SHA-256, of texts up to 256 bytes. False: libcrypto failed, or the text
 * is longer. For tests. */
struct digester;
bool lease_hmac(struct digester *d, const unsigned char key[LEASE_KEY_BYTES],
	struct span text, unsigned char out[LEASE_TOKEN_BYTES]) MUST_CHECK;

#endif
