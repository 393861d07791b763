/*
 * One forward pass over a JSON text that arrives in pieces: tokens with their offsets. No
 * tree, no recursion, no allocation.
 *
 * Always true:
 *  - fed whole or byte by byte, the same text gives the same tokens;
 *  - nothing outside base[0, to) is read, whatever the bytes are;
 *  - the grammar is RFC 8259 with two leniencies: bytes above 0x7F in strings are taken
 *    as they are, and lone surrogate escapes pass (as in Python). Down to
 *    JSON_STRICT_DEPTH brackets are matched by kind; below that they are only counted,
 *    and nothing is reported;
 *  - offsets fit 32 bits: a text of 4 GiB or more is SCAN_BAD.
 * The text lies in one buffer that may move between calls. Called by route_key.c;
 * json_walk.c reads again what this has accepted.
 */
#ifndef ROUTE_JSON_SCAN_H
#define ROUTE_JSON_SCAN_H

#include "base/base.h"

#include <endian.h>
#include <string.h>

#ifdef __SSE2__
#	include <emmintrin.h>
#endif

/* As deep as jansson goes; Python's json, orjson and pydantic stop earlier. */
#define JSON_STRICT_DEPTH 2048

enum json_event {
	SCAN_MORE, /* everything up to `to` was read */
	SCAN_BAD,  /* no JSON text begins like this; stays so */
	SCAN_KEY,
	SCAN_STRING,
	SCAN_NUMBER,
	SCAN_TRUE,
	SCAN_FALSE,
	SCAN_NULL,
	SCAN_OPEN_OBJECT,
	SCAN_OPEN_ARRAY,
	SCAN_CLOSE
};

/*
 * Bytes [start, end) of the text, quotes included. CLOSE: start is the closing bracket.
 * depth counts the containers around the token: 0 for the document's value; OPEN and
 * CLOSE of one container report the same depth.
 */
struct json_token {
	size_t start, end;
	unsigned depth;
	bool escaped; /* the string or key has a backslash */
};

/*
 * The tokens that need not be reported. Tokens at a depth above all_depth are left out,
 * except containers up to open_depth and strings (not keys) of at least long_string
 * bytes, quotes included.
 */
struct json_scan_opts {
	unsigned all_depth, open_depth;
	size_t long_string;
};

struct json_scan {
	struct json_scan_opts opts;
	size_t at;    /* next byte to read */
	size_t token; /* where the token in progress starts */
	unsigned depth;
	size_t loose; /* containers open below JSON_STRICT_DEPTH */
	uint8_t state;
	bool is_key, escaped;
	const char *literal; /* what must follow of true, false, null */
	uint8_t is_object[JSON_STRICT_DEPTH / 8 +
			  1]; /* a bit for each depth; set when opened */
};

void json_scan_init(struct json_scan *s, struct json_scan_opts opts);
/* The next token of base[0, to). After SCAN_MORE, call again with more bytes (to never
 * shrinks). */
enum json_event json_scan_next(
	struct json_scan *s, const char *base, size_t to, struct json_token *token);
/* A whole text was read: one value, then only blanks. At the end of input a number at
 * depth 0 counts as finished. */
bool json_scan_is_done(const struct json_scan *s);

/* The bytes that may stand between tokens. */
static inline bool json_is_blank(char c)
{
	return (unsigned char)c <= ' ' &&
	       (c == ' ' || c == '\n' || c == '\r' || c == '\t');
}

/* The first quote, backslash or control byte (below 0x20) in [p, end), or end. */
const char *json_find_special(const char *p, const char *end);

#ifdef __SSE2__
/* A bit for each such byte of the 16 at p. */
static inline unsigned json_special_mask(const char *p)
{
	__m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
	__m128i hit = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')),
		_mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));

	hit = _mm_or_si128(hit, _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1f)), v));
	return (unsigned)_mm_movemask_epi8(hit);
}
#endif

/* The same as json_find_special(); quicker where the next 16 bytes hold one. */
static inline const char *json_find_special_near(const char *p, const char *end)
{
#ifdef __SSE2__
	if (end - p >= 16) {
		unsigned mask = json_special_mask(p);

		if (mask != 0)
			return p + __builtin_ctz(mask);
		p += 16;
	}
#endif
	return json_find_special(p, end);
}

/*
 * How many digits p begins with, 8 for eight or more, with at least 8 readable bytes.
 * *digits gets the bytes less '0' (lowest first), for json_digits_value().
 */
static inline unsigned json_count_digits(const char *p, uint64_t *digits)
{
	uint64_t x, other;

	memcpy(&x, p, sizeof(x));
	x = le64toh(x) ^ 0x3030303030303030ULL;
	*digits = x;
	other = ((x + 0x7676767676767676ULL) | x) & 0x8080808080808080ULL;
	return other == 0 ? 8 : (unsigned)__builtin_ctzll(other) / 8;
}

/* The value of the first n (1 to 8) digits found by json_count_digits(). */
static inline uint32_t json_digits_value(uint64_t digits, unsigned n)
{
	digits <<= 64 - 8 * n;
	digits = digits * 10 + (digits >> 8);
	return (uint32_t)((((digits & 0x000000FF000000FFULL) * 0x000F424000000064ULL) +
				  (((digits >> 16) & 0x000000FF000000FFULL) *
					  0x0000271000000001ULL)) >>
			  32);
}

#endif
