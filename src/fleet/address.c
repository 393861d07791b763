/*
 * The addresses that a worker may have. See address.h.
 */
#include "fleet/address.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char *const forbidden[] = {
	"0.0.0.0/8",         /* unspecified */
	"169.254.0.0/16",    /* link-local; 169.254.169.254 is the clouds' metadata */
	"224.0.0.0/3",       /* multicast, reserved, broadcast */
	"::/128",            /* unspecified */
	"fe80::/10",         /* link-local */
	"ff00::/8",          /* multicast */
	"fd00:ec2::254/128", /* metadata */
};

static bool is_in(const union sock_addr *a, const char *text)
{
	struct ip ip = sock_addr_ip(a);
	struct ip_net net;

	return ip_net_parse(span_str(text), &net) == 0 && ip_net_has(&net, &ip);
}

bool address_is_allowed(const union sock_addr *a, const struct conf_list *cidrs)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(forbidden); i++) {
		if (is_in(a, forbidden[i]))
			return false;
	}
	for (i = 0; i < cidrs->n; i++) {
		if (is_in(a, cidrs->items[i]))
			return true;
	}
	return cidrs->n == 0;
}

struct addr_list *address_filter(struct addr_list *list, const struct conf_list *cidrs)
{
	struct addr_list *out = malloc(sizeof(*out) + list->n * sizeof(list->addrs[0]));
	size_t i;

	if (out == NULL)
		return NULL;
	atomic_init(&out->refs, 1);
	out->n = 0;
	for (i = 0; i < list->n; i++) {
		if (address_is_allowed(&list->addrs[i], cidrs))
			out->addrs[out->n++] = list->addrs[i];
	}
	if (out->n > 0 && out->n < list->n)
		return out;
	i = out->n;
	free(out);
	return i > 0 ? addr_list_ref(list) : NULL;
}
