/*
 * What the configuration's rules do to the headers that go through (request_header,
 * response_header): fields that end here, and lines that are added. Made once for a
 * configuration; read by all threads.
 */
#ifndef HTTP_HTTP_EDIT_H
#define HTTP_HTTP_EDIT_H

#include "base/base.h"
#include "base/span.h"

#define HTTP_EDIT_MAX 4096 /* bytes of rules, and so of lines */

struct http_edit {
	struct span *dropped; /* names, in the rules' text */
	size_t n_dropped;
	char *lines; /* whole lines */
	size_t lines_n;
};

/* rules: texts of header_rule.h, at most HTTP_EDIT_MAX bytes, which must outlive it.
 * ERR_NOMEM; it is empty then. */
int http_edit_init(struct http_edit *e, char *const *rules, size_t n) MUST_CHECK;
void http_edit_free(struct http_edit *e);
static inline bool http_edit_is_empty(const struct http_edit *e)
{
	return e->n_dropped == 0 && e->lines_n == 0;
}
bool http_edit_drops(const struct http_edit *e, struct span name);
/* lines[0..n): whole lines, with room for HTTP_EDIT_MAX more bytes. Returns what is there
 * afterwards. */
size_t http_edit_apply(const struct http_edit *e, char *lines, size_t n);

#endif
