/*
 * Owns the chunked transfer coding: a strict decoder (checks C13-C15) and the encoder's
 * size line.
 *
 * The decoder is a state machine over single bytes, but for the data, which is moved as a
 * whole. It never looks back, so any split of the input gives the same data and the same
 * verdict. Data is moved towards the front only, so the bytes behind the body stay where
 * they are. Limits are checked at the end of a size line, where the counts are the same
 * for any split.
 *
 * Called by the readers of request bodies (proxy, small server) and by the relay of
 * answers.
 */
#include "http/http_chunk.h"

#include "base/err.h"

#include <string.h>

enum chunk_state {
	CHUNK_SIZE,
	CHUNK_EXT_FIRST, /* behind ';' */
	CHUNK_EXT_NAME,
	CHUNK_EXT_VALUE_FIRST, /* behind '=' */
	CHUNK_EXT_VALUE,
	CHUNK_EXT_QUOTED,
	CHUNK_EXT_ESCAPED, /* behind a backslash */
	CHUNK_EXT_QUOTED_END,
	CHUNK_SIZE_LF,
	CHUNK_DATA,
	CHUNK_DATA_CR,
	CHUNK_DATA_LF,
	CHUNK_TRAILER,
	CHUNK_DONE,
	CHUNK_FAILED, /* opaque[0] is the failure */
};

void http_chunk_start(struct http_chunk *c, bool is_response, uint64_t max_data)
{
	*c = (struct http_chunk){.is_response = is_response, .max_data = max_data};
	http_scan_start(&c->trailer, HTTP_SCAN_TRAILER);
}

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The size is known; c is what follows it. */
static enum fail end_size(struct http_chunk *c, char byte)
{
	if (c->digits == 0 || (byte != ';' && byte != '\r'))
		return FAIL_BAD_CHUNK;
	if (c->left > c->max_data - c->data_bytes)
		return FAIL_BODY_TOO_LARGE;
	c->ext_bytes += byte == ';';
	c->state = byte == ';' ? CHUNK_EXT_FIRST : CHUNK_SIZE_LF;
	return FAIL_NONE;
}

static enum fail step_size(struct http_chunk *c, char byte)
{
	int digit = hex_value(byte);

	if (digit < 0)
		return end_size(c, byte);
	if (c->digits == 16)
		return FAIL_BAD_CHUNK;
	c->digits++;
	c->left = c->left << 4 | (unsigned)digit;
	return FAIL_NONE;
}

/* An extension ends at the next one or at the end of the line. */
static enum fail end_ext(struct http_chunk *c, char byte)
{
	if (byte != ';' && byte != '\r')
		return FAIL_BAD_CHUNK;
	c->state = byte == ';' ? CHUNK_EXT_FIRST : CHUNK_SIZE_LF;
	return FAIL_NONE;
}

/* First characters: a token's, or (values) a quote. */
static enum fail begin_ext_part(struct http_chunk *c, char byte)
{
	bool is_value = c->state == CHUNK_EXT_VALUE_FIRST;

	if (is_value && byte == '"')
		c->state = CHUNK_EXT_QUOTED;
	else if (http_is(byte, HTTP_TOKEN))
		c->state = is_value ? CHUNK_EXT_VALUE : CHUNK_EXT_NAME;
	else
		return FAIL_BAD_CHUNK;
	return FAIL_NONE;
}

static enum fail step_ext(struct http_chunk *c, char byte)
{
	switch ((enum chunk_state)c->state) {
	case CHUNK_EXT_FIRST:
	case CHUNK_EXT_VALUE_FIRST:
		return begin_ext_part(c, byte);
	case CHUNK_EXT_NAME:
		if (byte == '=') {
			c->state = CHUNK_EXT_VALUE_FIRST;
			return FAIL_NONE;
		}
		/* fall through */
	case CHUNK_EXT_VALUE:
		return http_is(byte, HTTP_TOKEN) ? FAIL_NONE : end_ext(c, byte);
	case CHUNK_EXT_QUOTED:
		if (byte == '"')
			c->state = CHUNK_EXT_QUOTED_END;
		else if (byte == '\\')
			c->state = CHUNK_EXT_ESCAPED;
		return http_is(byte, HTTP_TEXT) ? FAIL_NONE : FAIL_BAD_CHUNK;
	case CHUNK_EXT_ESCAPED:
		c->state = CHUNK_EXT_QUOTED;
		return http_is(byte, HTTP_TEXT) ? FAIL_NONE : FAIL_BAD_CHUNK;
	default: /* CHUNK_EXT_QUOTED_END */
		return end_ext(c, byte);
	}
}

static enum fail count_ext(struct http_chunk *c, char byte)
{
	if (byte != '\r' && ++c->ext_bytes > HTTP_CHUNK_EXT_MAX)
		return FAIL_CHUNK_EXTENSIONS;
	return step_ext(c, byte);
}

/* Of raw bytes too few are data. */
static bool is_overhead(const struct http_chunk *c, uint64_t raw)
{
	return raw > HTTP_CHUNK_OVERHEAD_MAX &&
	       (raw - HTTP_CHUNK_OVERHEAD_MAX) / 9 > c->data_bytes;
}

/* The end of a size line: data follows, or the trailer section. */
static enum fail end_size_line(struct http_chunk *c, char byte)
{
	if (byte != '\n')
		return FAIL_BAD_CHUNK;
	if (is_overhead(c, c->raw_bytes))
		return FAIL_CHUNK_OVERHEAD;
	c->state = c->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
	c->chunks += c->left > 0;
	c->digits = 0;
	return FAIL_NONE;
}

/* Any byte that is neither data nor trailer. */
static enum fail chunk_step(struct http_chunk *c, char byte)
{
	c->raw_bytes++;
	switch ((enum chunk_state)c->state) {
	case CHUNK_SIZE:
		return step_size(c, byte);
	case CHUNK_SIZE_LF:
		return end_size_line(c, byte);
	case CHUNK_DATA_CR:
		c->state = CHUNK_DATA_LF;
		return byte == '\r' ? FAIL_NONE : FAIL_BAD_CHUNK;
	case CHUNK_DATA_LF:
		c->state = CHUNK_SIZE;
		return byte == '\n' ? FAIL_NONE : FAIL_BAD_CHUNK;
	default:
		return count_ext(c, byte);
	}
}

/* Data from buf + i to buf + *out; returns how much. */
static size_t take_data(struct http_chunk *c, char *buf, size_t i, size_t n, size_t *out)
{
	size_t len = (size_t)MIN((uint64_t)(n - i), c->left);

	if (i != *out)
		memmove(buf + *out, buf + i, len);
	*out += len;
	c->left -= len;
	c->data_bytes += len;
	c->raw_bytes += len;
	if (c->left == 0)
		c->state = CHUNK_DATA_CR;
	return len;
}

/* The data of a chunk that is all there and has no extension, as almost every one of a
 * stream. n 0: it is no such chunk, or there is something to say of it. */
static inline struct span plain_chunk(const struct http_chunk *c, const char *p, size_t n)
{
	size_t size = 0, line = 0, most = MIN(n, (size_t)6);
	const char *data;
	int digit;

	for (; line < most && (digit = hex_value(p[line])) >= 0; line++)
		size = size << 4 | (unsigned)digit;
	line += 2;
	data = p + line;
	if (size == 0 || n < line + size + 2 || data[-2] != '\r' || data[-1] != '\n' ||
		data[size] != '\r' || data[size + 1] != '\n' ||
		size > c->max_data - c->data_bytes || is_overhead(c, c->raw_bytes + line))
		return span_make(NULL, 0);
	return span_make(data, size);
}

/* It is taken, all of its raw bytes. */
static inline void count_plain(struct http_chunk *c, struct span data, size_t raw)
{
	c->data_bytes += data.n;
	c->raw_bytes += raw;
	c->chunks++;
}

static inline bool is_between_chunks(const struct http_chunk *c)
{
	return c->state == CHUNK_SIZE && c->digits == 0;
}

/* Such a chunk at once, its data to buf + *out. Returns its bytes, or 0. */
static size_t take_plain(struct http_chunk *c, char *buf, size_t i, size_t n, size_t *out)
{
	struct span data = plain_chunk(c, buf + i, n - i);
	size_t raw = data.n > 0 ? (size_t)(data.p + data.n + 2 - (buf + i)) : 0;

	if (raw == 0)
		return 0;
	count_plain(c, data, raw);
	memmove(buf + *out, data.p, data.n);
	*out += data.n;
	return raw;
}

struct span http_chunk_alone(struct http_chunk *c, const char *buf, size_t n)
{
	struct span none = {NULL, 0}, data;

	if (!is_between_chunks(c))
		return none;
	data = plain_chunk(c, buf, n);
	if (data.n == 0 || data.p + data.n + 2 != buf + n)
		return none;
	count_plain(c, data, n);
	return data;
}

static enum fail take_trailer(struct http_chunk *c, const char *p, size_t n, size_t *used)
{
	enum fail why = FAIL_NONE;
	int r = http_scan_feed(&c->trailer, p, n, used, &why);

	c->trailer_len = c->trailer.at;
	if (r == 0)
		c->state = CHUNK_DONE;
	return r == ERR_PARSE ? why : FAIL_NONE;
}

static enum fail failure_of_worker(enum fail found)
{
	return found == FAIL_CHUNK_EXTENSIONS || found == FAIL_CHUNK_OVERHEAD ||
			       found == FAIL_TRAILER_TOO_LARGE
		       ? FAIL_WORKER_CHUNKS
		       : FAIL_WORKER_PROTOCOL;
}

static int chunk_fail(struct http_chunk *c, enum fail found, enum fail *why)
{
	*why = c->is_response ? failure_of_worker(found) : found;
	c->state = CHUNK_FAILED;
	c->opaque[0] = found;
	return ERR_PARSE;
}

int http_chunk_decode(struct http_chunk *c, char *buf, size_t n, size_t *data_len,
	size_t *used, enum fail *why)
{
	size_t i = 0, out = 0, len;
	enum fail found = c->state == CHUNK_FAILED ? (enum fail)c->opaque[0] : FAIL_NONE;

	while (i < n && found == FAIL_NONE && c->state != CHUNK_DONE) {
		if (is_between_chunks(c) && (len = take_plain(c, buf, i, n, &out)) > 0) {
			i += len;
		} else if (c->state == CHUNK_DATA) {
			i += take_data(c, buf, i, n, &out);
		} else if (c->state == CHUNK_TRAILER) {
			found = take_trailer(c, buf + i, n - i, &len);
			i += len;
		} else {
			found = chunk_step(c, buf[i]);
			i += found == FAIL_NONE;
		}
	}
	*data_len = out;
	*used = i;
	if (found != FAIL_NONE)
		return chunk_fail(c, found, why);
	return c->state == CHUNK_DONE ? 0 : ERR_AGAIN;
}

size_t http_chunk_line(uint64_t size, char out[HTTP_CHUNK_LINE_MAX])
{
	static const char digits[] = "0123456789abcdef";
	size_t n = 1;

	if (size >= 16 && size < 256) { /* as an event is */
		out[0] = digits[size >> 4];
		out[1] = digits[size & 15];
		out[2] = '\r';
		out[3] = '\n';
		return 4;
	}
	for (uint64_t rest = size >> 4; rest > 0; rest >>= 4)
		n++;
	for (size_t i = n; i-- > 0; size >>= 4)
		out[i] = digits[size & 15];
	out[n] = '\r';
	out[n + 1] = '\n';
	return n + 2;
}
