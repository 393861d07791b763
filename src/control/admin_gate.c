/*
 * Guards the admin paths on the client side. See admin_gate.h.
 */
#include "control/admin_gate.h"

#include "conf/conf.h"

#define BEARER "Bearer "

/* In a time that does not tell where they differ. */
static bool is_same(struct span a, struct span b)
{
	unsigned char differs = a.n != b.n;
	size_t i;

	for (i = 0; i < a.n; i++)
		differs |= (unsigned char)(a.p[i] ^ b.p[b.n > 0 ? i % b.n : 0]);
	return differs == 0;
}

static bool bears_key(const char *key, const char *base, const struct http_head *head)
{
	const struct http_field *f = http_head_find(head, FIELD_AUTHORIZATION);
	struct span value, scheme = SPAN_LIT(BEARER);

	if (f == NULL)
		return false;
	value = http_field_value(base, f);
	if (value.n <= scheme.n || !span_case_eq(span_make(value.p, scheme.n), scheme))
		return false;
	return is_same(span_make(value.p + scheme.n, value.n - scheme.n), span_str(key));
}

static bool is_loopback(struct span address)
{
	return span_starts(address, SPAN_LIT("127.")) ||
	       span_starts(address, SPAN_LIT("[::1]")) ||
	       span_starts(address, SPAN_LIT("localhost:")) ||
	       span_eq(address, SPAN_LIT("::1"));
}

static bool listens_on_loopback(const struct conf *c)
{
	size_t i;

	for (i = 0; i < c->router.listen.n; i++) {
		if (!is_loopback(span_str(c->router.listen.items[i])) &&
			strcmp(c->router.listen.items[i], CONF_LISTEN_PROXY) != 0)
			return false;
	}
	return c->by_flags_alone;
}

static bool was_forwarded(const struct http_head *head)
{
	return http_head_find(head, FIELD_X_FORWARDED_FOR) != NULL ||
	       http_head_find(head, FIELD_FORWARDED) != NULL ||
	       http_head_find(head, FIELD_VIA) != NULL;
}

/* A page that a browser on this machine shows may be anybody's. */
static bool is_of_a_page(const char *base, const struct http_head *head)
{
	return http_head_named(base, head, SPAN_LIT("origin")) != NULL;
}

enum fail admin_gate(const struct conf *c, const char *base, const struct http_head *head,
	struct span client_ip)
{
	if (c->router.admin_key != NULL)
		return bears_key(c->router.admin_key, base, head) ? FAIL_NONE
								  : FAIL_UNAUTHORIZED;
	return listens_on_loopback(c) && is_loopback(client_ip) && !was_forwarded(head) &&
			       !is_of_a_page(base, head)
		       ? FAIL_NONE
		       : FAIL_FORBIDDEN;
}
