/*
 * Reads forms. See form_scan.h.
 */
#include "route/form_scan.h"

#include <string.h>

#define HEAD_MAX 16384 /* of one part; a longer one ends the scan */

/* ---- parameters: "form-data; name=\"a\"; filename=b" ---- */

struct param {
	struct span name, value; /* the value without its quotes */
};

static struct span skip_blanks(struct span s)
{
	while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t'))
		s = span_make(s.p + 1, s.n - 1);
	return s;
}

/* The length of what is up to the quote that ends it; s.n: none does. */
static size_t quoted_length(struct span s)
{
	size_t i = 0;

	while (i < s.n && s.p[i] != '"')
		i += s.p[i] == '\\' && i + 1 < s.n ? 2 : 1;
	return MIN(i, s.n);
}

static struct span cut(struct span *rest, size_t n)
{
	struct span head = span_make(rest->p, n);

	*rest = span_make(rest->p + n, rest->n - n);
	return head;
}

static struct span cut_value(struct span *rest)
{
	struct span value;
	size_t n = 0;

	if (rest->n > 0 && rest->p[0] == '"') {
		(void)cut(rest, 1);
		value = cut(rest, quoted_length(*rest));
		if (rest->n > 0)
			(void)cut(rest, 1);
		return value;
	}
	while (n < rest->n && rest->p[n] != ';')
		n++;
	return span_trim(cut(rest, n));
}

/* rest begins behind a value. */
static bool next_param(struct span *rest, struct param *out)
{
	size_t n = 0;

	while (rest->n > 0 && rest->p[0] != ';')
		(void)cut(rest, 1);
	if (rest->n == 0)
		return false;
	(void)cut(rest, 1);
	*rest = skip_blanks(*rest);
	while (n < rest->n && rest->p[n] != '=' && rest->p[n] != ';')
		n++;
	out->name = span_trim(cut(rest, n));
	out->value = span_make(rest->p, 0);
	if (rest->n > 0 && rest->p[0] == '=') {
		(void)cut(rest, 1);
		*rest = skip_blanks(*rest);
		out->value = cut_value(rest);
	}
	return true;
}

/* "TYPE", or "TYPE; ...": *rest is what follows. */
static bool has_type(struct span value, struct span type, struct span *rest)
{
	struct span word;

	value = span_trim(value);
	*rest = value;
	word = cut(rest, MIN(type.n, value.n));
	*rest = skip_blanks(*rest);
	return span_case_eq(word, type) && (rest->n == 0 || rest->p[0] == ';');
}

bool form_scan_begin(struct form_scan *f, struct span content_type)
{
	struct span rest;
	struct param p;

	if (!has_type(content_type, SPAN_LIT("multipart/form-data"), &rest))
		return false;
	while (next_param(&rest, &p)) {
		if (!span_case_eq(p.name, SPAN_LIT("boundary")))
			continue;
		if (p.value.n == 0 || p.value.n > FORM_BOUNDARY_MAX)
			return false;
		*f = (struct form_scan){.mark = "\r\n--", .n_mark = 4 + p.value.n};
		memcpy(f->mark + 4, p.value.p, p.value.n);
		return true;
	}
	return false;
}

/* ---- the parts ---- */

static bool starts_field(struct span line, struct span name, struct span *value)
{
	const char *colon = memchr(line.p, ':', line.n);

	if (colon == NULL)
		return false;
	*value = span_make(colon + 1, (size_t)(line.p + line.n - colon - 1));
	return span_case_eq(span_trim(span_make(line.p, (size_t)(colon - line.p))), name);
}

static void read_disposition(struct span value, struct form_field *out)
{
	struct span rest;
	struct param p;

	if (!has_type(value, SPAN_LIT("form-data"), &rest))
		return;
	while (next_param(&rest, &p)) {
		if (span_case_eq(p.name, SPAN_LIT("name")))
			out->name = p.value;
		out->is_file |= span_case_eq(p.name, SPAN_LIT("filename")) ||
				span_case_eq(p.name, SPAN_LIT("filename*"));
	}
}

static void read_head(struct span head, struct form_field *out)
{
	struct span line, value;

	while (span_next(&head, '\n', &line)) {
		if (starts_field(line, SPAN_LIT("content-disposition"), &value))
			read_disposition(span_trim_all(value), out);
	}
}

/* The place of `what` in [f->at, to), or false; f->at is where to look on then. */
static bool find(
	struct form_scan *f, const char *base, size_t to, struct span what, size_t *place)
{
	const char *p =
		to > f->at ? memmem(base + f->at, to - f->at, what.p, what.n) : NULL;

	if (p != NULL) {
		*place = (size_t)(p - base);
		return true;
	}
	if (to > f->at + what.n - 1)
		f->at = to - (what.n - 1);
	return false;
}

static struct span mark_of(const struct form_scan *f)
{
	return span_make(f->mark, f->n_mark);
}

/* The first boundary may be the body's first bytes, without a line before it. */
static bool run_preamble(struct form_scan *f, const char *base, size_t to)
{
	size_t n = f->n_mark - 2, place;

	if (f->at == 0) {
		if (to < n)
			return false;
		if (memcmp(base, f->mark + 2, n) == 0) {
			f->at = n;
			f->state = FORM_BOUNDARY;
			return true;
		}
	}
	if (!find(f, base, to, mark_of(f), &place))
		return false;
	f->at = place + f->n_mark;
	f->state = FORM_BOUNDARY;
	return true;
}

/* "--" ends the form; blanks and a line's end begin a part. Anything else: what looked
 * like a boundary was none, but no client writes such a form. */
static bool run_boundary(struct form_scan *f, const char *base, size_t to)
{
	size_t at = f->at;

	while (at < to && (base[at] == ' ' || base[at] == '\t'))
		at++;
	if (at + 2 > to)
		return false;
	if (base[at] != '\r' || base[at + 1] != '\n') {
		f->state = FORM_END;
		return true;
	}
	/* The line's end counts as the head's, where that is empty. */
	f->head = f->at = at;
	f->state = FORM_HEAD;
	return true;
}

static bool run_head(struct form_scan *f, const char *base, size_t to)
{
	size_t place;

	if (find(f, base, to, SPAN_LIT("\r\n\r\n"), &place)) {
		f->value = f->at = place + 4;
		/* An empty value shares its line's end with the head. */
		f->at -= 2;
		f->state = FORM_VALUE;
		return true;
	}
	if (to - f->head <= HEAD_MAX)
		return false;
	f->state = FORM_END;
	return true;
}

/* True: *out is complete. */
static bool run_value(
	struct form_scan *f, const char *base, size_t to, struct form_field *out)
{
	size_t place;

	if (!find(f, base, to, mark_of(f), &place))
		return false;
	*out = (struct form_field){.name = span_make(base, 0),
		.value = f->value,
		.end = MAX(place, f->value)};
	read_head(span_make(base + f->head, f->value - f->head), out);
	f->at = place + f->n_mark;
	f->state = FORM_BOUNDARY;
	return true;
}

bool form_scan_next(
	struct form_scan *f, const char *base, size_t to, struct form_field *out)
{
	bool goes_on = true;

	while (goes_on) {
		switch (f->state) {
		case FORM_PREAMBLE:
			goes_on = run_preamble(f, base, to);
			break;
		case FORM_BOUNDARY:
			goes_on = run_boundary(f, base, to);
			break;
		case FORM_HEAD:
			goes_on = run_head(f, base, to);
			break;
		case FORM_VALUE:
			return run_value(f, base, to, out);
		default:
			return false;
		}
	}
	return false;
}
