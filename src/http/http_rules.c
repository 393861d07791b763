/*
 * Owns the rules for heads that are well-formed: which are refused, and with which
 * failure.
 *
 * The two tables below are the rules; each row's predicate is a few lines that read one
 * fact. Order matters only where one head breaks several: the first row names the
 * failure. Framing and persistence are derived after the table, from a
 * head that passed.
 *
 * Called by http_parse.c only.
 */
#include "http/http_rules.h"

#include "base/err.h"
#include "http/http_scan.h"

#include <arpa/inet.h>
#include <string.h>

static bool has(const struct http_judged *j, enum http_field_id id)
{
	return j->count[id] > 0;
}

static struct span value_of(const struct http_judged *j, enum http_field_id id)
{
	return http_field_value(j->base, &j->head->fields[j->first[id]]);
}

/* Methods (C5) */

static const struct {
	const char *name;
	size_t len;
} methods[HTTP_METHOD_MAX] = {
	[HTTP_GET] = {"GET", 3},
	[HTTP_HEAD] = {"HEAD", 4},
	[HTTP_POST] = {"POST", 4},
	[HTTP_PUT] = {"PUT", 3},
	[HTTP_PATCH] = {"PATCH", 5},
	[HTTP_DELETE] = {"DELETE", 6},
	[HTTP_OPTIONS] = {"OPTIONS", 7},
};

const char *http_method_name(enum http_method m)
{
	assert((unsigned)m < HTTP_METHOD_MAX);
	return methods[m].name;
}

static bool method_is_refused(const struct http_judged *j)
{
	return span_eq(j->method, SPAN_LIT("CONNECT")) ||
	       span_eq(j->method, SPAN_LIT("TRACE"));
}

/* Finds it too: head->method is set from here on. */
static bool method_is_unknown(const struct http_judged *j)
{
	for (unsigned m = 0; m < HTTP_METHOD_MAX; m++) {
		if (j->method.n == methods[m].len &&
			j->method.p[0] == methods[m].name[0] &&
			memcmp(j->method.p, methods[m].name, methods[m].len) == 0) {
			j->head->method = (enum http_method)m;
			return false;
		}
	}
	return true;
}

/* Target and Host (C6, C7) */

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

/* RFC 3986 reg-name, without the comma that would make a list of it. */
static bool is_name(struct span s)
{
	/* clang-format off */
	static const bool is_plain[256] = {
		['a' ... 'z'] = true, ['A' ... 'Z'] = true, ['0' ... '9'] = true,
		['-'] = true, ['.'] = true, ['_'] = true, ['~'] = true, ['!'] = true, ['$'] = true, ['&'] = true,
		['\''] = true, ['('] = true, [')'] = true, ['*'] = true, ['+'] = true, [';'] = true, ['='] = true,
	};
	/* clang-format on */

	for (size_t i = 0; i < s.n; i++) {
		if (is_plain[(uint8_t)s.p[i]])
			continue;
		if (s.p[i] != '%' || i + 2 >= s.n || !is_hex(s.p[i + 1]) ||
			!is_hex(s.p[i + 2]) || (s.p[i + 1] == '0' && s.p[i + 2] == '0'))
			return false;
		i += 2;
	}
	return s.n > 0;
}

static bool is_ip6(struct span s)
{
	char text[INET6_ADDRSTRLEN];
	struct in6_addr addr;

	if (s.n == 0 || s.n >= sizeof(text))
		return false;
	memcpy(text, s.p, s.n);
	text[s.n] = '\0';
	return inet_pton(AF_INET6, text, &addr) == 1;
}

/* Reads the part behind the host: nothing, or ":" and a port that may be empty. */
static bool is_port_part(struct span s)
{
	uint64_t port;

	if (s.n == 0)
		return true;
	if (s.p[0] != ':' || s.n > 6)
		return false;
	if (s.n == 1)
		return true;
	return span_to_u64(span_make(s.p + 1, s.n - 1), &port) == 0 && port >= 1 &&
	       port <= 65535;
}

bool http_host_is_valid(struct span authority)
{
	const char *end = authority.p + authority.n, *cut;

	if (authority.n == 0)
		return false;
	if (authority.p[0] == '[') {
		cut = memchr(authority.p, ']', authority.n);
		return cut != NULL &&
		       is_ip6(span_make(
			       authority.p + 1, (size_t)(cut - authority.p - 1))) &&
		       is_port_part(span_make(cut + 1, (size_t)(end - cut - 1)));
	}
	cut = memchr(authority.p, ':', authority.n);
	if (cut == NULL)
		cut = end;
	return is_name(span_make(authority.p, (size_t)(cut - authority.p))) &&
	       is_port_part(span_make(cut, (size_t)(end - cut)));
}

static bool holds_nul(struct span target)
{
	const char *p = target.p, *end = target.p + target.n;

	while ((p = memchr(p, '%', (size_t)(end - p))) != NULL) {
		if (end - p >= 3 && p[1] == '0' && p[2] == '0')
			return true;
		p++;
	}
	return false;
}

static bool target_is_bad(const struct http_judged *j)
{
	const struct http_head *h = j->head;
	struct span target = http_head_target(j->base, h);

	if (memchr(target.p, '#', target.n) != NULL || holds_nul(target))
		return true;
	switch (j->form) {
	case HTTP_TARGET_ORIGIN:
		return false;
	case HTTP_TARGET_ASTERISK:
		return h->method != HTTP_OPTIONS;
	case HTTP_TARGET_ABSOLUTE:
		return !http_host_is_valid(span_make(j->base + h->host_off, h->host_len));
	case HTTP_TARGET_OTHER:
		break;
	}
	return true;
}

static bool host_is_missing(const struct http_judged *j)
{
	return j->head->minor == 1 && !has(j, FIELD_HOST);
}

static bool host_is_repeated(const struct http_judged *j)
{
	return j->count[FIELD_HOST] > 1;
}

static bool host_is_bad(const struct http_judged *j)
{
	return has(j, FIELD_HOST) && !http_host_is_valid(value_of(j, FIELD_HOST));
}

/* Framing (C9-C12, C20) */

static bool framing_is_repeated(const struct http_judged *j)
{
	return j->count[FIELD_CONTENT_LENGTH] > 1 ||
	       j->count[FIELD_TRANSFER_ENCODING] > 1;
}

static bool framing_is_double(const struct http_judged *j)
{
	return has(j, FIELD_CONTENT_LENGTH) && has(j, FIELD_TRANSFER_ENCODING);
}

static bool coding_is_in_10(const struct http_judged *j)
{
	return has(j, FIELD_TRANSFER_ENCODING) && j->head->minor == 0;
}

static bool is_chunked(struct span s)
{
	return span_case_eq(s, SPAN_LIT("chunked"));
}

static bool coding_is_bad(const struct http_judged *j)
{
	return has(j, FIELD_TRANSFER_ENCODING) &&
	       !is_chunked(value_of(j, FIELD_TRANSFER_ENCODING));
}

static bool is_known_coding(struct span s)
{
	static const char *const names[] = {
		"gzip", "deflate", "compress", "identity", "x-gzip", "x-compress"};

	for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
		if (span_case_eq(s, span_str(names[i])))
			return true;
	}
	return false;
}

/* "gzip, chunked": a body with a clear end, in a coding that is not undone here. */
static bool coding_is_foreign(const struct http_judged *j)
{
	struct span rest, piece = {0};
	unsigned known = 0;

	if (!has(j, FIELD_TRANSFER_ENCODING))
		return false;
	rest = value_of(j, FIELD_TRANSFER_ENCODING);
	while (span_next(&rest, ',', &piece)) {
		piece = span_trim(piece);
		if (is_chunked(piece))
			return known > 0 && rest.n == 0;
		if (!is_known_coding(piece))
			return false;
		known++;
	}
	return false;
}

static bool length_is_bad(const struct http_judged *j)
{
	return j->has_bad_length;
}

/* The other fields (C16, C18, C20, C21) */

static bool lookalike_is_there(const struct http_judged *j)
{
	return j->has_lookalike;
}

static bool singleton_is_repeated(const struct http_judged *j)
{
	static const uint8_t singletons[] = {
		FIELD_AUTHORIZATION, FIELD_X_API_KEY, FIELD_CONTENT_TYPE, FIELD_EXPECT};

	for (unsigned i = 0; i < ARRAY_LEN(singletons); i++) {
		if (j->count[singletons[i]] > 1)
			return true;
	}
	return false;
}

static bool connection_names_needed(const struct http_judged *j)
{
	return j->names_needed;
}

static bool connection_is_endless(const struct http_judged *j)
{
	return j->connection_tokens > HTTP_CONNECTION_TOKENS_MAX;
}

static bool expects_more(const struct http_judged *j)
{
	return has(j, FIELD_EXPECT) && j->head->minor == 1 &&
	       !span_case_eq(value_of(j, FIELD_EXPECT), SPAN_LIT("100-continue"));
}

/* Answers (C23; the scanner saw to the status line) */

static bool protocol_is_switched(const struct http_judged *j)
{
	return j->head->status == 101;
}

/* Written out in place, so that a head pays for the facts and not for a call of each. */
/* clang-format off */
#define REQUEST_RULES(X) \
	/* C5 */ \
	X(FAIL_METHOD_NOT_ALLOWED, method_is_refused) \
	X(FAIL_NOT_IMPLEMENTED, method_is_unknown) \
	/* C6, C7 */ \
	X(FAIL_BAD_TARGET, target_is_bad) \
	X(FAIL_BAD_HOST, host_is_missing) \
	X(FAIL_BAD_HOST, host_is_repeated) \
	X(FAIL_BAD_HOST, host_is_bad) \
	/* C9-C12 */ \
	X(FAIL_BAD_FRAMING, framing_is_repeated) \
	X(FAIL_BAD_FRAMING, framing_is_double) \
	X(FAIL_BAD_FRAMING, coding_is_in_10) \
	X(FAIL_NOT_IMPLEMENTED, coding_is_foreign) \
	X(FAIL_BAD_FRAMING, coding_is_bad) \
	X(FAIL_BAD_FRAMING, length_is_bad) \
	/* C16, C20, C21 */ \
	X(FAIL_BAD_HEADER, lookalike_is_there) \
	X(FAIL_BAD_HEADER, singleton_is_repeated) \
	X(FAIL_BAD_HEADER, connection_names_needed) \
	X(FAIL_CONNECTION_TOO_LONG, connection_is_endless) \
	/* C18 */ \
	X(FAIL_EXPECTATION, expects_more)

#define RESPONSE_RULES(X) \
	X(FAIL_WORKER_PROTOCOL, protocol_is_switched) \
	X(FAIL_WORKER_PROTOCOL, framing_is_repeated) \
	X(FAIL_WORKER_PROTOCOL, framing_is_double) \
	X(FAIL_WORKER_PROTOCOL, coding_is_in_10) \
	X(FAIL_WORKER_PROTOCOL, coding_is_bad) \
	X(FAIL_WORKER_PROTOCOL, length_is_bad) \
	X(FAIL_WORKER_HEAD_TOO_LARGE, connection_is_endless)
/* clang-format on */

#define RULE(failure, is_broken)      \
	if (UNLIKELY(is_broken(j))) { \
		*why = failure;       \
		return ERR_PARSE;     \
	}

static int judge_request(const struct http_judged *j, enum fail *why)
{
	REQUEST_RULES(RULE)
	return 0;
}

static int judge_response(const struct http_judged *j, enum fail *why)
{
	RESPONSE_RULES(RULE)
	return 0;
}

/* Connection (C16, C19) */

static void mark_named(struct http_judged *j, struct span name)
{
	struct http_head *h = j->head;

	for (unsigned i = 0; i < h->n_fields; i++) {
		if (h->fields[i].name_len == name.n &&
			span_case_eq(http_field_name(j->base, &h->fields[i]), name))
			h->fields[i].is_hop = true;
	}
}

static void read_connection_token(struct http_judged *j, struct span token)
{
	bool is_lookalike;
	enum http_field_id id;

	if (token.n == 0 || ++j->connection_tokens > HTTP_CONNECTION_TOKENS_MAX)
		return;
	if (span_case_eq(token, SPAN_LIT("close"))) {
		j->says_close = true;
	} else if (span_case_eq(token, SPAN_LIT("keep-alive"))) {
		j->says_keep_alive = true;
	} else {
		id = http_field_id(token, &is_lookalike);
		if (id == FIELD_HOST || id == FIELD_CONTENT_LENGTH ||
			id == FIELD_TRANSFER_ENCODING)
			j->names_needed = true;
		mark_named(j, token);
	}
}

static void read_connection(struct http_judged *j)
{
	unsigned left = j->count[FIELD_CONNECTION];

	for (unsigned i = j->first[FIELD_CONNECTION]; left > 0; i++) {
		const struct http_field *f = &j->head->fields[i];
		struct span rest, token;

		if (f->id != FIELD_CONNECTION)
			continue;
		left--;
		rest = http_field_value(j->base, f);
		while (j->connection_tokens <= HTTP_CONNECTION_TOKENS_MAX &&
			span_next(&rest, ',', &token))
			read_connection_token(j, span_trim(token));
	}
}

static inline void derive_persistence(const struct http_judged *j)
{
	struct http_head *h = j->head;

	h->wants_close = j->says_close || (h->minor == 0 && !j->says_keep_alive);
	h->keep_alive_10 = h->minor == 0 && !h->wants_close;
	h->has_upgrade = has(j, FIELD_UPGRADE);
}

/* The framing that the fields speak of; if_silent without any. */
static inline void derive_framing(
	const struct http_judged *j, enum http_framing if_silent)
{
	struct http_head *h = j->head;

	h->framing = if_silent;
	h->has_length = has(j, FIELD_CONTENT_LENGTH);
	if (has(j, FIELD_TRANSFER_ENCODING))
		h->framing = HTTP_BODY_CHUNKED;
	if (h->has_length)
		h->framing = HTTP_BODY_LENGTH;
}

/* What several rules and the framing ask for, read once. */
static void read_shared(struct http_judged *j)
{
	read_connection(j);
	j->has_bad_length = has(j, FIELD_CONTENT_LENGTH) &&
			    span_to_u64(value_of(j, FIELD_CONTENT_LENGTH),
				    &j->head->content_length) < 0;
}

int http_rules_request(struct http_judged *j, enum fail *why)
{
	struct http_head *h = j->head;

	read_shared(j);
	if (judge_request(j, why) < 0)
		return ERR_PARSE;
	derive_framing(j, HTTP_BODY_NONE);
	derive_persistence(j);
	h->expect_100 = has(j, FIELD_EXPECT) && h->minor == 1 &&
			(h->framing == HTTP_BODY_CHUNKED || h->content_length > 0);
	if (!h->is_absolute && has(j, FIELD_HOST)) {
		h->host_off = h->fields[j->first[FIELD_HOST]].value_off;
		h->host_len = h->fields[j->first[FIELD_HOST]].value_len;
	}
	return 0;
}

int http_rules_response(struct http_judged *j, enum fail *why)
{
	struct http_head *h = j->head;
	bool is_bare = h->status < 200 || h->status == 204;

	read_shared(j);
	if (judge_response(j, why) < 0)
		return ERR_PARSE;
	derive_framing(j, HTTP_BODY_UNTIL_CLOSE);
	derive_persistence(j);
	if (is_bare || h->status == 304 || j->for_method == HTTP_HEAD)
		h->framing = HTTP_BODY_NONE;
	if (is_bare) {
		h->has_length = false;
		h->content_length = 0;
	}
	if (h->framing == HTTP_BODY_UNTIL_CLOSE)
		h->wants_close = true;
	return 0;
}
