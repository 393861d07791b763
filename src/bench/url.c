/*
 * The server's URL taken apart. See url.h. Called by bench.c.
 */
#include "bench/url.h"

#include "base/err.h"
#include "base/span.h"
#include "http/http_rules.h"
#include "http/http_scan.h"

#include <stdio.h>

#define SHAPE "http://HOST[:PORT][/PREFIX] is expected, such as http://127.0.0.1:8000"

static bool has_only_visible(struct span s)
{
	for (size_t i = 0; i < s.n; i++) {
		if (!http_is(s.p[i], HTTP_VISIBLE) || s.p[i] == '#' || s.p[i] == '?')
			return false;
	}
	return true;
}

/* Parts an authority, known to be valid, into host and port. */
static int read_authority(struct span authority, struct url *out)
{
	struct span host = authority, port = {NULL, 0};
	size_t at = authority.n;
	uint64_t n = 80;

	while (at > 0 && authority.p[at - 1] != ':' && authority.p[at - 1] != ']')
		at--;
	if (at > 0 && authority.p[at - 1] == ':') {
		host.n = at - 1;
		port = span_make(authority.p + at, authority.n - at);
	}
	if (host.n > 1 && host.p[0] == '[')
		host = span_make(host.p + 1, host.n - 2);
	if (port.n > 0 && (span_to_u64(port, &n) != 0 || n == 0 || n > 65535))
		return ERR_PARSE;
	if (host.n == 0 || host.n >= sizeof(out->host) ||
		authority.n >= sizeof(out->authority))
		return ERR_PARSE;
	(void)snprintf(out->host, sizeof(out->host), SPAN_FMT, SPAN_ARG(host));
	(void)snprintf(
		out->authority, sizeof(out->authority), SPAN_FMT, SPAN_ARG(authority));
	out->port = (uint16_t)n;
	return 0;
}

/* Without what every endpoint brings itself. */
static int read_prefix(struct span prefix, struct url *out)
{
	while (span_ends(prefix, SPAN_LIT("/")))
		prefix.n--;
	if (span_ends(prefix, SPAN_LIT("/v1")))
		prefix.n -= 3;
	if (prefix.n >= sizeof(out->prefix) || !has_only_visible(prefix))
		return ERR_PARSE;
	(void)snprintf(out->prefix, sizeof(out->prefix), SPAN_FMT, SPAN_ARG(prefix));
	return 0;
}

int url_parse(const char *text, struct url *out, const char **why)
{
	struct span rest = span_str(text), authority;
	struct url url = {.port = 80};
	size_t n = 0;

	*why = SHAPE;
	if (span_starts(rest, SPAN_LIT("https://"))) {
		*why = "TLS is not supported: give the http:// address of the "
		       "server, or of a proxy that adds TLS";
		return ERR_PARSE;
	}
	if (!span_starts(rest, SPAN_LIT("http://")))
		return ERR_PARSE;
	rest = span_make(rest.p + 7, rest.n - 7);
	while (n < rest.n && rest.p[n] != '/')
		n++;
	authority = span_make(rest.p, n);
	if (memchr(authority.p, '@', n) != NULL) {
		*why = "a user and password cannot be sent; set a key with --api-key";
		return ERR_PARSE;
	}
	if (!http_host_is_valid(authority) || read_authority(authority, &url) != 0 ||
		read_prefix(span_make(rest.p + n, rest.n - n), &url) != 0)
		return ERR_PARSE;
	*out = url;
	return 0;
}
