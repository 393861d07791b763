/*
 * Browser clients (cors_origins): which pages may read responses, and the answer to the
 * preflights that browsers send before other requests. Pure text; nothing is kept.
 *
 * Always true: "*" never comes with credentials, and a list of origins always with
 * Vary: Origin.
 */
#ifndef PROXY_CORS_H
#define PROXY_CORS_H

#include "base/base.h"
#include "conf/conf.h"
#include "http/http_head.h"

#define CORS_LINES_MAX 640
#define CORS_PREFLIGHT_MAX 4096

static inline bool cors_is_on(const struct router_opts *o)
{
	return o->cors_origins.n > 0;
}

/* A browser asks whether it may send a request; only where cors_is_on(). */
bool cors_is_preflight(const char *base, const struct http_head *head);
/* Header lines of a response to this request, into out (CORS_LINES_MAX); returns the
 * length, which is 0 where cors_origins is not set. */
size_t cors_lines(const struct router_opts *o, const char *base,
	const struct http_head *head, char *out);
/* Those of the answer to a preflight (CORS_PREFLIGHT_MAX). methods: a bit set of enum
 * http_method. */
size_t cors_preflight_lines(const struct router_opts *o, const char *base,
	const struct http_head *head, unsigned methods, char *out);

#endif
