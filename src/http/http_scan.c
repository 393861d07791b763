/*
 * Owns the first look at the bytes of a head or trailer section, before any parser: where
 * it ends, and whether it holds bytes that parsers read in different ways (checks C2, C3,
 * C4, C8).
 *
 * A state machine that never looks back. Each state has a class of bytes that stay in it,
 * which are skipped in long steps; the byte that ends such a run is judged alone by
 * scan_step(). So one write and single bytes give the same verdict, and each byte is
 * looked at once, or twice where a line of the usual kind is not all here.
 *
 * Called for each read of a head (client connections, workers' responses, the small
 * server), and by http_chunk.c for trailers.
 */
#include "http/http_scan.h"

#include "base/err.h"
#include "http/http_head.h"

#include <string.h>
#ifdef __SSE2__
#	include <emmintrin.h>
#endif

/* Ranges that do not overlap, in the order of ASCII. */
/* clang-format off */
const uint8_t http_byte_class[256] = {
	['\t'] = HTTP_TEXT,
	[' '] = HTTP_TEXT,
	['!'] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	['"'] = HTTP_VISIBLE | HTTP_TEXT,
	['#' ... '\''] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	['(' ... ')'] = HTTP_VISIBLE | HTTP_TEXT,
	['*' ... '+'] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	[','] = HTTP_VISIBLE | HTTP_TEXT,
	['-' ... '.'] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	['/'] = HTTP_VISIBLE | HTTP_TEXT,
	['0' ... '9'] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	[':' ... '@'] = HTTP_VISIBLE | HTTP_TEXT,
	['A' ... 'Z'] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	['[' ... ']'] = HTTP_VISIBLE | HTTP_TEXT,
	['^' ... 'z'] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	['{'] = HTTP_VISIBLE | HTTP_TEXT,
	['|'] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	['}'] = HTTP_VISIBLE | HTTP_TEXT,
	['~'] = HTTP_TOKEN | HTTP_VISIBLE | HTTP_TEXT,
	[0x80 ... 0xff] = HTTP_TEXT,
};
/* clang-format on */

/* States of the start line come first: see in_start_line(). */
enum scan_state {
	SCAN_BEGIN,   /* nothing yet, or one empty line */
	SCAN_SKIP_LF, /* the LF of that empty line */
	SCAN_METHOD,
	SCAN_TARGET_FIRST, /* behind the first SP */
	SCAN_TARGET,
	SCAN_SHAPE, /* inside a text of fixed shape: see the shapes below */
	SCAN_REASON,
	SCAN_LINE_LF, /* the LF of any line but an empty one */
	SCAN_FIELD_FIRST,
	SCAN_NAME,
	SCAN_TRAILER_NAME, /* looked at byte by byte */
	SCAN_VALUE,
	SCAN_END_LF, /* the LF of the empty line */
	SCAN_DONE,
	SCAN_FAILED, /* opaque is the failure */
	SCAN_STATES
};

static const uint8_t class_that_stays[SCAN_STATES] = {
	[SCAN_METHOD] = HTTP_TOKEN,
	[SCAN_TARGET] = HTTP_VISIBLE,
	[SCAN_REASON] = HTTP_TEXT,
	[SCAN_NAME] = HTTP_TOKEN,
	[SCAN_VALUE] = HTTP_TEXT,
};

static const struct {
	uint32_t head_max;
	uint16_t fields_max;
} limits[] = {
	[HTTP_SCAN_REQUEST] = {HTTP_REQUEST_HEAD_MAX, HTTP_REQUEST_FIELDS_MAX},
	[HTTP_SCAN_RESPONSE] = {HTTP_RESPONSE_HEAD_MAX, HTTP_FIELDS_MAX},
	[HTTP_SCAN_TRAILER] = {HTTP_REQUEST_HEAD_MAX, HTTP_REQUEST_FIELDS_MAX},
};

/*
 * Texts of fixed shape: '9' is any digit, '5' one of 1-5, the rest itself. In SCAN_SHAPE
 * opaque is the place in the shape, and above it for requests "the major version is not
 * 1".
 */
static const char version_shape[] = "HTTP/9.9";
static const char status_shape[] = "HTTP/1.9 599";
#define SHAPE_PLACE 0xff
#define SHAPE_IS_OTHER_VERSION 0x100

void http_scan_start(struct http_scan *s, enum http_scan_kind kind)
{
	*s = (struct http_scan){.kind = (uint8_t)kind};
	if (kind == HTTP_SCAN_RESPONSE)
		s->state = SCAN_SHAPE;
	if (kind == HTTP_SCAN_TRAILER)
		s->state = SCAN_FIELD_FIRST;
}

static bool in_start_line(const struct http_scan *s)
{
	return s->state <= SCAN_REASON;
}

static enum fail line_is_too_long(const struct http_scan *s)
{
	return s->state <= SCAN_METHOD ? FAIL_MALFORMED_REQUEST : FAIL_LINE_TOO_LARGE;
}

static bool fits_shape(char want, char c)
{
	switch (want) {
	case '9':
		return c >= '0' && c <= '9';
	case '5':
		return c >= '1' && c <= '5';
	default:
		return c == want;
	}
}

static enum fail end_version(struct http_scan *s, char c)
{
	if (c != '\r')
		return FAIL_MALFORMED_REQUEST;
	if (s->opaque & SHAPE_IS_OTHER_VERSION)
		return FAIL_HTTP_VERSION;
	s->state = SCAN_LINE_LF;
	return FAIL_NONE;
}

static enum fail step_version(struct http_scan *s, char c)
{
	unsigned place = s->opaque & SHAPE_PLACE;

	if (place == sizeof(version_shape) - 1)
		return end_version(s, c);
	if (!fits_shape(version_shape[place], c))
		return FAIL_MALFORMED_REQUEST;
	if (place == 5 && c != '1')
		s->opaque |= SHAPE_IS_OTHER_VERSION;
	s->opaque++;
	return FAIL_NONE;
}

static enum fail step_status(struct http_scan *s, char c)
{
	if (s->opaque < sizeof(status_shape) - 1)
		return fits_shape(status_shape[s->opaque++], c) ? FAIL_NONE
								: FAIL_WORKER_PROTOCOL;
	if (c != ' ' && c != '\r')
		return FAIL_WORKER_PROTOCOL;
	s->state = c == ' ' ? SCAN_REASON : SCAN_LINE_LF;
	return FAIL_NONE;
}

/*
 * Trailers only: whether the name so far is the beginning of a framing field's. opaque
 * holds the number of characters, and above it one bit for each name that no longer fits.
 */
static const char *const framing_names[] = {"content-length", "transfer-encoding"};
#define NAME_PLACE 0xffffffffu

static void match_framing(struct http_scan *s, char c)
{
	size_t place = s->opaque & NAME_PLACE;
	char folded = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;

	for (unsigned i = 0; i < ARRAY_LEN(framing_names); i++) {
		const char *name = framing_names[i];

		if (place >= strlen(name) ||
			(name[place] != folded && (name[place] != '-' || c != '_')))
			s->opaque |= 1ull << (32 + i);
	}
	s->opaque++;
}

static bool is_framing(const struct http_scan *s)
{
	for (unsigned i = 0; i < ARRAY_LEN(framing_names); i++) {
		if (!(s->opaque & 1ull << (32 + i)) &&
			(s->opaque & NAME_PLACE) == strlen(framing_names[i]))
			return true;
	}
	return false;
}

static enum fail begin_field(struct http_scan *s, char c)
{
	if (c == '\r') {
		s->state = SCAN_END_LF;
		return FAIL_NONE;
	}
	if (!http_is(c, HTTP_TOKEN))
		return FAIL_BAD_HEADER;
	if (s->fields == limits[s->kind].fields_max)
		return FAIL_TOO_MANY_FIELDS;
	s->fields++;
	s->state = SCAN_NAME;
	if (s->kind == HTTP_SCAN_TRAILER) {
		s->state = SCAN_TRAILER_NAME;
		s->opaque = 0;
		match_framing(s, c);
	}
	return FAIL_NONE;
}

static enum fail step_trailer_name(struct http_scan *s, char c)
{
	if (c == ':') {
		s->state = SCAN_VALUE;
		return is_framing(s) ? FAIL_BAD_FRAMING : FAIL_NONE;
	}
	if (!http_is(c, HTTP_TOKEN))
		return FAIL_BAD_HEADER;
	match_framing(s, c);
	return FAIL_NONE;
}

static enum fail begin_request(struct http_scan *s, char c)
{
	if (c == '\r' && s->skipped == 0)
		s->state = SCAN_SKIP_LF;
	else if (http_is(c, HTTP_TOKEN))
		s->state = SCAN_METHOD;
	else
		return FAIL_MALFORMED_REQUEST;
	return FAIL_NONE;
}

static enum fail step_target(struct http_scan *s, char c)
{
	if (c != ' ')
		return c == '\r' ? FAIL_MALFORMED_REQUEST : FAIL_BAD_TARGET;
	s->state = SCAN_SHAPE;
	s->opaque = 0;
	return FAIL_NONE;
}

/* Goes on to next if c is what must come here. */
static enum fail expect(
	struct http_scan *s, char c, char want, enum scan_state next, enum fail why)
{
	if (c != want)
		return why;
	s->state = (uint8_t)next;
	return FAIL_NONE;
}

/* Judges one byte that does not stay in the state. */
static enum fail scan_step(struct http_scan *s, char c)
{
	enum fail why = FAIL_NONE;

	switch ((enum scan_state)s->state) {
	case SCAN_BEGIN:
		return begin_request(s, c);
	case SCAN_SKIP_LF:
		s->skipped = 2;
		s->line_start = s->at + 1;
		return expect(s, c, '\n', SCAN_BEGIN, FAIL_MALFORMED_REQUEST);
	case SCAN_METHOD:
		return expect(s, c, ' ', SCAN_TARGET_FIRST, FAIL_MALFORMED_REQUEST);
	case SCAN_TARGET_FIRST:
		s->state = SCAN_TARGET;
		return http_is(c, HTTP_VISIBLE) ? FAIL_NONE : FAIL_MALFORMED_REQUEST;
	case SCAN_TARGET:
		return step_target(s, c);
	case SCAN_SHAPE:
		return s->kind == HTTP_SCAN_REQUEST ? step_version(s, c)
						    : step_status(s, c);
	case SCAN_REASON:
	case SCAN_VALUE:
		return expect(s, c, '\r', SCAN_LINE_LF, FAIL_BAD_HEADER);
	case SCAN_LINE_LF:
		why = expect(s, c, '\n', SCAN_FIELD_FIRST, FAIL_BAD_HEADER);
		s->line_start = s->at + 1;
		return why;
	case SCAN_FIELD_FIRST:
		return begin_field(s, c);
	case SCAN_NAME:
		return expect(s, c, ':', SCAN_VALUE, FAIL_BAD_HEADER);
	case SCAN_TRAILER_NAME:
		return step_trailer_name(s, c);
	case SCAN_END_LF:
		return expect(s, c, '\n', SCAN_DONE, FAIL_BAD_HEADER);
	case SCAN_DONE:
	case SCAN_FAILED:
	case SCAN_STATES:
		break;
	}
	return FAIL_NONE;
}

/* How many bytes from p on have one of the class bits. */
static size_t table_run(const char *p, size_t n, uint8_t class_bits)
{
	size_t i = 0;

	while (i < n && http_is(p[i], class_bits))
		i++;
	return i;
}

#ifdef __SSE2__
/* Sixteen bytes at once: a set bit for each that is no visible (or, is_text, no text)
 * byte. */
static unsigned bytes_outside(const char *p, bool is_text)
{
	__m128i v = _mm_loadu_si128((const __m128i *)p);
	__m128i low = _mm_set1_epi8(is_text ? 0x1f : 0x20), del = _mm_set1_epi8(0x7f);
	__m128i is_low = _mm_cmpeq_epi8(_mm_min_epu8(v, low), v);
	__m128i is_high = _mm_cmpeq_epi8(_mm_max_epu8(v, del), v);

	if (is_text) {
		is_low = _mm_andnot_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('\t')), is_low);
		is_high = _mm_cmpeq_epi8(v, del);
	}
	return (unsigned)_mm_movemask_epi8(_mm_or_si128(is_low, is_high));
}

static size_t long_run(const char *p, size_t n, uint8_t class_bits)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16) {
		unsigned outside = bytes_outside(p + i, class_bits == HTTP_TEXT);

		if (outside != 0)
			return i + (size_t)__builtin_ctz(outside);
	}
	return i + table_run(p + i, n - i, class_bits);
}
/* A set bit for each of sixteen bytes that is no letter, digit or '-': what names are
 * made of. */
static unsigned bytes_outside_names(const char *p)
{
	__m128i v = _mm_loadu_si128((const __m128i *)p);
	__m128i letter =
		_mm_sub_epi8(_mm_or_si128(v, _mm_set1_epi8(0x20)), _mm_set1_epi8('a'));
	__m128i digit = _mm_sub_epi8(v, _mm_set1_epi8('0'));
	__m128i is_letter =
		_mm_cmpeq_epi8(_mm_min_epu8(letter, _mm_set1_epi8(25)), letter);
	__m128i is_digit = _mm_cmpeq_epi8(_mm_min_epu8(digit, _mm_set1_epi8(9)), digit);
	__m128i is_dash = _mm_cmpeq_epi8(v, _mm_set1_epi8('-'));

	return ~(unsigned)_mm_movemask_epi8(
		       _mm_or_si128(is_letter, _mm_or_si128(is_digit, is_dash))) &
	       0xffff;
}

static size_t token_run(const char *p, size_t n)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16) {
		unsigned outside = bytes_outside_names(p + i);

		if (outside != 0) {
			i += (size_t)__builtin_ctz(outside);
			break;
		}
	}
	return i + table_run(p + i, n - i, HTTP_TOKEN);
}
#else
#	define long_run table_run
#	define token_run(p, n) table_run(p, n, HTTP_TOKEN)
#endif

static size_t run_length(const struct http_scan *s, const char *p, size_t n)
{
	uint8_t class_bits = class_that_stays[s->state];

	if (class_bits == 0)
		return 0;
	if (in_start_line(s))
		n = MIN(n, s->line_start + HTTP_LINE_MAX - s->at);
	return class_bits == HTTP_TOKEN ? token_run(p, n) : long_run(p, n, class_bits);
}

/*
 * The usual form of a head line, read at once if all of it is here: the
 * version of a request, the version and status of an answer, a field line. 0: it is not
 * all here, or not of the usual kind, and is then looked at byte by byte.
 */
static size_t usual_version(const struct http_scan *s, const char *p, size_t n)
{
	static const char usual[] = "HTTP/1.1\r";
	size_t len = sizeof(usual) - 1;

	if (s->opaque != 0 || n < len || memcmp(p, usual, len) != 0 ||
		s->at - s->line_start + len > HTTP_LINE_MAX)
		return 0;
	return len;
}

static size_t usual_status(const struct http_scan *s, const char *p, size_t n)
{
	static const char usual[] = "HTTP/1.1 200 ";
	size_t len = sizeof(usual) - 1;

	return s->opaque == 0 && n >= len && memcmp(p, usual, len) == 0 ? len : 0;
}

static size_t usual_field(const char *p, size_t n)
{
	size_t i = token_run(p, n);

	if (i == 0 || i == n || p[i] != ':')
		return 0;
	i++;
	i += long_run(p + i, n - i, HTTP_TEXT);
	return n - i >= 2 && p[i] == '\r' && p[i + 1] == '\n' ? i + 2 : 0;
}

static size_t take_usual(struct http_scan *s, const char *p, size_t n)
{
	size_t len = 0;

	if (s->state == SCAN_FIELD_FIRST && s->kind != HTTP_SCAN_TRAILER &&
		s->fields < limits[s->kind].fields_max) {
		len = usual_field(p, n);
		if (len > 0) {
			s->fields++;
			s->line_start = s->at + (uint32_t)len;
		}
	} else if (s->state == SCAN_SHAPE && s->kind == HTTP_SCAN_REQUEST) {
		len = usual_version(s, p, n);
		if (len > 0)
			s->state = SCAN_LINE_LF;
	} else if (s->state == SCAN_SHAPE) {
		len = usual_status(s, p, n);
		if (len > 0)
			s->state = SCAN_REASON;
	}
	s->at += (uint32_t)len;
	return len;
}

static bool is_limit(enum fail found)
{
	return found == FAIL_LINE_TOO_LARGE || found == FAIL_HEAD_TOO_LARGE ||
	       found == FAIL_TOO_MANY_FIELDS;
}

/* As it is said of this kind. */
static enum fail failure_of(const struct http_scan *s, enum fail found)
{
	if (s->kind == HTTP_SCAN_RESPONSE)
		return is_limit(found) ? FAIL_WORKER_HEAD_TOO_LARGE
				       : FAIL_WORKER_PROTOCOL;
	return s->kind == HTTP_SCAN_TRAILER && is_limit(found) ? FAIL_TRAILER_TOO_LARGE
							       : found;
}

/* A failed scan stays failed, whatever comes. */
static int scan_fail(struct http_scan *s, enum fail found, enum fail *why)
{
	*why = found;
	s->state = SCAN_FAILED;
	s->opaque = *why;
	return ERR_PARSE;
}

/* The byte at s->at, after the run before it. */
static enum fail scan_byte(struct http_scan *s, char c)
{
	if (in_start_line(s) && s->at - s->line_start >= HTTP_LINE_MAX && c != '\r')
		return line_is_too_long(s);
	return scan_step(s, c);
}

int http_scan_feed(
	struct http_scan *s, const char *p, size_t n, size_t *used, enum fail *why)
{
	uint32_t head_max = limits[s->kind].head_max, begin = s->at;
	size_t end = MIN(n, head_max - begin), i = 0;
	enum fail found = FAIL_NONE;

	*used = 0;
	if (s->state == SCAN_FAILED)
		return scan_fail(s, (enum fail)s->opaque, why);
	while (i < end && s->state != SCAN_DONE) {
		size_t run = take_usual(s, p + i, end - i);

		if (run > 0) {
			i += run;
			continue;
		}
		run = run_length(s, p + i, end - i);
		i += run;
		s->at += (uint32_t)run;
		if (i == end)
			break;
		found = scan_byte(s, p[i]);
		if (found != FAIL_NONE)
			break;
		i++;
		s->at++;
	}
	*used = i;
	if (s->state == SCAN_DONE)
		return 0;
	if (found == FAIL_NONE && s->at == head_max)
		found = FAIL_HEAD_TOO_LARGE;
	return found == FAIL_NONE ? ERR_AGAIN : scan_fail(s, failure_of(s, found), why);
}

int http_scan_run(struct http_scan *s, const char *buf, size_t n, uint32_t *head_len,
	enum fail *why)
{
	size_t used;
	int r;

	assert(n >= s->at);
	r = http_scan_feed(s, buf + s->at, n - s->at, &used, why);
	if (r == 0)
		*head_len = s->at;
	return r;
}
