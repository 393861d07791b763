/*
 * The header of the PROXY protocol, by which a balancer in front says at the begin of a
 * connection who its client is. Version 1 is one line of text, version 2 is binary. Pure.
 */
#ifndef HTTP_HTTP_PROXY_H
#define HTTP_HTTP_PROXY_H

#include "base/base.h"
#include "base/ip.h"

#define HTTP_PROXY_LINE_MAX 107 /* version 1, with CRLF */
#define HTTP_PROXY_MAX 4096     /* version 2, with what follows the addresses */

struct http_proxy {
	size_t len;  /* bytes of the header */
	bool has_ip; /* it names a client; else the peer is one itself */
	struct ip ip;
};

/*
 * p[0..n): what has come so far. 0 and *out; ERR_AGAIN: more is needed; ERR_PARSE: it is
 * no such header, whatever follows.
 */
int http_proxy_read(const char *p, size_t n, struct http_proxy *out) MUST_CHECK;

#endif
