/*
 * Refuses heads that are well-formed but wrong: checks C5-C7, C9-C12, C16-C21 and C23 as
 * two tables of rows (failure, predicate), of which the first match counts. From a head
 * that passed it derives framing, persistence and 100-continue. Pure: no state, no
 * allocation. Called by http_parse.c, which fills struct http_judged.
 */
#ifndef HTTP_HTTP_RULES_H
#define HTTP_HTTP_RULES_H

#include "base/fail.h"
#include "http/http_head.h"

/* A head with more is refused, because each token is searched for among all fields. */
#define HTTP_CONNECTION_TOKENS_MAX 64

enum http_target_form {
	HTTP_TARGET_OTHER,
	HTTP_TARGET_ORIGIN,
	HTTP_TARGET_ABSOLUTE,
	HTTP_TARGET_ASTERISK
};

/* A head as it was read, before it is judged. head's framing and persistence are not set
 * yet. */
struct http_judged {
	const char *base;
	struct http_head *head;
	struct span method;          /* requests */
	enum http_method for_method; /* responses: the request's method */
	enum http_target_form form;
	const char *higher_minor; /* the digit of HTTP/1.2 to 1.9; NULL: 1.0 or 1.1 */
	bool has_lookalike;       /* a framing or credential field spelled with '_' */
	uint16_t
		first[FIELD_ID_MAX]; /* the place in head->fields, where count is not 0 */
	uint16_t count[FIELD_ID_MAX];
	/* Filled by the rules from all Connection fields. */
	bool says_close, says_keep_alive, names_needed;
	unsigned connection_tokens;
	bool has_bad_length; /* else *head has it, if there is one */
};

/* Both judge j and complete *j->head (is_hop of nominated fields too). 0, or ERR_PARSE
 * and *why. */
int http_rules_request(struct http_judged *j, enum fail *why) MUST_CHECK;
int http_rules_response(struct http_judged *j, enum fail *why) MUST_CHECK;

/* host[:port]: a registered name, an IPv4 address or [IPv6], not empty; port empty or
 * 1-65535. */
bool http_host_is_valid(struct span authority);

#endif
