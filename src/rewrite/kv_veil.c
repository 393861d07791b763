/*
 * What responses say of KV transfers, taken out. See kv_veil.h.
 */
#include "rewrite/kv_veil.h"

#include "base/err.h"

#include <string.h>

enum state {
	OUTSIDE,     /* of such a member: 0, kv_veil_rests() */
	IN_VALUE,    /* of one, which becomes blanks */
	BEHIND_VALUE /* of its object's first: the comma that follows goes, too */
};

static const char name[] = "\"kv_transfer_params\"";
#define NAME_LEN (sizeof(name) - 1)

static bool is_blank(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* By its letter that is the rarest in what engines send. */
static const char *find_name(const char *p, const char *end)
{
	const char *from = p, *v = p;

	while (v < end && (v = memchr(v, 'v', (size_t)(end - v))) != NULL) {
		if (v - from >= 2 && v[-2] == '"' && end - v >= (ptrdiff_t)NAME_LEN - 2 &&
			memcmp(v - 2, name, NAME_LEN) == 0)
			return v - 2;
		v++;
	}
	return NULL;
}

static size_t skip_blanks(const char *p, size_t i, size_t n)
{
	while (i < n && is_blank(p[i]))
		i++;
	return i;
}

/* The separator in front of what begins at i: a comma or a brace; else i itself. Not
 * before from. */
static size_t separator(const char *p, size_t from, size_t i)
{
	size_t at = i;

	while (at > from && is_blank(p[at - 1]))
		at--;
	return at > from && (p[at - 1] == ',' || p[at - 1] == '{') ? at - 1 : i;
}

/* Where the end of p[from..n) may be the beginning of such a member; n: it is none. */
static size_t beginning(const char *p, size_t from, size_t n)
{
	size_t at = n - from < NAME_LEN ? from : n - NAME_LEN + 1;

	while (at < n && (p[at] != '"' || memcmp(p + at, name, n - at) != 0))
		at++;
	at = separator(p, from, at);
	return n - at > KV_VEIL_HELD ? n : at;
}

/* The byte behind p[0..at) would be escaped. */
static bool is_escaped(const struct kv_veil *v, const char *p, size_t at)
{
	size_t i = at;

	while (i > 0 && p[i - 1] == '\\')
		i--;
	return (at - i) % 2 != (i == 0 && v->ends_escaping);
}

/* The member whose name is at p[at] has a value that says something, which begins at
 * value. */
static void begin_value(struct kv_veil *v, char *p, size_t at, size_t value)
{
	size_t sep = separator(p, 0, at);
	bool is_first =
		sep < at ? p[sep] == '{' : v->ends_opening && skip_blanks(p, 0, at) == at;

	v->state = IN_VALUE;
	v->depth = 0;
	v->is_in_string = v->is_escaped = false;
	/* Its comma has gone out already: only its value can go. */
	v->is_emptied = sep == at && !is_first;
	v->takes_comma = is_first;
	if (v->is_emptied)
		return;
	at = v->takes_comma ? at : sep;
	memset(p + at, ' ', value - at);
}

/* The next byte of the value. True: it is the last one. */
static bool step(struct kv_veil *v, char c)
{
	if (v->is_in_string) {
		bool is_end = c == '"' && !v->is_escaped;

		v->is_escaped = c == '\\' && !v->is_escaped;
		v->is_in_string = !is_end;
		return is_end && v->depth == 0;
	}
	v->is_in_string = c == '"';
	if (c == '{' || c == '[')
		v->depth++;
	if (c == '}' || c == ']')
		v->depth--;
	return (c == '}' || c == ']') && v->depth == 0;
}

static size_t blank_value(struct kv_veil *v, char *p, size_t i, size_t n)
{
	for (; i < n; i++) {
		bool is_first = v->depth == 0 && !v->is_in_string;
		bool is_last = step(v, p[i]);

		if (!(v->is_emptied && (is_first || is_last)) && p[i] != '\n')
			p[i] = ' ';
		if (is_last) {
			v->state = v->takes_comma ? BEHIND_VALUE : OUTSIDE;
			return i + 1;
		}
	}
	return n;
}

static size_t take_comma(struct kv_veil *v, char *p, size_t i, size_t n)
{
	i = skip_blanks(p, i, n);
	if (i == n)
		return n;
	if (p[i] == ',')
		p[i++] = ' ';
	v->state = OUTSIDE;
	return i;
}

/* Looks for the next member from *i on. False: there is none, or not all of it that must
 * be known; *i is where what is to be held back begins. */
static bool find_member(struct kv_veil *v, char *p, size_t *i, size_t n)
{
	const char *found;

	while ((found = find_name(p + *i, p + n)) != NULL) {
		size_t at = (size_t)(found - p), next = skip_blanks(p, at + NAME_LEN, n);
		bool has_colon = next < n && p[next] == ':';

		if (has_colon)
			next = skip_blanks(p, next + 1, n);
		if (next == n) {
			*i = separator(p, 0, at);
			return false;
		}
		*i = at + 1;
		if (!has_colon || is_escaped(v, p, at))
			continue;
		if (p[next] != '{' && p[next] != '[' && p[next] != '"')
			continue; /* null says nothing */
		begin_value(v, p, at, next);
		*i = next;
		return true;
	}
	*i = beginning(p, *i, n);
	return false;
}

/* Bytes of p that may go out. */
static size_t pass(struct kv_veil *v, char *p, size_t n)
{
	size_t i = 0;

	while (i < n) {
		if (v->state == IN_VALUE)
			i = blank_value(v, p, i, n);
		else if (v->state == BEHIND_VALUE)
			i = take_comma(v, p, i, n);
		else if (!find_member(v, p, &i, n))
			return i;
	}
	return n;
}

/* Of what goes out. */
static void note_end(struct kv_veil *v, const char *p, size_t n)
{
	size_t at = n;

	v->ends_escaping = is_escaped(v, p, n);
	while (at > 0 && is_blank(p[at - 1]))
		at--;
	if (at > 0)
		v->ends_opening = p[at - 1] == '{';
}

bool kv_veil_is_idle(struct kv_veil *v, struct span data, bool last)
{
	size_t at = data.n;

	if (!kv_veil_rests(v) || find_name(data.p, data.p + data.n) != NULL)
		return false;
	/* So ends an event, and an object. */
	while (at > 0 && (unsigned char)data.p[at - 1] <= ' ')
		at--;
	if (at > 0 && data.p[at - 1] == '}') {
		v->ends_escaping = v->ends_opening = false;
		return true;
	}
	if (!last && beginning(data.p, 0, data.n) < data.n)
		return false;
	note_end(v, data.p, data.n);
	return true;
}

int kv_veil_pass(struct kv_veil *v, struct span *data, bool last, struct text *out)
{
	size_t n;

	(void)text_add(out, span_make(v->held, v->n_held));
	if (text_add(out, *data) != 0) {
		*data = span_make(NULL, 0);
		return ERR_NOMEM;
	}
	n = pass(v, out->p, out->n);
	if (last || out->n - n > KV_VEIL_HELD)
		n = out->n;
	note_end(v, out->p, n);
	v->n_held = (uint8_t)(out->n - n);
	memcpy(v->held, out->p + n, v->n_held);
	*data = span_make(out->p, n);
	return 0;
}
