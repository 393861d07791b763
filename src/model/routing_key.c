/*
 * Sessions and routing keys of a request. See routing_key.h.
 */
#include "model/routing_key.h"

static const struct span session_headers[] = {
	{"X-Smg-Routing-Key", sizeof("X-Smg-Routing-Key") - 1},
	{"X-Session-Id", sizeof("X-Session-Id") - 1},
};

static const char *const field_names[SESSION_MAX] = {
	[SESSION_PARAMS_ID] = "session_params.session_id",
	[SESSION_USER] = "user",
	[SESSION_ID] = "session_id",
	[SESSION_USER_ID] = "user_id",
};

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

static bool from_body(const struct route_key *key, struct routing_key *out)
{
	unsigned i;

	for (i = 0; key != NULL && i < SESSION_MAX; i++) {
		if (key->session[i].n == 0)
			continue;
		*out = (struct routing_key){
			ROUTING_BODY, span_str(field_names[i]), key->session[i]};
		return true;
	}
	*out = (struct routing_key){.from = ROUTING_NONE};
	return false;
}

bool routing_key_session(const char *base, const struct http_head *head,
	const struct route_key *key, struct routing_key *out)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(session_headers); i++) {
		if (from_header(base, head, session_headers[i], out))
			return true;
	}
	return from_body(key, out);
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
	return from_body(key, out);
}
