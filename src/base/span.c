/*
 * Comparing, trimming, splitting and reading numbers from spans.
 * Never reads a byte past n and never assumes a NUL. Used by every layer.
 */
#include "base/span.h"
#include "base/err.h"

#include <stdlib.h>

static unsigned char fold(char c)
{
	return c >= 'A' && c <= 'Z' ? (unsigned char)(c | 0x20) : (unsigned char)c;
}

int span_order(struct span a, struct span b)
{
	size_t n = MIN(a.n, b.n);
	int order = n > 0 ? memcmp(a.p, b.p, n) : 0;

	return order != 0 ? order : (a.n > b.n) - (a.n < b.n);
}

bool span_case_eq(struct span a, struct span b)
{
	if (a.n != b.n)
		return false;
	for (size_t i = 0; i < a.n; i++)
		if (fold(a.p[i]) != fold(b.p[i]))
			return false;
	return true;
}

bool span_starts(struct span a, struct span prefix)
{
	return a.n >= prefix.n && span_eq(span_make(a.p, prefix.n), prefix);
}

bool span_ends(struct span a, struct span suffix)
{
	if (a.n < suffix.n)
		return false;
	if (suffix.n == 0)
		return true;
	return span_eq(span_make(a.p + (a.n - suffix.n), suffix.n), suffix);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static bool is_space(char c)
{
	return is_blank(c) || (c >= '\n' && c <= '\r');
}

static struct span trim_by(struct span a, bool (*drop)(char))
{
	while (a.n > 0 && drop(a.p[0])) {
		a.p++;
		a.n--;
	}
	while (a.n > 0 && drop(a.p[a.n - 1]))
		a.n--;
	return a;
}

struct span span_trim(struct span a)
{
	return trim_by(a, is_blank);
}

struct span span_trim_all(struct span a)
{
	return trim_by(a, is_space);
}

bool span_next(struct span *rest, char sep, struct span *piece)
{
	const char *at;

	if (rest->n == 0)
		return false;
	at = memchr(rest->p, sep, rest->n);
	if (at == NULL) {
		*piece = *rest;
		*rest = span_make(rest->p + rest->n, 0);
		return true;
	}
	*piece = span_make(rest->p, (size_t)(at - rest->p));
	rest->n -= piece->n + 1;
	rest->p = at + 1;
	return true;
}

bool span_next_word(struct span *rest, struct span *word)
{
	size_t n = 0;

	while (rest->n > 0 && is_blank(rest->p[0])) {
		rest->p++;
		rest->n--;
	}
	if (rest->n == 0)
		return false;
	while (n < rest->n && !is_blank(rest->p[n]))
		n++;
	*word = span_make(rest->p, n);
	rest->p += n;
	rest->n -= n;
	return true;
}

/* So many digits always fit. */
#define U64_DIGITS 19

int span_to_u64(struct span a, uint64_t *out)
{
	uint64_t sum = 0;
	bool is_over = false;

	if (a.n == 0)
		return ERR_PARSE;
	for (size_t i = 0; i < a.n; i++) {
		unsigned digit = (unsigned char)a.p[i] - (unsigned)'0';

		if (digit > 9)
			return ERR_PARSE;
		if (i < U64_DIGITS) {
			sum = sum * 10 + digit;
			continue;
		}
		is_over |= __builtin_mul_overflow(sum, 10u, &sum);
		is_over |= __builtin_add_overflow(sum, digit, &sum);
	}
	if (is_over)
		return ERR_RANGE;
	*out = sum;
	return 0;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)fold(c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int span_hex_u64(struct span a, uint64_t *out)
{
	uint64_t sum = 0;

	if (a.n == 0)
		return ERR_PARSE;
	for (size_t i = 0; i < a.n; i++) {
		int digit = hex_digit(a.p[i]);

		if (digit < 0)
			return ERR_PARSE;
		sum = sum << 4 | (unsigned)digit;
	}
	if (a.n > 16)
		return ERR_RANGE;
	*out = sum;
	return 0;
}

char *span_dup(struct span a)
{
	char *copy = malloc(a.n + 1);

	if (copy == NULL)
		return NULL;
	if (a.n > 0)
		memcpy(copy, a.p, a.n);
	copy[a.n] = '\0';
	return copy;
}
