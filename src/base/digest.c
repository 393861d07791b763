/*
 * SHA-256 by libcrypto. See digest.h.
 *
 * The algorithm is fetched once for each digester: the one-shot functions fetch it anew,
 * under a lock, for each text. No err.h here: one of libcrypto's types is called
 * ERR_STATE, too.
 */
#include "base/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>

struct digester {
	EVP_MD *algorithm;
	EVP_MD_CTX *state;
};

struct digester *digester_new(void)
{
	struct digester *d = calloc(1, sizeof(*d));

	if (d == NULL)
		return NULL;
	d->algorithm = EVP_MD_fetch(NULL, "SHA256", NULL);
	d->state = EVP_MD_CTX_new();
	if (d->algorithm != NULL && d->state != NULL)
		return d;
	digester_free(d);
	return NULL;
}

void digester_free(struct digester *d)
{
	if (d == NULL)
		return;
	EVP_MD_CTX_free(d->state); /* wipes what it held */
	EVP_MD_free(d->algorithm);
	free(d);
}

bool digest_sha256(struct digester *d, struct span text, unsigned char out[DIGEST_BYTES])
{
	unsigned char bytes[EVP_MAX_MD_SIZE];

	if (EVP_DigestInit_ex2(d->state, d->algorithm, NULL) != 1 ||
		EVP_DigestUpdate(d->state, text.p, text.n) != 1 ||
		EVP_DigestFinal_ex(d->state, bytes, NULL) != 1)
		return false;
	memcpy(out, bytes, DIGEST_BYTES);
	return true;
}

bool digest_equal(const unsigned char *a, const unsigned char *b)
{
	return CRYPTO_memcmp(a, b, DIGEST_BYTES) == 0;
}

bool digest_read(struct span hex, unsigned char out[DIGEST_BYTES])
{
	unsigned char bytes[DIGEST_BYTES];
	uint64_t value;
	size_t i;

	if (hex.n != 2 * (size_t)DIGEST_BYTES)
		return false;
	for (i = 0; i < DIGEST_BYTES; i++) {
		if (span_hex_u64(span_make(hex.p + 2 * i, 2), &value) != 0)
			return false;
		bytes[i] = (unsigned char)value;
	}
	memcpy(out, bytes, DIGEST_BYTES);
	return true;
}
