/*
 * Metrics as JSON, from the text that the daemon gives. See ctl_metrics.h.
 */
#include "ctl/ctl_metrics.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/span.h"
#include "io/js.h"

#include <stdio.h>
#include <stdlib.h>

/* A label's value, which *rest begins with behind its quote, unescaped; false: no end. */
static bool read_value(struct span *rest, struct js *labels, const char *name)
{
	scoped_free char *value = xmalloc(rest->n + 1);
	size_t i, used = 0;

	for (i = 0; i < rest->n && rest->p[i] != '"'; i++) {
		char c = rest->p[i];

		if (c == '\\' && i + 1 < rest->n) {
			c = rest->p[++i];
			c = c == 'n' ? '\n' : c;
		}
		value[used++] = c;
	}
	if (i == rest->n)
		return false;
	js_set(labels, name, js_string(span_make(value, used)));
	*rest = span_make(rest->p + i + 1, rest->n - i - 1);
	return true;
}

/* name="value",… up to the brace, which is taken as well. */
static bool read_labels(struct span *rest, struct js *labels)
{
	struct span name;

	while (rest->n > 0 && rest->p[0] != '}') {
		scoped_free char *key = NULL;

		if (rest->p[0] == ',')
			*rest = span_make(rest->p + 1, rest->n - 1);
		if (!span_next(rest, '=', &name) || rest->n == 0 || rest->p[0] != '"')
			return false;
		key = xstrndup(name.p, name.n);
		*rest = span_make(rest->p + 1, rest->n - 1);
		if (!read_value(rest, labels, key))
			return false;
	}
	if (rest->n == 0)
		return false;
	*rest = span_make(rest->p + 1, rest->n - 1);
	return true;
}

/* The document of one line, or NULL. */
static struct js *read_sample(struct span line)
{
	size_t n = 0;
	struct js *out, *labels;
	struct span rest;
	scoped_free char *name = NULL, *value = NULL;
	bool ok = true;

	while (n < line.n && line.p[n] != '{' && line.p[n] != ' ')
		n++;
	if (n == 0 || n == line.n || line.p[0] == '#')
		return NULL;
	name = xstrndup(line.p, n);
	rest = span_make(line.p + n, line.n - n);
	labels = js_object();
	if (rest.p[0] == '{') {
		rest = span_make(rest.p + 1, rest.n - 1);
		ok = read_labels(&rest, labels);
	}
	if (!ok) {
		js_free(labels);
		return NULL;
	}
	rest = span_trim(rest);
	value = xstrndup(rest.n > 0 ? rest.p : "", rest.n);
	out = js_object();
	js_set_str(out, "name", name);
	js_set(out, "labels", labels);
	js_set_real(out, "value", strtod(value, NULL));
	return out;
}

struct js *ctl_metrics_document(const char *text)
{
	struct span rest = span_str(text), line;
	struct js *out = js_object(), *list = js_array();

	while (span_next(&rest, '\n', &line)) {
		struct js *sample = read_sample(line);

		if (sample != NULL)
			js_push(list, sample);
	}
	js_set(out, "metrics", list);
	return out;
}

void ctl_print_metrics(const char *text)
{
	struct js *document = ctl_metrics_document(text);
	scoped_free char *out = js_print(document, false);

	printf("%s\n", out);
	js_free(document);
}
