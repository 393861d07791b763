/*
 * Fuzzes what becomes of a body where prefill and decode are apart. The first byte names
 * the connector, the second the endpoint, the rest is the body; it is read as a prefill
 * worker's answer and as a bootstrap server's, too. Beyond not crashing: no body that is
 * made holds what a client may not say, each is JSON where jansson says that the client's
 * was, and what is cleaned once is clean.
 */
#include "rewrite/kv_transfer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define REQUIRE(fact)            \
	do {                     \
		if (!(fact))     \
			abort(); \
	} while (0)

static const struct kv_pair pair = {.prefill_host = {"fd00::7", 7},
	.room = INT64_MAX >> 1,
	.transfer_id = {"xfer-1", 6},
	.engine_id = {"e", 1},
	.ranks = 2};

static json_t *parse(const char *text, size_t n)
{
	/* jansson 2.14 loses a NUL byte after a number. */
	if (memchr(text, '\0', n) != NULL)
		return NULL;
	return json_loadb(text, n, 0, NULL);
}

static bool is_forbidden(const char *name)
{
	return strcmp(name, "kv_transfer_params") == 0 ||
	       strcmp(name, "ec_transfer_params") == 0 ||
	       strcmp(name, "decode_tp_size") == 0 ||
	       strncmp(name, "bootstrap_", 10) == 0 || strncmp(name, "disagg", 6) == 0;
}

/* What engines look into: extra_args of sampling_params, and those of the top. */
enum level { AT_TOP, AT_SAMPLING, AT_EXTRA };

static void require_clean(json_t *object, enum level level)
{
	const char *name;
	json_t *value;

	json_object_foreach(object, name, value)
	{
		REQUIRE(!is_forbidden(name));
		if (level == AT_TOP && strcmp(name, "sampling_params") == 0)
			require_clean(value, AT_SAMPLING);
		else if (level != AT_EXTRA && strcmp(name, "extra_args") == 0)
			require_clean(value, AT_EXTRA);
		else if (level == AT_TOP && strcmp(name, "vllm_xargs") == 0)
			require_clean(value, AT_EXTRA);
	}
}

/* JSON, if the client's body was; *out is given back. */
static void require_json(char *out, size_t n, bool was_json)
{
	json_t *now = parse(out, n);

	REQUIRE(!was_json || json_is_object(now));
	json_decref(now);
	free(out);
}

static void fuzz_legs(const struct kv_request *k, struct span body, bool was_json)
{
	char *out;
	size_t n;

	REQUIRE(kv_request_prefill(k, body, &pair, &out, &n) == 0);
	require_json(out, n, was_json);
	REQUIRE(kv_request_decode(k, body, &pair, SPAN_LIT("{\"a\":[]}"), &out, &n) == 0);
	REQUIRE(k->connector == CONNECTOR_SGLANG || n >= sizeof("{\"a\":[]}"));
	require_json(out, n, was_json);
	REQUIRE(kv_request_decode(k, body, &pair, span_make(NULL, 0), &out, &n) == 0);
	require_json(out, n, was_json);
}

/* In place it is the same JSON, of the same length. */
static void fuzz_blank(const struct kv_request *k, struct span body, json_t *whole)
{
	char *copy = malloc(body.n);
	json_t *now;

	REQUIRE(copy != NULL);
	memcpy(copy, body.p, body.n);
	kv_request_blank(k, copy);
	now = parse(copy, body.n);
	REQUIRE(whole == NULL ? now == NULL : json_equal(now, whole));
	json_decref(now);
	free(copy);
}

static void fuzz_whole(const struct kv_request *k, struct span body, bool was_json)
{
	struct kv_request again;
	json_t *now;
	char *out, *none;
	size_t n;

	REQUIRE(kv_request_whole(k, body, &out, &n) == 0);
	REQUIRE((out != NULL) == k->has_fields && n <= body.n);
	if (out == NULL)
		return;
	now = parse(out, n);
	REQUIRE(!was_json || json_is_object(now));
	require_clean(now, AT_TOP);
	fuzz_blank(k, body, now);
	json_decref(now);
	REQUIRE(kv_request_read(&again, k->connector, k->endpoint, span_make(out, n)) ==
		0);
	REQUIRE(again.verdict == k->verdict && !again.has_fields);
	REQUIRE(kv_request_whole(&again, span_make(out, n), &none, &n) == 0);
	REQUIRE(none == NULL);
	kv_request_free(&again);
	free(out);
}

static void fuzz_request(
	enum kv_connector connector, enum route_endpoint endpoint, struct span body)
{
	json_t *oracle = parse(body.p, body.n);
	bool was_json = json_is_object(oracle);
	struct kv_request k;

	REQUIRE(kv_request_read(&k, connector, endpoint, body) == 0);
	if (k.verdict == KV_SPLIT)
		fuzz_legs(&k, body, was_json);
	if (k.verdict != KV_UNSAFE) {
		fuzz_whole(&k, body, was_json);
		if (!k.has_fields && was_json)
			require_clean(oracle, AT_TOP);
	}
	json_decref(oracle);
	kv_request_free(&k);
}

static void fuzz_answers(struct span body)
{
	struct kv_usage usage;
	struct span found;
	char *out;
	size_t n;

	kv_answer_usage(body, &usage);
	if (kv_answer_read(body, &found) == KV_ANSWER_PARAMS)
		REQUIRE(found.p > body.p && found.p + found.n < body.p + body.n &&
			found.p[0] == '{' && found.p[found.n - 1] == '}');
	else
		REQUIRE(found.n == 0);
	REQUIRE(kv_release_body(body, &out, &n) == 0);
	free(out);
	if (kv_engine_id(body, 1, &found))
		REQUIRE(found.p > body.p && found.n > 0 &&
			found.p + found.n < body.p + body.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	size_t n;
	char *body;

	if (size < 2)
		return 0;
	n = size - 2;
	body = malloc(n > 0 ? n : 1);
	REQUIRE(body != NULL);
	memcpy(body, bytes + 2, n);
	fuzz_request((enum kv_connector)(bytes[0] % CONNECTOR_MAX),
		(enum route_endpoint)(bytes[1] % ENDPOINT_MAX), span_make(body, n));
	fuzz_answers(span_make(body, n));
	free(body);
	return 0;
}
