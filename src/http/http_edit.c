/*
 * The configuration's rules for headers, made ready. See http_edit.h.
 */
#include "http/http_edit.h"

#include "base/err.h"
#include "base/header_rule.h"

#include <stdlib.h>
#include <string.h>

static void put(struct http_edit *e, struct span s)
{
	memcpy(e->lines + e->lines_n, s.p, s.n);
	e->lines_n += s.n;
}

static void take(struct http_edit *e, const struct header_rule *rule)
{
	if (rule->op != HEADER_ADD)
		e->dropped[e->n_dropped++] = rule->name;
	if (rule->op == HEADER_REMOVE)
		return;
	put(e, rule->name);
	put(e, SPAN_LIT(": "));
	put(e, rule->value);
	put(e, SPAN_LIT("\r\n"));
}

int http_edit_init(struct http_edit *e, char *const *rules, size_t n)
{
	struct header_rule rule;
	size_t room = 0;

	*e = (struct http_edit){NULL};
	if (n == 0)
		return 0;
	for (size_t i = 0; i < n; i++)
		room += strlen(rules[i]) + 4;
	e->dropped = calloc(n, sizeof(*e->dropped));
	e->lines = malloc(room);
	if (e->dropped == NULL || e->lines == NULL) {
		http_edit_free(e);
		return ERR_NOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		if (header_rule_read(span_str(rules[i]), &rule) == 0)
			take(e, &rule);
	}
	return 0;
}

void http_edit_free(struct http_edit *e)
{
	free(e->dropped);
	free(e->lines);
	*e = (struct http_edit){NULL};
}

bool http_edit_drops(const struct http_edit *e, struct span name)
{
	for (size_t i = 0; i < e->n_dropped; i++) {
		if (header_name_eq(name, e->dropped[i]))
			return true;
	}
	return false;
}

size_t http_edit_apply(const struct http_edit *e, char *lines, size_t n)
{
	size_t from = 0, kept = 0;

	while (from < n) {
		const char *end = memchr(lines + from, '\n', n - from);
		const char *colon = memchr(lines + from, ':', n - from);
		size_t len = end != NULL ? (size_t)(end - lines) + 1 - from : n - from;
		struct span name = span_make(lines + from,
			colon != NULL ? (size_t)(colon - lines) - from : len);

		if (!http_edit_drops(e, name)) {
			memmove(lines + kept, lines + from, len);
			kept += len;
		}
		from += len;
	}
	if (e->lines_n > 0)
		memcpy(lines + kept, e->lines, e->lines_n);
	return kept + e->lines_n;
}
