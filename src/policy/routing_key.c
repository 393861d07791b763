/*
 * Sessions and routing keys of a request. See routing_key.h.
 */
#include "policy/routing_key.h"

#include "base/hash.h"
#include "base/ring.h"
#include "policy/policy.h"

#include <stdio.h>

/* Headers of the list that name no session. */
static const struct span no_sessions[] = {SPAN_LIT("X-User-Id"), SPAN_LIT("X-Tenant-Id"),
	SPAN_LIT("X-Correlation-Id"), SPAN_LIT("X-Request-Id"), SPAN_LIT("X-Trace-Id")};

static const char *const field_names[SESSION_MAX] = {
	[SESSION_PARAMS_ID] = "session_params.session_id",
	[SESSION_ID] = "session_id",
	[SESSION_CACHE_KEY] = "prompt_cache_key",
	[SESSION_METADATA_ID] = "metadata.session_id",
	[SESSION_SAFETY] = "safety_identifier",
	[SESSION_METADATA_USER] = "metadata.user_id",
	[SESSION_USER_ID] = "user_id",
	[SESSION_USER] = "user",
};

/* A conversation first, a person last. */
static const enum route_session session_order[SESSION_MAX] = {SESSION_PARAMS_ID,
	SESSION_ID, SESSION_CACHE_KEY, SESSION_METADATA_ID, SESSION_SAFETY,
	SESSION_METADATA_USER, SESSION_USER_ID, SESSION_USER};

/* The vLLM router reads these four, in this order; then the others. */
static const enum route_session any_order[SESSION_MAX] = {SESSION_PARAMS_ID, SESSION_USER,
	SESSION_ID, SESSION_USER_ID, SESSION_CACHE_KEY, SESSION_METADATA_ID,
	SESSION_SAFETY, SESSION_METADATA_USER};

/* A name that is given twice counts by its first value, as in HTTP libraries of peers. */
static bool from_header(const char *base, const struct http_head *head, struct span name,
	struct routing_key *out)
{
	const struct http_field *f =
		head != NULL ? http_head_named(base, head, name) : NULL;

	if (f == NULL || f->value_len == 0)
		return false;
	*out = (struct routing_key){ROUTING_HEADER, name, http_field_value(base, f)};
	return true;
}

static bool from_body(const struct route_key *key,
	const enum route_session order[SESSION_MAX], struct routing_key *out)
{
	unsigned i;

	for (i = 0; key != NULL && i < SESSION_MAX; i++) {
		enum route_session field = order[i];

		if (key->session[field].n == 0)
			continue;
		*out = (struct routing_key){
			ROUTING_BODY, span_str(field_names[field]), key->session[field]};
		return true;
	}
	*out = (struct routing_key){.from = ROUTING_NONE};
	return false;
}

static bool names_a_session(struct span header)
{
	for (size_t i = 0; i < ARRAY_LEN(no_sessions); i++) {
		if (span_case_eq(header, no_sessions[i]))
			return false;
	}
	return true;
}

bool routing_key_session(const struct conf_list *headers, const char *base,
	const struct http_head *head, const struct route_key *key,
	struct routing_key *out)
{
	size_t i;

	for (i = 0; i < headers->n; i++) {
		struct span name = span_str(headers->items[i]);

		if (from_header(base, head, name, out) && names_a_session(name))
			return true;
	}
	return from_body(key, session_order, out);
}

bool routing_key_any(const struct conf_list *headers, const char *base,
	const struct http_head *head, const struct route_key *key,
	struct routing_key *out)
{
	size_t i;

	for (i = 0; i < headers->n; i++) {
		if (from_header(base, head, span_str(headers->items[i]), out))
			return true;
	}
	return from_body(key, any_order, out);
}

void routing_look(unsigned wants, const struct conf_list *headers, const char *base,
	const struct http_head *head, struct policy_head *said)
{
	struct routing_key k;

	if ((wants & POLICY_WANTS_SESSION) != 0)
		said->has_session = routing_key_session(headers, base, head, NULL, &k);
	if ((wants & POLICY_WANTS_KEY) != 0)
		said->has_key = routing_key_any(headers, base, head, NULL, &k);
}

/* ---- as policies go by it ---- */

uint64_t routing_session_hash(struct span session)
{
	return hash64(session.p, session.n, 0);
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

static size_t put_name(const struct routing_key *k, char *out, size_t room)
{
	size_t i, n;

	if (k->from == ROUTING_BODY)
		return (size_t)snprintf(out, room, "%s:",
			span_ends(k->name, SPAN_LIT("session_id")) ||
					span_is(k->name, "prompt_cache_key")
				? "session"
				: "user");
	n = (size_t)snprintf(out, room, "header:" SPAN_FMT ":", SPAN_ARG(k->name));
	n = MIN(n, room - 1);
	for (i = 0; i < n; i++)
		out[i] = lower(out[i]);
	return n;
}

/* A name that leaves no room for a value is cut. */
#define NAME_MAX_BYTES 512
#define DIGEST_BYTES 16

static void spell(const struct routing_key *k, struct routing *out)
{
	size_t n = put_name(k, out->text, NAME_MAX_BYTES);

	static_assert(ROUTING_TEXT_MAX > NAME_MAX_BYTES + DIGEST_BYTES, "room for it");
	if (k->value.n <= ROUTING_TEXT_MAX - n) {
		memcpy(out->text + n, k->value.p, k->value.n);
		out->text_len = n + k->value.n;
		return;
	}
	snprintf(out->text + n, DIGEST_BYTES + 1, "%016llx",
		(unsigned long long)hash64(k->value.p, k->value.n, 0));
	out->text_len = n + DIGEST_BYTES;
}

const struct routing *routing_find(unsigned wants, const struct conf_list *headers,
	const char *base, const struct http_head *head, const struct route_key *key,
	struct routing *out)
{
	const struct route_key *fields = key;

	if ((wants & (POLICY_WANTS_SESSION | POLICY_WANTS_KEY)) == 0)
		return NULL;
	if (key != NULL && !policy_reads_fields(wants, key->hashes_sent))
		fields = NULL;
	out->session.from = out->any.from = ROUTING_NONE;
	if ((wants & POLICY_WANTS_SESSION) != 0 &&
		routing_key_session(headers, base, head, fields, &out->session))
		out->session_hash = routing_session_hash(out->session.value);
	if ((wants & POLICY_WANTS_KEY) != 0 &&
		routing_key_any(headers, base, head, fields, &out->any)) {
		spell(&out->any, out);
		out->point = ring_hash(span_make(out->text, out->text_len));
	}
	return out;
}

size_t routing_prefix_blocks(unsigned tokens, char unit, uint32_t block)
{
	uint64_t units = unit == 't' ? tokens : (uint64_t)tokens * TOKEN_BYTES;

	assert(block > 0);
	return (size_t)MAX(units / block, UINT64_C(1));
}

bool routing_prefix(const struct route_key *key, const struct route_salt *salt,
	unsigned tokens, uint64_t *out)
{
	struct route_salt open = *salt;
	size_t n;

	assert(!key->is_sealed);
	if (key->n_blocks == 0)
		return false;
	n = MIN(key->n_blocks, routing_prefix_blocks(tokens, key->unit, key->block));
	open.boot_secret[0] = open.boot_secret[1] = 0;
	open.generation = 0;
	*out = hash_mix64(key->hashes[n - 1], route_key_secret(&open));
	return true;
}
