/*
 * A parsed HTTP/1.1 head: method, target, version or status, fields, and the framing and
 * persistence that we computed from them. Everything is an offset into the raw head
 * bytes, which the owner keeps (they may move); no copies. Plain data, no ownership. Made
 * by http_parse.c (after http_scan.c found the end), judged by http_rules.c, read by the
 * proxy and the small server.
 */
#ifndef HTTP_HTTP_HEAD_H
#define HTTP_HTTP_HEAD_H

#include "base/base.h"
#include "base/http_method.h"
#include "base/span.h"

#define HTTP_FIELDS_MAX 256         /* responses */
#define HTTP_REQUEST_FIELDS_MAX 100 /* requests: more is 431 */
#define HTTP_LINE_MAX 8192          /* request line: more is 414 */
#define HTTP_REQUEST_HEAD_MAX 32768 /* 431 */
#define HTTP_RESPONSE_HEAD_MAX 65536
#define HTTP_INTERIM_MAX 16 /* 1xx answers before the final one */

const char *http_method_name(enum http_method m);

/* Fields that some code looks for; everything else is FIELD_OTHER. The table (name -> id)
 * is http_field_table in http_parse.c. */
/* clang-format off */
#define HTTP_FIELD_TABLE(X)                              \
	X(HOST, "host")                                  \
	X(CONTENT_LENGTH, "content-length")              \
	X(TRANSFER_ENCODING, "transfer-encoding")        \
	X(CONNECTION, "connection")                      \
	X(KEEP_ALIVE, "keep-alive")                      \
	X(PROXY_CONNECTION, "proxy-connection")          \
	X(PROXY_AUTHORIZATION, "proxy-authorization")    \
	X(PROXY_AUTHENTICATE, "proxy-authenticate")      \
	X(TE, "te")                                      \
	X(TRAILER, "trailer")                            \
	X(UPGRADE, "upgrade")                            \
	X(HTTP2_SETTINGS, "http2-settings")              \
	X(EXPECT, "expect")                              \
	X(AUTHORIZATION, "authorization")                \
	X(X_API_KEY, "x-api-key")                        \
	X(CONTENT_TYPE, "content-type")                  \
	X(CONTENT_ENCODING, "content-encoding")          \
	X(VIA, "via")                                    \
	X(FORWARDED, "forwarded")                        \
	X(X_FORWARDED, "x-forwarded-") /* prefix: all but the next two */ \
	X(X_FORWARDED_FOR, "x-forwarded-for")            \
	X(X_FORWARDED_PROTO, "x-forwarded-proto")        \
	X(X_REAL_IP, "x-real-ip")                        \
	X(X_ORIGINAL_URL, "x-original-url")              \
	X(X_REWRITE_URL, "x-rewrite-url")                \
	X(X_REQUEST_ID, "x-request-id")                  \
	X(X_CONVERSATION_ID, "x-conversation-id")        \
	X(X_KVSTEER, "x-kvsteer-") /* prefix; any spelling with '_' */ \
	X(X_KVSTEER_PREFIX, "x-kvsteer-prefix")          \
	X(X_KVSTEER_WORKER, "x-kvsteer-worker")          \
	X(X_KVSTEER_EXPLAIN, "x-kvsteer-explain")        \
	X(RETRY_AFTER, "retry-after")                    \
	X(DATE, "date")                                  \
	X(SERVER, "server")
/* clang-format on */

enum http_field_id {
	FIELD_OTHER,
#define X(id, name) FIELD_##id,
	HTTP_FIELD_TABLE(X)
#undef X
		FIELD_ID_MAX
};

struct http_field {
	uint32_t name_off;
	uint32_t value_off; /* trimmed of OWS */
	uint32_t value_len;
	uint16_t name_len;
	uint8_t id;  /* enum http_field_id */
	bool is_hop; /* hop-by-hop, or named in Connection: never passed on */
};

enum http_framing {
	HTTP_BODY_NONE,   /* requests without a body; HEAD, 1xx, 204, 304 answers */
	HTTP_BODY_LENGTH, /* content_length bytes (may be 0) */
	HTTP_BODY_CHUNKED,
	HTTP_BODY_UNTIL_CLOSE, /* answers only */
};

struct http_head {
	bool is_response;
	uint8_t minor;           /* HTTP/1.minor: 0 or 1; a higher one is 1 here */
	enum http_method method; /* requests */
	uint16_t status;         /* answers: 100-599 */
	/* Requests. target: origin form as it came ("/v1/x?a=1"), or "*". For an absolute
	 * form it is the part behind the authority ("/" if empty, "?..." if only a
	 * query). */
	uint32_t target_off, target_len;
	uint32_t path_len;           /* target up to '?' */
	uint32_t host_off, host_len; /* the effective Host (absolute form: the authority);
					0 length: none (1.0) */
	bool is_absolute;
	enum http_framing framing;
	uint64_t content_length; /* HTTP_BODY_LENGTH */
	bool has_length; /* a Content-Length field stood there (HEAD, 304 answers keep it;
			    1xx, 204: never) */
	bool wants_close;   /* Connection: close, or 1.0 without keep-alive, or
			       HTTP_BODY_UNTIL_CLOSE */
	bool keep_alive_10; /* 1.0 with keep-alive */
	bool expect_100;    /* 1.1 only, and only where a body follows */
	bool has_upgrade;
	uint32_t head_len; /* raw bytes, final CRLF CRLF included (and a skipped leading
			      CRLF) */
	uint16_t n_fields;
	uint64_t present; /* a bit for each id that some field has */
	struct http_field fields[HTTP_FIELDS_MAX];
};
static_assert(FIELD_ID_MAX <= 64, "a bit for each id");

/* Before it is parsed: no field is found. */
static inline void http_head_begin(struct http_head *h)
{
	h->n_fields = 0;
	h->present = 0;
}

static inline struct span http_field_name(const char *base, const struct http_field *f)
{
	return span_make(base + f->name_off, f->name_len);
}
static inline struct span http_field_value(const char *base, const struct http_field *f)
{
	return span_make(base + f->value_off, f->value_len);
}
static inline struct span http_head_target(const char *base, const struct http_head *h)
{
	return span_make(base + h->target_off, h->target_len);
}
/* "/" for an absolute form without a path ("http://a?x=1": its target is "?x=1"). */
static inline struct span http_head_path(const char *base, const struct http_head *h)
{
	if (h->path_len == 0)
		return SPAN_LIT("/");
	return span_make(base + h->target_off, h->path_len);
}
/*
 * The id of a field name; FIELD_OTHER for a name that no code looks for. Spellings with
 * '_' for '-' (for servers that take one for the other) give the id too, with
 * *is_lookalike set.
 */
enum http_field_id http_field_id(struct span name, bool *is_lookalike);
static inline bool http_head_has(const struct http_head *h, enum http_field_id id)
{
	return (h->present >> id & 1) != 0;
}
/* The first field with this id, NULL when absent. */
const struct http_field *http_head_find_there(
	const struct http_head *h, enum http_field_id id);
static inline const struct http_field *http_head_find(
	const struct http_head *h, enum http_field_id id)
{
	return http_head_has(h, id) ? http_head_find_there(h, id) : NULL;
}
/* The first field with this name (any case). */
const struct http_field *http_head_named(
	const char *base, const struct http_head *h, struct span name);
/* Its value; empty when absent. */
static inline struct span http_head_value(
	const char *base, const struct http_head *h, struct span name)
{
	const struct http_field *f = http_head_named(base, h, name);

	return f != NULL ? http_field_value(base, f) : span_make(NULL, 0);
}

#endif
