/*
 * JSON documents by jansson, behind a name of our own: parse within caps, build, look up,
 * print. Always true: a struct js * is a json_t *; a value has one owner, its container
 * or the caller; every text inside is valid UTF-8. Used by admin, kvsteerctl,
 * kvsteer-bench and the engine; never on the router's request path.
 */
#include "io/js.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local bool ran_out;

/* jansson asks for memory here. It may pass over a failure, so the failure is noted. */
static void *allocate(size_t n)
{
	void *p = malloc(n);

	if (p == NULL)
		ran_out = true;
	return p;
}

static void __attribute__((constructor)) take_over_memory(void)
{
	json_set_alloc_funcs(allocate, free);
}

bool js_ran_out(void)
{
	bool was = ran_out;

	ran_out = false;
	return was;
}

static json_t *in(const struct js *v)
{
	return (json_t *)(uintptr_t)v;
}

static struct js *out(json_t *v)
{
	return (struct js *)v;
}

/* False as soon as brackets outside strings nest deeper than the cap; jansson judges all
 * else. */
static bool is_shallow(struct span text)
{
	unsigned depth = 0;
	bool in_string = false;

	for (size_t i = 0; i < text.n; i++) {
		char c = text.p[i];

		if (in_string && c == '\\')
			i++;
		else if (c == '"')
			in_string = !in_string;
		else if (in_string)
			continue;
		else if ((c == '[' || c == '{') && ++depth > JS_MAX_DEPTH)
			return false;
		else if ((c == ']' || c == '}') && depth > 0)
			depth--;
	}
	return true;
}

struct js *js_parse(struct span text, const char **why)
{
	static _Thread_local char message[JSON_ERROR_TEXT_LENGTH + 64];
	bool was_short = ran_out;
	json_error_t error;
	json_t *v;

	if (text.n > JS_MAX_BYTES) {
		*why = "larger than 16 MiB";
		return NULL;
	}
	if (!is_shallow(text)) {
		*why = "nested too deep";
		return NULL;
	}
	ran_out = false;
	v = json_loadb(text.p != NULL ? text.p : "", text.n,
		JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
	if (ran_out) {
		json_decref(v);
		*why = "out of memory";
		return NULL;
	}
	ran_out = was_short;
	if (v == NULL) {
		snprintf(message, sizeof(message), "line %d column %d: %s", error.line,
			error.column, error.text);
		*why = message;
	}
	return out(v);
}

void js_free(struct js *root)
{
	json_decref(in(root));
}

struct js *js_object(void)
{
	return out(json_object());
}

struct js *js_array(void)
{
	return out(json_array());
}

struct js *js_int(int64_t n)
{
	return out(json_integer(n));
}

struct js *js_real(double d)
{
	return out(isfinite(d) ? json_real(d) : json_null());
}

struct js *js_boolean(bool b)
{
	return out(json_boolean(b));
}

struct js *js_null(void)
{
	return out(json_null());
}

static bool is_tail(unsigned char c)
{
	return (c & 0xc0) == 0x80;
}

/* The length of the UTF-8 character that s begins with; 0: there is none (overlong forms
 * and surrogates are none). */
static size_t utf8_len(const unsigned char *s, size_t n)
{
	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		return n >= 2 && is_tail(s[1]) ? 2 : 0;
	if ((s[0] & 0xf0) == 0xe0) {
		if (n < 3 || !is_tail(s[1]) || !is_tail(s[2]))
			return 0;
		if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f))
			return 0;
		return 3;
	}
	if (s[0] >= 0xf0 && s[0] <= 0xf4) {
		if (n < 4 || !is_tail(s[1]) || !is_tail(s[2]) || !is_tail(s[3]))
			return 0;
		if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
			return 0;
		return 4;
	}
	return 0;
}

/* A NUL-terminated copy in which each byte that belongs to no character is U+FFFD; NULL:
 * out of memory. */
static char *mend_utf8(struct span s, size_t *n)
{
	const unsigned char *p = (const unsigned char *)s.p, *end = p + s.n;
	char *copy = allocate(3 * s.n + 1), *to = copy;

	if (copy == NULL)
		return NULL;
	while (p < end) {
		size_t len = utf8_len(p, (size_t)(end - p));

		if (len > 0)
			memcpy(to, p, len);
		else
			memcpy(to, "\xef\xbf\xbd", 3);
		to += len > 0 ? len : 3;
		p += len > 0 ? len : 1;
	}
	*to = '\0';
	*n = (size_t)(to - copy);
	return copy;
}

static bool is_utf8(struct span s)
{
	const unsigned char *p = (const unsigned char *)s.p;

	for (size_t i = 0, len; i < s.n; i += len) {
		len = utf8_len(p + i, s.n - i);
		if (len == 0)
			return false;
	}
	return true;
}

struct js *js_string(struct span s)
{
	json_t *v;
	char *mended;
	size_t n;

	if (is_utf8(s))
		return out(json_stringn_nocheck(s.p != NULL ? s.p : "", s.n));
	mended = mend_utf8(s, &n);
	if (mended == NULL)
		return NULL;
	v = json_stringn_nocheck(mended, n);
	free(mended);
	return out(v);
}

void js_set(struct js *object, const char *key, struct js *value)
{
	char *mended;
	size_t n;

	if (value == NULL)
		return;
	if (is_utf8(span_str(key))) {
		(void)json_object_set_new_nocheck(in(object), key, in(value));
		return;
	}
	mended = mend_utf8(span_str(key), &n);
	if (mended != NULL)
		(void)json_object_set_new_nocheck(in(object), mended, in(value));
	else
		js_free(value);
	free(mended);
}

void js_push(struct js *array, struct js *value)
{
	if (value != NULL)
		(void)json_array_append_new(in(array), in(value));
}

void js_set_str(struct js *object, const char *key, const char *value)
{
	js_set(object, key, value != NULL ? js_string(span_str(value)) : js_null());
}

void js_set_int(struct js *object, const char *key, int64_t n)
{
	js_set(object, key, js_int(n));
}

void js_set_u64(struct js *object, const char *key, uint64_t n)
{
	js_set_int(object, key, (int64_t)MIN(n, (uint64_t)INT64_MAX));
}

void js_set_real(struct js *object, const char *key, double d)
{
	js_set(object, key, js_real(d));
}

void js_set_bool(struct js *object, const char *key, bool b)
{
	js_set(object, key, js_boolean(b));
}

struct js *js_get(const struct js *object, const char *key)
{
	return out(json_object_get(in(object), key));
}

struct js *js_at(const struct js *array, size_t i)
{
	return out(json_array_get(in(array), i));
}

size_t js_len(const struct js *array_or_object)
{
	return json_is_array(in(array_or_object)) ? json_array_size(in(array_or_object))
						  : json_object_size(in(array_or_object));
}

bool js_is_object(const struct js *v)
{
	return json_is_object(in(v));
}

bool js_is_array(const struct js *v)
{
	return json_is_array(in(v));
}

bool js_is_string(const struct js *v)
{
	return json_is_string(in(v));
}

bool js_is_null(const struct js *v)
{
	return json_is_null(in(v));
}

bool js_as_str(const struct js *v, struct span *out_str)
{
	if (!json_is_string(in(v)))
		return false;
	*out_str = span_make(json_string_value(in(v)), json_string_length(in(v)));
	return true;
}

bool js_as_int(const struct js *v, int64_t *out_int)
{
	if (!json_is_integer(in(v)))
		return false;
	*out_int = json_integer_value(in(v));
	return true;
}

bool js_as_real(const struct js *v, double *out_real)
{
	if (!json_is_number(in(v)))
		return false;
	*out_real = json_number_value(in(v));
	return true;
}

bool js_as_bool(const struct js *v, bool *out_bool)
{
	if (!json_is_boolean(in(v)))
		return false;
	*out_bool = json_is_true(in(v));
	return true;
}

bool js_each(const struct js *object, void **at, const char **key, struct js **value)
{
	void *next = *at == NULL ? json_object_iter(in(object))
				 : json_object_iter_next(in(object), *at);

	if (next == NULL)
		return false;
	*at = next;
	*key = json_object_iter_key(next);
	*value = out(json_object_iter_value(next));
	return true;
}

bool js_member(const struct js *object, size_t i, const char **key, struct js **value)
{
	const char *k;
	struct js *v;
	void *at = NULL;

	do
		if (!js_each(object, &at, &k, &v))
			return false;
	while (i-- > 0);
	*key = k;
	*value = v;
	return true;
}

struct js *js_copy(const struct js *v)
{
	return out(json_deep_copy(in(v)));
}

char *js_print(const struct js *v, bool pretty)
{
	size_t how = JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);

	return json_dumps(in(v), how | (pretty ? JSON_INDENT(2) : JSON_COMPACT));
}
