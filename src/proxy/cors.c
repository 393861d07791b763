/*
 * Browser clients. See cors.h. Called by own_answer.c and response.c.
 */
#include "proxy/cors.h"

#include <string.h>

#define ORIGIN_MAX 255
#define NAME_MAX_BYTES 64

struct lines {
	char *out;
	size_t n, cap;
};

static void put(struct lines *l, struct span s)
{
	if (s.n > l->cap - l->n)
		return;
	memcpy(l->out + l->n, s.p, s.n);
	l->n += s.n;
}

static void put_text(struct lines *l, const char *text)
{
	put(l, span_str(text));
}

/* ---- origins ---- */

static bool is_all(const struct router_opts *o)
{
	size_t i;

	for (i = 0; i < o->cors_origins.n; i++) {
		if (strcmp(o->cors_origins.items[i], "*") == 0)
			return true;
	}
	return false;
}

/* What may stand for the star of an origin of the configuration. */
static bool is_host_part(struct span s)
{
	size_t i;

	if (s.n == 0 || s.p[0] == '.')
		return false;
	for (i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
				(c >= 'A' && c <= 'Z') || c == '-' || c == '.';

		if (!is_plain)
			return false;
	}
	return true;
}

static bool fits(struct span pattern, struct span origin)
{
	const char *star = memchr(pattern.p, '*', pattern.n);
	struct span before, after;

	if (star == NULL)
		return span_case_eq(pattern, origin);
	before = span_make(pattern.p, (size_t)(star - pattern.p));
	after = span_make(star + 1, pattern.n - before.n - 1);
	return origin.n > before.n + after.n &&
	       span_case_eq(span_make(origin.p, before.n), before) &&
	       span_case_eq(span_make(origin.p + origin.n - after.n, after.n), after) &&
	       is_host_part(
		       span_make(origin.p + before.n, origin.n - before.n - after.n));
}

static bool is_listed(const struct router_opts *o, struct span origin)
{
	size_t i;

	if (origin.n == 0 || origin.n > ORIGIN_MAX)
		return false;
	for (i = 0; i < o->cors_origins.n; i++) {
		if (fits(span_str(o->cors_origins.items[i]), origin))
			return true;
	}
	return false;
}

static struct span field(const char *base, const struct http_head *head, struct span name)
{
	const struct http_field *f = http_head_named(base, head, name);

	return f != NULL ? http_field_value(base, f) : span_make(NULL, 0);
}

/* Whose page may read the response. False: nobody's, and no other line is of use. */
static bool put_origin(struct lines *l, const struct router_opts *o, const char *base,
	const struct http_head *head)
{
	struct span origin = field(base, head, SPAN_LIT("origin"));

	if (is_all(o)) {
		if (origin.n > 0)
			put_text(l, "Access-Control-Allow-Origin: *\r\n");
		return origin.n > 0;
	}
	put_text(l, "Vary: Origin\r\n");
	if (!is_listed(o, origin))
		return false;
	put_text(l, "Access-Control-Allow-Origin: ");
	put(l, origin);
	put_text(l, "\r\nAccess-Control-Allow-Credentials: true\r\n");
	return true;
}

size_t cors_lines(const struct router_opts *o, const char *base,
	const struct http_head *head, char *out)
{
	struct lines l = {out, 0, CORS_LINES_MAX};

	if (!cors_is_on(o))
		return 0;
	if (put_origin(&l, o, base, head))
		put_text(&l, "Access-Control-Expose-Headers: X-Request-Id, Retry-After, "
			     "X-Kvsteer-Worker, X-Kvsteer-Cached\r\n");
	return l.n;
}

/* ---- preflights ---- */

static const struct span method_field = {"access-control-request-method", 29};
static const struct span headers_field = {"access-control-request-headers", 30};

bool cors_is_preflight(const char *base, const struct http_head *head)
{
	return head->method == HTTP_OPTIONS && field(base, head, method_field).n > 0 &&
	       field(base, head, SPAN_LIT("origin")).n > 0;
}

static bool is_in(const struct conf_list *list, struct span name)
{
	size_t i;

	for (i = 0; i < list->n; i++) {
		if (span_case_eq(name, span_str(list->items[i])))
			return true;
	}
	return false;
}

static bool has_beginning(struct span name)
{
	static const struct span beginnings[] = {
		{"x-stainless-",
			12}, /* OpenAI's and Anthropic's clients, of themselves */
		{"openai-", 7},
		{"anthropic-", 10},
		{"x-kvsteer-", 10},
	};
	size_t i;

	for (i = 0; i < ARRAY_LEN(beginnings); i++) {
		if (name.n > beginnings[i].n &&
			span_case_eq(span_make(name.p, beginnings[i].n), beginnings[i]))
			return true;
	}
	return false;
}

static bool is_token(struct span name)
{
	size_t i;

	for (i = 0; i < name.n; i++) {
		char c = name.p[i];
		bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
				(c >= 'A' && c <= 'Z') || c == '-' || c == '_';

		if (!is_plain)
			return false;
	}
	return name.n > 0 && name.n <= NAME_MAX_BYTES;
}

/* A fixed list, and what is asked for among the headers of clients' libraries and of the
 * configuration. */
static void put_headers(struct lines *l, const struct router_opts *o, struct span asked)
{
	struct span name;

	put_text(l, "Access-Control-Allow-Headers: Authorization, Content-Type, "
		    "X-Request-Id, X-Api-Key, Accept, Cache-Control, Last-Event-Id, "
		    "X-Conversation-Id");
	while (span_next(&asked, ',', &name)) {
		name = span_trim(name);
		if (!is_token(name) || l->n + name.n + 64 > l->cap ||
			!(has_beginning(name) || is_in(&o->routing_key_headers, name) ||
				is_in(&o->priority_headers, name)))
			continue;
		put_text(l, ", ");
		put(l, name);
	}
	put_text(l, "\r\n");
}

static void put_methods(struct lines *l, unsigned methods)
{
	bool is_first = true;
	unsigned m;

	put_text(l, "Access-Control-Allow-Methods: ");
	for (m = 0; m < HTTP_METHOD_MAX; m++) {
		if ((methods >> m & 1) == 0)
			continue;
		put_text(l, is_first ? "" : ", ");
		put_text(l, http_method_name((enum http_method)m));
		is_first = false;
	}
	put_text(l, "\r\n");
}

size_t cors_preflight_lines(const struct router_opts *o, const char *base,
	const struct http_head *head, unsigned methods, char *out)
{
	struct lines l = {out, 0, CORS_PREFLIGHT_MAX};

	if (!cors_is_on(o) || !put_origin(&l, o, base, head))
		return l.n;
	put_methods(&l, methods);
	put_text(&l, "Access-Control-Max-Age: 600\r\n");
	put_headers(&l, o, field(base, head, headers_field));
	return l.n;
}
