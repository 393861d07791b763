/*
 * Walks over scanned JSON text (json_walk.h). Trusts the scanner for the grammar but
 * never for memory: each read is checked against the end.
 */
#include "route/json_walk.h"

#include "route/json_scan.h"

/* To the next byte that means something, past blanks and the one separator. */
static void skip_to(const struct json_text *t, struct json_cursor *c, char separator)
{
	while (c->at < c->end &&
		(json_is_blank(t->base[c->at]) || t->base[c->at] == separator))
		c->at++;
}

struct json_cursor json_enter(struct json_value v)
{
	if (v.kind != JSON_IS_ARRAY && v.kind != JSON_IS_OBJECT)
		return (struct json_cursor){v.end, v.end, v.skip};
	/* A text that is taken for an object may be empty. */
	if (v.end <= v.start + 1)
		return (struct json_cursor){v.end, v.end, v.skip};
	return (struct json_cursor){v.start + 1, v.end - 1, v.skip};
}

/* The entry of the value that starts at c->at, or NULL. Leaves c->skip at or before it.
 */
static const struct json_skip *find_skip(const struct json_text *t, struct json_cursor *c)
{
	while (c->skip < t->n_skips && t->skips[c->skip].start < c->at)
		c->skip++;
	if (c->skip < t->n_skips && t->skips[c->skip].start == c->at)
		return &t->skips[c->skip];
	return NULL;
}

/* The end of the short string at `at`, its closing quote included. */
static size_t short_string_end(
	const struct json_text *t, size_t at, size_t end, bool *escaped)
{
	const char *p = t->base + at + 1, *stop = t->base + end;

	*escaped = false;
	while ((p = json_find_special_near(p, stop)) < stop && *p != '"') {
		*escaped |= *p == '\\';
		p += *p == '\\' ? 2 : 1;
		if (p > stop)
			return end;
	}
	return p < stop ? (size_t)(p + 1 - t->base) : end;
}

static size_t string_end(const struct json_text *t, struct json_cursor *c)
{
	const struct json_skip *skip = find_skip(t, c);
	bool escaped;

	return skip != NULL ? skip->end : short_string_end(t, c->at, c->end, &escaped);
}

/* The end of a container that has no entry. Strings inside may have one. */
static size_t container_end(const struct json_text *t, struct json_cursor c)
{
	size_t open = 0;

	while (c.at < c.end) {
		char byte = t->base[c.at];

		if (byte == '"') {
			c.at = string_end(t, &c);
			continue;
		}
		c.at++;
		if (byte == '[' || byte == '{')
			open++;
		if ((byte == ']' || byte == '}') && --open == 0)
			break;
	}
	return c.at;
}

static size_t scalar_end(const struct json_text *t, const struct json_cursor *c)
{
	size_t at = c->at;

	while (at < c->end && t->base[at] != ',' && t->base[at] != ']' &&
		t->base[at] != '}' && !json_is_blank(t->base[at]))
		at++;
	return at > c->at ? at : at + 1;
}

static enum json_kind kind_of(char c)
{
	switch (c) {
	case '"':
		return JSON_IS_STRING;
	case '{':
		return JSON_IS_OBJECT;
	case '[':
		return JSON_IS_ARRAY;
	case 't':
		return JSON_IS_TRUE;
	case 'f':
		return JSON_IS_FALSE;
	case 'n':
		return JSON_IS_NULL;
	default:
		return JSON_IS_NUMBER;
	}
}

/* The value that begins at c->at; the cursor goes behind it. */
static struct json_value read_value(const struct json_text *t, struct json_cursor *c)
{
	struct json_value v = {.start = (uint32_t)c->at, .kind = kind_of(t->base[c->at])};
	const struct json_skip *skip = NULL;
	bool escaped = false;
	size_t end;

	if (v.kind >= JSON_IS_STRING)
		skip = find_skip(t, c);
	v.skip = c->skip;
	if (skip != NULL) {
		end = skip->end;
		escaped = skip->escaped;
		c->skip = skip->next;
	} else if (v.kind == JSON_IS_STRING) {
		end = short_string_end(t, c->at, c->end, &escaped);
	} else if (v.kind == JSON_IS_NUMBER || v.kind <= JSON_IS_TRUE) {
		end = scalar_end(t, c);
	} else {
		end = container_end(t, *c);
	}
	v.end = (uint32_t)MIN(end, c->end);
	v.escaped = escaped;
	c->at = v.end;
	return v;
}

bool json_next_item(
	const struct json_text *t, struct json_cursor *c, struct json_value *item)
{
	skip_to(t, c, ',');
	if (c->at >= c->end)
		return false;
	*item = read_value(t, c);
	return true;
}

bool json_next_member(const struct json_text *t, struct json_cursor *c,
	struct json_value *key, struct json_value *value)
{
	skip_to(t, c, ',');
	if (c->at >= c->end)
		return false;
	*key = read_value(t, c);
	skip_to(t, c, ':');
	if (c->at >= c->end)
		return false;
	*value = read_value(t, c);
	return true;
}

struct json_cursor json_bytes(struct json_value v)
{
	return (struct json_cursor){v.start, v.end, v.skip};
}

struct json_value json_next_string(const struct json_text *t, struct json_cursor *c)
{
	assert(c->at < c->end && t->base[c->at] == '"');
	return read_value(t, c);
}

struct span json_name(
	const struct json_text *t, struct json_value v, char out[JSON_NAME_ROOM])
{
	struct span raw = json_raw(t, v);
	size_t n;

	if (v.kind != JSON_IS_STRING)
		return span_make(out, 0);
	if (!v.escaped)
		return raw;
	n = json_decode(&raw, out, JSON_NAME_ROOM);
	return span_make(out, raw.n == 0 && n < 64 ? n : 0);
}

void json_members(const struct json_text *t, struct json_value object,
	const struct span *names, unsigned n, struct json_value *found)
{
	struct json_cursor c = json_enter(object);
	struct json_value key, value;
	char buffer[JSON_NAME_ROOM];

	memset(found, 0, n * sizeof(*found));
	if (object.kind != JSON_IS_OBJECT)
		return;
	while (json_next_member(t, &c, &key, &value)) {
		struct span name = json_name(t, key, buffer);

		for (unsigned i = 0; i < n; i++) {
			if (name.n == names[i].n &&
				memcmp(name.p, names[i].p, name.n) == 0)
				found[i] = value;
		}
	}
}

static unsigned hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return (unsigned)(c - '0');
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10) : 16;
}

/* The code unit of the \uXXXX at p, or UINT_MAX when there is none. */
static unsigned code_unit(const char *p, size_t n)
{
	unsigned a, b, c, d;

	if (n < 6 || p[0] != '\\' || p[1] != 'u')
		return UINT32_MAX;
	a = hex_digit(p[2]);
	b = hex_digit(p[3]);
	c = hex_digit(p[4]);
	d = hex_digit(p[5]);
	if ((a | b | c | d) > 15)
		return UINT32_MAX;
	return a << 12 | b << 8 | c << 4 | d;
}

/* A lone surrogate is written as the three bytes that its number would take. */
static size_t put_utf8(unsigned code, char *out)
{
	if (code < 0x80) {
		out[0] = (char)code;
		return 1;
	}
	if (code < 0x800) {
		out[0] = (char)(0xC0 | code >> 6);
		out[1] = (char)(0x80 | (code & 0x3F));
		return 2;
	}
	if (code < 0x10000) {
		out[0] = (char)(0xE0 | code >> 12);
		out[1] = (char)(0x80 | (code >> 6 & 0x3F));
		out[2] = (char)(0x80 | (code & 0x3F));
		return 3;
	}
	out[0] = (char)(0xF0 | code >> 18);
	out[1] = (char)(0x80 | (code >> 12 & 0x3F));
	out[2] = (char)(0x80 | (code >> 6 & 0x3F));
	out[3] = (char)(0x80 | (code & 0x3F));
	return 4;
}

/* The byte that the letter after a backslash stands for. */
static char plain_escape(char c)
{
	switch (c) {
	case 'b':
		return '\b';
	case 'f':
		return '\f';
	case 'n':
		return '\n';
	case 'r':
		return '\r';
	case 't':
		return '\t';
	default:
		return c;
	}
}

/* The escape at p (p[0] is the backslash): *read bytes of it become the returned number
 * of bytes. */
static size_t decode_escape(const char *p, size_t n, char *out, size_t *read)
{
	unsigned code, low;

	*read = n < 2 ? n : 2;
	if (n < 2 || p[1] != 'u') {
		out[0] = n < 2 ? p[0] : plain_escape(p[1]);
		return 1;
	}
	code = code_unit(p, n);
	if (code == UINT32_MAX) {
		out[0] = 'u';
		return 1;
	}
	*read = 6;
	if (code >= 0xD800 && code < 0xDC00) {
		low = code_unit(p + 6, n - 6);
		if (low >= 0xDC00 && low < 0xE000) {
			code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
			*read = 12;
		}
	}
	return put_utf8(code, out);
}

/* Copies up to the first backslash, at most n bytes; out has room for n rounded up to 16.
 */
static size_t copy_plain(const char *p, size_t n, char *out)
{
	size_t i = 0;

#ifdef __SSE2__
	for (; n - i >= 16; i += 16) {
		__m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
		unsigned mask = (unsigned)_mm_movemask_epi8(
			_mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));

		_mm_storeu_si128((__m128i *)(void *)(out + i), v);
		if (mask != 0)
			return i + (size_t)__builtin_ctz(mask);
	}
#endif
	for (; i < n && p[i] != '\\'; i++)
		out[i] = p[i];
	return i;
}

size_t json_decode(struct span *raw, char *out, size_t room)
{
	const char *p = raw->p, *end = p + raw->n;
	size_t used = 0, limit = room - JSON_DECODE_SLACK;

	while (p < end && used <= limit) {
		size_t read;

		if (*p != '\\') {
			size_t n = copy_plain(
				p, MIN((size_t)(end - p), limit + 1 - used), out + used);

			p += n;
			used += n;
			continue;
		}
		used += decode_escape(p, (size_t)(end - p), out + used, &read);
		p += read;
	}
	raw->n = (size_t)(end - p);
	raw->p = p;
	return used;
}
