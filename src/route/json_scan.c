/*
 * The scanner of json_scan.h: a state for each place in the grammar where the text may be
 * cut, one small step for each state.
 *
 * A step reads as far as it can and returns a token, or SCAN_MORE for "no token yet, go
 * on". Long strings are skipped with SIMD and lists of integers eight bytes at a time;
 * everything else is read byte by byte. Every step reads base[s->at, to) only.
 */
#include "route/json_scan.h"

#ifdef __SSE2__
#	include <immintrin.h>
#endif

enum state {
	ST_VALUE,
	ST_FIRST_VALUE, /* after [ */
	ST_FIRST_KEY,   /* after { */
	ST_KEY,
	ST_COLON,
	ST_AFTER, /* after a value: at depth 0 the text is complete */
	ST_STRING,
	ST_ESCAPE,
	ST_HEX_4,
	ST_HEX_3,
	ST_HEX_2,
	ST_HEX_1,
	ST_LITERAL,
	ST_LOOSE,
	ST_LOOSE_STRING,
	ST_LOOSE_ESCAPE,
	ST_BAD,
	/* The number so far ends in: */
	ST_MINUS,
	ST_ZERO,
	ST_INT,
	ST_DOT,
	ST_FRAC,
	ST_E,
	ST_E_SIGN,
	ST_EXP,
	ST_NUMBER_END
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
	return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

/* The letters that may follow a backslash, except u. */
static bool is_escape(char c)
{
	switch (c) {
	case '"':
	case '\\':
	case '/':
	case 'b':
	case 'f':
	case 'n':
	case 'r':
	case 't':
		return true;
	default:
		return false;
	}
}

static bool is_special(char c)
{
	return c == '"' || c == '\\' || (unsigned char)c < 0x20;
}

static const char *find_special_bytes(const char *p, const char *end)
{
	while (p < end && !is_special(*p))
		p++;
	return p;
}

#ifdef __SSE2__
static const char *find_special_sse2(const char *p, const char *end)
{
	for (; end - p >= 16; p += 16) {
		unsigned mask = json_special_mask(p);

		if (mask != 0)
			return p + __builtin_ctz(mask);
	}
	return find_special_bytes(p, end);
}

/* A zero byte for each such byte of the 32 at p. */
__attribute__((target("avx2"))) static inline __m256i special_32(const char *p)
{
	__m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
	__m256i quote = _mm256_xor_si256(v, _mm256_set1_epi8('"'));
	__m256i backslash = _mm256_xor_si256(v, _mm256_set1_epi8('\\'));
	__m256i control = _mm256_subs_epu8(v, _mm256_set1_epi8(0x1f));

	return _mm256_min_epu8(_mm256_min_epu8(quote, backslash), control);
}

__attribute__((target("avx2"))) static inline unsigned zero_mask(__m256i v)
{
	return (unsigned)_mm256_movemask_epi8(
		_mm256_cmpeq_epi8(v, _mm256_setzero_si256()));
}

__attribute__((target("avx2"))) static const char *find_special_avx2(
	const char *p, const char *end)
{
	for (; end - p >= 128; p += 128) {
		__m256i low = _mm256_min_epu8(special_32(p), special_32(p + 32));
		__m256i high = _mm256_min_epu8(special_32(p + 64), special_32(p + 96));

		if (zero_mask(_mm256_min_epu8(low, high)) != 0)
			break;
	}
	for (; end - p >= 32; p += 32) {
		unsigned mask = zero_mask(special_32(p));

		if (mask != 0)
			return p + __builtin_ctz(mask);
	}
	return find_special_sse2(p, end);
}
#endif

const char *json_find_special(const char *p, const char *end)
{
#ifdef __SSE2__
	for (unsigned i = 0; i < 4 && end - p >= 16; i++, p += 16) {
		unsigned mask = json_special_mask(p);

		if (mask != 0)
			return p + __builtin_ctz(mask);
	}
	if (end - p >= 64 && __builtin_cpu_supports("avx2"))
		return find_special_avx2(p, end);
	return find_special_sse2(p, end);
#else
	return find_special_bytes(p, end);
#endif
}

void json_scan_init(struct json_scan *s, struct json_scan_opts opts)
{
	s->opts = opts;
	s->at = s->token = s->loose = 0;
	s->depth = 0;
	s->state = ST_VALUE;
	s->is_key = s->escaped = false;
	s->literal = "";
}

bool json_scan_is_done(const struct json_scan *s)
{
	return s->depth == 0 &&
	       (s->state == ST_AFTER || s->state == ST_ZERO || s->state == ST_INT ||
		       s->state == ST_FRAC || s->state == ST_EXP);
}

static enum json_event bad(struct json_scan *s)
{
	s->state = ST_BAD;
	return SCAN_BAD;
}

static bool in_object(const struct json_scan *s)
{
	return s->is_object[s->depth / 8] >> s->depth % 8 & 1;
}

static enum json_event report(
	struct json_scan *s, enum json_event event, size_t end, struct json_token *token)
{
	*token = (struct json_token){s->token, end, s->depth, s->escaped};
	return event;
}

/* A number or literal ended. */
static enum json_event end_scalar(
	struct json_scan *s, enum json_event event, struct json_token *token)
{
	s->state = ST_AFTER;
	if (s->depth > s->opts.all_depth)
		return SCAN_MORE;
	return report(s, event, s->at, token);
}

static enum json_event open_container(
	struct json_scan *s, bool object, struct json_token *token)
{
	unsigned depth = s->depth;
	enum json_event event = SCAN_MORE;

	s->token = s->at++;
	if (depth == JSON_STRICT_DEPTH) {
		s->loose = 1;
		s->state = ST_LOOSE;
		return SCAN_MORE;
	}
	s->escaped = false;
	if (depth <= s->opts.all_depth || depth <= s->opts.open_depth)
		event = report(
			s, object ? SCAN_OPEN_OBJECT : SCAN_OPEN_ARRAY, s->at, token);
	s->depth = ++depth;
	s->is_object[depth / 8] &= (uint8_t) ~(1u << depth % 8);
	s->is_object[depth / 8] |= (uint8_t)(object << depth % 8);
	s->state = object ? ST_FIRST_KEY : ST_FIRST_VALUE;
	return event;
}

static enum json_event close_container(
	struct json_scan *s, char c, struct json_token *token)
{
	if (s->depth == 0 || in_object(s) != (c == '}'))
		return bad(s);
	s->depth--;
	s->token = s->at++;
	s->escaped = false;
	s->state = ST_AFTER;
	if (s->depth > s->opts.all_depth && s->depth > s->opts.open_depth)
		return SCAN_MORE;
	return report(s, SCAN_CLOSE, s->at, token);
}

/*
 * Skips "1, 22,\n333," in a list whose numbers nobody wants. Stops before a number that
 * is long, odd, or not followed by a comma: the ordinary steps read that one. s->at is
 * where a value begins, before and after.
 */
static void skip_integers(struct json_scan *s, const char *base, size_t to)
{
	const char *p = base + s->at, *end = base + to;

	while (end - p >= 9) {
		uint64_t digits;
		unsigned n = json_count_digits(p, &digits);

		if (n == 0 || n == 8 || p[n] != ',' || (n > 1 && *p == '0'))
			break;
		p += n + 1;
		while (p < end && json_is_blank(*p))
			p++;
		s->at = (size_t)(p - base);
		s->state = ST_VALUE;
	}
}

static enum json_event begin_literal(struct json_scan *s, const char *rest)
{
	s->token = s->at++;
	s->escaped = false;
	s->literal = rest;
	s->state = ST_LITERAL;
	return SCAN_MORE;
}

static enum json_event step_colon(struct json_scan *s, char c)
{
	if (c != ':')
		return bad(s);
	s->at++;
	s->state = ST_VALUE;
	return SCAN_MORE;
}

static enum json_event step_after(struct json_scan *s, char c, struct json_token *token)
{
	if (c != ',')
		return c == ']' || c == '}' ? close_container(s, c, token) : bad(s);
	if (s->depth == 0)
		return bad(s);
	s->at++;
	s->state = in_object(s) ? ST_KEY : ST_VALUE;
	return SCAN_MORE;
}

static enum json_event end_string(struct json_scan *s, const char *base, size_t quote,
	size_t to, struct json_token *token)
{
	size_t end = s->at = quote + 1;

	s->state = s->is_key ? ST_COLON : ST_AFTER;
	/* The colon mostly follows at once. */
	if (s->is_key && end < to && base[end] == ':') {
		s->at++;
		s->state = ST_VALUE;
	}
	if (s->depth > s->opts.all_depth &&
		(s->is_key || end - s->token < s->opts.long_string))
		return SCAN_MORE;
	return report(s, s->is_key ? SCAN_KEY : SCAN_STRING, end, token);
}

/* The length of the whole and valid escape at p, else 0. */
static unsigned escape_length(const char *p, const char *end)
{
	if (end - p < 2)
		return 0;
	if (p[1] == 'u')
		return end - p >= 6 && is_hex(p[2]) && is_hex(p[3]) && is_hex(p[4]) &&
				       is_hex(p[5])
			       ? 6
			       : 0;
	return is_escape(p[1]) ? 2 : 0;
}

static enum json_event step_string(
	struct json_scan *s, const char *base, size_t to, struct json_token *token)
{
	const char *p = base + s->at, *end = base + to;

	for (;;) {
		unsigned n;

		/* Runs of escapes need no search between them. */
		if (p < end && *p != '\\')
			p = json_find_special_near(p, end);
		s->at = (size_t)(p - base);
		if (p == end)
			return SCAN_MORE;
		if (*p == '"')
			return end_string(s, base, s->at, to, token);
		if (*p != '\\')
			return bad(s);
		s->escaped = true;
		n = escape_length(p, end);
		if (n == 0)
			break;
		p += n;
	}
	s->at++;
	s->state = ST_ESCAPE;
	return SCAN_MORE;
}

/* Byte by byte: an escape that is cut, or wrong. */
static enum json_event step_escape(struct json_scan *s, char c)
{
	s->at++;
	if (s->state != ST_ESCAPE) {
		if (!is_hex(c))
			return bad(s);
		s->state = s->state == ST_HEX_1 ? ST_STRING : s->state + 1;
	} else if (c == 'u') {
		s->state = ST_HEX_4;
	} else if (is_escape(c)) {
		s->state = ST_STRING;
	} else {
		return bad(s);
	}
	return SCAN_MORE;
}

static enum json_event step_literal(
	struct json_scan *s, const char *base, size_t to, struct json_token *token)
{
	while (s->at < to && *s->literal != '\0') {
		if (base[s->at++] != *s->literal++)
			return bad(s);
	}
	if (*s->literal != '\0')
		return SCAN_MORE;
	switch (base[s->token]) {
	case 't':
		return end_scalar(s, SCAN_TRUE, token);
	case 'f':
		return end_scalar(s, SCAN_FALSE, token);
	default:
		return end_scalar(s, SCAN_NULL, token);
	}
}

/* ST_NUMBER_END: the number ended before c; ST_BAD: it may not end there. */
static uint8_t next_number_state(uint8_t state, char c)
{
	switch (state) {
	case ST_MINUS:
		return c == '0' ? ST_ZERO : is_digit(c) ? ST_INT : ST_BAD;
	case ST_ZERO:
	case ST_INT:
		if (is_digit(c))
			return state == ST_INT ? ST_INT : ST_BAD;
		if (c == '.')
			return ST_DOT;
		return (c | 0x20) == 'e' ? ST_E : ST_NUMBER_END;
	case ST_DOT:
		return is_digit(c) ? ST_FRAC : ST_BAD;
	case ST_FRAC:
		return is_digit(c) ? ST_FRAC : (c | 0x20) == 'e' ? ST_E : ST_NUMBER_END;
	case ST_E:
		if (c == '+' || c == '-')
			return ST_E_SIGN;
		return is_digit(c) ? ST_EXP : ST_BAD;
	case ST_E_SIGN:
		return is_digit(c) ? ST_EXP : ST_BAD;
	default:
		return is_digit(c) ? ST_EXP : ST_NUMBER_END;
	}
}

static enum json_event step_number(
	struct json_scan *s, const char *base, size_t to, struct json_token *token)
{
	for (; s->at < to; s->at++) {
		s->state = next_number_state(s->state, base[s->at]);
		if (s->state == ST_NUMBER_END)
			return end_scalar(s, SCAN_NUMBER, token);
		if (s->state == ST_BAD)
			return SCAN_BAD;
	}
	return SCAN_MORE;
}

static enum json_event begin_number(struct json_scan *s, char c, const char *base,
	size_t to, struct json_token *token)
{
	s->token = s->at++;
	s->escaped = false;
	s->state = c == '-' ? ST_MINUS : c == '0' ? ST_ZERO : ST_INT;
	return step_number(s, base, to, token);
}

static enum json_event begin_string(struct json_scan *s, bool is_key, const char *base,
	size_t to, struct json_token *token)
{
	s->token = s->at++;
	s->is_key = is_key;
	s->escaped = false;
	s->state = ST_STRING;
	return step_string(s, base, to, token);
}

static enum json_event step_value(struct json_scan *s, char c, const char *base,
	size_t to, struct json_token *token)
{
	switch (c) {
	case '"':
		return begin_string(s, false, base, to, token);
	case '{':
	case '[':
		return open_container(s, c == '{', token);
	case 't':
		return begin_literal(s, "rue");
	case 'f':
		return begin_literal(s, "alse");
	case 'n':
		return begin_literal(s, "ull");
	case ']':
		return s->state == ST_FIRST_VALUE ? close_container(s, c, token) : bad(s);
	default:
		break;
	}
	if (c != '-' && !is_digit(c))
		return bad(s);
	if (is_digit(c) && s->depth > s->opts.all_depth && !in_object(s)) {
		skip_integers(s, base, to);
		/* A comma was read: what follows may be of any kind. */
		if (s->at == to || !is_digit(base[s->at]))
			return SCAN_MORE;
		c = base[s->at];
	}
	return begin_number(s, c, base, to, token);
}

static enum json_event step_key(struct json_scan *s, char c, const char *base, size_t to,
	struct json_token *token)
{
	if (c == '"')
		return begin_string(s, true, base, to, token);
	if (c == '}' && s->state == ST_FIRST_KEY)
		return close_container(s, c, token);
	return bad(s);
}

/* Below the strict depth: brackets are counted and strings skipped. */
static enum json_event step_loose(struct json_scan *s, const char *base, size_t to)
{
	while (s->at < to) {
		char c = base[s->at++];

		if (c == '"') {
			s->state = ST_LOOSE_STRING;
			return SCAN_MORE;
		}
		if (c == '[' || c == '{')
			s->loose++;
		if ((c == ']' || c == '}') && --s->loose == 0) {
			s->state = ST_AFTER;
			return SCAN_MORE;
		}
	}
	return SCAN_MORE;
}

static enum json_event step_loose_string(struct json_scan *s, const char *base, size_t to)
{
	const char *p = json_find_special(base + s->at, base + to);

	s->at = (size_t)(p - base);
	if (s->at == to)
		return SCAN_MORE;
	s->at++;
	s->state = *p == '"' ? ST_LOOSE : *p == '\\' ? ST_LOOSE_ESCAPE : ST_LOOSE_STRING;
	return SCAN_MORE;
}

static bool skips_blanks(uint8_t state)
{
	return state <= ST_AFTER;
}

static enum json_event step(
	struct json_scan *s, const char *base, size_t to, struct json_token *token)
{
	char c = base[s->at];

	if (skips_blanks(s->state) && json_is_blank(c)) {
		s->at++;
		return SCAN_MORE;
	}
	switch ((enum state)s->state) {
	case ST_VALUE:
	case ST_FIRST_VALUE:
		return step_value(s, c, base, to, token);
	case ST_FIRST_KEY:
	case ST_KEY:
		return step_key(s, c, base, to, token);
	case ST_COLON:
		return step_colon(s, c);
	case ST_AFTER:
		return step_after(s, c, token);
	case ST_STRING:
		return step_string(s, base, to, token);
	case ST_ESCAPE:
	case ST_HEX_4:
	case ST_HEX_3:
	case ST_HEX_2:
	case ST_HEX_1:
		return step_escape(s, c);
	case ST_LITERAL:
		return step_literal(s, base, to, token);
	case ST_LOOSE:
		return step_loose(s, base, to);
	case ST_LOOSE_STRING:
		return step_loose_string(s, base, to);
	case ST_LOOSE_ESCAPE:
		s->at++;
		s->state = ST_LOOSE_STRING;
		return SCAN_MORE;
	case ST_BAD:
		return SCAN_BAD;
	default:
		return step_number(s, base, to, token);
	}
}

enum json_event json_scan_next(
	struct json_scan *s, const char *base, size_t to, struct json_token *token)
{
	if (to > UINT32_MAX)
		return bad(s);
	while (s->at < to) {
		enum json_event event = step(s, base, to, token);

		if (event != SCAN_MORE)
			return event;
	}
	return s->state == ST_BAD ? SCAN_BAD : SCAN_MORE;
}
