/*
 * Which words of a request say where it belongs: a session or routing key from its
 * headers, else from its body's top-level fields. Nothing is copied: spans point into the
 * head's and the key's bytes. Pure. Policies get them with their hashes as struct
 * routing.
 */
#ifndef MODEL_ROUTING_KEY_H
#define MODEL_ROUTING_KEY_H

#include "base/base.h"
#include "base/span.h"
#include "http/http_head.h"
#include "model/conf.h"
#include "model/route_key.h"

enum routing_from { ROUTING_NONE, ROUTING_HEADER, ROUTING_BODY };

struct routing_key {
	enum routing_from from;
	struct span
		name; /* of the header as the list spells it, or of the body's field */
	struct span value; /* not empty where there is one */
};

/*
 * The session: X-Smg-Routing-Key, X-Session-Id, then session_params.session_id, user,
 * session_id, user_id of the body. The first one that is not empty; false: there is none.
 * head or key may be NULL. Ids of single requests are not among them, so that they
 * cannot scatter a conversation.
 */
bool routing_key_session(const char *base, const struct http_head *head,
	const struct route_key *key, struct routing_key *out);
/* The same with the headers of the list (routing_key_headers), for the policies that
 * take any key. */
bool routing_key_any(const struct conf_list *headers, const char *base,
	const struct http_head *head, const struct route_key *key,
	struct routing_key *out);

#endif
