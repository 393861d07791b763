/*
 * SHA-256 by libcrypto, for what must not be guessed or forged: the keys of clients.
 * (hash.h is for everything else.) A digester belongs to one thread; it
 * allocates when it is made, and not for each text.
 */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include "base/base.h"
#include "base/span.h"

#define DIGEST_BYTES 32

struct digester;

struct digester *digester_new(void);    /* NULL: out of memory, or libcrypto has none */
void digester_free(struct digester *d); /* NULL is fine */
/* False: libcrypto failed; out is as it was. */
bool digest_sha256(
	struct digester *d, struct span text, unsigned char out[DIGEST_BYTES]) MUST_CHECK;
/* Takes the same time wherever the two differ. */
bool digest_equal(const unsigned char *a, const unsigned char *b);
/* 64 hex digits of either case; false otherwise. */
bool digest_read(struct span hex, unsigned char out[DIGEST_BYTES]) MUST_CHECK;

#endif
