/*
 * IP addresses as values that can be compared: IPv4, and IPv6 but for what is IPv4
 * mapped into it, which is IPv4 here. Networks of them. Pure. Whatever counts by address
 * counts by these.
 */
#ifndef BASE_IP_H
#define BASE_IP_H

#include "base/base.h"
#include "base/span.h"

enum ip_family { IP_NONE, IP_V4, IP_V6 }; /* IP_NONE: of a unix socket, or unknown */

/* Bytes beyond an address's own (4, 16) are zero: equal addresses are equal bytes. */
struct ip {
	uint8_t family; /* enum ip_family */
	uint8_t bytes[16];
};

/* bytes: 4 or 16 in network order. */
struct ip ip_v4(const void *bytes);
struct ip ip_v6(const void *bytes);
/* "10.0.0.1", "::1"; nothing around it. ERR_PARSE. */
int ip_parse(struct span text, struct ip *out) MUST_CHECK;
/* "10.0.0.1", "2001:db8::1"; "unix" for IP_NONE. NUL-terminated; returns the length. */
#define IP_TEXT_MAX 46
size_t ip_text(const struct ip *a, char out[IP_TEXT_MAX]);
bool ip_eq(const struct ip *a, const struct ip *b);

/* "10.0.0.0/8", "fd00::/8", or an address alone; bits beyond the prefix are ignored.
 * ERR_PARSE. */
struct ip_net {
	struct ip net;
	unsigned bits;
};
int ip_net_parse(struct span text, struct ip_net *out) MUST_CHECK;
bool ip_net_has(const struct ip_net *net, const struct ip *a); /* IP_NONE: in none */

/* Networks, and maybe who comes by a unix socket (the item "unix:"). */
struct ip_set {
	struct ip_net *nets;
	size_t n;
	bool has_unix;
};
/* Of items that were checked before. ERR_NOMEM; the set is empty then. */
int ip_set_init(struct ip_set *s, char *const *items, size_t n) MUST_CHECK;
void ip_set_free(struct ip_set *s);
bool ip_set_search(const struct ip_set *s, const struct ip *a);
static inline bool ip_set_has(const struct ip_set *s, const struct ip *a)
{
	return (s->n > 0 || s->has_unix) && ip_set_search(s, a);
}

#endif
