/*
 * JSON documents of the admin side, the tools and the engine, by jansson (its only
 * includer). Owns depth and size caps. struct js is a jansson value under another name:
 * reference counting is hidden, a tree has one owner (js_free of the root).
 */
#ifndef IO_JS_H
#define IO_JS_H

#include "base/base.h"
#include "base/span.h"

struct js; /* a value */

#define JS_MAX_BYTES (16u << 20)
#define JS_MAX_DEPTH 512

/* NULL and *why (static or thread-local text with the position) when text is no JSON
 * within the caps. Duplicate keys: last wins. */
struct js *js_parse(struct span text, const char **why);
void js_free(struct js *root);

/*
 * Whether memory ran out on this thread, in a function of this header, since it was asked
 * last: a document that was made meanwhile may lack something.
 */
bool js_ran_out(void);

struct js *js_object(void);
struct js *js_array(void);
struct js *js_string(struct span s); /* invalid UTF-8 is replaced by U+FFFD */
struct js *js_int(int64_t n);
struct js *js_real(double d); /* null for NaN and infinities */
struct js *js_boolean(bool b);
struct js *js_null(void);
/* Take the value (also on failure, then it is freed). NULL values are ignored, so calls
 * chain. */
void js_set(struct js *object, const char *key, struct js *value);
void js_push(struct js *array, struct js *value);
void js_set_str(struct js *object, const char *key, const char *value); /* NULL: null */
void js_set_int(struct js *object, const char *key, int64_t n);
/* Beyond INT64_MAX: that. */
void js_set_u64(struct js *object, const char *key, uint64_t n);
void js_set_real(struct js *object, const char *key, double d);
void js_set_bool(struct js *object, const char *key, bool b);

/* Borrowed; NULL when absent or of another type. */
struct js *js_get(const struct js *object, const char *key);
struct js *js_at(const struct js *array, size_t i);
size_t js_len(const struct js *array_or_object);
bool js_is_object(const struct js *v);
bool js_is_array(const struct js *v);
bool js_is_string(const struct js *v);
bool js_is_null(const struct js *v);
bool js_as_str(const struct js *v, struct span *out); /* false: no string */
bool js_as_int(const struct js *v, int64_t *out);
bool js_as_real(const struct js *v, double *out); /* integers too */
bool js_as_bool(const struct js *v, bool *out);
/* The next member of an object in its order; *at is NULL before the first. Nothing may be
 * set or removed meanwhile. */
bool js_each(const struct js *object, void **at, const char **key, struct js **value);
/* Key and value of the i-th member; counts from the first each time, so js_each() is for
 * big objects. */
bool js_member(const struct js *object, size_t i, const char **key, struct js **value);

/* A value of its own that is equal. NULL: v is NULL, or out of memory. */
struct js *js_copy(const struct js *v);

/* A new NUL-terminated string (free() it); pretty: indented by two; reals with 15 digits.
 * NULL: out of memory. */
char *js_print(const struct js *v, bool pretty);

#endif
