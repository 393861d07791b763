/*
 * The session or routing key of a request, from its headers, else from its body's top-
 * level fields. Nothing is copied: spans point into the head's and the key's bytes. Pure.
 * Policies get them with their hashes as struct routing.
 */
#ifndef POLICY_ROUTING_KEY_H
#define POLICY_ROUTING_KEY_H

#include "base/base.h"
#include "base/span.h"
#include "conf/conf.h"
#include "http/http_head.h"
#include "route/route_key.h"

enum routing_from { ROUTING_NONE, ROUTING_HEADER, ROUTING_BODY };

struct routing_key {
	enum routing_from from;
	struct span
		name; /* of the header as the list spells it, or of the body's field */
	struct span value; /* not empty where there is one */
};

/*
 * The session: the headers of the list (routing_key_headers), but for those that name a
 * request, a person or a tenant, which would scatter a conversation or join many; then the
 * body's fields in the order of enum route_session. The first one that is not empty;
 * false: there is none. head or key may be NULL.
 */
bool routing_key_session(const struct conf_list *headers, const char *base,
	const struct http_head *head, const struct route_key *key,
	struct routing_key *out);
/* For the policies that take any key: all headers of the list, then the body's fields in
 * the vLLM router's order, and after its four the others. */
bool routing_key_any(const struct conf_list *headers, const char *base,
	const struct http_head *head, const struct route_key *key,
	struct routing_key *out);

struct policy_head;

/* Sets has_session and has_key: what a policy with these wants need not look for in the
 * body. */
void routing_look(unsigned wants, const struct conf_list *headers, const char *base,
	const struct http_head *head, struct policy_head *said);

/* A longer key counts as its hash. */
#define ROUTING_TEXT_MAX 1024

/* The keys that policies use, hashed before the pool's lock is taken. */
struct routing {
	struct routing_key session, any; /* from NONE: none, or no policy wants it */
	uint64_t session_hash;           /* of the value alone: routers agree on it */
	uint64_t point;                  /* ring_hash() of the text */
	/* The vLLM router's spelling of `any`: "header:<name in lower case>:<value>",
	 * "session:<value>" or "user:<value>". */
	char text[ROUTING_TEXT_MAX];
	size_t text_len;
};

/*
 * Finds the keys for a policy with these wants (policy_wants()). NULL if it uses none of
 * them, else out. Where sent hashes stand for the body, its fields are not read.
 * Spans point into base and key.
 */
const struct routing *routing_find(unsigned wants, const struct conf_list *headers,
	const char *base, const struct http_head *head, const struct route_key *key,
	struct routing *out);
/* session_hash of a session by its name. */
uint64_t routing_session_hash(struct span session);

/*
 * The substitute for a session where none is named: the hash of the last whole block
 * within the first `tokens` tokens of the prompt (or four times as many bytes), or of its
 * last whole block when it is shorter. Public hashes, mixed with the values that separate
 * prompts in the engines' caches (salt's model, adapter, cache salt, tenant), without
 * secrets: routers agree on it. False: there is no whole block.
 */
bool routing_prefix(const struct route_key *key, const struct route_salt *salt,
	unsigned tokens, uint64_t *out);
/* As many blocks are needed for that; unit 'b' or 't'. At least 1. */
size_t routing_prefix_blocks(unsigned tokens, char unit, uint32_t block);

#endif
