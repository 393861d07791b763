/*
 * kv_transfer_params, read. Incomplete ones are no error, as with
 * vLLM: the prompt is computed here then. Called by params.c and serve.c.
 */
#include "kvx/kv_params.h"
#include "base/digest.h"
#include "io/js.h"

#include <stdio.h>

enum { LEASE_MS_MAX = 86400000 };

static bool read_flag(const struct js *params, const char *key)
{
	const struct js *v = js_get(params, key);
	bool on = false;

	return v != NULL && js_as_bool(v, &on) && on;
}

/* Into a field with room for max bytes and NUL. */
static bool read_text(const struct js *params, const char *key, char *out, size_t max)
{
	const struct js *v = js_get(params, key);
	struct span text;

	if (v == NULL || !js_as_str(v, &text) || text.n == 0 || text.n > max ||
		memchr(text.p, '\0', text.n) != NULL)
		return false;
	memcpy(out, text.p, text.n);
	out[text.n] = '\0';
	return true;
}

bool kv_token_read(const struct js *v, unsigned char out[KVX_TOKEN_BYTES])
{
	struct span text;

	return v != NULL && js_as_str(v, &text) && digest_read(text, out);
}

void kv_token_text(
	const unsigned char token[KVX_TOKEN_BYTES], char out[2 * KVX_TOKEN_BYTES + 1])
{
	for (size_t i = 0; i < KVX_TOKEN_BYTES; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", token[i]);
}

/* A list of ids, or of such lists, one for each group of caches. */
static bool has_blocks(const struct js *params)
{
	const struct js *v = js_get(params, "remote_block_ids"), *first;

	if (v == NULL || !js_is_array(v) || js_len(v) == 0)
		return false;
	first = js_at(v, 0);
	return !js_is_array(first) || js_len(first) > 0;
}

static bool read_address(const struct js *params, union sock_addr *out)
{
	char host[SOCK_ADDR_TEXT_MAX];
	const struct js *v = js_get(params, "remote_port");
	int64_t port;

	return v != NULL && js_as_int(v, &port) && port > 0 && port <= UINT16_MAX &&
	       read_text(params, "remote_host", host, sizeof(host) - 1) &&
	       sock_addr_parse(host, (uint16_t)port, out) == 0;
}

/* vLLM has the same key, for the same use. */
static uint64_t read_cached(const struct js *params)
{
	const struct js *v = js_get(params, "remote_prefill_cached_tokens");
	int64_t n;

	return v != NULL && js_as_int(v, &n) && n >= 0 ? (uint64_t)n : UINT64_MAX;
}

static const char *read_source(const struct js *params, struct kv_params *out)
{
	const struct js *lease = js_get(params, "kvx_lease_ms");
	int64_t lease_ms;

	if (!has_blocks(params))
		return "remote_block_ids are missing or empty";
	if (!read_text(params, "remote_engine_id", out->engine_id, KVX_ENGINE_ID_BYTES))
		return "remote_engine_id is missing";
	if (!read_text(params, "remote_request_id", out->request, KVX_REQUEST_MAX))
		return "remote_request_id is missing";
	if (!read_address(params, &out->addr))
		return "remote_host and remote_port are not an IP address and a port";
	if (!kv_token_read(js_get(params, "kvx_token"), out->token))
		return "kvx_token is missing: the prefill worker speaks another protocol";
	if (lease != NULL && js_as_int(lease, &lease_ms) && lease_ms > 0 &&
		lease_ms <= LEASE_MS_MAX)
		out->lease_ms = (uint64_t)lease_ms;
	out->cached_tokens = read_cached(params);
	return NULL;
}

bool kv_params_read(const struct js *body, struct kv_params *out)
{
	const struct js *params = js_get(body, "kv_transfer_params");

	memset(out, 0, sizeof(*out));
	if (params == NULL || js_is_null(params))
		return true;
	if (!js_is_object(params))
		return false;
	if (read_flag(params, "do_remote_prefill")) {
		out->unusable = read_source(params, out);
		out->ask = out->unusable == NULL ? KV_ASK_TAKE : KV_ASK_NOTHING;
	} else if (read_flag(params, "do_remote_decode")) {
		out->ask = KV_ASK_KEEP;
	}
	return true;
}
