/*
 * IP addresses and networks as values. See ip.h.
 */
#include "base/ip.h"

#include "base/err.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t mapped_head[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

struct ip ip_v4(const void *bytes)
{
	struct ip a = {.family = IP_V4};

	memcpy(a.bytes, bytes, 4);
	return a;
}

struct ip ip_v6(const void *bytes)
{
	struct ip a = {.family = IP_V6};

	if (memcmp(bytes, mapped_head, sizeof(mapped_head)) == 0)
		return ip_v4((const uint8_t *)bytes + sizeof(mapped_head));
	memcpy(a.bytes, bytes, 16);
	return a;
}

int ip_parse(struct span text, struct ip *out)
{
	char copy[INET6_ADDRSTRLEN];
	uint8_t bytes[16];

	if (text.n == 0 || text.n >= sizeof(copy) || memchr(text.p, '\0', text.n) != NULL)
		return ERR_PARSE;
	memcpy(copy, text.p, text.n);
	copy[text.n] = '\0';
	if (inet_pton(AF_INET, copy, bytes) == 1)
		*out = ip_v4(bytes);
	else if (inet_pton(AF_INET6, copy, bytes) == 1)
		*out = ip_v6(bytes);
	else
		return ERR_PARSE;
	return 0;
}

size_t ip_text(const struct ip *a, char out[IP_TEXT_MAX])
{
	static_assert(IP_TEXT_MAX >= INET6_ADDRSTRLEN, "room for each address");

	if (a->family == IP_NONE)
		memcpy(out, "unix", 5);
	else
		(void)inet_ntop(a->family == IP_V4 ? AF_INET : AF_INET6, a->bytes, out,
			IP_TEXT_MAX);
	return strlen(out);
}

bool ip_eq(const struct ip *a, const struct ip *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* As it was written: more than IPv4 is in a network that begins so. */
static void unmap(struct ip *a)
{
	memmove(a->bytes + sizeof(mapped_head), a->bytes, 4);
	memcpy(a->bytes, mapped_head, sizeof(mapped_head));
	a->family = IP_V6;
}

int ip_net_parse(struct span text, struct ip_net *out)
{
	struct span host;
	struct ip_net net;
	uint64_t bits;
	unsigned width;

	text = span_trim(text);
	if (!span_next(&text, '/', &host) || ip_parse(host, &net.net) != 0)
		return ERR_PARSE;
	/* As it is written, which says how the bits count. */
	width = memchr(host.p, ':', host.n) != NULL ? 128 : 32;
	if (text.p == host.p + host.n)
		bits = width; /* no slash at all: one address */
	else if (span_to_u64(text, &bits) != 0 || bits > width)
		return ERR_PARSE;
	if (width == 128 && net.net.family == IP_V4) {
		if (bits >= sizeof(mapped_head) * 8)
			bits -= sizeof(mapped_head) * 8;
		else
			unmap(&net.net);
	}
	net.bits = (unsigned)bits;
	*out = net;
	return 0;
}

bool ip_net_has(const struct ip_net *net, const struct ip *a)
{
	unsigned whole = net->bits / 8, rest = net->bits % 8;

	if (a->family != net->net.family || a->family == IP_NONE ||
		memcmp(net->net.bytes, a->bytes, whole) != 0)
		return false;
	return rest == 0 || (net->net.bytes[whole] ^ a->bytes[whole]) >> (8 - rest) == 0;
}

int ip_set_init(struct ip_set *s, char *const *items, size_t n)
{
	*s = (struct ip_set){.nets = n > 0 ? calloc(n, sizeof(*s->nets)) : NULL};
	if (n > 0 && s->nets == NULL)
		return ERR_NOMEM;
	for (size_t i = 0; i < n; i++) {
		if (span_is(span_str(items[i]), "unix:"))
			s->has_unix = true;
		else if (ip_net_parse(span_str(items[i]), &s->nets[s->n]) == 0)
			s->n++;
	}
	return 0;
}

void ip_set_free(struct ip_set *s)
{
	free(s->nets);
	*s = (struct ip_set){0};
}

bool ip_set_search(const struct ip_set *s, const struct ip *a)
{
	if (a->family == IP_NONE)
		return s->has_unix;
	for (size_t i = 0; i < s->n; i++) {
		if (ip_net_has(&s->nets[i], a))
			return true;
	}
	return false;
}
