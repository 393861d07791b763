/*
 * The needs of connectors, prefill's responses, ids. See kv_transfer.h. The bodies of the
 * two legs are in kv_split.c.
 */
#include "rewrite/kv_transfer.h"

#include "base/err.h"
#include "route/json_member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const struct kv_form forms[CONNECTOR_MAX] = {
	[CONNECTOR_NIXL] = {
		.has_params = true,
		.waits_for_any = true,
		.decodes_alone = true,
	},
	/* Prefill writes the blocks to the decode worker that asks for them. */
	[CONNECTOR_NIXL_PUSH] = {
		.has_params = true,
		.waits_for_any = true,
		.has_transfer_id = true,
		.decodes_alone = true,
	},
	[CONNECTOR_MOONCAKE] = {
		.has_transfer_id = true,
		.waits_for_any = true,
		.needs_cut = true,
		.needs_engine = true,
		.needs_port = true,
		.decodes_alone = true,
	},
	/* Its consumers take addresses out of every id, and wait for what they name. */
	[CONNECTOR_P2P_NCCL] = {
		.needs_both = true,
		.has_params = true,
		.needs_id = true,
	},
	/* Its decode servers refuse, or wait for, what has no room. */
	[CONNECTOR_SGLANG] = {
		.is_concurrent = true,
		.needs_both = true,
		.needs_port = true,
	},
};
/* clang-format on */

const struct kv_form *kv_form(enum kv_connector connector)
{
	assert(connector < CONNECTOR_MAX);
	return &forms[connector == CONNECTOR_NONE ? CONNECTOR_NIXL : connector];
}

/* ---- prefill's answer ---- */

static bool says_error(const struct json_member *m, struct span text)
{
	if (m->kind == SCAN_OPEN_OBJECT)
		return true;
	return m->kind == SCAN_STRING && !span_is(json_member_value(m, text), "\"\"");
}

enum kv_answer kv_answer_read(struct span answer, struct span *params)
{
	char buffer[JSON_NAME_ROOM];
	struct json_members it;
	struct json_member m;
	enum json_event e, found = SCAN_NULL;
	bool is_error = false;

	*params = span_make(NULL, 0);
	if (json_members_begin(&it, answer) != SCAN_OPEN_OBJECT)
		return KV_ANSWER_BROKEN;
	while ((e = json_members_next(&it, &m)) == SCAN_KEY) {
		struct span name = json_member_name(&m, buffer);

		if (span_is(name, "error") && says_error(&m, answer))
			is_error = true;
		if (span_is(name, "object") &&
			span_is(json_member_value(&m, answer), "\"error\""))
			is_error = true;
		if (!span_is(name, "kv_transfer_params"))
			continue;
		found = m.kind;
		*params = json_member_value(&m, answer);
	}
	if (found != SCAN_OPEN_OBJECT || is_error || e != SCAN_CLOSE)
		*params = span_make(NULL, 0);
	if (e != SCAN_CLOSE || !json_members_done(&it)) {
		*params = span_make(NULL, 0);
		return KV_ANSWER_BROKEN;
	}
	if (is_error)
		return KV_ANSWER_ERROR;
	if (found == SCAN_NULL)
		return KV_ANSWER_NONE;
	return found == SCAN_OPEN_OBJECT ? KV_ANSWER_PARAMS : KV_ANSWER_BROKEN;
}

static bool is_cut_word(struct span value)
{
	return span_is(value, "\"length\"") || span_is(value, "\"max_tokens\"") ||
	       span_is(value, "\"incomplete\"");
}

/* Of an object: whether it says that its text ended by itself. */
static bool ended_by_itself(struct span object, const char *member)
{
	char buffer[JSON_NAME_ROOM];
	struct json_members it;
	struct json_member m;

	if (json_members_begin(&it, object) != SCAN_OPEN_OBJECT)
		return false;
	while (json_members_next(&it, &m) == SCAN_KEY)
		if (m.kind == SCAN_STRING &&
			span_is(json_member_name(&m, buffer), member))
			return !is_cut_word(json_member_value(&m, object));
	return false;
}

static bool a_choice_ended_by_itself(struct span choices)
{
	struct json_members it;
	struct json_member m;

	if (json_members_begin(&it, choices) != SCAN_OPEN_ARRAY)
		return false;
	while (json_items_next(&it, &m) == SCAN_STRING)
		if (ended_by_itself(json_member_value(&m, choices), "finish_reason"))
			return true;
	return false;
}

bool kv_answer_was_cut(struct span answer, enum route_endpoint endpoint)
{
	char buffer[JSON_NAME_ROOM];
	struct json_members it;
	struct json_member m;

	if (endpoint == ENDPOINT_RESPONSES)
		return !ended_by_itself(answer, "status");
	if (endpoint == ENDPOINT_MESSAGES)
		return !ended_by_itself(answer, "stop_reason");
	if (json_members_begin(&it, answer) != SCAN_OPEN_OBJECT)
		return true;
	while (json_members_next(&it, &m) == SCAN_KEY)
		if (span_is(json_member_name(&m, buffer), "choices"))
			return !a_choice_ended_by_itself(json_member_value(&m, answer));
	return true;
}

/* The last member of that name that is a string or a number, as spelled; or empty. */
static struct span plain_member(struct span object, const char *name)
{
	char buffer[JSON_NAME_ROOM];
	struct span found = {NULL, 0};
	struct json_members it;
	struct json_member m;

	if (json_members_begin(&it, object) != SCAN_OPEN_OBJECT)
		return found;
	while (json_members_next(&it, &m) == SCAN_KEY) {
		if (!span_is(json_member_name(&m, buffer), name))
			continue;
		found = m.kind == SCAN_STRING || m.kind == SCAN_NUMBER
				? json_member_value(&m, object)
				: span_make(NULL, 0);
	}
	return found;
}

static size_t put(char *out, size_t at, struct span s)
{
	if (s.n > 0)
		memcpy(out + at, s.p, s.n);
	return at + s.n;
}

int kv_release_body(struct span params, char **out, size_t *n)
{
	static const struct span head = SPAN_LIT("{\"remote_request_id\":"),
				 middle = SPAN_LIT(",\"token\":"), end = SPAN_LIT("}");
	struct span id = plain_member(params, "remote_request_id");
	struct span token = plain_member(params, "kvx_token");
	size_t at;

	*out = NULL;
	*n = 0;
	if (id.n == 0 || token.n == 0)
		return 0;
	*out = malloc(head.n + id.n + middle.n + token.n + end.n);
	if (*out == NULL)
		return ERR_NOMEM;
	at = put(*out, 0, head);
	at = put(*out, at, id);
	at = put(*out, at, middle);
	at = put(*out, at, token);
	*n = put(*out, at, end);
	return 0;
}

bool kv_engine_id(struct span answer, unsigned rank, struct span *id)
{
	char buffer[JSON_NAME_ROOM];
	bool has_any = false;
	struct json_members it;
	struct json_member m;

	if (json_members_begin(&it, answer) != SCAN_OPEN_OBJECT)
		return false;
	while (json_members_next(&it, &m) == SCAN_KEY) {
		struct span own =
			plain_member(json_member_value(&m, answer), "engine_id");
		uint64_t number;

		if (own.n <= 2 || own.p[0] != '"')
			continue;
		if (span_to_u64(json_member_name(&m, buffer), &number) == 0 &&
			number == rank) {
			*id = span_make(own.p + 1, own.n - 2);
			return true;
		}
		if (!has_any)
			*id = span_make(own.p + 1, own.n - 2);
		has_any = true;
	}
	return has_any;
}

/* ---- ids ---- */

static const char prefill_mark[] = "___prefill_addr_", decode_mark[] = "___decode_addr_";

static void put_hex(const uint8_t *bytes, unsigned n, char *out)
{
	unsigned i;

	for (i = 0; i < n; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

size_t kv_make_id(struct span prefill, struct span decode, const uint8_t secret[16],
	char out[KV_ID_ROOM])
{
	char hex[33];
	int n;

	put_hex(secret, 16, hex);
	n = snprintf(out, KV_ID_ROOM, "%s" SPAN_FMT "%s" SPAN_FMT "_%s", prefill_mark,
		SPAN_ARG(prefill), decode_mark, SPAN_ARG(decode), hex);
	return n > 0 && n < KV_ID_ROOM ? (size_t)n : 0;
}

size_t kv_address(const struct worker_conf *w, char out[KV_ADDRESS_ROOM])
{
	unsigned port = w->bootstrap_port > 0 ? w->bootstrap_port : w->url.port;
	bool is_v6 = strchr(w->url.host, ':') != NULL;
	int n = snprintf(out, KV_ADDRESS_ROOM, "%s%s%s:%u", is_v6 ? "[" : "", w->url.host,
		is_v6 ? "]" : "", port);

	return n > 0 && n < KV_ADDRESS_ROOM ? (size_t)n : 0;
}

bool kv_id_names_peers(struct span id)
{
	return id.n > 0 &&
	       (memmem(id.p, id.n, prefill_mark, sizeof(prefill_mark) - 1) != NULL ||
		       memmem(id.p, id.n, decode_mark, sizeof(decode_mark) - 1) != NULL);
}

void kv_make_transfer_id(const uint8_t secret[16], char out[KV_TRANSFER_ID_ROOM])
{
	uint8_t id[16];
	char hex[33];

	/* A random UUID: version 4, variant 1 (RFC 9562, 5.4). */
	memcpy(id, secret, sizeof(id));
	id[6] = (uint8_t)((id[6] & 0x0f) | 0x40);
	id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
	put_hex(id, 16, hex);
	snprintf(out, KV_TRANSFER_ID_ROOM, "xfer-%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8,
		hex + 12, hex + 16, hex + 20);
}

#define KV_ROOM_SLACK (1ULL << 32)

uint64_t kv_make_room(uint64_t random, unsigned rank, unsigned ranks)
{
	uint64_t room = random & INT64_MAX;

	/* Far enough from the end that a batch's rooms, one after the other, fit. */
	if (room > INT64_MAX - KV_ROOM_SLACK)
		room -= KV_ROOM_SLACK;
	return ranks > 1 ? room - room % ranks + rank : room;
}
