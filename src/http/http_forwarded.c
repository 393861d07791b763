/*
 * X-Forwarded-For, read from its right end. See http_forwarded.h.
 */
#include "http/http_forwarded.h"

#include "base/err.h"

#include <string.h>

void http_who_set(struct http_who *w, const struct ip *ip)
{
	w->ip = *ip;
	w->text_len = (uint8_t)ip_text(ip, w->text);
}

struct span http_who_hop(const struct http_who *w)
{
	return w->ip.family == IP_NONE ? SPAN_LIT("unknown") : http_who_text(w);
}

static bool is_port(struct span s)
{
	uint64_t port;

	return s.n > 1 && s.p[0] == ':' &&
	       span_to_u64(span_make(s.p + 1, s.n - 1), &port) == 0 && port <= UINT16_MAX;
}

static struct span from(struct span s, size_t at)
{
	return span_make(s.p + at, s.n - at);
}

/* "[v6]" or "[v6]:port" */
static int read_bracketed(struct span s, struct ip *out)
{
	const char *end = memchr(s.p, ']', s.n);
	size_t n = end != NULL ? (size_t)(end - s.p) : 0;

	if (end == NULL || memchr(s.p, ':', n) == NULL ||
		(n + 1 < s.n && !is_port(from(s, n + 1))))
		return ERR_PARSE;
	return ip_parse(span_make(s.p + 1, n - 1), out);
}

/* "1.2.3.4", "1.2.3.4:80", "::1", "[::1]", "[::1]:80" */
static int read_hop(struct span s, struct ip *out)
{
	const char *colon;
	size_t n;

	if (s.n > 0 && s.p[0] == '[')
		return read_bracketed(s, out);
	if (ip_parse(s, out) == 0)
		return 0;
	colon = memchr(s.p, ':', s.n);
	n = colon != NULL ? (size_t)(colon - s.p) : 0;
	if (colon == NULL || !is_port(from(s, n)) || memchr(s.p, '.', n) == NULL)
		return ERR_PARSE;
	return ip_parse(span_make(s.p, n), out);
}

/* The last item of a list, which becomes shorter. False: the list is at its end. Empty
 * items are none. */
static bool take_last(struct span *list, struct span *item)
{
	while (list->n > 0) {
		size_t at = list->n;

		while (at > 0 && list->p[at - 1] != ',')
			at--;
		*item = span_trim(from(*list, at));
		list->n = at > 0 ? at - 1 : 0;
		if (item->n > 0)
			return true;
	}
	return false;
}

struct walk {
	const struct ip_set *trusted;
	struct ip client;
	unsigned hops;
	bool is_found;
};

/* A word that is no address ends the way: who wrote it is the last one that is known. */
static void step(struct walk *w, struct span item)
{
	struct ip ip;

	w->hops++;
	if (w->is_found)
		return;
	if (read_hop(item, &ip) != 0) {
		w->is_found = true;
		return;
	}
	w->client = ip;
	w->is_found = !ip_set_has(w->trusted, &ip);
}

enum fail http_forwarded_read(const struct ip_set *trusted, const struct http_who *peer,
	const char *base, const struct http_head *h, struct http_who *client)
{
	struct walk w = {.trusted = trusted, .client = peer->ip};
	struct span list, item;

	for (unsigned i = h->n_fields; i > 0 && w.hops <= HTTP_HOPS_MAX; i--) {
		const struct http_field *f = &h->fields[i - 1];

		/* Also where Connection names it: nobody makes himself unknown so. */
		if (f->id != FIELD_X_FORWARDED_FOR)
			continue;
		list = http_field_value(base, f);
		while (w.hops <= HTTP_HOPS_MAX && take_last(&list, &item))
			step(&w, item);
	}
	http_who_set(client, &w.client);
	return w.hops > HTTP_HOPS_MAX ? FAIL_TOO_MANY_HOPS : FAIL_NONE;
}

struct span http_forwarded_proto(const char *base, const struct http_head *h)
{
	unsigned i = http_head_has(h, FIELD_X_FORWARDED_PROTO) ? h->n_fields : 0;

	/* The last one: what a proxy adds stands behind what came to it. */
	while (i > 0 && h->fields[i - 1].id != FIELD_X_FORWARDED_PROTO)
		i--;
	return i > 0 && span_case_eq(http_field_value(base, &h->fields[i - 1]),
				SPAN_LIT("https"))
		       ? SPAN_LIT("https")
		       : SPAN_LIT("http");
}
