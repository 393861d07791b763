/*
 * Values of a target's query. See http_query.h.
 */
#include "http/http_query.h"

static bool decode(struct span in, bool is_form, char *out, size_t n)
{
	size_t len = 0;

	for (size_t i = 0; i < in.n; i++) {
		uint64_t byte = (unsigned char)in.p[i];

		if (byte == '+' && is_form) {
			byte = ' ';
		} else if (byte == '%') {
			if (in.n - i < 3 ||
				span_hex_u64(span_make(in.p + i + 1, 2), &byte) != 0)
				return false;
			i += 2;
		}
		if (byte == 0 || len + 1 >= n)
			return false;
		out[len++] = (char)byte;
	}
	if (n == 0)
		return false;
	out[len] = '\0';
	return true;
}

struct span http_head_query(const char *base, const struct http_head *h)
{
	struct span target = http_head_target(base, h);
	size_t skip = (size_t)h->path_len + 1;

	return skip <= target.n ? span_make(target.p + skip, target.n - skip)
				: span_make(NULL, 0);
}

bool http_query_value(struct span query, const char *name, char *out, size_t n)
{
	struct span pair;

	while (span_next(&query, '&', &pair)) {
		struct span key;

		if (!span_next(&pair, '=', &key))
			key = span_make(NULL, 0);
		if (span_is(key, name))
			return decode(pair, true, out, n);
	}
	return false;
}

bool http_path_decode(struct span in, char *out, size_t n)
{
	return decode(in, false, out, n);
}
