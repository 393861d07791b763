/*
 * Values of a target's query, "a=1&b=2" as forms write them, and of its path. Pure.
 */
#ifndef HTTP_HTTP_QUERY_H
#define HTTP_HTTP_QUERY_H

#include "base/base.h"
#include "base/span.h"
#include "http/http_head.h"

/* The part behind '?'; empty without one. */
struct span http_head_query(const char *base, const struct http_head *h);
/* The first value of that name, %XX and '+' decoded, NUL-terminated into out. False: it
 * is absent, malformed, holds a NUL or is too long. */
bool http_query_value(struct span query, const char *name, char *out, size_t n);
/* A part of the path, %XX decoded, likewise. False: it is malformed, holds a NUL or is
 * too long. */
bool http_path_decode(struct span in, char *out, size_t n);

#endif
