/*
 * Fuzzes route keys. The first byte names the endpoint, the second how the body is cut,
 * the rest is the body. Beyond not crashing: cuts change nothing, the bounds hold, and
 * whatever jansson reads as an object is readable here. Bodies that begin with X are the
 * value of X-Kvsteer-Prefix instead.
 */
#include "route/route_key.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define REQUIRE(fact)            \
	do {                     \
		if (!(fact))     \
			abort(); \
	} while (0)

static const struct route_key_opts opts = {16, 4, 1000, false, false};

static void build(struct route_scan *s, enum route_endpoint endpoint, const char *body,
	size_t n, size_t step, struct route_key *k)
{
	route_scan_begin(s, endpoint);
	for (size_t at = 0; at < n; at += step) {
		if (route_scan_feed(s, body, at, n - at < step ? n : at + step) < 0)
			return;
	}
	if (route_key_build(s, body, n, &opts, k) < 0)
		REQUIRE(!k->readable);
}

static void require_same(const struct route_key *a, const struct route_key *b)
{
	REQUIRE(a->readable == b->readable && a->stream == b->stream &&
		a->unit == b->unit);
	REQUIRE(a->n_blocks == b->n_blocks && a->prompt_units == b->prompt_units);
	REQUIRE(a->n_blocks == 0 ||
		memcmp(a->hashes, b->hashes, a->n_blocks * sizeof(*a->hashes)) == 0);
	REQUIRE(span_eq(a->model, b->model) && span_eq(a->lora, b->lora));
	REQUIRE(span_eq(a->cache_salt, b->cache_salt));
	for (unsigned i = 0; i < SESSION_MAX; i++)
		REQUIRE(span_eq(a->session[i], b->session[i]));
}

static void fuzz_body(
	enum route_endpoint endpoint, size_t step, const char *body, size_t n)
{
	struct route_scan *s = route_scan_new();
	struct route_key whole, cut;
	json_t *oracle = NULL;

	/* jansson 2.14 loses a NUL byte after a number. */
	if (memchr(body, '\0', n) == NULL)
		oracle = json_loadb(body, n, 0, NULL);
	REQUIRE(s != NULL);
	route_key_init(&whole);
	route_key_init(&cut);
	build(s, endpoint, body, n, n > 0 ? n : 1, &whole);
	build(s, endpoint, body, n, step, &cut);
	require_same(&whole, &cut);
	REQUIRE(whole.n_blocks <= opts.max_blocks);
	REQUIRE(whole.prompt_units / whole.block >= whole.n_blocks);
	REQUIRE(!json_is_object(oracle) || whole.readable || endpoint == ENDPOINT_OTHER);
	json_decref(oracle);
	route_key_free(&whole);
	route_key_free(&cut);
	route_scan_free(s);
}

static void fuzz_header(const char *value, size_t n)
{
	struct route_key k;

	route_key_init(&k);
	if (route_key_from_header(span_make(value, n), opts.max_blocks, &k) == 0)
		REQUIRE(k.n_blocks <= opts.max_blocks && k.block > 0 && k.hashes_sent);
	else
		REQUIRE(k.n_blocks == 0 && !k.hashes_sent);
	route_key_free(&k);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	char *body;
	size_t n;

	if (size < 2)
		return 0;
	n = size - 2;
	body = malloc(n > 0 ? n : 1);
	REQUIRE(body != NULL);
	memcpy(body, bytes + 2, n);
	if (n > 0 && body[0] == 'X')
		fuzz_header(body + 1, n - 1);
	else
		fuzz_body((enum route_endpoint)(bytes[0] % ENDPOINT_MAX),
			1u + bytes[1] % 32, body, n);
	free(body);
	return 0;
}
