/*
 * Who a request comes from, where trusted proxies pass it on. The right-most address of
 * X-Forwarded-For that is not a trusted proxy's is the client: what stands left of it
 * anybody may have written. Pure.
 */
#ifndef HTTP_HTTP_FORWARDED_H
#define HTTP_HTTP_FORWARDED_H

#include "base/fail.h"
#include "base/ip.h"
#include "http/http_head.h"

#define HTTP_HOPS_MAX 32

/* An address, and its text as logs and X-Forwarded-For have it. */
struct http_who {
	struct ip ip; /* IP_NONE: a unix socket's peer */
	uint8_t text_len;
	char text[IP_TEXT_MAX];
};

void http_who_set(struct http_who *w, const struct ip *ip);
static inline struct span http_who_text(const struct http_who *w)
{
	return span_make(w->text, w->text_len);
}
/* As X-Forwarded-For has it: "unknown" where there is no address. */
struct span http_who_hop(const struct http_who *w);

/*
 * peer is trusted. *client: the address that it says, or its own if it says none that is
 * one. FAIL_TOO_MANY_HOPS: more than HTTP_HOPS_MAX addresses.
 */
enum fail http_forwarded_read(const struct ip_set *trusted, const struct http_who *peer,
	const char *base, const struct http_head *h, struct http_who *client) MUST_CHECK;
/* What peer says its client speaks, "http" or "https"; else "http". */
struct span http_forwarded_proto(const char *base, const struct http_head *h);

#endif
