/*
 * Fuzzes what is taken out of responses. The first byte says how they are cut. Beyond not
 * crashing: no byte is lost or added, the cuts make no difference, and where jansson reads
 * the response as JSON, what is left is the same without the members that say something.
 */
#include "rewrite/kv_veil.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define REQUIRE(fact)            \
	do {                     \
		if (!(fact))     \
			abort(); \
	} while (0)

#define NAME "kv_transfer_params"

/* The pieces of a response have `step` bytes, and the first one `first`. */
static char *pass(struct span all, size_t first, size_t step)
{
	struct kv_veil v = {0};
	struct text out = {0}, told = {0};
	size_t at = 0, n = first;

	do {
		struct span data;
		char *piece;

		n = MIN(n, all.n - at);
		piece = malloc(n + 1);
		REQUIRE(piece != NULL);
		memcpy(piece, all.p + at, n);
		data = span_make(piece, n);
		at += n;
		if (!kv_veil_is_idle(&v, data, at == all.n))
			REQUIRE(kv_veil_pass(&v, &data, at == all.n, &out) == 0);
		REQUIRE(text_add(&told, data) == 0);
		text_free(&out);
		free(piece);
		n = step;
	} while (at < all.n);
	REQUIRE(told.n == all.n && v.n_held == 0);
	return told.p;
}

/* So many blanks are not held back, and the outcome is another. */
static bool has_gap(struct span all)
{
	size_t i, n = 0;

	for (i = 0; i < all.n; i++) {
		n = strchr(" \n\r\t", all.p[i]) != NULL && all.p[i] != '\0' ? n + 1 : 0;
		if (n > 16)
			return true;
	}
	return false;
}

/* Takes the members out that say something; true: there was one. */
static void strip(json_t *v)
{
	json_t *item, *told;
	const char *key;
	size_t i;
	void *tmp;

	json_array_foreach(v, i, item) strip(item);
	told = json_object_get(v, NAME);
	if (json_is_object(told) || json_is_array(told) || json_is_string(told))
		json_object_del(v, NAME);
	json_object_foreach_safe(v, tmp, key, item) strip(item);
}

/* Names may be escaped, which is not looked for, and may be there twice. */
static bool is_plain(struct span all)
{
	const char *at = all.p, *end = all.p + all.n;

	return memchr(at, '\0', all.n) == NULL && memmem(at, all.n, "\\u", 2) == NULL &&
	       end > at;
}

static void check_json(struct span all, const char *told)
{
	json_t *was = json_loadb(all.p, all.n, JSON_REJECT_DUPLICATES, NULL);
	json_t *now = json_loadb(told, all.n, JSON_REJECT_DUPLICATES, NULL);

	if (was != NULL) {
		strip(was);
		REQUIRE(now != NULL && json_equal(was, now));
	}
	json_decref(was);
	json_decref(now);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct span all;
	char *whole, *cut;

	if (size < 3)
		return 0;
	all = span_make((const char *)bytes + 2, size - 2);
	whole = pass(all, all.n, 1);
	cut = pass(all, bytes[0], 1u + bytes[1] % 16);
	if (!has_gap(all)) {
		REQUIRE(memcmp(whole, cut, all.n) == 0);
		if (is_plain(all))
			check_json(all, whole);
	}
	free(whole);
	free(cut);
	return 0;
}
